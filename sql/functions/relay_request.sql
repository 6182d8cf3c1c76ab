-- Asks the owner of a lane to do something about dead letters of a relay.  Nothing is published or removed
-- here: the owner does that, in the order of the stream.  Each request is a row of the audit.
--   p_relay   name of the relay
--   p_ids     of postrider.parked; all or none of them
--   p_request 'replay': publish it once more, and what waits behind it;
--             'discard': never publish it, and let what waits behind it go
--   p_by, p_reason  who asks, and why; kept with the event
--   p_ticket  where it is discussed; may be NULL
-- Errors: PR020 one of them is no dead letter of this relay, PR021 no such request, or no name or reason.
CREATE OR REPLACE FUNCTION postrider.relay_request(
    p_relay text, p_ids bigint[], p_request text, p_by text, p_reason text, p_ticket text
) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_id bigint;
    v_before jsonb;
BEGIN
    IF p_request IS NULL OR p_request NOT IN ('replay', 'discard') THEN
        RAISE EXCEPTION USING ERRCODE = 'PR021', MESSAGE = 'a request is replay or discard';
    END IF;
    FOREACH v_id IN ARRAY p_ids LOOP
        SELECT jsonb_build_object('id', p.id, 'event_id', p.event_id, 'state', p.state, 'request', p.request,
                                  'relay', p_relay, 'stream', p.aggregate_type || ':' || p.aggregate_id,
                                  'version', p.version)
        INTO v_before
        FROM postrider.parked p JOIN postrider.relay r ON r.relay = p.reader AND r.name = p_relay
        WHERE p.id = v_id AND p.side = 'relay' AND p.state = 'dead' FOR UPDATE OF p;
        IF NOT FOUND THEN
            RAISE EXCEPTION USING ERRCODE = 'PR020',
                MESSAGE = format('%s is no dead letter of relay %s', v_id, p_relay);
        END IF;
        UPDATE postrider.parked
        SET request = p_request, request_by = p_by, request_reason = p_reason WHERE id = v_id;
        PERFORM postrider.audit_write('relay.' || p_request, p_by, p_reason, p_ticket, v_before,
                                      v_before || jsonb_build_object('request', p_request));
    END LOOP;
END
$$;
GRANT EXECUTE ON FUNCTION postrider.relay_request(text, bigint[], text, text, text, text) TO postrider_operator;
