-- Where each event stands with each relay.  For people and reconciliation: it reads the outbox, so
-- filter by event_id or by stream.
CREATE OR REPLACE VIEW postrider.outbox_state AS
SELECT r.name AS relay, o.event_id, o.aggregate_type, o.aggregate_id, o.aggregate_version, o.event_type,
       o.occurred_at, o.inserted_at, o.id, o.lane,
       CASE
           WHEN NOT postrider.filter_passes(r.filter, o.aggregate_type, o.event_type) THEN 'FILTERED'
           WHEN p.state IN ('dead', 'discarded') THEN 'DEAD'
           WHEN p.id IS NOT NULL THEN 'PARKED'
           WHEN pg_visible_in_snapshot(o.xid, l.done_snap) THEN 'PUBLISHED'
           WHEN o.id <= l.open_pos AND pg_visible_in_snapshot(o.xid, l.open_snap) THEN 'PUBLISHED'
           ELSE 'PENDING'
       END AS publish_state
FROM postrider.relay r
JOIN postrider.lane l USING (relay)
JOIN postrider.outbox o ON o.lane = l.lane
LEFT JOIN postrider.parked p ON p.side = 'relay' AND p.reader = r.relay AND p.event_id = o.event_id
WHERE r.outbox = 'postrider.outbox';
GRANT SELECT ON postrider.outbox_state TO postrider_relay, postrider_operator;
