-- Appends messages to the log, all or none, in the order given; returns their offsets in that order.
--   p_writer            the relay's own uuid (relay.writer)
--   p_lanes, p_epochs   the lanes these messages come from and the epoch the caller owns them under
-- Offsets are dense and in commit order per (topic, part): the head row stays locked until commit, so a
-- reader of `off >= position` never skips one.  The writer's rows are locked the same way, so a caller
-- with an old epoch cannot commit behind the new owner.
-- Errors: PR010 fenced (DETAIL: the lanes), PR011 no such topic or partition.
CREATE OR REPLACE FUNCTION postrider.log_append(
    p_writer uuid, p_lanes smallint[], p_epochs bigint[], p_entries postrider.log_entry[]
) RETURNS bigint[]
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_fenced text;
    v_missing text;
    v_offsets bigint[];
    v_at timestamptz;
BEGIN
    WITH put AS (
        INSERT INTO postrider.log_writer AS w (writer, lane, epoch)
        SELECT p_writer, lane, epoch FROM unnest(p_lanes, p_epochs) AS want(lane, epoch) ORDER BY lane
        ON CONFLICT (writer, lane) DO UPDATE SET epoch = excluded.epoch WHERE w.epoch <= excluded.epoch
        RETURNING w.lane)
    SELECT string_agg(want.lane::text, ',' ORDER BY want.lane) INTO v_fenced
    FROM unnest(p_lanes) AS want(lane) WHERE want.lane NOT IN (SELECT put.lane FROM put);
    IF v_fenced IS NOT NULL THEN
        RAISE EXCEPTION USING ERRCODE = 'PR010',
            MESSAGE = format('writer %s is fenced: another process owns its lanes', p_writer),
            DETAIL = v_fenced;
    END IF;

    PERFORM FROM postrider.log_head h
    WHERE (h.topic, h.part) IN (SELECT DISTINCT e.topic, e.part FROM unnest(p_entries) e)
    ORDER BY h.topic, h.part FOR UPDATE;

    SELECT string_agg(format('%s/%s', e.topic, e.part), ', ') INTO v_missing
    FROM (SELECT DISTINCT u.topic, u.part FROM unnest(p_entries) u) e
    WHERE NOT EXISTS (SELECT FROM postrider.log_head h WHERE h.topic = e.topic AND h.part = e.part);
    IF v_missing IS NOT NULL THEN
        RAISE EXCEPTION USING ERRCODE = 'PR011',
            MESSAGE = format('the log has no such topic or partition: %s', v_missing),
            HINT = 'Make it with: SELECT postrider.log_create_topic(topic, partitions)';
    END IF;

    v_at := clock_timestamp();
    WITH e AS MATERIALIZED (
        SELECT u.ord, u.topic, u.part, u.key, u.event_id, u.header_names, u.header_values, u.body,
               h.next_off - 1 + row_number() OVER (PARTITION BY u.topic, u.part ORDER BY u.ord) AS off
        FROM unnest(p_entries) WITH ORDINALITY
                 AS u(topic, part, key, event_id, header_names, header_values, body, ord)
        JOIN postrider.log_head h ON h.topic = u.topic AND h.part = u.part),
    placed AS (
        INSERT INTO postrider.log (topic, part, off, at, event_id, key, header_names, header_values, body)
        SELECT e.topic, e.part, e.off, v_at, e.event_id, e.key, e.header_names, e.header_values, e.body
        FROM e ORDER BY e.ord),
    moved AS (
        UPDATE postrider.log_head h SET next_off = last.off + 1
        FROM (SELECT e.topic, e.part, max(e.off) AS off FROM e GROUP BY e.topic, e.part) last
        WHERE h.topic = last.topic AND h.part = last.part)
    SELECT array_agg(e.off ORDER BY e.ord) INTO v_offsets FROM e;
    RETURN v_offsets;
END
$$;
GRANT EXECUTE ON FUNCTION postrider.log_append(uuid, smallint[], bigint[], postrider.log_entry[])
    TO postrider_relay;
