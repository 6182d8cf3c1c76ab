-- What a relay has still to publish, by lane; what is parked is not counted.  It looks at no more than
-- p_most rows behind each position, by the index, so a backlog of millions costs no more than a small one.
--   pending    events seen; there are `more` than that
--   oldest_at, oldest_id  of those seen: when the oldest was written, and the lowest event id
-- Of a table of the user's own nothing is returned: its state column tells.
CREATE OR REPLACE FUNCTION postrider.relay_lag(p_relay smallint, p_most int)
RETURNS TABLE (lane smallint, pending bigint, more boolean, oldest_at timestamptz, oldest_id uuid)
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET jit = off
AS $$
    -- Lanes that stand at the same place are looked at together.
    WITH places AS MATERIALIZED (
        SELECT row_number() OVER () AS place, array_agg(l.lane) AS lanes, l.done_snap::text::pg_snapshot AS done,
               l.open_snap::text::pg_snapshot AS open, l.open_pos, r.filter
        FROM postrider.relay r JOIN postrider.lane l USING (relay)
        WHERE r.relay = p_relay AND r.outbox = 'postrider.outbox'
        GROUP BY l.done_snap::text, l.open_snap::text, l.open_pos, r.filter
    ), seen AS MATERIALIZED (
        SELECT p.place, o.*
        FROM places p CROSS JOIN LATERAL (
            -- in progress when the position was taken
            (SELECT o.lane, o.id, o.xid, o.inserted_at, o.event_id, o.aggregate_type, o.event_type
             FROM postrider.outbox o
             WHERE o.xid = ANY (ARRAY(SELECT pg_snapshot_xip(p.done))) AND o.lane = ANY (p.lanes) LIMIT p_most)
            UNION ALL
            -- begun after it; of a window that is half done: after its end
            (SELECT o.lane, o.id, o.xid, o.inserted_at, o.event_id, o.aggregate_type, o.event_type
             FROM postrider.outbox o
             WHERE o.xid >= pg_snapshot_xmax(coalesce(p.open, p.done)) ORDER BY o.xid LIMIT p_most)
            UNION ALL
            -- the rest of a window that is half done
            (SELECT o.lane, o.id, o.xid, o.inserted_at, o.event_id, o.aggregate_type, o.event_type
             FROM postrider.outbox o
             WHERE p.open IS NOT NULL AND o.id > p.open_pos AND o.id <= p.open_pos + p_most
               AND o.xid >= pg_snapshot_xmax(p.done) AND o.xid < pg_snapshot_xmax(p.open))
        ) o
    ), counted AS (
        SELECT place, count(*) >= p_most AS more FROM seen GROUP BY place
    )
    SELECT l.lane, count(s.id), coalesce(bool_or(c.more), false), min(s.inserted_at),
           (array_agg(s.event_id ORDER BY s.event_id) FILTER (WHERE s.id IS NOT NULL))[1]
    FROM places p CROSS JOIN unnest(p.lanes) l(lane)
    LEFT JOIN counted c USING (place)
    LEFT JOIN seen s ON s.place = p.place AND s.lane = l.lane
        AND postrider.filter_passes(p.filter, s.aggregate_type, s.event_type)
        AND NOT coalesce(s.id <= p.open_pos AND pg_visible_in_snapshot(s.xid, p.open), false)
    GROUP BY l.lane
$$;
GRANT EXECUTE ON FUNCTION postrider.relay_lag(smallint, int) TO postrider_relay, postrider_operator, postrider_maint;
