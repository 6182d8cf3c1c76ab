-- How many events a relay or consumer keeps back, by state, and when the oldest of each was parked.  It reads
-- the differences that postrider.count_parked() has written, never the events; once they are many, it
-- makes one row of each state's.
CREATE OR REPLACE FUNCTION postrider.parked_counts(p_side text, p_reader smallint)
RETURNS TABLE (state text, n bigint, oldest_at timestamptz)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off -- plans are kept, and may be made while the tables are still empty
AS $$
BEGIN
    IF EXISTS (SELECT FROM postrider.parked_count c
               WHERE c.side = p_side AND c.reader = p_reader OFFSET 100) THEN
        WITH taken AS (
            DELETE FROM postrider.parked_count c
            WHERE c.ctid = ANY (ARRAY(
                SELECT t.ctid FROM postrider.parked_count t
                WHERE t.side = p_side AND t.reader = p_reader LIMIT 10000 FOR UPDATE SKIP LOCKED))
            RETURNING c.state, c.n)
        INSERT INTO postrider.parked_count (side, reader, state, n)
        SELECT p_side, p_reader, t.state, sum(t.n) FROM taken t GROUP BY t.state HAVING sum(t.n) <> 0;
    END IF;
    RETURN QUERY
        SELECT s.state,
               (SELECT coalesce(sum(c.n), 0)::bigint FROM postrider.parked_count c
                WHERE c.side = p_side AND c.reader = p_reader AND c.state = s.state),
               (SELECT min(p.first_at) FROM postrider.parked p
                WHERE p.side = p_side AND p.reader = p_reader AND p.state = s.state)
        FROM unnest(ARRAY['waiting', 'retry', 'dead']) WITH ORDINALITY AS s(state, place) ORDER BY s.place;
END
$$;
GRANT EXECUTE ON FUNCTION postrider.parked_counts(text, smallint) TO postrider_relay, postrider_consumer;
