-- Makes the day partitions of outbox, log and consumed from today to p_ahead days on.  Called by init
-- and by the janitor; one caller at a time, others return at once.  Returns how many were made.
-- A day whose rows already lie in a DEFAULT partition (clock skew) takes them over, id and xid kept.
CREATE OR REPLACE FUNCTION postrider.make_partitions(p_ahead int) RETURNS int
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_today date := (clock_timestamp() AT TIME ZONE 'UTC')::date;
    v_day date;
    v_made int := 0;
BEGIN
    PERFORM FROM postrider.janitor WHERE task = 'partitions' FOR UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        RETURN 0;
    END IF;
    PERFORM set_config('lock_timeout', '200ms', true);
    IF to_regclass('postrider.consumed_before') IS NULL THEN
        -- A new consumer that reads a month of history is normal.
        EXECUTE format('CREATE TABLE postrider.consumed_before PARTITION OF postrider.consumed
                        FOR VALUES FROM (%L) TO (%L)', '4713-01-01 BC', v_today);
    END IF;
    FOR v_day IN SELECT v_today + n FROM generate_series(0, p_ahead) n LOOP
        v_made := v_made
            + postrider.make_partition('outbox', v_day, postrider.day_floor(v_day)::text,
                                       postrider.day_floor(v_day + 1)::text)
            + postrider.make_partition('log', v_day, v_day::text || ' 00:00+00', (v_day + 1)::text || ' 00:00+00')
            + postrider.make_partition('consumed', v_day, v_day::text, (v_day + 1)::text);
    END LOOP;
    UPDATE postrider.janitor SET last_at = clock_timestamp() WHERE task = 'partitions';
    RETURN v_made;
END
$$;
GRANT EXECUTE ON FUNCTION postrider.make_partitions(int) TO postrider_maint, postrider_relay, postrider_consumer;
