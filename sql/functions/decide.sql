-- The decision on one message that is not known by its id: the whole table in one expression, which the
-- server inlines where it is used.  docs/internals/consume.md explains each line.
--   p_last, p_base   the stream's last applied version, and the one up to which versions may be missing
--   p_held           the lowest version above p_last that is parked and holds the stream; NULL: none
--   p_expected       the version before this one: its prev, else version - 1
--   p_too_old        older than the dedupe records: whether it was here before cannot be known
--   p_kind           h handled, i ignored, r rejected, u nobody can handle it
-- Returns a apply, i ignored, r rejected, u unhandled (the four that are in order), s stale, l late, c conflict,
-- g gap, w waiting.
CREATE OR REPLACE FUNCTION postrider.decide(
    p_order text, p_last bigint, p_base bigint, p_held bigint, p_version bigint, p_expected bigint,
    p_too_old boolean, p_kind "char"
) RETURNS "char"
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$
    SELECT CASE
        WHEN p_order = 'none' AND p_too_old THEN 'l'::"char"
        WHEN p_order = 'latest' AND p_version <= p_last
            THEN CASE WHEN p_version < p_last OR p_too_old THEN 's'::"char" ELSE 'c'::"char" END
        WHEN p_order = 'stream' AND p_version <= p_last
            THEN CASE WHEN p_too_old THEN 's'::"char" WHEN p_version > p_base THEN 'c'::"char"
                      ELSE 'l'::"char" END
        WHEN p_order = 'stream' AND p_held <= p_version THEN 'w'::"char"
        WHEN p_order = 'stream' AND p_expected > p_last THEN 'g'::"char"
        WHEN p_kind = 'h' THEN 'a'::"char"
        ELSE p_kind
    END
$$;
