-- What would become of a stream's parked events if the stream stood at p_from and p_request ('replay',
-- 'discard' or NULL) were done to p_ids: all of those that would be tried, in turn, do well.
--   ends_at  the version the stream would reach
--   follow   how many parked events other than p_ids would be tried
--   stops    what the first that is left waits for; NULL: none is left
CREATE OR REPLACE FUNCTION postrider.stream_outlook(
    p_consumer smallint, p_type text, p_aggregate text, p_from bigint, p_ids bigint[], p_request text
) RETURNS TABLE (ends_at bigint, follow bigint, stops text)
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    e record;
BEGIN
    ends_at := p_from;
    follow := 0;
    FOR e IN
        SELECT p.id, p.version, coalesce(p.prev, p.version - 1) AS expected,
               CASE WHEN NOT p.id = ANY (p_ids) THEN p.state WHEN p_request = 'discard' THEN 'discarded'
                    ELSE 'retry' END AS state
        FROM postrider.parked p
        WHERE p.side = 'consumer' AND p.reader = p_consumer AND p.aggregate_type = p_type
          AND p.aggregate_id = p_aggregate AND p.holds
        ORDER BY p.version, p.id
    LOOP
        IF e.expected > ends_at THEN
            stops := format('version %s is missing', CASE WHEN e.expected > ends_at + 1
                THEN format('%s to %s', ends_at + 1, e.expected) ELSE e.expected::text END);
            EXIT;
        ELSIF e.state = 'dead' THEN
            stops := format('version %s is a dead letter (%s)', e.version, e.id);
            EXIT;
        END IF;
        ends_at := greatest(ends_at, e.version);
        follow := follow + CASE WHEN e.state = 'discarded' OR e.id = ANY (p_ids) THEN 0 ELSE 1 END;
    END LOOP;
    RETURN NEXT;
END
$$;
GRANT EXECUTE ON FUNCTION postrider.stream_outlook(smallint, text, text, bigint, bigint[], text) TO postrider_operator;
