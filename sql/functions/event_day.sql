-- The day (UTC) in a UUIDv7; any other id has '-infinity'.  Decides the partition of a
-- dedupe record, so it must never change for an id that has been seen.  Not STRICT: it is inlined then.
CREATE OR REPLACE FUNCTION postrider.event_day(p_id uuid) RETURNS date
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$
    SELECT CASE WHEN get_byte(uuid_send(p_id), 6) >> 4 = 7
        THEN '1970-01-01'::date
             + (('x' || encode(substring(uuid_send(p_id), 1, 6), 'hex'))::bit(48)::bigint / 86400000)::int
        ELSE '-infinity'::date END
$$;
GRANT EXECUTE ON FUNCTION postrider.event_day(uuid) TO postrider_consumer, postrider_operator;
