-- Makes a parked message that was foreign and can be read now the event it is, so that it passes dedupe and
-- order like any other; a transaction of its own, before consume_parked().
--   p_opens  as of consume_batch(): any or 1
-- Returns a: it is one, and due; d: this event was decided before, the message is gone; c: another has its id, it
-- is a dead letter; no row: it is not due any more.
CREATE OR REPLACE FUNCTION postrider.adopt_parked(
    p_consumer smallint, p_parked_id bigint, p_order text, p_opens text, p_event_id uuid, p_digest bytea,
    p_event_type text, p_type text, p_aggregate text, p_version bigint, p_prev bigint, p_occurred_at timestamptz
) RETURNS SETOF "char"
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_before bigint := CASE WHEN p_opens = '1' AND p_order = 'stream' THEN 0 ELSE coalesce(p_prev, p_version - 1) END;
    v_known bytea;
BEGIN
    IF p_order <> 'none' THEN
        INSERT INTO postrider.stream (consumer, aggregate_type, aggregate_id, version, base)
        VALUES (p_consumer, p_type, p_aggregate, v_before, v_before)
        ON CONFLICT DO NOTHING;
        PERFORM FROM postrider.stream s
        WHERE s.consumer = p_consumer AND s.aggregate_type = p_type AND s.aggregate_id = p_aggregate FOR UPDATE;
    END IF;
    PERFORM FROM postrider.parked p
    WHERE p.id = p_parked_id AND p.side = 'consumer' AND p.reader = p_consumer AND p.state = 'retry'
      AND p.event_id IS NULL FOR UPDATE;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    INSERT INTO postrider.consumed (consumer, day, event_id, digest, outcome)
    VALUES (p_consumer, postrider.event_day(p_event_id), p_event_id, p_digest, 'P')
    ON CONFLICT DO NOTHING;
    IF NOT FOUND THEN
        SELECT c.digest INTO STRICT v_known FROM postrider.consumed c
        WHERE c.consumer = p_consumer AND c.day = postrider.event_day(p_event_id) AND c.event_id = p_event_id;
        IF v_known = p_digest OR EXISTS (
            SELECT FROM postrider.parked p WHERE p.side = 'consumer' AND p.reader = p_consumer
               AND p.event_id = p_event_id AND p.digest = p_digest) THEN
            DELETE FROM postrider.parked p WHERE p.id = p_parked_id;
            RETURN NEXT 'd'::"char";
            RETURN;
        END IF;
    END IF;
    UPDATE postrider.parked p
    SET event_id = p_event_id, digest = p_digest, event_type = p_event_type, aggregate_type = p_type,
        aggregate_id = p_aggregate, version = p_version, prev = p_prev,
        occurred_at = p_occurred_at,
        holds = p_order = 'stream' AND v_known IS NULL,
        class = CASE WHEN v_known IS NULL THEN 'waiting' ELSE 'conflict' END,
        code = CASE WHEN v_known IS NULL THEN 'stream.waiting' ELSE 'stream.conflict' END,
        message = CASE WHEN v_known IS NULL THEN 'it could not be read when it came, and can now'
                       ELSE 'the same id came with other content' END,
        state = CASE WHEN v_known IS NULL THEN 'retry' ELSE 'dead' END,
        due_at = CASE WHEN v_known IS NULL THEN p.due_at END
    WHERE p.id = p_parked_id;
    IF v_known IS NOT NULL THEN
        RETURN NEXT 'c'::"char";
        RETURN;
    END IF;
    UPDATE postrider.stream s SET parked = s.parked + 1
    WHERE p_order = 'stream' AND s.consumer = p_consumer AND s.aggregate_type = p_type AND s.aggregate_id = p_aggregate;
    RETURN NEXT 'a'::"char";
END
$$;
GRANT EXECUTE ON FUNCTION postrider.adopt_parked(smallint, bigint, text, text, uuid, bytea, text, text, text, bigint,
    bigint, timestamptz) TO postrider_consumer;
