-- Makes one day's partition of one of our tables; 1 if it was made, 0 if it was there.
-- CREATE + ATTACH instead of PARTITION OF: the parent then stays writable meanwhile.
CREATE OR REPLACE FUNCTION postrider.make_partition(p_table text, p_day date, p_from text, p_to text)
RETURNS int
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_name text := format('%s_%s', p_table, to_char(p_day, 'YYYYMMDD'));
    v_key text := CASE p_table WHEN 'outbox' THEN 'event_id' WHEN 'log' THEN 'at' ELSE 'day' END;
    v_columns text;
    v_skewed boolean;
BEGIN
    IF to_regclass('postrider.' || v_name) IS NOT NULL THEN
        RETURN 0;
    END IF;
    EXECUTE format('CREATE TABLE postrider.%I (LIKE postrider.%I INCLUDING GENERATED INCLUDING CONSTRAINTS
                    INCLUDING DEFAULTS INCLUDING STORAGE)
                    WITH (autovacuum_vacuum_insert_threshold = -1, toast.autovacuum_vacuum_insert_threshold = -1)',
                   v_name, p_table);
    -- Made by a superuser by hand, it would be theirs, and our retention could not drop it.
    EXECUTE format('ALTER TABLE postrider.%I OWNER TO %I', v_name,
                   (SELECT pg_get_userbyid(relowner) FROM pg_class
                    WHERE oid = ('postrider.' || p_table)::regclass));
    EXECUTE format('ALTER TABLE postrider.%I ADD CONSTRAINT this_day CHECK (%I >= %L AND %I < %L)',
                   v_name, v_key, p_from, v_key, p_to);
    IF p_table = 'outbox' THEN
        EXECUTE format('CREATE UNIQUE INDEX %I ON postrider.%I (aggregate_type, aggregate_id, aggregate_version)',
                       v_name || '_version', v_name);
    END IF;
    EXECUTE format('SELECT EXISTS (SELECT FROM postrider.%I WHERE %I >= %L AND %I < %L)',
                   p_table || '_default', v_key, p_from, v_key, p_to) INTO v_skewed;
    IF v_skewed THEN
        EXECUTE format('LOCK TABLE postrider.%I IN ACCESS EXCLUSIVE MODE', p_table || '_default');
        SELECT string_agg(quote_ident(attname), ', ' ORDER BY attnum) INTO v_columns
        FROM pg_attribute
        WHERE attrelid = ('postrider.' || p_table)::regclass AND attnum > 0 AND NOT attisdropped
          AND attgenerated = '';
        EXECUTE format('INSERT INTO postrider.%I (%s) SELECT %s FROM postrider.%I WHERE %I >= %L AND %I < %L',
                       v_name, v_columns, v_columns, p_table || '_default', v_key, p_from, v_key, p_to);
        EXECUTE format('DELETE FROM postrider.%I WHERE %I >= %L AND %I < %L',
                       p_table || '_default', v_key, p_from, v_key, p_to);
    END IF;
    EXECUTE format('ALTER TABLE postrider.%I ATTACH PARTITION postrider.%I FOR VALUES FROM (%L) TO (%L)',
                   p_table, v_name, p_from, p_to);
    EXECUTE format('ALTER TABLE postrider.%I DROP CONSTRAINT this_day', v_name);
    RETURN 1;
END
$$;
