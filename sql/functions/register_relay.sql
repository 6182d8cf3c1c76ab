-- Makes a relay with its 16 lanes; one that exists keeps its position.  Called by init.
--   p_start  'earliest': every event still in the outbox;  'now': those committed from now on
--   p_filter which events it publishes, {"aggregate_types": […], "event_types": […]}; NULL: all.  Put in
--            force also for one that exists: what it has passed stays as it is.
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
    INSERT INTO postrider.relay (name, outbox, start, filter) VALUES (p_name, p_outbox, v_start, p_filter)
    ON CONFLICT (name) DO NOTHING RETURNING relay INTO v_relay;
    IF v_relay IS NULL THEN
        UPDATE postrider.relay SET filter = p_filter WHERE name = p_name AND filter IS DISTINCT FROM p_filter;
        RETURN false;
    END IF;
    INSERT INTO postrider.lane (relay, lane, done_snap)
    SELECT v_relay, n, v_start FROM generate_series(0, 15) n;
    RETURN true;
END
$$;
