-- The story's producer: a player's tournament registration is paid and confirmed.
CREATE TABLE IF NOT EXISTS tournament (
    id      text PRIMARY KEY,
    places  int NOT NULL CHECK (places >= 0),   -- still free
    points  int NOT NULL
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
    points        int NOT NULL,
    version       bigint NOT NULL DEFAULT 0
);
