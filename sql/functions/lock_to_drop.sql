-- Takes the locks that dropping a partition needs, in the order in which writers take theirs.  Writers that come
-- meanwhile wait behind it, so it gives up soon and tries again: three times 200 ms.
-- Returns NULL, or who is in the way, in words.  What is looked at after it, in a statement of its own, cannot
-- change any more.
-- Errors: PR023 the transaction is not READ COMMITTED, so later statements do not see what came before the lock.
CREATE OR REPLACE FUNCTION postrider.lock_to_drop(p_table text, p_part regclass) RETURNS text
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_parent regclass := format('postrider.%I', p_table)::regclass;
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION USING ERRCODE = 'PR023',
            MESSAGE = 'dropping a partition needs the isolation level READ COMMITTED',
            HINT = 'BEGIN ISOLATION LEVEL READ COMMITTED';
    END IF;
    PERFORM set_config('lock_timeout', '200ms', true);
    FOR v_try IN 1..3 LOOP
        BEGIN
            EXECUTE format('LOCK TABLE ONLY %s IN ACCESS EXCLUSIVE MODE', v_parent);
            EXECUTE format('LOCK TABLE %s IN ACCESS EXCLUSIVE MODE', p_part);
            RETURN NULL;
        EXCEPTION WHEN lock_not_available THEN
            PERFORM pg_sleep(0.05 + random() * 0.1);
        END;
    END LOOP;
    RETURN (SELECT format('in use by %s', coalesce(string_agg(w.who, ', '), 'a transaction that has ended meanwhile'))
            FROM (SELECT DISTINCT format('pid %s (%s)', l.pid, coalesce(nullif(a.application_name, ''), 'unnamed')) AS who
                  FROM pg_locks l LEFT JOIN pg_stat_activity a ON a.pid = l.pid
                  WHERE l.granted AND l.relation IN (v_parent, p_part) AND l.pid <> pg_backend_pid()
                    AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
                  ORDER BY who LIMIT 5) w);
END
$$;
