-- The story's consumer: points are added to a player's account once and only once.
CREATE TABLE IF NOT EXISTS reward_account (
    player_id text PRIMARY KEY,
    balance   integer NOT NULL DEFAULT 0
);
CREATE TABLE IF NOT EXISTS consumed_message (
    consumer text NOT NULL,
    event_id uuid NOT NULL,
    PRIMARY KEY (consumer, event_id)
);
-- What the function did, in the order it did it: for the demo's and the tests' own accounts.
CREATE TABLE IF NOT EXISTS reward_entry (
    n         bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    event_id  uuid NOT NULL,
    player_id text NOT NULL,
    delta     integer NOT NULL
);

-- The textbook's idempotent consumer; `false` says "already done".
CREATE OR REPLACE FUNCTION apply_reward_event(
    p_consumer text, p_event_id uuid, p_player_id text, p_delta integer
) RETURNS boolean
LANGUAGE plpgsql AS $$
BEGIN
    IF p_delta <= 0 THEN
        RAISE EXCEPTION 'delta must be positive, not %', p_delta USING ERRCODE = '22023';
    END IF;
    INSERT INTO consumed_message (consumer, event_id) VALUES (p_consumer, p_event_id)
    ON CONFLICT DO NOTHING;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    UPDATE reward_account SET balance = balance + p_delta WHERE player_id = p_player_id;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'no reward account for player %', p_player_id USING ERRCODE = 'P0002';
    END IF;
    INSERT INTO reward_entry (event_id, player_id, delta) VALUES (p_event_id, p_player_id, p_delta);
    RETURN true;
END
$$;
