-- Gives a claimed parked event back with no try charged: not it has failed, but the server or the handler.
CREATE OR REPLACE FUNCTION postrider.unclaim_parked(p_consumer smallint, p_parked_id bigint, p_rest interval)
RETURNS void
LANGUAGE sql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
    UPDATE postrider.parked p SET tries = greatest(p.tries - 1, 0), due_at = clock_timestamp() + p_rest
    WHERE p.id = p_parked_id AND p.side = 'consumer' AND p.reader = p_consumer AND p.state = 'retry'
$$;
GRANT EXECUTE ON FUNCTION postrider.unclaim_parked(smallint, bigint, interval) TO postrider_consumer;
