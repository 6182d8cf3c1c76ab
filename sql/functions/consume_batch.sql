-- Takes a batch of messages: moves the positions, writes the dedupe records, decides on each message in
-- the order given, and moves the streams.  The caller, in the same transaction, then runs the handlers
-- of what is decided 'a' and park()s what is decided c, l, g, w or u; nothing is decided until it commits.
--   p_source ... p_last_id   the partitions the batch comes from, in key order: epoch under which the caller
--                          owns each, its first offset in the batch, the offset after its last, and the
--                          id of its last message (NULL if that has none).  A service without
--                          partitions gives empty arrays.
--   p_order, p_first       stream, latest or none; any or 1 (a stream opens at its first event, or at 1)
--   p_event_id ... p_kind    the messages; kind h handled, i ignored, r rejected (its handler has said no),
--                          u nobody can handle it
-- Decisions: a apply, d duplicate, s stale, l late, c conflict, g gap, w waiting, i ignored, r rejected,
-- u unhandled; `last` is the stream's version before a message that does not move the stream.
-- Errors: PR001 fenced (another process owns a partition; DETAIL: which); 40001 repeat the transaction.
CREATE OR REPLACE FUNCTION postrider.consume_batch(
    p_consumer smallint, p_source text[], p_topic text[], p_part int[], p_epoch bigint[],
    p_first bigint[], p_next bigint[], p_last_id uuid[], p_order text, p_opens text,
    p_event_id uuid[], p_digest bytea[], p_type text[], p_aggregate text[], p_version bigint[],
    p_prev bigint[], p_kind "char"[]
) RETURNS TABLE (n int, decision "char", last bigint)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off -- plans are kept, and may be made while the tables are still empty
AS $$
DECLARE
    v_fenced text;
    v_reread boolean;        -- an operator went back, and this was read before
    v_floor timestamptz;
    v_new uuid[];            -- ids whose record was written now
    v_seen int[];            -- messages whose id has a record already ...
    v_seen_digest bytea[];   -- ... and the digest in it
    v_opens_at_1 boolean := p_opens = '1' AND p_order = 'stream';
    v_odd int[];             -- messages of streams that need a closer look
    v_opened bigint;
    -- the streams of the batch that exist
    s_type text[];
    s_aggregate text[];
    s_place tid[];
    s_version bigint[];
    s_base bigint[];
    s_parked int[];
    -- what becomes of streams; no place: it is new
    w_place tid[];
    w_type text[];
    w_aggregate text[];
    w_version bigint[];
    w_base bigint[];
    w_event_id uuid[];
    w_digest bytea[];
    -- records that need another outcome than they were written with
    o_event_id uuid[] := '{}';
    o_outcome "char"[] := '{}';
    -- the stream at hand, of those that need a closer look
    m record;
    v_type text;
    v_aggregate text;
    v_last bigint;
    v_base bigint;
    v_low bigint;            -- the lowest parked version that holds it
    v_stream int;            -- its place among what is to be written; NULL: nothing is
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
        RETURNING c.source, c.topic, c.part, c.reread_to > w.first_off AS reread)
    SELECT string_agg(format('%s/%s', w.topic, w.part), ', '), (SELECT bool_or(d.reread) FROM moved d)
    INTO v_fenced, v_reread
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
               CASE u.kind WHEN 'h' THEN 'A'::"char" WHEN 'i' THEN 'I'::"char" WHEN 'r' THEN 'R'::"char"
                           ELSE 'D'::"char" END
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
        CROSS JOIN LATERAL (
            SELECT d.digest FROM postrider.consumed d
            WHERE d.consumer = p_consumer AND d.day = postrider.event_day(k.event_id)
              AND d.event_id = k.event_id
            OFFSET 0) c
        WHERE k.copy > 1 OR NOT k.event_id = ANY (coalesce(v_new, '{}'));
        IF coalesce(cardinality(v_new), 0) + cardinality(v_seen) IS DISTINCT FROM cardinality(p_event_id) THEN
            RAISE EXCEPTION USING ERRCODE = '40001',
                MESSAGE = 'a dedupe record exists but cannot be seen by this transaction';
        END IF;
    END IF;

    -- One by one in key order, as everybody locks them.
    IF p_order <> 'none' THEN
        SELECT array_agg(u.t), array_agg(u.a), array_agg(s.place), array_agg(s.version), array_agg(s.base),
               array_agg(s.parked)
        INTO s_type, s_aggregate, s_place, s_version, s_base, s_parked
        FROM (SELECT DISTINCT k.t COLLATE "C" AS t, k.a COLLATE "C" AS a
              FROM unnest(p_type, p_aggregate) AS k(t, a) ORDER BY 1, 2) u
        CROSS JOIN LATERAL (
            SELECT x.ctid AS place, x.version, x.base, x.parked FROM postrider.stream x
            WHERE x.consumer = p_consumer AND x.aggregate_type = u.t AND x.aggregate_id = u.a
            FOR UPDATE) s;
    END IF;

    -- Nearly all streams are plain: nothing of them is parked, and each message follows the one before it.
    -- They are done here at one go, and the messages of the others are named.
    SELECT array_agg(g.n) FILTER (WHERE NOT g.plain),
           array_agg(g.place) FILTER (WHERE g.plain AND g.is_last),
           array_agg(g.t) FILTER (WHERE g.plain AND g.is_last),
           array_agg(g.a) FILTER (WHERE g.plain AND g.is_last),
           array_agg(g.version) FILTER (WHERE g.plain AND g.is_last),
           array_agg(g.base) FILTER (WHERE g.plain AND g.is_last),
           array_agg(g.event_id) FILTER (WHERE g.plain AND g.is_last),
           array_agg(g.digest) FILTER (WHERE g.plain AND g.is_last)
    INTO v_odd, w_place, w_type, w_aggregate, w_version, w_base, w_event_id, w_digest
    FROM (SELECT f.*, bool_and(
                     f.kind <> 'u' AND f.parked = 0 AND NOT coalesce(f.n = ANY (v_seen), false)
                     AND CASE p_order WHEN 'none' THEN NOT postrider.too_old(f.event_id, v_floor)
                                      WHEN 'latest' THEN f.before < f.version
                                      ELSE f.expected <= f.before AND f.before < f.version END)
                 OVER (PARTITION BY f.t, f.a) AS plain
          FROM (SELECT u.n, u.event_id, u.digest, u.t, u.a, u.version, u.kind, u.expected, s.place,
                       coalesce(s.parked, 0) AS parked,
                       coalesce(lag(u.version) OVER in_order, s.version, u.opens) AS before,
                       lead(u.n) OVER in_order IS NULL AS is_last,
                       coalesce(max(CASE WHEN u.expected < u.version - 1 THEN u.version - 1 END) OVER in_order,
                                s.base, first_value(u.opens) OVER in_order) AS base
                FROM (SELECT k.n::int, k.event_id, k.digest, k.t COLLATE "C" AS t, k.a COLLATE "C" AS a,
                             k.version, k.kind, coalesce(k.prev, k.version - 1) AS expected,
                             CASE WHEN v_opens_at_1 THEN 0 ELSE coalesce(k.prev, k.version - 1) END AS opens
                      FROM unnest(p_event_id, p_digest, p_type, p_aggregate, p_version, p_prev, p_kind)
                           WITH ORDINALITY AS k(event_id, digest, t, a, version, prev, kind, n)) u
                LEFT JOIN unnest(s_type, s_aggregate, s_place, s_version, s_base, s_parked)
                     AS s(t, a, place, version, base, parked) ON s.t = u.t AND s.a = u.a
                WINDOW in_order AS (PARTITION BY u.t, u.a ORDER BY u.n)) f) g;
    RETURN QUERY
        SELECT k.n::int, CASE k.kind WHEN 'h' THEN 'a'::"char" ELSE k.kind END, NULL::bigint
        FROM unnest(p_kind) WITH ORDINALITY AS k(kind, n)
        WHERE v_odd IS NULL OR NOT k.n = ANY (v_odd);

    FOR m IN
        SELECT u.n::int AS n, u.event_id, u.digest, u.t, u.a, u.version, u.kind,
               coalesce(u.prev, u.version - 1) AS expected, seen.digest AS seen_digest,
               postrider.too_old(u.event_id, v_floor) AS too_old, s.place, s.version AS last, s.base,
               low.version AS low
        FROM unnest(p_event_id, p_digest, p_type, p_aggregate, p_version, p_prev, p_kind)
             WITH ORDINALITY AS u(event_id, digest, t, a, version, prev, kind, n)
        LEFT JOIN unnest(v_seen, v_seen_digest) AS seen(n, digest) ON seen.n = u.n
        LEFT JOIN unnest(s_type, s_aggregate, s_place, s_version, s_base, s_parked)
             AS s(t, a, place, version, base, parked) ON s.t = u.t AND s.a = u.a
        LEFT JOIN LATERAL (
            SELECT min(p.version) AS version FROM postrider.parked p
            WHERE s.parked > 0 AND p.side = 'consumer' AND p.reader = p_consumer
              AND p.aggregate_type = u.t AND p.aggregate_id = u.a AND p.holds
              AND p.version > s.version) low ON true
        WHERE u.n = ANY (v_odd)
        ORDER BY u.t COLLATE "C", u.a COLLATE "C", u.n
    LOOP
        IF v_type IS DISTINCT FROM m.t OR v_aggregate IS DISTINCT FROM m.a THEN
            v_type := m.t;
            v_aggregate := m.a;
            v_last := m.last;
            v_base := m.base;
            v_low := m.low;
            v_stream := NULL;
        END IF;
        n := m.n;
        last := v_last;
        IF m.seen_digest IS NOT NULL THEN
            decision := CASE WHEN m.seen_digest = m.digest THEN 'd' ELSE 'c' END;
            RETURN NEXT;
            CONTINUE;
        END IF;
        IF v_last IS NULL AND p_order <> 'none' THEN
            -- Also when this event itself parks: a later one must not open the stream ahead of it.
            v_base := CASE WHEN v_opens_at_1 THEN 0 ELSE m.expected END;
            v_last := v_base;
            last := v_base;
            v_stream := coalesce(cardinality(w_type), 0) + 1;
            w_event_id[v_stream] := NULL;
            w_digest[v_stream] := NULL;
        END IF;
        decision := postrider.decide(p_order, v_last, v_base, v_low, m.version, m.expected, m.too_old, m.kind);
        IF v_reread AND decision = 'l' AND p_order = 'stream' THEN
            decision := 's';
        END IF;
        RETURN NEXT;
        IF decision IN ('a', 'i', 'r') AND p_order <> 'none' THEN
            IF m.expected < m.version - 1 THEN
                v_base := m.version - 1; -- the versions jumped over have not been here
            END IF;
            v_last := m.version;
            v_stream := coalesce(v_stream, coalesce(cardinality(w_type), 0) + 1);
            w_event_id[v_stream] := m.event_id;
            w_digest[v_stream] := m.digest;
        ELSIF decision IN ('g', 'w', 'u') AND p_order = 'stream' THEN
            v_low := least(v_low, m.version);
        END IF;
        IF v_stream IS NOT NULL THEN
            w_place[v_stream] := m.place;
            w_type[v_stream] := m.t;
            w_aggregate[v_stream] := m.a;
            w_version[v_stream] := v_last;
            w_base[v_stream] := v_base;
        END IF;
        IF decision NOT IN ('a', 'i', 'r', 'u') THEN
            o_event_id := o_event_id || m.event_id;
            o_outcome := o_outcome || CASE WHEN decision IN ('g', 'w') THEN 'P'::"char"
                                           WHEN decision = 's' THEN 'S'::"char" ELSE 'D'::"char" END;
        END IF;
    END LOOP;

    IF p_order <> 'none' THEN
        UPDATE postrider.stream s
        SET version = w.version, base = w.base, event_id = w.event_id, digest = w.digest
        FROM unnest(w_place, w_version, w_base, w_event_id, w_digest)
             AS w(place, version, base, event_id, digest)
        WHERE s.ctid = w.place; -- locked above, so it is where it was
    END IF;
    IF array_position(w_place, NULL) IS NOT NULL AND p_order <> 'none' THEN
        WITH opened AS (
            INSERT INTO postrider.stream (consumer, aggregate_type, aggregate_id, version, event_id, digest, base)
            SELECT p_consumer, w.t, w.a, w.version, w.event_id, w.digest, w.base
            FROM unnest(w_place, w_type, w_aggregate, w_version, w_base, w_event_id, w_digest)
                 AS w(place, t, a, version, base, event_id, digest)
            WHERE w.place IS NULL ORDER BY w.t COLLATE "C", w.a COLLATE "C"
            ON CONFLICT DO NOTHING
            RETURNING 1)
        SELECT count(*) INTO v_opened FROM opened;
        IF v_opened < cardinality(array_positions(w_place, NULL)) THEN
            RAISE EXCEPTION USING ERRCODE = '40001',
                MESSAGE = 'another transaction has opened one of these streams meanwhile';
        END IF;
    END IF;
    IF cardinality(o_event_id) > 0 THEN
        UPDATE postrider.consumed c SET outcome = o.outcome
        FROM unnest(o_event_id, o_outcome) AS o(event_id, outcome)
        WHERE c.consumer = p_consumer AND c.day = postrider.event_day(o.event_id) AND c.event_id = o.event_id;
    END IF;
    IF v_odd IS NOT NULL AND p_order = 'stream' THEN
        PERFORM postrider.wake_streams(p_consumer, w_type, w_aggregate);
    END IF;
END
$$;
GRANT EXECUTE ON FUNCTION postrider.consume_batch(smallint, text[], text[], int[], bigint[], bigint[],
    bigint[], uuid[], text, text, uuid[], bytea[], text[], text[], bigint[], bigint[], "char"[])
    TO postrider_consumer;
