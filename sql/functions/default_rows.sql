-- Which days lie in the DEFAULT partitions, and how many rows of each (of the first 10000): they come from
-- clocks that are wrong, or from days whose partition was not made in time.
CREATE OR REPLACE FUNCTION postrider.default_rows()
RETURNS TABLE (table_name text, day date, row_count bigint)
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT 'outbox', d.day, count(*) FROM (SELECT postrider.event_day(event_id) AS day
                                           FROM postrider.outbox_default LIMIT 10000) d GROUP BY d.day
    UNION ALL
    SELECT 'log', d.day, count(*) FROM (SELECT (at AT TIME ZONE 'UTC')::date AS day
                                        FROM postrider.log_default LIMIT 10000) d GROUP BY d.day
    UNION ALL
    SELECT 'consumed', d.day, count(*) FROM (SELECT c.day FROM postrider.consumed_default c LIMIT 10000) d
    GROUP BY d.day
$$;
GRANT EXECUTE ON FUNCTION postrider.default_rows() TO postrider_relay, postrider_consumer, postrider_operator,
    postrider_maint;
