-- The story's producer: a player's tournament registration is paid and confirmed.
CREATE TABLE IF NOT EXISTS tournament (
    id      text PRIMARY KEY,
    places  int NOT NULL CHECK (places >= 0)    -- still free
);
CREATE TABLE IF NOT EXISTS payment (
    registration_id text PRIMARY KEY,
    amount          int NOT NULL CHECK (amount > 0)
);
CREATE TABLE IF NOT EXISTS registration (
    id            text PRIMARY KEY,
    player_id     text NOT NULL,
    tournament_id text NOT NULL REFERENCES tournament,
    status        text NOT NULL DEFAULT 'PENDING_PAYMENT',
    version       bigint NOT NULL DEFAULT 0,
    confirmations int NOT NULL DEFAULT 0,       -- how often it was confirmed …
    points_owed   bigint NOT NULL DEFAULT 0     -- … and for how many points in all
);
-- Each reward has its own amount, so that no loss can hide behind a double.
CREATE SEQUENCE IF NOT EXISTS reward_points;
