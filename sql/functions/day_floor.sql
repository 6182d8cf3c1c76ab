-- The lowest UUIDv7 of a day (UTC): where that day's partition of the outbox begins.
CREATE OR REPLACE FUNCTION postrider.day_floor(p_day date) RETURNS uuid
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT (lpad(to_hex((date_part('epoch', p_day::timestamp) * 1000)::bigint), 12, '0')
            || '00000000000000000000')::uuid
$$;
