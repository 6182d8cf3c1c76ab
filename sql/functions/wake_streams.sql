-- Makes the lowest parked event of each stream due, if it only waited and its turn has come: called, under
-- the streams' row locks, by whatever moves a stream or parks an event.  One that an operator has discarded
-- is passed over: the stream moves to its version, unless another event of that version is parked, too.
CREATE OR REPLACE FUNCTION postrider.wake_streams(p_consumer smallint, p_type text[], p_aggregate text[])
RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off -- plans are kept, and may be made while the tables are still empty
AS $$
DECLARE
    s record;
    low record;
    v_at bigint;
BEGIN
    FOR s IN
        SELECT u.t, u.a, x.version
        FROM (SELECT DISTINCT k.t, k.a FROM unnest(p_type, p_aggregate) AS k(t, a)) u
        CROSS JOIN LATERAL (
            SELECT y.version FROM postrider.stream y
            WHERE y.consumer = p_consumer AND y.aggregate_type = u.t AND y.aggregate_id = u.a AND y.parked > 0
            OFFSET 0) x
    LOOP
        v_at := s.version;
        LOOP
            SELECT q.id, q.state, q.version, q.event_id, q.digest, coalesce(q.prev, q.version - 1) AS expected
            INTO low FROM postrider.parked q
            WHERE q.side = 'consumer' AND q.reader = p_consumer AND q.aggregate_type = s.t
              AND q.aggregate_id = s.a AND q.holds
            ORDER BY q.version, q.id LIMIT 1;
            EXIT WHEN NOT FOUND OR low.expected > v_at;
            IF low.state <> 'discarded' THEN
                UPDATE postrider.parked p SET state = 'retry', due_at = clock_timestamp()
                WHERE p.id = low.id AND p.state = 'waiting';
                EXIT;
            END IF;
            UPDATE postrider.parked p SET holds = false WHERE p.id = low.id;
            IF low.version > v_at AND NOT EXISTS (
                SELECT FROM postrider.parked q
                WHERE q.side = 'consumer' AND q.reader = p_consumer AND q.aggregate_type = s.t
                  AND q.aggregate_id = s.a AND q.version = low.version AND q.holds) THEN
                v_at := low.version;
                UPDATE postrider.stream x
                SET version = low.version, event_id = low.event_id, digest = low.digest, parked = x.parked - 1,
                    base = CASE WHEN low.expected < low.version - 1 THEN low.version - 1 ELSE x.base END
                WHERE x.consumer = p_consumer AND x.aggregate_type = s.t AND x.aggregate_id = s.a;
            ELSE
                UPDATE postrider.stream x SET parked = x.parked - 1
                WHERE x.consumer = p_consumer AND x.aggregate_type = s.t AND x.aggregate_id = s.a;
            END IF;
        END LOOP;
    END LOOP;
END
$$;
