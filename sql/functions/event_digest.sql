-- Tells a repeated message from another one under the same id.  First 16 bytes of SHA-256 over
-- aggregate type, aggregate id, version (decimal), event type and body, each with its length as
-- 8 bytes big-endian in front.  src/core/digest.c computes the same; golden vectors hold them together.
CREATE OR REPLACE FUNCTION postrider.event_digest(
    p_aggregate_type text, p_aggregate_id text, p_version bigint, p_event_type text, p_body bytea
) RETURNS bytea
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT substring(sha256(string_agg(int8send(length(part)::bigint) || part, ''::bytea ORDER BY n)), 1, 16)
    FROM unnest(ARRAY[convert_to(p_aggregate_type, 'UTF8'), convert_to(p_aggregate_id, 'UTF8'),
                      convert_to(p_version::text, 'UTF8'), convert_to(p_event_type, 'UTF8'),
                      p_body]) WITH ORDINALITY AS parts(part, n)
$$;
GRANT EXECUTE ON FUNCTION postrider.event_digest(text, text, bigint, text, bytea)
    TO postrider_consumer, postrider_operator;
