-- Sets a consumer's positions back, so that messages are read again.  Each partition gets a new epoch: a process
-- that owns it cannot commit any more, and picks it up anew.  What was decided before is a duplicate, what was
-- never applied and lies below a stream's base is stale.  The act is a row of the audit.
--   p_source, p_topic, p_part, p_off, p_last_id  the new position of each partition, and the event before it.
--   p_first, p_next  what the log holds: a position below p_first cannot be read, so it may move up to that
--   p_oldest  the day of the oldest id among the messages to be read again; NULL: none has one
--   p_reset   forget what was decided: all streams and dedupe records go, and everything is applied again
--   p_by, p_reason  who does it, and why
--   p_ticket  where it is discussed; may be NULL
--   p_dry_run look only
-- Returns what becomes of each partition, and who owned it.
-- Errors: PR002 no such consumer, PR021 no name or no reason, PR025 refused, the message says why, 55P03 a
-- transaction is at work on a partition for longer than 5 s.
CREATE OR REPLACE FUNCTION postrider.consumer_rewind(
    p_consumer text, p_source text, p_topic text, p_part int[], p_off bigint[], p_first bigint[], p_next bigint[],
    p_last_id uuid[], p_oldest date, p_reset boolean, p_by text, p_reason text, p_ticket text, p_dry_run boolean
) RETURNS TABLE (part int, was bigint, now_at bigint, owner text)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    c postrider.consumer;
    v_wrong text;
    v_before jsonb;
BEGIN
    PERFORM set_config('lock_timeout', '5s', true);
    -- Retention raises the floor under this row's lock.
    SELECT * INTO c FROM postrider.consumer x WHERE x.name = p_consumer FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        RAISE EXCEPTION USING ERRCODE = 'PR002', MESSAGE = format('consumer %s is not registered in this database', p_consumer),
            HINT = 'Run `postrider init` with this configuration.';
    END IF;
    PERFORM FROM postrider.consumer_partition x
    WHERE x.consumer = c.consumer AND x.source = p_source AND x.topic = p_topic ORDER BY x.part FOR UPDATE;
    SELECT string_agg(CASE WHEN x.part IS NULL THEN format('partition %s was never read', w.part)
               ELSE format('partition %s is at offset %s, %s would pass messages over', w.part, x.next_off, w.off) END,
               '; ' ORDER BY w.part)
    INTO v_wrong
    FROM unnest(p_part, p_off, p_first) AS w(part, off, first_off)
    LEFT JOIN postrider.consumer_partition x ON x.consumer = c.consumer AND x.source = p_source AND x.topic = p_topic
                                            AND x.part = w.part
    WHERE x.part IS NULL OR w.off > greatest(x.next_off, w.first_off);
    IF v_wrong IS NOT NULL THEN
        RAISE EXCEPTION USING ERRCODE = 'PR025', MESSAGE = format('nothing was done: %s', v_wrong);
    END IF;
    IF NOT p_reset AND p_oldest < (c.floor AT TIME ZONE 'UTC')::date AND p_oldest > '-infinity' THEN
        RAISE EXCEPTION USING ERRCODE = 'PR025',
            MESSAGE = format('nothing was done: the oldest message wanted has an id of %s, and the dedupe records of ids before '
                '%s are gone: %s days cannot be told from new ones', p_oldest, (c.floor AT TIME ZONE 'UTC')::date,
                (c.floor AT TIME ZONE 'UTC')::date - p_oldest),
            HINT = 'Go back less far, or forget everything and apply it again: --reset-streams.';
    END IF;
    IF p_reset THEN
        v_wrong := postrider.reset_refusal(c.consumer, p_source, p_topic, p_part, p_off);
        IF v_wrong IS NOT NULL THEN
            RAISE EXCEPTION USING ERRCODE = 'PR025', MESSAGE = format('nothing was done: %s', v_wrong),
                HINT = format('Replay or discard them first (postrider dlq list --all --consumer %s), or go back further.',
                              p_consumer);
        END IF;
    END IF;
    RETURN QUERY
        SELECT x.part, x.next_off, w.off,
               (SELECT i.host || ':' || right(i.id::text, 8) FROM postrider.instance i
                WHERE i.id = x.owner AND x.lease_until > clock_timestamp())
        FROM unnest(p_part, p_off) AS w(part, off)
        JOIN postrider.consumer_partition x ON x.consumer = c.consumer AND x.source = p_source AND x.topic = p_topic
                                           AND x.part = w.part ORDER BY x.part;
    IF p_dry_run THEN
        RETURN;
    END IF;
    SELECT jsonb_object_agg(x.part, x.next_off) INTO v_before FROM postrider.consumer_partition x
    WHERE x.consumer = c.consumer AND x.source = p_source AND x.topic = p_topic AND x.part = ANY (p_part);
    PERFORM postrider.audit_write('consumer.rewind', p_by, p_reason, p_ticket,
        jsonb_build_object('consumer', p_consumer, 'source', p_source, 'topic', p_topic, 'positions', v_before,
                           'floor', c.floor),
        jsonb_build_object('positions', (SELECT jsonb_object_agg(u.part, u.off) FROM unnest(p_part, p_off) AS u(part, off)),
                           'reset', p_reset));
    UPDATE postrider.consumer_partition x
    SET next_off = w.off, last_id = w.last_id, epoch = x.epoch + 1, owner = NULL, lease_until = '-infinity',
        trying_to = NULL, tries = 0,
        reread_to = CASE WHEN NOT p_reset THEN greatest(x.reread_to, least(x.next_off, w.log_next)) END
    FROM unnest(p_part, p_off, p_next, p_last_id) AS w(part, off, log_next, last_id)
    WHERE x.consumer = c.consumer AND x.source = p_source AND x.topic = p_topic AND x.part = w.part;
    IF p_reset THEN
        PERFORM postrider.reset_consumer(c.consumer, p_source, p_topic, p_part, p_off);
    END IF;
END
$$;
GRANT EXECUTE ON FUNCTION postrider.consumer_rewind(text, text, text, int[], bigint[], bigint[], bigint[], uuid[], date,
    boolean, text, text, text, boolean) TO postrider_operator;
