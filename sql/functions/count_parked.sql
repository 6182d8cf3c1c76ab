-- Keeps postrider.parked_count: each statement that changes postrider.parked, whoever runs it, adds the
-- difference that it makes.  It only adds rows, so that no two transactions ever wait for each other here.
CREATE OR REPLACE FUNCTION postrider.count_parked() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF TG_OP = 'INSERT' THEN
        INSERT INTO postrider.parked_count (side, reader, state, n)
        SELECT a.side, a.reader, a.state, count(*) FROM added a GROUP BY 1, 2, 3;
    ELSIF TG_OP = 'DELETE' THEN
        INSERT INTO postrider.parked_count (side, reader, state, n)
        SELECT g.side, g.reader, g.state, -count(*) FROM gone g GROUP BY 1, 2, 3;
    ELSE
        INSERT INTO postrider.parked_count (side, reader, state, n)
        SELECT d.side, d.reader, d.state, sum(d.n)
        FROM (SELECT a.side, a.reader, a.state, 1 AS n FROM added a
              UNION ALL SELECT g.side, g.reader, g.state, -1 FROM gone g) d
        GROUP BY 1, 2, 3 HAVING sum(d.n) <> 0;
    END IF;
    RETURN NULL;
END
$$;
DO $$
BEGIN
    -- Once only: an init must not lock the table of consumers at work.
    IF NOT EXISTS (SELECT FROM pg_trigger t
                   WHERE t.tgrelid = 'postrider.parked'::regclass AND t.tgname = 'parked_added') THEN
        CREATE TRIGGER parked_added AFTER INSERT ON postrider.parked
            REFERENCING NEW TABLE AS added FOR EACH STATEMENT EXECUTE FUNCTION postrider.count_parked();
        CREATE TRIGGER parked_changed AFTER UPDATE ON postrider.parked
            REFERENCING OLD TABLE AS gone NEW TABLE AS added
            FOR EACH STATEMENT EXECUTE FUNCTION postrider.count_parked();
        CREATE TRIGGER parked_gone AFTER DELETE ON postrider.parked
            REFERENCING OLD TABLE AS gone FOR EACH STATEMENT EXECUTE FUNCTION postrider.count_parked();
    END IF;
END
$$;
