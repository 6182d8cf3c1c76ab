-- Forgets what a consumer has decided: streams, dedupe records, and the parked events that are read again from these
-- positions on.  Earlier ones are kept if they hold nothing; reset_refusal() has looked.  For consumer_rewind() only,
-- which has fenced the consumer's processes; nobody is granted it.
CREATE OR REPLACE FUNCTION postrider.reset_consumer(
    p_consumer smallint, p_source text, p_topic text, p_part int[], p_off bigint[]
) RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    -- Streams by key, then events, then records: in the order in which everybody locks them.
    PERFORM FROM postrider.stream s WHERE s.consumer = p_consumer
    ORDER BY s.aggregate_type, s.aggregate_id FOR UPDATE;
    DELETE FROM postrider.stream s WHERE s.consumer = p_consumer;
    DELETE FROM postrider.parked p USING unnest(p_part, p_off) AS w(part, off)
    WHERE p.side = 'consumer' AND p.reader = p_consumer AND p.event_id IS NOT NULL
      AND p.source = p_source AND p.topic = p_topic AND p.part = w.part AND p.off >= w.off;
    UPDATE postrider.parked p SET holds = false WHERE p.side = 'consumer' AND p.reader = p_consumer AND p.holds;
    DELETE FROM postrider.consumed c WHERE c.consumer = p_consumer;
    UPDATE postrider.consumer c SET floor = '-infinity' WHERE c.consumer = p_consumer;
END
$$;
