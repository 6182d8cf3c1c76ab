-- Whether an id lies below a consumer's floor, where dedupe records may be gone.  An id that is no UUIDv7
-- does not say when it was made; its records are never dropped with a day.
CREATE OR REPLACE FUNCTION postrider.too_old(p_id uuid, p_floor timestamptz) RETURNS boolean
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$
    SELECT p_floor > '-infinity' AND postrider.event_day(p_id) <> '-infinity'
           AND postrider.event_day(p_id) < (p_floor AT TIME ZONE 'UTC')::date
$$;
