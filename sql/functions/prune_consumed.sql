-- Drops the oldest day partition of the dedupe records that ended before p_before and raises every
-- consumer's floor: an id older than that can no longer be known.  A partition with an open parked or
-- dead event stays, since its replay needs the record.  Returns name and NULL, or what holds it; or no row.
-- Errors: PR023 the transaction is not READ COMMITTED.
CREATE OR REPLACE FUNCTION postrider.prune_consumed(p_before timestamptz, p_dry_run boolean)
RETURNS TABLE (partition_name text, held_by text)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_end date;
BEGIN
    SELECT c.relname, to_date(right(c.relname, 8), 'YYYYMMDD') + 1 INTO partition_name, v_end
    FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
    WHERE i.inhparent = 'postrider.consumed'::regclass AND c.relname ~ '^consumed_[0-9]{8}$'
      AND to_date(right(c.relname, 8), 'YYYYMMDD') + 1 <= (p_before AT TIME ZONE 'UTC')::date
    ORDER BY c.relname LIMIT 1;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    IF NOT p_dry_run THEN
        held_by := postrider.lock_to_drop('consumed', format('postrider.%I', partition_name)::regclass);
        IF held_by IS NOT NULL THEN
            RETURN NEXT;
            RETURN;
        END IF;
    END IF;
    EXECUTE format('SELECT format(''consumer %%s has event %%s open'', n.name, c.event_id)
        FROM postrider.%I c JOIN postrider.consumer n USING (consumer)
        WHERE c.outcome IN (''P'', ''D'') LIMIT 1', partition_name) INTO held_by;
    IF held_by IS NULL AND NOT p_dry_run THEN
        EXECUTE format('DROP TABLE postrider.%I', partition_name);
        UPDATE postrider.consumer SET floor = greatest(floor, v_end::timestamp AT TIME ZONE 'UTC');
    END IF;
    RETURN NEXT;
END
$$;
GRANT EXECUTE ON FUNCTION postrider.prune_consumed(timestamptz, boolean) TO postrider_maint, postrider_consumer;
