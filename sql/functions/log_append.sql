-- Appends messages to the log, all or none; returns the first offset given in each head.
--   p_writer            the relay's own uuid (relay.writer)
--   p_lanes, p_epochs   the lanes these messages come from and the epoch the caller owns them under
--   p_topics, p_parts, p_counts   the heads (partitions), each once, and how many messages go to each
-- then one element per message, those of the first head first, in the order they are to have there:
--   p_keys, p_event_ids, p_values, p_bodies
--   p_names_of          which of p_names has the header names (counted from 1): few lists serve many messages
-- Offsets are dense and in commit order per (topic, part): the head row stays locked until commit, so a
-- reader of `off >= position` never skips one.  The writer's rows are locked the same way, so a caller
-- with an old epoch cannot commit behind the new owner.
-- Errors: PR010 fenced (DETAIL: the lanes), PR011 no such topic or partition, PR013 the arrays do not fit
-- each other.
CREATE OR REPLACE FUNCTION postrider.log_append(
    p_writer uuid, p_lanes smallint[], p_epochs bigint[],
    p_topics text[], p_parts int[], p_counts int[],
    p_keys bytea[], p_event_ids uuid[], p_names postrider.log_names[], p_names_of smallint[],
    p_values postrider.log_values[], p_bodies bytea[]
) RETURNS bigint[]
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_fenced text;
    v_missing text;
    v_count bigint := (SELECT coalesce(sum(n), 0) FROM unnest(p_counts) n);
    v_first bigint[];
    v_topics text[];
    v_parts int[];
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

    -- Arrays of different lengths would be filled up with nulls, a head named twice would give an offset twice.
    IF (v_count = ALL (ARRAY[cardinality(p_keys), cardinality(p_event_ids), cardinality(p_names_of),
                             cardinality(p_values), cardinality(p_bodies)])) IS NOT TRUE
       OR (cardinality(p_topics) = ALL (ARRAY[cardinality(p_parts), cardinality(p_counts)])) IS NOT TRUE
       OR EXISTS (SELECT FROM unnest(p_topics, p_parts, p_counts) AS h(topic, part, n)
                  GROUP BY h.topic, h.part HAVING count(*) > 1 OR NOT coalesce(min(h.n) > 0, false)) THEN
        RAISE EXCEPTION USING ERRCODE = 'PR013',
            MESSAGE = 'log_append: the arrays do not fit each other',
            HINT = 'Name each topic and partition once, with how many messages go there; then one element per '
                || 'message in each array, ordered by partition.';
    END IF;

    PERFORM FROM postrider.log_head h
    WHERE (h.topic, h.part) IN (SELECT w.topic, w.part FROM unnest(p_topics, p_parts) AS w(topic, part))
    ORDER BY h.topic, h.part FOR UPDATE;

    WITH want AS (
        SELECT w.topic, w.part, w.n, w.ord
        FROM unnest(p_topics, p_parts, p_counts) WITH ORDINALITY AS w(topic, part, n, ord)),
    moved AS (
        UPDATE postrider.log_head h SET next_off = h.next_off + want.n
        FROM want WHERE h.topic = want.topic AND h.part = want.part
        RETURNING want.ord, h.next_off - want.n AS first)
    SELECT array_agg(moved.first ORDER BY want.ord),
           string_agg(format('%s/%s', want.topic, want.part), ', ' ORDER BY want.ord) FILTER (WHERE moved.ord IS NULL)
    INTO v_first, v_missing FROM want LEFT JOIN moved USING (ord);
    IF v_missing IS NOT NULL THEN
        RAISE EXCEPTION USING ERRCODE = 'PR011',
            MESSAGE = format('the log has no such topic or partition: %s', v_missing),
            HINT = 'Make it with: SELECT postrider.log_create_topic(topic, partitions)';
    END IF;

    v_at := clock_timestamp();
    SELECT array_agg(w.topic ORDER BY w.ord, i), array_agg(w.part ORDER BY w.ord, i),
           array_agg(w.first + i ORDER BY w.ord, i)
    INTO v_topics, v_parts, v_offsets
    FROM unnest(p_topics, p_parts, p_counts, v_first) WITH ORDINALITY AS w(topic, part, n, first, ord),
         generate_series(0, w.n - 1) AS i;

    -- Side by side in the select list the arrays are walked in step, without a copy of the rows in between.
    INSERT INTO postrider.log (topic, part, off, at, event_id, key, header_names, header_values, body)
    SELECT e.topic, e.part, e.off, v_at, e.event_id, e.key, (p_names[e.names_of]).list, (e.header_values).list, e.body
    FROM (SELECT unnest(v_topics) AS topic, unnest(v_parts) AS part, unnest(v_offsets) AS off,
                 unnest(p_event_ids) AS event_id, unnest(p_keys) AS key, unnest(p_names_of) AS names_of,
                 unnest(p_values) AS header_values, unnest(p_bodies) AS body) e;
    RETURN coalesce(v_first, '{}');
END
$$;
GRANT EXECUTE ON FUNCTION postrider.log_append(uuid, smallint[], bigint[], text[], int[], int[], bytea[], uuid[],
    postrider.log_names[], smallint[], postrider.log_values[], bytea[]) TO postrider_relay;
