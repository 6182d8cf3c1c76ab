-- The first row of the audit that is not as it was written, or NULL: "row 7 was changed".
CREATE OR REPLACE FUNCTION postrider.audit_check() RETURNS text
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    r record;
    v_n bigint := 0;
    v_hash bytea := sha256('postrider');
BEGIN
    FOR r IN SELECT * FROM postrider.audit ORDER BY n LOOP
        v_n := v_n + 1;
        IF r.n <> v_n THEN
            RETURN format('row %s is missing', v_n);
        END IF;
        IF r.prev_hash <> v_hash OR r.hash <> postrider.audit_hash(r.n, r.at, r.role, r.given_name, r.act, r.reason,
                                                                  r.ticket, r.before, r.after, v_hash) THEN
            RETURN format('row %s was changed', v_n);
        END IF;
        v_hash := r.hash;
    END LOOP;
    IF (SELECT n <> v_n OR hash <> v_hash FROM postrider.audit_head) THEN
        RETURN format('rows after %s are missing', v_n);
    END IF;
    RETURN NULL;
END
$$;
GRANT EXECUTE ON FUNCTION postrider.audit_check() TO postrider_operator;
