-- Makes a relay with its 16 lanes; one that exists keeps its position.  Called by init.
--   p_outbox 'postrider.outbox', or a table of the user's own, which has one lane and one relay
--   p_start  'earliest': every event still in the outbox;  'now': those committed from now on
--   p_filter which events it publishes, {"aggregate_types": [...], "event_types": [...]}; NULL: all.  Put in
--            force also for one that exists: what it has passed stays as it is.
-- Errors: PR022 another relay reads that table.
-- Returns true if it was made now.
CREATE OR REPLACE FUNCTION postrider.register_relay(p_name text, p_outbox text, p_start text, p_filter jsonb)
RETURNS boolean
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_relay smallint;
    v_start pg_snapshot := CASE p_start WHEN 'now' THEN pg_current_snapshot() ELSE '1:1:'::pg_snapshot END;
BEGIN
    IF p_outbox <> 'postrider.outbox'
       AND EXISTS (SELECT FROM postrider.relay WHERE outbox = p_outbox AND name <> p_name) THEN
        RAISE EXCEPTION USING ERRCODE = 'PR022',
            MESSAGE = format('table %s is read by relay %s already', p_outbox,
                             (SELECT name FROM postrider.relay WHERE outbox = p_outbox AND name <> p_name LIMIT 1)),
            HINT = 'Its state column can serve one relay; end the other with postrider relay drop.';
    END IF;
    INSERT INTO postrider.relay (name, outbox, start, filter) VALUES (p_name, p_outbox, v_start, p_filter)
    ON CONFLICT (name) DO NOTHING RETURNING relay INTO v_relay;
    IF v_relay IS NULL THEN
        UPDATE postrider.relay SET filter = p_filter WHERE name = p_name AND filter IS DISTINCT FROM p_filter;
        RETURN false;
    END IF;
    INSERT INTO postrider.lane (relay, lane, done_snap)
    SELECT v_relay, n, v_start
    FROM generate_series(0, CASE WHEN p_outbox = 'postrider.outbox' THEN 15 ELSE 0 END) n;
    RETURN true;
END
$$;
