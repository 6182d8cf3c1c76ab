-- Takes parked events whose time has come, for as long as p_hold; a statement of its own, so that the try is
-- counted before it is made and one that kills the process is counted, too.  Only the lowest parked
-- event of a stream is ever due.  Returns what was received, as it was received, and how many of the
-- tries before this one, since the last replay, have left no attempt behind.
CREATE OR REPLACE FUNCTION postrider.claim_parked(p_consumer smallint, p_limit int, p_hold interval)
RETURNS TABLE (parked_id bigint, tried int, unreported int, is_event boolean, source text, topic text, part int, off bigint, key bytea,
               header_names text[], header_values bytea[], body bytea) -- no event: a foreign message
LANGUAGE sql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
    UPDATE postrider.parked p
    SET tries = p.tries + 1, due_at = clock_timestamp() + p_hold, last_at = clock_timestamp()
    FROM (SELECT q.id FROM postrider.parked q
          WHERE q.side = 'consumer' AND q.reader = p_consumer AND q.due_at <= clock_timestamp()
            AND q.state = 'retry'
          ORDER BY q.due_at LIMIT p_limit FOR UPDATE SKIP LOCKED) due
    WHERE p.id = due.id
    RETURNING p.id, p.tries,
              p.tries - 1 - (SELECT count(*)::int FROM postrider.attempt t
                             WHERE t.parked_id = p.id AND t.at >= coalesce(p.replayed_at, '-infinity')),
              p.event_id IS NOT NULL, p.source, p.topic, p.part, p.off, p.key, p.header_names, p.header_values, p.body
$$;
GRANT EXECUTE ON FUNCTION postrider.claim_parked(smallint, int, interval) TO postrider_consumer;
