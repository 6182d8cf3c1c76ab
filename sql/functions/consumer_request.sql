-- Does something about dead letters of a consumer, all of them or none; each is a row of the audit.
--   p_consumer  its name
--   p_ids     of postrider.parked
--   p_request 'replay': it is due at once, with all of its tries before it; dedupe and order decide anew.
--             'discard': it is never applied; its stream moves past it when its turn has come.
--   p_by, p_reason  who does it, and why; kept with the event
--   p_ticket  where it is discussed; may be NULL
--   p_dry_run look only
-- Returns, for each event, what its stream is at and what follows (see stream_outlook; NULL: it holds none).
-- Errors: PR002 no such consumer, PR020 something cannot be done, each event named, PR021 no such request, or no
-- name or reason, 55P03 somebody is at work on one of the streams for longer than 5 s.
CREATE OR REPLACE FUNCTION postrider.consumer_request(
    p_consumer text, p_ids bigint[], p_request text, p_by text, p_reason text, p_ticket text, p_dry_run boolean
) RETURNS TABLE (id bigint, event_id uuid, event_type text, aggregate_type text, aggregate_id text, version bigint,
                 class text, stream_at bigint, stream_then bigint, follow bigint, stops text)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    v_consumer smallint;
    v_ids bigint[] := ARRAY(SELECT DISTINCT u FROM unnest(p_ids) u ORDER BY u);
    v_wrong text;
    e postrider.parked;
BEGIN
    IF p_request IS NULL OR p_request NOT IN ('replay', 'discard') THEN
        RAISE EXCEPTION USING ERRCODE = 'PR021', MESSAGE = 'a request is replay or discard';
    END IF;
    SELECT c.consumer INTO v_consumer FROM postrider.consumer c WHERE c.name = p_consumer;
    IF NOT FOUND THEN
        RAISE EXCEPTION USING ERRCODE = 'PR002', MESSAGE = format('consumer %s is not registered in this database', p_consumer),
            HINT = 'Run `postrider init` with this configuration.';
    END IF;
    PERFORM set_config('lock_timeout', '5s', true);
    -- Once before waiting for anybody, and once when nothing can change any more.
    FOR v_look IN 1..2 LOOP
        SELECT string_agg(w.why, '; ' ORDER BY w.i) FILTER (WHERE w.n <= 5)
               || coalesce('; nor with ' || string_agg(w.i::text, ', ' ORDER BY w.i) FILTER (WHERE w.n > 5), '')
        INTO v_wrong
        FROM (SELECT r.i, r.why, row_number() OVER (ORDER BY r.i) AS n
              FROM (SELECT i, postrider.repair_refusal(v_consumer, i, p_request) AS why FROM unnest(v_ids) i) r
              WHERE r.why IS NOT NULL) w;
        IF v_wrong IS NOT NULL THEN
            RAISE EXCEPTION USING ERRCODE = 'PR020', MESSAGE = format('nothing was done: %s', v_wrong);
        END IF;
        -- Streams by key, then events: in the order in which everybody locks them.
        PERFORM FROM postrider.stream s
        WHERE s.consumer = v_consumer AND (s.aggregate_type, s.aggregate_id) IN
            (SELECT p.aggregate_type, p.aggregate_id FROM postrider.parked p WHERE p.id = ANY (v_ids))
        ORDER BY s.aggregate_type, s.aggregate_id FOR UPDATE;
        PERFORM FROM postrider.parked p WHERE p.id = ANY (v_ids) ORDER BY p.id FOR UPDATE;
    END LOOP;
    RETURN QUERY
        SELECT p.id, p.event_id, p.event_type, p.aggregate_type, p.aggregate_id, p.version, p.class, s.version,
               o.ends_at, o.follow, o.stops
        FROM postrider.parked p
        LEFT JOIN postrider.stream s ON s.consumer = v_consumer AND s.aggregate_type = p.aggregate_type
                                    AND s.aggregate_id = p.aggregate_id AND p.holds
        LEFT JOIN LATERAL postrider.stream_outlook(v_consumer, p.aggregate_type, p.aggregate_id, s.version, v_ids,
                                                   p_request) o ON s.version IS NOT NULL
        WHERE p.id = ANY (v_ids) ORDER BY p.id;
    IF p_dry_run THEN
        RETURN;
    END IF;
    FOR e IN SELECT * FROM postrider.parked p WHERE p.id = ANY (v_ids) ORDER BY p.id LOOP
        PERFORM postrider.audit_write('consumer.' || p_request, p_by, p_reason, p_ticket,
            jsonb_build_object('id', e.id, 'event_id', e.event_id, 'consumer', p_consumer, 'state', e.state,
                'class', e.class, 'code', e.code, 'tries', e.tries,
                'stream', e.aggregate_type || ':' || e.aggregate_id, 'version', e.version,
                'topic', e.topic, 'partition', e.part, 'offset', e.off),
            jsonb_build_object('state', CASE p_request WHEN 'replay' THEN 'retry' ELSE 'discarded' END));
    END LOOP;
    UPDATE postrider.parked p
    SET state = CASE p_request WHEN 'replay' THEN 'retry' ELSE 'discarded' END,
        tries = CASE p_request WHEN 'replay' THEN 0 ELSE p.tries END,
        due_at = CASE p_request WHEN 'replay' THEN clock_timestamp() END,
        replayed_at = CASE p_request WHEN 'replay' THEN clock_timestamp() ELSE p.replayed_at END,
        last_at = clock_timestamp(), request = p_request, request_by = p_by, request_reason = p_reason
    WHERE p.id = ANY (v_ids);
    UPDATE postrider.consumed c SET outcome = CASE p_request WHEN 'replay' THEN 'P'::"char" ELSE 'X'::"char" END
    FROM postrider.parked p
    WHERE p.id = ANY (v_ids) AND c.consumer = v_consumer AND c.day = postrider.event_day(p.event_id)
      AND c.event_id = p.event_id AND c.digest = p.digest; -- a conflict's record is the other event's
    IF p_request = 'discard' THEN
        PERFORM postrider.wake_streams(v_consumer, array_agg(p.aggregate_type), array_agg(p.aggregate_id))
        FROM postrider.parked p WHERE p.id = ANY (v_ids) AND p.holds;
    END IF;
END
$$;
GRANT EXECUTE ON FUNCTION postrider.consumer_request(text, bigint[], text, text, text, text, boolean)
    TO postrider_operator;
