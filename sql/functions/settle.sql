-- Writes what came of messages whose handlers have run, where it is not 'A' (applied): H hit, R rejected,
-- S stale, X discarded.  In the transaction of consume_batch() or consume_parked().
CREATE OR REPLACE FUNCTION postrider.settle(p_consumer smallint, p_event_id uuid[], p_outcome "char"[])
RETURNS void
LANGUAGE sql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
    UPDATE postrider.consumed c SET outcome = u.outcome
    FROM unnest(p_event_id, p_outcome) AS u(event_id, outcome)
    WHERE c.consumer = p_consumer AND c.day = postrider.event_day(u.event_id) AND c.event_id = u.event_id
$$;
GRANT EXECUTE ON FUNCTION postrider.settle(smallint, uuid[], "char"[]) TO postrider_consumer;
