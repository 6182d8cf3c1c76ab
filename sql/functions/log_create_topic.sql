-- Makes a topic of the log with its partitions.  Repeating it is fine; another partition count is
-- refused (PR012), since it would send old and new events of one stream to different partitions.
CREATE OR REPLACE FUNCTION postrider.log_create_topic(p_topic text, p_partitions int) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_partitions int;
BEGIN
    INSERT INTO postrider.log_topic (topic, partitions) VALUES (p_topic, p_partitions)
    ON CONFLICT (topic) DO NOTHING;
    IF FOUND THEN
        INSERT INTO postrider.log_head (topic, part)
        SELECT p_topic, n FROM generate_series(0, p_partitions - 1) n;
        RETURN;
    END IF;
    SELECT partitions INTO v_partitions FROM postrider.log_topic WHERE topic = p_topic;
    IF v_partitions <> p_partitions THEN
        RAISE EXCEPTION USING ERRCODE = 'PR012',
            MESSAGE = format('topic %s has %s partitions, the configuration says %s',
                             quote_literal(p_topic), v_partitions, p_partitions),
            HINT = format('Set partitions: %s at the destination, or use a new topic.', v_partitions);
    END IF;
END
$$;
GRANT EXECUTE ON FUNCTION postrider.log_create_topic(text, int) TO postrider_relay, postrider_operator;
