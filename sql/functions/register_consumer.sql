-- Makes a consumer; one that exists keeps its progress.  Called by init.  True if made now.
CREATE OR REPLACE FUNCTION postrider.register_consumer(p_name text) RETURNS boolean
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    INSERT INTO postrider.consumer (name) VALUES (p_name) ON CONFLICT (name) DO NOTHING;
    RETURN FOUND;
END
$$;
