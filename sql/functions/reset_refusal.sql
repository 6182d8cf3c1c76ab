-- Why a consumer cannot forget what it has decided when its positions become these, or NULL.  For
-- consumer_rewind() only: nobody is granted it.
CREATE OR REPLACE FUNCTION postrider.reset_refusal(
    p_consumer smallint, p_source text, p_topic text, p_part int[], p_off bigint[]
) RETURNS text
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT coalesce(
        (SELECT format('partitions %s are not named, and their streams would be forgotten, too',
                       string_agg(x.part::text, ', ' ORDER BY x.part))
         FROM postrider.consumer_partition x
         WHERE x.consumer = p_consumer AND x.source = p_source AND x.topic = p_topic AND NOT x.part = ANY (p_part)
         HAVING count(*) > 0),
        (SELECT format('%s parked events lie before these positions and would be lost: %s', count(*),
                       array_to_string((array_agg(p.id ORDER BY p.id))[1:20], ', '))
         FROM postrider.parked p
         LEFT JOIN unnest(p_part, p_off) AS w(part, off) ON p.source = p_source AND p.topic = p_topic AND p.part = w.part
         WHERE p.side = 'consumer' AND p.reader = p_consumer AND p.state <> 'discarded' AND p.event_id IS NOT NULL
           AND p.class NOT IN ('conflict', 'late') AND (w.part IS NULL OR p.off < w.off)
         HAVING count(*) > 0))
$$;
