-- Ends a relay: its position, routes and instances go, and with them what it held back in retention.  What it
-- had parked stays in postrider.parked as discarded.  The act is a row of the audit.
--   p_relay   its name
--   p_by, p_reason  who does it, and why
--   p_ticket  where it is discussed; may be NULL
--   p_force   also if events are unpublished or parked, which are given up
--   p_dry_run look only
-- Returns no row if there is no such relay, else
--   refused    'live': a process owns lanes of it, `live` says which; 'unpublished': see p_force; NULL: done
--   pending    unpublished events, of which at most 10000 are counted; there are `more`
--   dead, waiting  parked events
--   held_since the day of the oldest event it held back; NULL: none
--   others     relays that are left on the same outbox
-- Errors: PR021 no name or no reason.
CREATE OR REPLACE FUNCTION postrider.relay_drop(
    p_relay text, p_by text, p_reason text, p_ticket text, p_force boolean, p_dry_run boolean
) RETURNS TABLE (refused text, live text, pending bigint, more boolean, dead bigint, waiting bigint,
                 held_since date, others bigint)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_relay postrider.relay;
    v_oldest uuid;
BEGIN
    PERFORM set_config('lock_timeout', '2s', true);
    SELECT * INTO v_relay FROM postrider.relay WHERE name = p_relay FOR UPDATE;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    -- Nobody claims a lane from here on; what is counted below is counted after that.
    PERFORM FROM postrider.lane WHERE relay = v_relay.relay ORDER BY lane FOR UPDATE;
    SELECT string_agg(format('%s:%s owns %s lanes', o.host, right(o.owner::text, 8), o.lanes), ', ' ORDER BY o.owner)
    INTO live
    FROM (SELECT l.owner, min(coalesce(i.host, '?')) AS host, count(*) AS lanes
          FROM postrider.lane l LEFT JOIN postrider.instance i ON i.id = l.owner
          WHERE l.relay = v_relay.relay AND l.owner IS NOT NULL AND l.lease_until > clock_timestamp()
          GROUP BY l.owner) o;
    SELECT coalesce(sum(g.pending), 0), coalesce(bool_or(g.more), false),
           (array_agg(g.oldest_id ORDER BY g.oldest_id) FILTER (WHERE g.oldest_id IS NOT NULL))[1]
    INTO pending, more, v_oldest
    FROM postrider.relay_lag(v_relay.relay, 10000) g;
    SELECT count(*) FILTER (WHERE p.state = 'dead'), count(*) FILTER (WHERE p.state <> 'dead'),
           least(nullif(postrider.event_day(v_oldest), '-infinity'),
                 min(nullif(postrider.event_day(p.event_id), '-infinity')))
    INTO dead, waiting, held_since
    FROM postrider.parked p
    WHERE p.side = 'relay' AND p.reader = v_relay.relay AND p.state <> 'discarded';
    SELECT count(*) INTO others FROM postrider.relay r WHERE r.outbox = v_relay.outbox AND r.relay <> v_relay.relay;
    refused := CASE WHEN live IS NOT NULL THEN 'live'
                    WHEN NOT p_force AND pending + dead + waiting > 0 THEN 'unpublished' END;
    IF refused IS NULL AND NOT p_dry_run THEN
        PERFORM postrider.audit_write('relay.drop', p_by, p_reason, p_ticket,
            to_jsonb(v_relay) || jsonb_build_object('pending', pending, 'pending_more', more, 'dead', dead,
                'waiting', waiting, 'lanes', (SELECT jsonb_agg(jsonb_build_object('lane', l.lane, 'epoch', l.epoch,
                    'done_snap', l.done_snap::text, 'open_snap', l.open_snap::text, 'open_pos', l.open_pos)
                    ORDER BY l.lane) FROM postrider.lane l WHERE l.relay = v_relay.relay)), NULL);
        UPDATE postrider.parked p
        SET state = 'discarded', holds = false, request = 'drop', request_by = p_by, request_reason = p_reason,
            last_at = clock_timestamp()
        WHERE p.side = 'relay' AND p.reader = v_relay.relay AND p.state <> 'discarded';
        DELETE FROM postrider.instance i WHERE i.side = 'relay' AND i.reader = v_relay.relay;
        DELETE FROM postrider.relay r WHERE r.relay = v_relay.relay; -- lanes and routes go with it
    END IF;
    RETURN NEXT;
END
$$;
GRANT EXECUTE ON FUNCTION postrider.relay_drop(text, text, text, text, boolean, boolean) TO postrider_operator;
