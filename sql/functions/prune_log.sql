-- Drops the oldest day partition of the log that ended before p_before and raises first_off, so that a
-- reader that was not there in time stops loudly instead of jumping.  Returns its name, or no row.
CREATE OR REPLACE FUNCTION postrider.prune_log(p_before timestamptz, p_dry_run boolean)
RETURNS SETOF text
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_name text;
BEGIN
    SELECT c.relname INTO v_name
    FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
    WHERE i.inhparent = 'postrider.log'::regclass AND c.relname ~ '^log_[0-9]{8}$'
      AND to_date(right(c.relname, 8), 'YYYYMMDD') + 1 <= (p_before AT TIME ZONE 'UTC')::date
    ORDER BY c.relname LIMIT 1;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    IF NOT p_dry_run THEN
        PERFORM set_config('lock_timeout', '200ms', true);
        LOCK TABLE ONLY postrider.log IN ACCESS EXCLUSIVE MODE;
        EXECUTE format('LOCK TABLE postrider.%I IN ACCESS EXCLUSIVE MODE', v_name);
        EXECUTE format('UPDATE postrider.log_head h SET first_off = greatest(h.first_off, d.off + 1)
            FROM (SELECT topic, part, max(off) AS off FROM postrider.%I GROUP BY topic, part) d
            WHERE h.topic = d.topic AND h.part = d.part', v_name);
        EXECUTE format('DROP TABLE postrider.%I', v_name);
    END IF;
    RETURN NEXT v_name;
END
$$;
GRANT EXECUTE ON FUNCTION postrider.prune_log(timestamptz, boolean) TO postrider_maint, postrider_relay;
