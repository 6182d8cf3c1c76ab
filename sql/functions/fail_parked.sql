-- Records that a claimed parked event failed: p_state retry (it rests, longer each time) or dead.  A
-- transaction of its own, after the one that failed.
CREATE OR REPLACE FUNCTION postrider.fail_parked(
    p_consumer smallint, p_parked_id bigint, p_state text, p_class text, p_code text, p_message text
) RETURNS void
LANGUAGE sql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
    WITH failed AS (
        UPDATE postrider.parked p
        SET state = p_state, class = p_class, code = p_code, message = p_message, last_at = clock_timestamp(),
            due_at = CASE WHEN p_state = 'retry' THEN clock_timestamp() + postrider.backoff(p.tries) END
        WHERE p.id = p_parked_id AND p.side = 'consumer' AND p.reader = p_consumer AND p.state = 'retry'
        RETURNING p.id, p.event_id, p.digest),
    outcome AS (
        UPDATE postrider.consumed c SET outcome = 'D'
        FROM failed f
        WHERE p_state = 'dead' AND c.consumer = p_consumer AND c.day = postrider.event_day(f.event_id)
          AND c.event_id = f.event_id AND c.digest = f.digest)
    INSERT INTO postrider.attempt (side, reader, parked_id, event_id, class, sqlstate, message)
    SELECT 'consumer', p_consumer, f.id, f.event_id, p_class, p_code, p_message FROM failed f
$$;
GRANT EXECUTE ON FUNCTION postrider.fail_parked(smallint, bigint, text, text, text, text) TO postrider_consumer;
