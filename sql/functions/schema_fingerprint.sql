-- One line for each thing init made, so that a schema changed by hand can be told, and named.
CREATE OR REPLACE FUNCTION postrider.schema_fingerprint() RETURNS text[]
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT array_agg(line ORDER BY line COLLATE "C") FROM (
        SELECT format('column %s.%s %s%s%s', c.relname, a.attname, format_type(a.atttypid, a.atttypmod),
                      CASE WHEN a.attnotnull THEN ' not null' ELSE '' END,
                      CASE WHEN a.attgenerated <> '' THEN ' generated' ELSE '' END) AS line
        FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid
        WHERE c.relnamespace = 'postrider'::regnamespace AND c.relkind IN ('r', 'p', 'v')
          AND NOT c.relispartition AND a.attnum > 0 AND NOT a.attisdropped
        UNION ALL
        SELECT format('index %s', c.relname)
        FROM pg_class c JOIN pg_index i ON i.indexrelid = c.oid JOIN pg_class t ON t.oid = i.indrelid
        WHERE c.relnamespace = 'postrider'::regnamespace AND NOT t.relispartition
        UNION ALL
        SELECT format('constraint %s.%s', t.relname, k.conname)
        FROM pg_constraint k JOIN pg_class t ON t.oid = k.conrelid
        WHERE t.relnamespace = 'postrider'::regnamespace AND NOT t.relispartition
          AND k.contype IN ('c', 'f', 'p', 'u')
        UNION ALL
        SELECT format('function %s(%s) %s', p.proname, pg_get_function_identity_arguments(p.oid),
                      md5(p.prosrc || p.prosecdef || coalesce(p.proconfig::text, '')))
        FROM pg_proc p WHERE p.pronamespace = 'postrider'::regnamespace
        UNION ALL
        SELECT format('trigger %s.%s', t.relname, g.tgname)
        FROM pg_trigger g JOIN pg_class t ON t.oid = g.tgrelid
        WHERE t.relnamespace = 'postrider'::regnamespace AND NOT t.relispartition AND NOT g.tgisinternal
    ) things
$$;
GRANT EXECUTE ON FUNCTION postrider.schema_fingerprint() TO postrider_relay, postrider_consumer, postrider_operator,
    postrider_maint;
