-- Drops the oldest day partition of the outbox that ended before p_before, if every relay has passed it.
-- Ids come from writers, so a late one may still put a row into an old day: the partition is locked
-- first and looked at after, in statements of their own (a check before the lock loses that event).  A look
-- before all that only spares writers a lock that would be in vain.
-- Returns the partition's name and NULL, or the name and what holds it back; no row: nothing is that old.
-- Errors: PR023 the transaction is not READ COMMITTED, so it could not see what came before the lock.
CREATE OR REPLACE FUNCTION postrider.prune_outbox(p_before timestamptz, p_dry_run boolean)
RETURNS TABLE (partition_name text, held_by text)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_part regclass;
BEGIN
    SELECT i.inhrelid::regclass, c.relname INTO v_part, partition_name
    FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
    WHERE i.inhparent = 'postrider.outbox'::regclass AND c.relname ~ '^outbox_[0-9]{8}$'
      AND to_date(right(c.relname, 8), 'YYYYMMDD') + 1 <= (p_before AT TIME ZONE 'UTC')::date
    ORDER BY c.relname LIMIT 1;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    held_by := postrider.outbox_holder(v_part);
    IF held_by IS NULL AND NOT p_dry_run THEN
        held_by := postrider.lock_to_drop('outbox', v_part);
        IF held_by IS NULL THEN
            held_by := postrider.outbox_holder(v_part);
        END IF;
        IF held_by IS NULL THEN
            EXECUTE format('DROP TABLE %s', v_part);
        END IF;
    END IF;
    RETURN NEXT;
END
$$;
GRANT EXECUTE ON FUNCTION postrider.prune_outbox(timestamptz, boolean) TO postrider_maint, postrider_relay;
