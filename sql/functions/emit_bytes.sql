-- emit() for a payload that is not JSON, or whose bytes matter: it leaves exactly as given.
CREATE OR REPLACE FUNCTION postrider.emit_bytes(
    aggregate_type text, aggregate_id text, aggregate_version bigint, event_type text, body bytea,
    content_type text DEFAULT 'application/octet-stream', event_id uuid DEFAULT postrider.uuidv7(),
    headers jsonb DEFAULT NULL, occurred_at timestamptz DEFAULT now()
) RETURNS uuid
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    -- NOT NULL is looked at before any CHECK, and says less; all else is checked once, by emit_limits.
    IF num_nulls(aggregate_type, aggregate_id, aggregate_version, event_type, event_id, body, content_type) > 0 THEN
        PERFORM postrider.check_event(aggregate_type, aggregate_id, aggregate_version, event_type, event_id,
                                      headers, octet_length(body), coalesce(content_type, ''));
    END IF;
    INSERT INTO postrider.outbox (event_id, aggregate_type, aggregate_id, aggregate_version, event_type,
                                  body, content_type, headers, occurred_at)
    VALUES (emit_bytes.event_id, emit_bytes.aggregate_type, emit_bytes.aggregate_id,
            emit_bytes.aggregate_version, emit_bytes.event_type, emit_bytes.body,
            emit_bytes.content_type, emit_bytes.headers, emit_bytes.occurred_at);
    RETURN event_id;
END
$$;
GRANT EXECUTE ON FUNCTION postrider.emit_bytes(text, text, bigint, text, bytea, text, uuid, jsonb, timestamptz)
    TO postrider_producer, postrider_operator;
