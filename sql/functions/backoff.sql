-- How long an event rests before its next try: up to 1 s after the first, doubling to 10 min, and any part
-- of that by chance, so that what failed together does not come back together.
CREATE OR REPLACE FUNCTION postrider.backoff(p_tries int) RETURNS interval
LANGUAGE sql VOLATILE PARALLEL SAFE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT random() * least(600, 2 ^ least(greatest(p_tries, 1) - 1, 20)) * interval '1 second'
$$;
