-- Keeps why an event was rejected: its handler said no, by the configuration's `errors`.  In the transaction
-- that decides 'r' on it, consume_batch() or consume_parked().
--   p_parked_id  what it was parked as; NULL: it never was
CREATE OR REPLACE FUNCTION postrider.reject(
    p_consumer smallint, p_parked_id bigint, p_event_id uuid, p_code text, p_message text
) RETURNS void
LANGUAGE sql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
    INSERT INTO postrider.attempt (side, reader, parked_id, event_id, class, sqlstate, message)
    VALUES ('consumer', p_consumer, p_parked_id, p_event_id, 'rejected', p_code, p_message)
$$;
GRANT EXECUTE ON FUNCTION postrider.reject(smallint, bigint, uuid, text, text) TO postrider_consumer;
