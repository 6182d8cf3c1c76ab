-- The hash of a row of the audit: SHA-256 over the hash before it and the row's fields as a JSON array.
CREATE OR REPLACE FUNCTION postrider.audit_hash(
    p_n bigint, p_at timestamptz, p_role text, p_given_name text, p_act text, p_reason text, p_ticket text,
    p_before jsonb, p_after jsonb, p_prev bytea
) RETURNS bytea
LANGUAGE sql STABLE
SET timezone = 'UTC' SET datestyle = 'ISO'
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT sha256(p_prev || convert_to(jsonb_build_array(p_n, p_at::text, p_role, p_given_name, p_act, p_reason,
                                                         p_ticket, p_before, p_after)::text, 'UTF8'))
$$;
