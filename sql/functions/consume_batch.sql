-- Takes a batch of messages: moves the positions, writes the dedupe records, decides on each message in
-- the order given, and moves the streams.  The caller, in the same transaction, then runs the handlers
-- of what is decided 'a' and park()s what is decided c, l, g, w or u; nothing is decided until it commits.
--   p_source … p_last_id   the partitions the batch comes from, in key order: epoch under which the caller
--                          owns each, its first offset in the batch, the offset after its last, and the
--                          id of its last message (NULL if that has none).  A service without
--                          partitions gives empty arrays.
--   p_order, p_first       stream, latest or none; any or 1 (a stream opens at its first event, or at 1)
--   p_event_id … p_kind    the messages; kind h handled, i ignored, u nobody can handle it
-- Decisions: a apply, d duplicate, s stale, l late, c conflict, g gap, w waiting, i ignored, u unhandled;
-- `last` is the stream's version before the message.
-- Errors: PR001 fenced (another process owns a partition; DETAIL: which); 40001 repeat the transaction.
CREATE OR REPLACE FUNCTION postrider.consume_batch(
    p_consumer smallint, p_source text[], p_topic text[], p_part int[], p_epoch bigint[],
    p_first bigint[], p_next bigint[], p_last_id uuid[], p_order text, p_opens text,
    p_event_id uuid[], p_digest bytea[], p_type text[], p_aggregate text[], p_version bigint[],
    p_prev bigint[], p_kind "char"[]
) RETURNS TABLE (n int, decision "char", last bigint)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_fenced text;
    v_floor timestamptz;
    v_new uuid[];            -- ids whose record was written now
    v_seen int[];            -- messages whose id has a record already …
    v_seen_digest bytea[];   -- … and the digest in it
    v_held boolean := false; -- some stream of the batch has parked events
    m record;
    -- the stream at hand
    v_type text;
    v_aggregate text;
    v_last bigint;
    v_base bigint;
    v_low bigint;            -- the lowest parked version that holds it
    v_opened boolean;
    v_top int;               -- the message that moved it last; one that opened it without moving it
    -- what is to be written
    v_tops int[] := '{}';
    v_lasts bigint[] := '{}';
    v_bases bigint[] := '{}';
    v_opens boolean[] := '{}';
    v_other int[] := '{}';   -- messages whose record needs another outcome than it was written with
    v_outcome "char"[] := '{}';
    v_written bigint;
BEGIN
    -- First, so that a zombie with an older epoch is stopped before it waits for anything else.
    WITH want AS MATERIALIZED (
        SELECT * FROM unnest(p_source, p_topic, p_part, p_epoch, p_first, p_next, p_last_id)
            AS u(source, topic, part, epoch, first_off, next_off, last_id)),
    moved AS (
        UPDATE postrider.consumer_partition c
        SET next_off = w.next_off, last_id = w.last_id, trying_to = NULL, tries = 0
        FROM want w
        WHERE c.consumer = p_consumer AND c.source = w.source AND c.topic = w.topic AND c.part = w.part
          AND c.epoch = w.epoch AND c.next_off <= w.first_off
        RETURNING c.source, c.topic, c.part)
    SELECT string_agg(format('%s/%s', w.topic, w.part), ', ') INTO v_fenced
    FROM want w WHERE (w.source, w.topic, w.part) NOT IN (SELECT d.source, d.topic, d.part FROM moved d);
    IF v_fenced IS NOT NULL THEN
        RAISE EXCEPTION USING ERRCODE = 'PR001',
            MESSAGE = 'fenced: another process owns a partition of this batch, or has passed it',
            DETAIL = v_fenced;
    END IF;
    IF cardinality(p_event_id) = 0 THEN
        RETURN;
    END IF;

    SELECT c.floor INTO v_floor FROM postrider.consumer c WHERE c.consumer = p_consumer;
    IF NOT FOUND THEN
        RAISE EXCEPTION USING ERRCODE = 'PR002',
            MESSAGE = format('consumer number %s is not registered in this database', p_consumer),
            HINT = 'Run `postrider init` with this configuration.';
    END IF;

    -- Sorted, so that overlapping batches cannot wait for each other.  Each record is written with the
    -- outcome most of its kind will have.
    WITH put AS (
        INSERT INTO postrider.consumed (consumer, day, event_id, digest, outcome)
        SELECT p_consumer, postrider.event_day(u.event_id), u.event_id, u.digest,
               CASE u.kind WHEN 'h' THEN 'A'::"char" WHEN 'i' THEN 'I'::"char" ELSE 'D'::"char" END
        FROM unnest(p_event_id, p_digest, p_kind) WITH ORDINALITY AS u(event_id, digest, kind, n)
        ORDER BY 2, 3, u.n
        ON CONFLICT DO NOTHING
        RETURNING consumed.event_id)
    SELECT array_agg(put.event_id) INTO v_new FROM put;

    -- A statement of its own: the one above sees neither its own rows nor those it waited for.
    IF v_new IS NULL OR cardinality(v_new) < cardinality(p_event_id) THEN
        SELECT array_agg(k.n), array_agg(c.digest) INTO v_seen, v_seen_digest
        FROM (SELECT u.n, u.event_id, row_number() OVER (PARTITION BY u.event_id ORDER BY u.n) AS copy
              FROM unnest(p_event_id) WITH ORDINALITY AS u(event_id, n)) k
        JOIN postrider.consumed c ON c.consumer = p_consumer AND c.event_id = k.event_id
                                 AND c.day = postrider.event_day(k.event_id)
        WHERE k.copy > 1 OR NOT k.event_id = ANY (coalesce(v_new, '{}'));
        IF coalesce(cardinality(v_new), 0) + cardinality(v_seen) IS DISTINCT FROM cardinality(p_event_id) THEN
            RAISE EXCEPTION USING ERRCODE = '40001',
                MESSAGE = 'a dedupe record exists but cannot be seen by this transaction';
        END IF;
    END IF;

    -- Locked in key order, and read in a later statement than the one that may have waited.
    IF p_order <> 'none' THEN
        SELECT coalesce(bool_or(held.parked > 0), false) INTO v_held
        FROM (SELECT s.parked FROM postrider.stream s
              WHERE s.consumer = p_consumer AND (s.aggregate_type, s.aggregate_id) IN
                    (SELECT u.t, u.a FROM unnest(p_type, p_aggregate) AS u(t, a))
              ORDER BY s.aggregate_type, s.aggregate_id FOR UPDATE) held;
    END IF;

    FOR m IN
        SELECT u.n::int AS n, u.digest, u.t, u.a, u.version, coalesce(u.prev, u.version - 1) AS expected,
               u.kind, seen.digest AS seen_digest, postrider.too_old(u.event_id, v_floor) AS too_old,
               s.version AS last, s.base, low.version AS low
        FROM unnest(p_event_id, p_digest, p_type, p_aggregate, p_version, p_prev, p_kind)
             WITH ORDINALITY AS u(event_id, digest, t, a, version, prev, kind, n)
        LEFT JOIN unnest(v_seen, v_seen_digest) AS seen(n, digest) ON seen.n = u.n
        LEFT JOIN postrider.stream s ON p_order <> 'none' AND s.consumer = p_consumer
                                    AND s.aggregate_type = u.t AND s.aggregate_id = u.a
        LEFT JOIN LATERAL (
            SELECT min(p.version) AS version FROM postrider.parked p
            WHERE v_held AND s.parked > 0 AND p.side = 'consumer' AND p.reader = p_consumer
              AND p.aggregate_type = u.t AND p.aggregate_id = u.a AND p.holds
              AND p.version > s.version) low ON true
        ORDER BY u.t COLLATE "C", u.a COLLATE "C", u.n
    LOOP
        IF v_type IS DISTINCT FROM m.t OR v_aggregate IS DISTINCT FROM m.a THEN
            IF v_top IS NOT NULL THEN
                v_tops := v_tops || v_top;
                v_lasts := v_lasts || v_last;
                v_bases := v_bases || v_base;
                v_opens := v_opens || v_opened;
            END IF;
            v_type := m.t;
            v_aggregate := m.a;
            v_last := m.last;
            v_base := m.base;
            v_low := m.low;
            v_opened := false;
            v_top := NULL;
        END IF;
        n := m.n;
        IF m.seen_digest IS NOT NULL THEN
            last := v_last;
            decision := CASE WHEN m.seen_digest = m.digest THEN 'd' ELSE 'c' END;
            RETURN NEXT;
            CONTINUE;
        END IF;
        IF v_last IS NULL AND p_order <> 'none' THEN
            -- Also when this event itself parks: a later one must not open the stream ahead of it.
            v_base := CASE WHEN p_opens = '1' AND p_order = 'stream' THEN 0 ELSE m.expected END;
            v_last := v_base;
            v_opened := true;
            v_top := m.n;
        END IF;
        last := v_last;
        decision := postrider.decide(p_order, v_last, v_base, v_low, m.version, m.expected, m.too_old, m.kind);
        IF decision IN ('a', 'i') THEN
            IF p_order <> 'none' THEN
                IF m.expected < m.version - 1 THEN
                    v_base := m.version - 1; -- the versions jumped over have not been here
                END IF;
                v_last := m.version;
                v_top := m.n;
            END IF;
        ELSE
            IF p_order = 'stream' AND decision IN ('g', 'w', 'u') THEN
                v_low := least(v_low, m.version);
            END IF;
            IF decision <> 'u' THEN
                v_other := v_other || m.n;
                v_outcome := v_outcome || CASE WHEN decision IN ('g', 'w') THEN 'P'::"char"
                                               WHEN decision = 's' THEN 'S'::"char" ELSE 'D'::"char" END;
            END IF;
        END IF;
        RETURN NEXT;
    END LOOP;
    IF v_top IS NOT NULL THEN
        v_tops := v_tops || v_top;
        v_lasts := v_lasts || v_last;
        v_bases := v_bases || v_base;
        v_opens := v_opens || v_opened;
    END IF;

    IF true = ANY (v_opens) THEN
        WITH opened AS (
            INSERT INTO postrider.stream (consumer, aggregate_type, aggregate_id, version, event_id, digest, base)
            SELECT p_consumer, u.t, u.a, w.last, CASE WHEN u.version = w.last THEN u.event_id END,
                   CASE WHEN u.version = w.last THEN u.digest END, w.base
            FROM unnest(v_tops, v_lasts, v_bases, v_opens) AS w(n, last, base, opened)
            JOIN unnest(p_event_id, p_digest, p_type, p_aggregate, p_version) WITH ORDINALITY
                 AS u(event_id, digest, t, a, version, n) ON u.n = w.n
            WHERE w.opened ORDER BY u.t COLLATE "C", u.a COLLATE "C"
            ON CONFLICT DO NOTHING
            RETURNING 1)
        SELECT count(*) INTO v_written FROM opened;
        IF v_written < cardinality(array_positions(v_opens, true)) THEN
            RAISE EXCEPTION USING ERRCODE = '40001',
                MESSAGE = 'another transaction has opened one of these streams meanwhile';
        END IF;
    END IF;
    IF false = ANY (v_opens) THEN
        UPDATE postrider.stream s
        SET version = w.last, base = w.base, event_id = u.event_id, digest = u.digest
        FROM unnest(v_tops, v_lasts, v_bases, v_opens) AS w(n, last, base, opened)
        JOIN unnest(p_event_id, p_digest, p_type, p_aggregate) WITH ORDINALITY
             AS u(event_id, digest, t, a, n) ON u.n = w.n
        WHERE NOT w.opened AND s.consumer = p_consumer AND s.aggregate_type = u.t AND s.aggregate_id = u.a;
    END IF;
    IF cardinality(v_other) > 0 THEN
        UPDATE postrider.consumed c SET outcome = w.outcome
        FROM unnest(v_other, v_outcome) AS w(n, outcome)
        JOIN unnest(p_event_id) WITH ORDINALITY AS u(event_id, n) ON u.n = w.n
        WHERE c.consumer = p_consumer AND c.day = postrider.event_day(u.event_id) AND c.event_id = u.event_id;
    END IF;
    IF v_held THEN
        PERFORM postrider.wake_streams(p_consumer, p_type, p_aggregate);
    END IF;
END
$$;
GRANT EXECUTE ON FUNCTION postrider.consume_batch(smallint, text[], text[], int[], bigint[], bigint[],
    bigint[], uuid[], text, text, uuid[], bytea[], text[], text[], bigint[], bigint[], "char"[])
    TO postrider_consumer;
