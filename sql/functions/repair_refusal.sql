-- Why an operator may not do this to a parked event of a consumer, or NULL.
--   p_request 'replay' or 'discard'
CREATE OR REPLACE FUNCTION postrider.repair_refusal(p_consumer smallint, p_id bigint, p_request text) RETURNS text
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    e postrider.parked;
    v_last bigint;
    v_done text;
BEGIN
    SELECT * INTO e FROM postrider.parked p WHERE p.id = p_id;
    IF NOT FOUND THEN
        SELECT format(': %s by %s at %s, and done with since', replace(a.act, 'consumer.', ''), a.given_name,
                      date_trunc('second', a.at)) INTO v_done
        FROM postrider.audit a
        WHERE a.act IN ('consumer.replay', 'consumer.discard') AND a.before -> 'id' = to_jsonb(p_id)
        ORDER BY a.n DESC LIMIT 1;
        RETURN format('%s is not parked here%s', p_id, v_done);
    END IF;
    IF e.side = 'relay' THEN
        RETURN format('%s is parked by relay %s, not by a consumer', p_id,
                      coalesce((SELECT r.name FROM postrider.relay r WHERE r.relay = e.reader), '(dropped)'));
    END IF;
    IF e.reader <> p_consumer THEN
        RETURN format('%s is parked by consumer %s', p_id,
                      (SELECT c.name FROM postrider.consumer c WHERE c.consumer = e.reader));
    END IF;
    IF e.state <> 'dead' THEN
        RETURN format('%s is no dead letter but %s', p_id, CASE e.state
            WHEN 'waiting' THEN 'waits behind another event of its stream'
            WHEN 'discarded' THEN format('was discarded by %s at %s', e.request_by, date_trunc('second', e.last_at))
            ELSE format('is tried by itself, next at %s', date_trunc('second', e.due_at))
                || coalesce(format(', replayed by %s at %s', e.request_by, date_trunc('second', e.replayed_at)), '')
            END);
    END IF;
    IF p_request = 'replay' AND e.class = 'conflict' THEN
        RETURN format('%s is a conflict: another event has its id or its version, so it can only be discarded', p_id);
    END IF;
    SELECT s.version INTO v_last FROM postrider.stream s
    WHERE s.consumer = p_consumer AND s.aggregate_type = e.aggregate_type AND s.aggregate_id = e.aggregate_id;
    IF p_request = 'replay' AND e.class = 'late' AND e.version <= v_last THEN
        RETURN format('%s is late: its stream is at version %s and has passed version %s, so it can only be discarded',
                      p_id, v_last, e.version);
    END IF;
    RETURN NULL;
END
$$;
GRANT EXECUTE ON FUNCTION postrider.repair_refusal(smallint, bigint, text) TO postrider_operator;
