-- What still needs a partition of the outbox, in words; NULL if nothing does.  Relays that read a table of
-- the user's own need none.
CREATE OR REPLACE FUNCTION postrider.outbox_holder(p_part regclass) RETURNS text
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_holder text;
BEGIN
    IF NOT EXISTS (SELECT FROM postrider.relay WHERE outbox = 'postrider.outbox') THEN
        RETURN 'no relay is registered, so nothing has been published';
    END IF;
    EXECUTE format('SELECT format(''relay %%s has not published all of lane %%s'', r.name, l.lane)
        FROM postrider.relay r JOIN postrider.lane l USING (relay)
        WHERE r.outbox = ''postrider.outbox'' AND EXISTS (SELECT FROM %s o WHERE o.lane = l.lane AND o.xid >= pg_snapshot_xmin(l.done_snap)
                      AND postrider.filter_passes(r.filter, o.aggregate_type, o.event_type)
                      AND NOT pg_visible_in_snapshot(o.xid, l.done_snap))
        ORDER BY r.name, l.lane LIMIT 1', p_part) INTO v_holder;
    IF v_holder IS NULL THEN
        EXECUTE format('SELECT format(''parked event %%s of relay %%s'', p.event_id, r.name)
            FROM postrider.parked p JOIN postrider.relay r ON r.relay = p.reader
            WHERE p.side = ''relay'' AND p.state <> ''discarded''
              AND EXISTS (SELECT FROM %s o WHERE o.event_id = p.event_id) LIMIT 1', p_part) INTO v_holder;
    END IF;
    RETURN v_holder;
END
$$;
