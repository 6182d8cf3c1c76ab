-- The limits of an event, with an error that names the column and the remedy; true if they are kept.  It is the
-- outbox's CHECK, so a plain INSERT is told the same as emit(): what a consumer could not trust, or a transport
-- not carry, stops inside the business transaction.
-- SQLSTATEs: PR100 name, PR101 version, PR102 id, PR103 size, PR104 headers and content type.
CREATE OR REPLACE FUNCTION postrider.check_event(
    p_aggregate_type text, p_aggregate_id text, p_version bigint, p_event_type text,
    p_event_id uuid, p_headers jsonb, p_size bigint, p_content_type text
) RETURNS boolean
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_name text;
    v_value text;
    v_header record;
BEGIN
    -- One expression for the usual case: this runs for every event of the business.
    IF (octet_length(p_aggregate_type) BETWEEN 1 AND 255 AND octet_length(p_aggregate_id) BETWEEN 1 AND 255
        AND octet_length(p_event_type) BETWEEN 1 AND 255
        AND p_aggregate_type || p_aggregate_id || p_event_type !~ '[\x01-\x1f\x7f]') IS NOT TRUE THEN
        FOR v_name, v_value IN VALUES ('aggregate_type', p_aggregate_type),
                ('aggregate_id', p_aggregate_id), ('event_type', p_event_type) LOOP
            IF v_value IS NULL OR v_value = '' OR octet_length(v_value) > 255 OR v_value ~ '[\x01-\x1f\x7f]' THEN
                RAISE EXCEPTION USING ERRCODE = 'PR100',
                    MESSAGE = format('%s must be 1 to 255 bytes without control characters', v_name),
                    DETAIL = format('It has %s bytes.', coalesce(octet_length(v_value)::text, 'no')),
                    HINT = 'Use a short stable name; the event''s data belongs in the payload.';
            END IF;
        END LOOP;
    END IF;
    IF p_version IS NULL OR p_version < 1 THEN
        RAISE EXCEPTION USING ERRCODE = 'PR101',
            MESSAGE = format('aggregate_version must be 1 or more, not %s', coalesce(p_version::text, 'null')),
            HINT = 'Pass the version that the aggregate''s own UPDATE ... RETURNING version gave.';
    END IF;
    IF p_event_id IS NULL OR get_byte(uuid_send(p_event_id), 6) >> 4 <> 7 THEN
        RAISE EXCEPTION USING ERRCODE = 'PR102',
            MESSAGE = format('event_id %s is no UUIDv7', coalesce(p_event_id::text, 'null')),
            HINT = 'Leave event_id out, or make it with postrider.uuidv7(); other ids belong in a mapped table.';
    END IF;
    IF p_size IS NULL OR p_size > 1000000 THEN
        RAISE EXCEPTION USING ERRCODE = 'PR103',
            MESSAGE = CASE WHEN p_size IS NULL THEN 'payload must not be null'
                           ELSE format('payload has %s bytes, the limit is 1000000', p_size) END,
            HINT = 'Keep the document in a table or an object store and send a reference to it.';
    END IF;
    IF p_content_type <> 'application/json' AND p_content_type !~ '^[\x20-\x7e]{1,255}$' THEN
        RAISE EXCEPTION USING ERRCODE = 'PR104',
            MESSAGE = 'content_type must be 1 to 255 printable ASCII characters',
            HINT = 'Example: application/json';
    END IF;
    IF p_headers IS NULL THEN
        RETURN true;
    END IF;
    IF jsonb_typeof(p_headers) <> 'object' OR pg_column_size(p_headers) > 16384 THEN
        RAISE EXCEPTION USING ERRCODE = 'PR104',
            MESSAGE = 'headers must be a JSON object of at most 16 kB',
            HINT = 'Example: {"traceparent": "00-..."}';
    END IF;
    FOR v_header IN SELECT key, value, value #>> '{}' AS text FROM jsonb_each(p_headers) LOOP
        IF v_header.key !~ '^[A-Za-z0-9!#$%&''*+.^_`|~-]{1,100}$' OR v_header.key ILIKE 'postrider-%'
            OR v_header.key ILIKE 'content-type' THEN
            RAISE EXCEPTION USING ERRCODE = 'PR104',
                MESSAGE = format('header name %s is not allowed', quote_literal(left(v_header.key, 100))),
                HINT = 'Use letters, digits and - . _ (at most 100); postrider-* and content-type are ours.';
        END IF;
        IF jsonb_typeof(v_header.value) <> 'string' OR v_header.text ~ '[\x01-\x1f\x7f]' THEN
            RAISE EXCEPTION USING ERRCODE = 'PR104',
                MESSAGE = format('the value of header %s must be a string without control characters',
                                 quote_literal(v_header.key)),
                HINT = 'A line break in a header splits the message on some transports; put such data in the payload.';
        END IF;
    END LOOP;
    RETURN true;
END
$$;
GRANT EXECUTE ON FUNCTION postrider.check_event(text, text, bigint, text, uuid, jsonb, bigint, text)
    TO postrider_producer;
