-- Streams of a consumer that wait for versions which have not come: nothing that is parked can be tried.
--   last      the stream's version
--   missing_from, missing_to  ranges of missing versions, the first is what the stream waits for.  Of a range
--             that ends below an event with postrider-prev only its end is known to exist.
--   since     when the first event behind the gap came
--   parked    parked events of the stream
CREATE OR REPLACE FUNCTION postrider.gaps(p_consumer text)
RETURNS TABLE (aggregate_type text, aggregate_id text, last bigint, missing_from bigint[], missing_to bigint[],
               since timestamptz, parked bigint)
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
    WITH held AS (
        SELECT p.aggregate_type AS t, p.aggregate_id AS a, s.version AS last, coalesce(p.prev, p.version - 1) AS expected,
               p.first_at, row_number() OVER w AS n, coalesce(lag(p.version) OVER w, s.version) AS before
        FROM postrider.consumer c
        JOIN postrider.parked p ON p.side = 'consumer' AND p.reader = c.consumer AND p.holds
        JOIN postrider.stream s ON s.consumer = c.consumer AND s.aggregate_type = p.aggregate_type
                               AND s.aggregate_id = p.aggregate_id
        WHERE c.name = p_consumer
        WINDOW w AS (PARTITION BY p.aggregate_type, p.aggregate_id ORDER BY p.version, p.id))
    SELECT h.t, h.a, min(h.last), array_agg(h.before + 1 ORDER BY h.n) FILTER (WHERE h.expected > h.before),
           array_agg(h.expected ORDER BY h.n) FILTER (WHERE h.expected > h.before), min(h.first_at) FILTER (WHERE h.n = 1),
           count(*)
    FROM held h GROUP BY h.t, h.a
    HAVING bool_or(h.n = 1 AND h.expected > h.before)
    ORDER BY 6, 1, 2
$$;
GRANT EXECUTE ON FUNCTION postrider.gaps(text) TO postrider_consumer, postrider_operator;
