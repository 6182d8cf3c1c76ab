-- Makes the lowest parked event of each stream due, if it only waited and its turn has come: called, under
-- the streams' row locks, by whatever moves a stream or parks an event.
CREATE OR REPLACE FUNCTION postrider.wake_streams(p_consumer smallint, p_type text[], p_aggregate text[])
RETURNS void
LANGUAGE sql
SET search_path = pg_catalog, pg_temp
AS $$
    UPDATE postrider.parked p SET state = 'retry', due_at = clock_timestamp()
    FROM (SELECT DISTINCT u.t, u.a FROM unnest(p_type, p_aggregate) AS u(t, a)) u
    JOIN postrider.stream s ON s.consumer = p_consumer AND s.aggregate_type = u.t
                           AND s.aggregate_id = u.a AND s.parked > 0
    CROSS JOIN LATERAL (
        SELECT q.id, q.state, coalesce(q.prev, q.version - 1) AS expected FROM postrider.parked q
        WHERE q.side = 'consumer' AND q.reader = p_consumer AND q.aggregate_type = u.t
          AND q.aggregate_id = u.a AND q.holds
        ORDER BY q.version, q.id LIMIT 1) low
    WHERE p.id = low.id AND low.state = 'waiting' AND low.expected <= s.version
$$;
