-- Lets a stream of a consumer go on without versions that have not come.  One that comes later is a dead letter
-- `late`: it is never applied out of order.  The act is a row of the audit.
--   p_consumer, p_type, p_aggregate  whose stream
--   p_up_to   the last version to give up; NULL: up to the first event that is parked
--   p_by, p_reason  who does it, and why
--   p_ticket  where it is discussed; may be NULL
--   p_dry_run look only
-- Returns which versions are given up and what follows (see stream_outlook).
-- Errors: PR002 no such consumer, PR021 no name or no reason, PR024 there is no such gap, 55P03 somebody is at work
-- on the stream for longer than 5 s.
CREATE OR REPLACE FUNCTION postrider.gap_close(
    p_consumer text, p_type text, p_aggregate text, p_up_to bigint, p_by text, p_reason text, p_ticket text,
    p_dry_run boolean
) RETURNS TABLE (given_up_from bigint, given_up_to bigint, stream_then bigint, follow bigint, stops text)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_consumer smallint;
    v_stream text := p_type || ':' || p_aggregate;
    s postrider.stream;
    low record;
BEGIN
    SELECT c.consumer INTO v_consumer FROM postrider.consumer c WHERE c.name = p_consumer;
    IF NOT FOUND THEN
        RAISE EXCEPTION USING ERRCODE = 'PR002', MESSAGE = format('consumer %s is not registered in this database', p_consumer),
            HINT = 'Run `postrider init` with this configuration.';
    END IF;
    PERFORM set_config('lock_timeout', '5s', true);
    SELECT * INTO s FROM postrider.stream x
    WHERE x.consumer = v_consumer AND x.aggregate_type = p_type AND x.aggregate_id = p_aggregate FOR UPDATE;
    IF NOT FOUND THEN
        RAISE EXCEPTION USING ERRCODE = 'PR024', MESSAGE = format('consumer %s knows no stream %s', p_consumer, v_stream);
    END IF;
    SELECT p.id, p.state, p.version, coalesce(p.prev, p.version - 1) AS expected INTO low FROM postrider.parked p
    WHERE p.side = 'consumer' AND p.reader = v_consumer AND p.aggregate_type = p_type AND p.aggregate_id = p_aggregate
      AND p.holds
    ORDER BY p.version, p.id LIMIT 1;
    IF NOT FOUND THEN
        RAISE EXCEPTION USING ERRCODE = 'PR024',
            MESSAGE = format('stream %s is at version %s and nothing of it is parked', v_stream, s.version);
    ELSIF low.expected <= s.version THEN
        RAISE EXCEPTION USING ERRCODE = 'PR024',
            MESSAGE = format('stream %s has no gap: it is at version %s and its version %s is parked as %s (%s)', v_stream,
                             s.version, low.version, low.state, low.id),
            HINT = format('postrider dlq show %s --consumer %s', low.id, p_consumer);
    ELSIF p_up_to <= s.version OR p_up_to > low.expected THEN
        RAISE EXCEPTION USING ERRCODE = 'PR024',
            MESSAGE = format('stream %s waits for versions %s to %s, so the gap cannot be closed up to %s', v_stream,
                             s.version + 1, low.expected, p_up_to);
    END IF;
    given_up_from := s.version + 1;
    given_up_to := coalesce(p_up_to, low.expected);
    SELECT o.ends_at, o.follow, o.stops INTO stream_then, follow, stops
    FROM postrider.stream_outlook(v_consumer, p_type, p_aggregate, given_up_to, '{}', NULL) o;
    IF NOT p_dry_run THEN
        PERFORM postrider.audit_write('consumer.close_gap', p_by, p_reason, p_ticket,
            jsonb_build_object('consumer', p_consumer, 'stream', v_stream, 'version', s.version, 'base', s.base),
            jsonb_build_object('version', given_up_to, 'base', given_up_to));
        UPDATE postrider.stream x SET version = given_up_to, base = given_up_to
        WHERE x.consumer = v_consumer AND x.aggregate_type = p_type AND x.aggregate_id = p_aggregate;
        PERFORM postrider.wake_streams(v_consumer, ARRAY[p_type], ARRAY[p_aggregate]);
    END IF;
    RETURN NEXT;
END
$$;
GRANT EXECUTE ON FUNCTION postrider.gap_close(text, text, text, bigint, text, text, text, boolean)
    TO postrider_operator;
