-- Adds a row to the audit, in the caller's transaction.  For our own functions only: nobody is granted it.
--   p_act        what is done, "relay.replay"
--   p_given_name, p_reason  who does it and why; both are required
--   p_ticket     where it is discussed; may be NULL
--   p_before, p_after  what changes; may be NULL
-- The head's row is locked to the end of the transaction, so the chain has one order.
-- Errors: PR021 no name or no reason.
CREATE OR REPLACE FUNCTION postrider.audit_write(
    p_act text, p_given_name text, p_reason text, p_ticket text, p_before jsonb, p_after jsonb
) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_n bigint;
    v_prev bytea;
    v_hash bytea;
    v_at timestamptz := clock_timestamp();
BEGIN
    IF btrim(coalesce(p_given_name, '')) = '' OR btrim(coalesce(p_reason, '')) = '' THEN
        RAISE EXCEPTION USING ERRCODE = 'PR021', MESSAGE = 'an act needs who does it and why';
    END IF;
    SELECT n + 1, hash INTO v_n, v_prev FROM postrider.audit_head FOR UPDATE;
    v_hash := postrider.audit_hash(v_n, v_at, session_user::text, p_given_name, p_act, p_reason, p_ticket,
                                   p_before, p_after, v_prev);
    INSERT INTO postrider.audit (n, at, role, given_name, act, reason, ticket, before, after, prev_hash, hash)
    VALUES (v_n, v_at, session_user::text, p_given_name, p_act, p_reason, p_ticket, p_before, p_after, v_prev, v_hash);
    UPDATE postrider.audit_head SET n = v_n, hash = v_hash;
END
$$;
