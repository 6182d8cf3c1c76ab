-- Keeps messages in the database: what waits for its turn, what failed and will be tried again, and what
-- needs a person (dead).  In the transaction of the consume_batch() that decided on them; of a message
-- without an id (a foreign one) the origin makes it unique.  A copy that is kept already adds nothing.
-- Returns how many rows were added.
CREATE OR REPLACE FUNCTION postrider.park(p_consumer smallint, p_order text, p_entries postrider.parked_entry[])
RETURNS int
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_ids bigint[];
    v_type text[];
    v_aggregate text[];
BEGIN
    WITH put AS (
        INSERT INTO postrider.parked (side, reader, state, holds, class, code, message, tries, owner, event_id,
            digest, aggregate_type, aggregate_id, version, prev, event_type, occurred_at, source, topic, part,
            off, key, header_names, header_values, body, content_type, due_at)
        SELECT 'consumer', p_consumer, e.state,
               p_order = 'stream' AND e.version IS NOT NULL AND e.class NOT IN ('conflict', 'late'),
               e.class, e.code, e.message, e.tries, e.owner, e.event_id, e.digest, e.aggregate_type,
               e.aggregate_id, e.version, e.prev, e.event_type, e.occurred_at, e.source, e.topic, e.part,
               e.off, e.key, e.header_names, e.header_values, e.body, e.content_type,
               CASE WHEN e.state = 'retry' THEN clock_timestamp() + postrider.backoff(e.tries) END
        FROM unnest(p_entries) e
        ON CONFLICT DO NOTHING
        RETURNING id, event_id, state, holds, class, code, message, tries, aggregate_type, aggregate_id),
    tried AS (
        INSERT INTO postrider.attempt (side, reader, parked_id, event_id, class, sqlstate, message)
        SELECT 'consumer', p_consumer, put.id, put.event_id, put.class, put.code, put.message
        FROM put WHERE put.tries > 0),
    outcome AS (
        UPDATE postrider.consumed c SET outcome = 'P'
        FROM put
        WHERE put.state = 'retry' AND c.consumer = p_consumer AND c.event_id = put.event_id
          AND c.day = postrider.event_day(put.event_id)),
    counted AS (
        UPDATE postrider.stream s SET parked = s.parked + k.n
        FROM (SELECT put.aggregate_type AS t, put.aggregate_id AS a, count(*)::int AS n
              FROM put WHERE put.holds GROUP BY 1, 2) k
        WHERE s.consumer = p_consumer AND s.aggregate_type = k.t AND s.aggregate_id = k.a)
    SELECT array_agg(put.id), array_agg(put.aggregate_type) FILTER (WHERE put.holds),
           array_agg(put.aggregate_id) FILTER (WHERE put.holds)
    INTO v_ids, v_type, v_aggregate FROM put;
    -- A later message of the same batch may have closed the gap already.
    PERFORM postrider.wake_streams(p_consumer, v_type, v_aggregate);
    RETURN coalesce(cardinality(v_ids), 0);
END
$$;
GRANT EXECUTE ON FUNCTION postrider.park(smallint, text, postrider.parked_entry[]) TO postrider_consumer;
