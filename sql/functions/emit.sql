-- Writes one event to the outbox, in the caller's transaction.  Returns its id.
--   aggregate_type, aggregate_id  name the stream;  1 to 255 bytes each
--   aggregate_version             from the aggregate's own UPDATE ... RETURNING version; unique per stream
--   payload                       at most 1,000,000 bytes as text
--   headers                       a flat JSON object of strings, or NULL
-- Errors (the business transaction then rolls back): PR100 name, PR101 version, PR102 id, PR103 size,
-- PR104 headers, 23505 event_id or version already written.
CREATE OR REPLACE FUNCTION postrider.emit(
    aggregate_type text, aggregate_id text, aggregate_version bigint, event_type text, payload jsonb,
    event_id uuid DEFAULT postrider.uuidv7(), headers jsonb DEFAULT NULL,
    occurred_at timestamptz DEFAULT now()
) RETURNS uuid
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    -- NOT NULL is looked at before any CHECK, and says less; all else is checked once, by emit_limits.
    IF num_nulls(aggregate_type, aggregate_id, aggregate_version, event_type, event_id, payload) > 0 THEN
        PERFORM postrider.check_event(aggregate_type, aggregate_id, aggregate_version, event_type, event_id,
                                      headers, octet_length(payload::text), NULL);
    END IF;
    INSERT INTO postrider.outbox (event_id, aggregate_type, aggregate_id, aggregate_version, event_type,
                                  payload, headers, occurred_at)
    VALUES (emit.event_id, emit.aggregate_type, emit.aggregate_id, emit.aggregate_version, emit.event_type,
            emit.payload, emit.headers, emit.occurred_at);
    RETURN event_id;
END
$$;
GRANT EXECUTE ON FUNCTION postrider.emit(text, text, bigint, text, jsonb, uuid, jsonb, timestamptz)
    TO postrider_producer, postrider_operator;
