-- Decides anew on a parked event whose time has come, under its stream's row lock and without regard to its
-- own dedupe record, and writes what follows, as consume_batch() does for a message; what was parked
-- behind it is made due.  The caller runs the handler of what is decided 'a', in the same transaction.
-- One without an id (p_kind f) is a foreign message and a dead letter again; if it can be read by now,
-- adopt_parked() comes first.
-- No row: the event is not due any more, another process was faster or an operator has stopped it.
CREATE OR REPLACE FUNCTION postrider.consume_parked(
    p_consumer smallint, p_parked_id bigint, p_order text, p_kind "char"
) RETURNS TABLE (decision "char", last bigint)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    e postrider.parked;
    s postrider.stream;
    v_known bytea;
    v_low bigint;
    v_outcome "char";
    v_floor timestamptz;
BEGIN
    SELECT * INTO e FROM postrider.parked p
    WHERE p.id = p_parked_id AND p.side = 'consumer' AND p.reader = p_consumer;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    SELECT * INTO s FROM postrider.stream t
    WHERE t.consumer = p_consumer AND t.aggregate_type = e.aggregate_type AND t.aggregate_id = e.aggregate_id
    FOR UPDATE;
    SELECT * INTO e FROM postrider.parked p WHERE p.id = p_parked_id AND p.state = 'retry' FOR UPDATE;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    IF e.event_id IS NULL THEN
        UPDATE postrider.parked p SET state = 'dead', due_at = NULL, tries = p.tries - 1 WHERE p.id = e.id;
        decision := 'f';
        RETURN NEXT;
        RETURN;
    END IF;
    IF s.consumer IS NULL AND p_order <> 'none' THEN
        -- Its stream was reset: it opens it, as an event from the log would.
        INSERT INTO postrider.stream (consumer, aggregate_type, aggregate_id, version, base)
        VALUES (p_consumer, e.aggregate_type, e.aggregate_id, coalesce(e.prev, e.version - 1), coalesce(e.prev, e.version - 1))
        ON CONFLICT DO NOTHING RETURNING * INTO s;
        IF NOT FOUND THEN
            RAISE EXCEPTION USING ERRCODE = '40001', MESSAGE = 'another transaction has opened this stream meanwhile';
        END IF;
    END IF;
    SELECT c.digest INTO v_known FROM postrider.consumed c
    WHERE c.consumer = p_consumer AND c.day = postrider.event_day(e.event_id) AND c.event_id = e.event_id;
    SELECT c.floor INTO v_floor FROM postrider.consumer c WHERE c.consumer = p_consumer;
    SELECT min(p.version) INTO v_low FROM postrider.parked p
    WHERE p.side = 'consumer' AND p.reader = p_consumer AND p.aggregate_type = e.aggregate_type
      AND p.aggregate_id = e.aggregate_id AND p.holds AND p.version > s.version
      AND (p.version, p.id) < (e.version, e.id);

    last := s.version;
    decision := CASE WHEN v_known <> e.digest THEN 'c'
                ELSE postrider.decide(p_order, s.version, s.base, v_low, e.version,
                         coalesce(e.prev, e.version - 1),
                         p_order <> 'none' AND postrider.too_old(e.event_id, v_floor), p_kind) END;
    IF decision IN ('g', 'w') THEN
        UPDATE postrider.parked p
        SET state = 'waiting', due_at = NULL, tries = p.tries - 1,
            class = CASE decision WHEN 'g' THEN 'gap' ELSE 'waiting' END
        WHERE p.id = e.id;
        RETURN NEXT;
        RETURN;
    END IF;
    v_outcome := CASE decision WHEN 'a' THEN 'A' WHEN 'i' THEN 'I' WHEN 'r' THEN 'R' WHEN 's' THEN 'S'
                                ELSE 'D' END;
    IF v_known = e.digest THEN
        UPDATE postrider.consumed c SET outcome = v_outcome
        WHERE c.consumer = p_consumer AND c.day = postrider.event_day(e.event_id) AND c.event_id = e.event_id;
    ELSIF v_known IS NULL THEN
        INSERT INTO postrider.consumed (consumer, day, event_id, digest, outcome)
        VALUES (p_consumer, postrider.event_day(e.event_id), e.event_id, e.digest, v_outcome);
    END IF;
    IF decision IN ('a', 'i', 'r', 's') THEN
        DELETE FROM postrider.parked p WHERE p.id = e.id;
    ELSE
        UPDATE postrider.parked p
        SET state = 'dead', due_at = NULL, holds = e.holds AND decision = 'u', tries = p.tries - 1,
            class = CASE decision WHEN 'u' THEN 'unhandled' WHEN 'c' THEN 'conflict' ELSE 'late' END
        WHERE p.id = e.id;
    END IF;
    IF s.consumer IS NOT NULL AND decision <> 'u' THEN
        UPDATE postrider.stream t
        SET version = CASE WHEN decision IN ('a', 'i', 'r') THEN e.version ELSE t.version END,
            event_id = CASE WHEN decision IN ('a', 'i', 'r') THEN e.event_id ELSE t.event_id END,
            digest = CASE WHEN decision IN ('a', 'i', 'r') THEN e.digest ELSE t.digest END,
            base = CASE WHEN decision IN ('a', 'i', 'r') AND e.prev < e.version - 1
                        THEN e.version - 1 ELSE t.base END,
            parked = t.parked - CASE WHEN e.holds THEN 1 ELSE 0 END
        WHERE t.consumer = p_consumer AND t.aggregate_type = e.aggregate_type
          AND t.aggregate_id = e.aggregate_id;
        PERFORM postrider.wake_streams(p_consumer, ARRAY[e.aggregate_type], ARRAY[e.aggregate_id]);
    END IF;
    RETURN NEXT;
END
$$;
GRANT EXECUTE ON FUNCTION postrider.consume_parked(smallint, bigint, text, "char") TO postrider_consumer;
