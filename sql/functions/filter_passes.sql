-- Whether a relay with this filter publishes such an event.  A list that is not there lets all through.
CREATE OR REPLACE FUNCTION postrider.filter_passes(p_filter jsonb, p_aggregate_type text, p_event_type text)
RETURNS boolean
LANGUAGE sql IMMUTABLE
RETURN coalesce(p_filter -> 'aggregate_types' ? p_aggregate_type, true)
   AND coalesce(p_filter -> 'event_types' ? p_event_type, true);
GRANT EXECUTE ON FUNCTION postrider.filter_passes(jsonb, text, text) TO postrider_relay, postrider_operator;
