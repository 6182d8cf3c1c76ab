-- Drops the oldest day partition of the log that ended before p_before and raises first_off, so that a
-- reader that was not there in time stops loudly instead of jumping.  Returns its name and NULL, or the name
-- and what holds it back; no row: nothing is that old.
-- Errors: PR023 the transaction is not READ COMMITTED.
CREATE OR REPLACE FUNCTION postrider.prune_log(p_before timestamptz, p_dry_run boolean)
RETURNS TABLE (partition_name text, held_by text)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    SELECT c.relname INTO partition_name
    FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
    WHERE i.inhparent = 'postrider.log'::regclass AND c.relname ~ '^log_[0-9]{8}$'
      AND to_date(right(c.relname, 8), 'YYYYMMDD') + 1 <= (p_before AT TIME ZONE 'UTC')::date
    ORDER BY c.relname LIMIT 1;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    IF NOT p_dry_run THEN
        held_by := postrider.lock_to_drop('log', format('postrider.%I', partition_name)::regclass);
        IF held_by IS NULL THEN
            -- By the index, one look for each head: appends wait meanwhile.
            EXECUTE format('UPDATE postrider.log_head h SET first_off = d.off + 1
                FROM (SELECT k.topic, k.part, (SELECT p.off FROM postrider.%I p
                          WHERE p.topic = k.topic AND p.part = k.part ORDER BY p.off DESC LIMIT 1) AS off
                      FROM postrider.log_head k) d
                WHERE h.topic = d.topic AND h.part = d.part AND h.first_off <= d.off', partition_name);
            EXECUTE format('DROP TABLE postrider.%I', partition_name);
        END IF;
    END IF;
    RETURN NEXT;
END
$$;
GRANT EXECUTE ON FUNCTION postrider.prune_log(timestamptz, boolean) TO postrider_maint, postrider_relay;
