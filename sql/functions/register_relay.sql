-- Makes a relay with its 16 lanes; one that exists keeps its position.  Called by init.
--   p_start  'earliest': every event still in the outbox;  'now': those committed from now on
-- Returns true if it was made now.
CREATE OR REPLACE FUNCTION postrider.register_relay(p_name text, p_outbox text, p_start text)
RETURNS boolean
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_relay smallint;
    v_start pg_snapshot := CASE p_start WHEN 'now' THEN pg_current_snapshot() ELSE '1:1:'::pg_snapshot END;
BEGIN
    INSERT INTO postrider.relay (name, outbox, start) VALUES (p_name, p_outbox, v_start)
    ON CONFLICT (name) DO NOTHING RETURNING relay INTO v_relay;
    IF v_relay IS NULL THEN
        RETURN false;
    END IF;
    INSERT INTO postrider.lane (relay, lane, done_snap)
    SELECT v_relay, n, v_start FROM generate_series(0, 15) n;
    RETURN true;
END
$$;
