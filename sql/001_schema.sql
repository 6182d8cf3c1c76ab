-- The whole schema: outbox side, log (the embedded transport) and consumer side.  It is
-- installed in every database of a configuration; a table that a database does not use
-- stays empty.  Reasons: docs/internals/schema.md.

-- Group roles.  They belong to the cluster, so another database may have made them.
DO $$
DECLARE
    v_role text;
BEGIN
    FOREACH v_role IN ARRAY ARRAY['postrider_owner', 'postrider_producer', 'postrider_relay',
                                  'postrider_consumer', 'postrider_operator', 'postrider_maint'] LOOP
        IF NOT EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname = v_role) THEN
            BEGIN
                EXECUTE format('CREATE ROLE %I NOLOGIN', v_role);
            EXCEPTION WHEN duplicate_object OR unique_violation THEN
                NULL; -- an init in another database was first
            END;
        END IF;
    END LOOP;
    IF NOT pg_catalog.pg_has_role(current_user, 'postrider_owner', 'MEMBER') THEN
        EXECUTE format('GRANT postrider_owner TO %I', current_user);
    END IF;
END
$$;

CREATE SCHEMA IF NOT EXISTS postrider AUTHORIZATION postrider_owner;
SET LOCAL ROLE postrider_owner;

REVOKE ALL ON SCHEMA postrider FROM PUBLIC;
GRANT USAGE ON SCHEMA postrider TO postrider_producer, postrider_relay, postrider_consumer,
    postrider_operator, postrider_maint;
-- Functions made later are closed until a GRANT opens them.
ALTER DEFAULT PRIVILEGES IN SCHEMA postrider REVOKE EXECUTE ON FUNCTIONS FROM PUBLIC;
ALTER DEFAULT PRIVILEGES REVOKE EXECUTE ON FUNCTIONS FROM PUBLIC;

CREATE TABLE postrider.schema_version (
    version     int PRIMARY KEY,      -- 0: the functions, replaced as a whole
    name        text NOT NULL,
    checksum    text NOT NULL,        -- SHA-256 of the file
    min_binary  int NOT NULL,         -- the oldest program (by its newest migration) that may run here
    applied_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    applied_by  text NOT NULL DEFAULT session_user
);

CREATE TABLE postrider.meta (
    only_row          boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    system_identifier bigint NOT NULL, -- of the cluster whose xids the positions speak of
    database_oid      oid NOT NULL,
    -- Names this database's log to its readers.  A value of the row, so a dump, a restore, a failover
    -- and a renamed host keep it, and their readers keep their positions.
    log_id            uuid NOT NULL DEFAULT gen_random_uuid(),
    fingerprint       text[] NOT NULL DEFAULT '{}', -- of the schema as init left it
    installed_at      timestamptz NOT NULL DEFAULT clock_timestamp()
);
INSERT INTO postrider.meta (system_identifier, database_oid)
SELECT c.system_identifier, d.oid
FROM pg_catalog.pg_control_system() c, pg_catalog.pg_database d
WHERE d.datname = pg_catalog.current_database();

-- A UUIDv7 of now.  PostgreSQL 18 has its own.
DO $$
BEGIN
    IF pg_catalog.current_setting('server_version_num')::int >= 180000 THEN
        EXECUTE $f$ CREATE FUNCTION postrider.uuidv7() RETURNS uuid
            LANGUAGE sql VOLATILE PARALLEL SAFE AS 'SELECT pg_catalog.uuidv7()' $f$;
    ELSE
        -- The first 48 bits become the milliseconds; bits 52 and 53 turn version 4 into 7.
        EXECUTE $f$ CREATE FUNCTION postrider.uuidv7() RETURNS uuid
            LANGUAGE sql VOLATILE PARALLEL SAFE AS $s$
            SELECT pg_catalog.encode(pg_catalog.set_bit(pg_catalog.set_bit(
                pg_catalog.overlay(pg_catalog.uuid_send(pg_catalog.gen_random_uuid()),
                    pg_catalog.substring(pg_catalog.int8send((pg_catalog.date_part('epoch',
                        pg_catalog.clock_timestamp()) * 1000)::bigint), 3), 1, 6),
                52, 1), 53, 1), 'hex')::uuid $s$ $f$;
    END IF;
END
$$;
GRANT EXECUTE ON FUNCTION postrider.uuidv7() TO postrider_producer, postrider_consumer, postrider_operator;

-- The outbox's CHECK names it; its body comes with the other functions.
CREATE FUNCTION postrider.check_event(
    p_aggregate_type text, p_aggregate_id text, p_version bigint, p_event_type text,
    p_event_id uuid, p_headers jsonb, p_size bigint, p_content_type text
) RETURNS boolean
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS 'SELECT true';

-- ---------------------------------------------------------------- outbox side

CREATE TABLE postrider.outbox (
    id                bigint GENERATED ALWAYS AS IDENTITY (CACHE 1), -- insert order
    xid               xid8 NOT NULL DEFAULT pg_current_xact_id(),    -- top-level transaction
    lane              smallint GENERATED ALWAYS AS
        ((hashtextextended(aggregate_type || chr(31) || aggregate_id, 0) & 15)::smallint) STORED,
    event_id          uuid NOT NULL DEFAULT postrider.uuidv7()
        CONSTRAINT event_id_is_uuidv7 CHECK (get_byte(uuid_send(event_id), 6) >> 4 = 7),
    aggregate_type    text COLLATE "C" NOT NULL,
    aggregate_id      text COLLATE "C" NOT NULL,
    aggregate_version bigint NOT NULL,
    event_type        text COLLATE "C" NOT NULL,
    payload           jsonb,
    body              bytea,
    content_type      text NOT NULL DEFAULT 'application/json',
    headers           jsonb,
    occurred_at       timestamptz NOT NULL DEFAULT now(),             -- business time, the writer's
    inserted_at       timestamptz NOT NULL DEFAULT clock_timestamp(), -- ages are counted from this
    CONSTRAINT one_content CHECK (num_nonnulls(payload, body) = 1),
    -- Named to be looked at first: it says what is wrong, and what to do.
    CONSTRAINT emit_limits CHECK (postrider.check_event(aggregate_type, aggregate_id, aggregate_version, event_type,
        event_id, headers, coalesce(octet_length(body), octet_length(payload::text)), content_type)),
    PRIMARY KEY (event_id)
) PARTITION BY RANGE (event_id);
CREATE INDEX outbox_xid_lane ON postrider.outbox (xid, lane);
CREATE INDEX outbox_id ON postrider.outbox USING brin (id)
    WITH (pages_per_range = 128, autosummarize = on);

CREATE TABLE postrider.outbox_default PARTITION OF postrider.outbox DEFAULT; -- clock skew only
CREATE UNIQUE INDEX outbox_default_version
    ON postrider.outbox_default (aggregate_type, aggregate_id, aggregate_version);

CREATE TABLE postrider.relay (
    relay  smallint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    writer uuid NOT NULL UNIQUE DEFAULT gen_random_uuid(), -- names this relay to a log, wherever that is
    name   text NOT NULL UNIQUE,
    outbox text NOT NULL,
    filter jsonb,
    start  pg_snapshot NOT NULL,
    made_at timestamptz NOT NULL DEFAULT clock_timestamp()
);

CREATE TABLE postrider.lane (
    relay       smallint REFERENCES postrider.relay ON DELETE CASCADE,
    lane        smallint CHECK (lane BETWEEN 0 AND 15),
    owner       uuid,
    epoch       bigint NOT NULL DEFAULT 0,
    lease_until timestamptz NOT NULL DEFAULT '-infinity',
    done_snap   pg_snapshot NOT NULL,      -- all rows visible in it are published or parked
    open_snap   pg_snapshot,               -- only while a big window is half done ...
    open_pos    bigint NOT NULL DEFAULT 0, -- ... and then all its rows up to this id are, too
    PRIMARY KEY (relay, lane)
) WITH (fillfactor = 50, autovacuum_vacuum_threshold = 500, autovacuum_vacuum_scale_factor = 0,
        autovacuum_vacuum_cost_delay = 0);

-- Live workers, for a fair share of lanes and partitions.
CREATE TABLE postrider.instance (
    id      uuid PRIMARY KEY,
    side    text NOT NULL CHECK (side IN ('relay', 'consumer')),
    reader  smallint NOT NULL,
    name    text NOT NULL,
    host    text NOT NULL,
    state   text NOT NULL DEFAULT 'starting'
        CHECK (state IN ('starting', 'running', 'paused', 'halted', 'stopped')),
    reason  text,                 -- of one that is paused or halted ...
    hint    text,                 -- ... and what a person does about it
    since   timestamptz NOT NULL DEFAULT clock_timestamp(), -- in this state
    seen_at timestamptz NOT NULL,
    until   timestamptz NOT NULL  -- without a sign by then it is dead
) WITH (fillfactor = 50);

-- Partition count of each topic a relay writes to, fixed at first use.
CREATE TABLE postrider.route (
    relay      smallint REFERENCES postrider.relay ON DELETE CASCADE,
    topic      text,
    partitions int NOT NULL,
    PRIMARY KEY (relay, topic)
);

CREATE TABLE postrider.janitor (
    task    text PRIMARY KEY,
    last_at timestamptz NOT NULL DEFAULT '-infinity'
);
INSERT INTO postrider.janitor (task) VALUES ('partitions'), ('prune');

-- ---------------------------------------------------------------- log: the embedded transport

CREATE TABLE postrider.log_topic (
    topic      text PRIMARY KEY,
    partitions int NOT NULL CHECK (partitions BETWEEN 1 AND 1024)
);

CREATE TABLE postrider.log_head (
    topic     text REFERENCES postrider.log_topic,
    part      int,
    first_off bigint NOT NULL DEFAULT 0, -- the lowest offset still kept
    next_off  bigint NOT NULL DEFAULT 0, -- the next to be given; alone makes offsets unique
    PRIMARY KEY (topic, part)
) WITH (fillfactor = 50, autovacuum_vacuum_threshold = 500, autovacuum_vacuum_scale_factor = 0);

CREATE TABLE postrider.log (
    topic         text COLLATE "C" NOT NULL,
    part          int NOT NULL,
    off           bigint NOT NULL,
    at            timestamptz NOT NULL,
    event_id      uuid,
    key           bytea,
    header_names  text[] NOT NULL,
    header_values bytea[] NOT NULL,
    body          bytea,
    PRIMARY KEY (topic, part, off, at)
) PARTITION BY RANGE (at);
CREATE TABLE postrider.log_default PARTITION OF postrider.log DEFAULT;

CREATE TABLE postrider.log_writer (
    writer uuid,
    lane   smallint,
    epoch  bigint NOT NULL,
    PRIMARY KEY (writer, lane)
) WITH (fillfactor = 50, autovacuum_vacuum_threshold = 500, autovacuum_vacuum_scale_factor = 0);

-- Header lists differ in length, which an array of arrays cannot hold: log_append().
CREATE TYPE postrider.log_names AS (list text[]);
CREATE TYPE postrider.log_values AS (list bytea[]);

-- ---------------------------------------------------------------- consumer side

CREATE TABLE postrider.consumer (
    consumer smallint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name     text NOT NULL UNIQUE,
    floor    timestamptz NOT NULL DEFAULT '-infinity', -- dedupe records of older ids may be gone
    made_at  timestamptz NOT NULL DEFAULT clock_timestamp()
);

CREATE TABLE postrider.consumer_partition (
    consumer    smallint REFERENCES postrider.consumer ON DELETE CASCADE,
    source      text,
    topic       text,
    part        int,
    next_off    bigint NOT NULL,
    last_id     uuid,                       -- event at next_off - 1
    epoch       bigint NOT NULL DEFAULT 0,
    owner       uuid,
    lease_until timestamptz NOT NULL DEFAULT '-infinity',
    trying_to   bigint,
    tries       int NOT NULL DEFAULT 0,
    reread_to   bigint,                     -- an operator went back: what lies below was read before
    PRIMARY KEY (consumer, source, topic, part)
) WITH (fillfactor = 50, autovacuum_vacuum_threshold = 500, autovacuum_vacuum_scale_factor = 0);

-- Every decided event has a row.  `day` comes from the id itself, so that one id always
-- meets one partition: uniqueness holds and retention is a DROP.
CREATE TABLE postrider.consumed (
    consumer smallint NOT NULL,
    day      date NOT NULL,
    event_id uuid NOT NULL,
    digest   bytea NOT NULL,
    outcome  "char" NOT NULL, -- A applied H hit S stale R rejected P parked D dead X discarded I ignored
    at       timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (consumer, day, event_id)
) PARTITION BY RANGE (day);
-- What holds a day back from being dropped; few rows, so that nobody waits while they are looked for.
CREATE INDEX consumed_open ON postrider.consumed (day) WHERE outcome IN ('P', 'D');
CREATE TABLE postrider.consumed_other PARTITION OF postrider.consumed
    FOR VALUES FROM (MINVALUE) TO ('4713-01-01 BC'); -- ids that are no UUIDv7: day -infinity
CREATE TABLE postrider.consumed_default PARTITION OF postrider.consumed DEFAULT;

CREATE TABLE postrider.stream (
    consumer       smallint,
    aggregate_type text COLLATE "C",
    aggregate_id   text COLLATE "C",
    version        bigint NOT NULL,
    event_id       uuid,
    digest         bytea,                 -- of the last applied; NULL before the first
    base           bigint NOT NULL,
    parked         int NOT NULL DEFAULT 0, -- parked rows that hold this stream
    PRIMARY KEY (consumer, aggregate_type, aggregate_id)
) WITH (fillfactor = 70);
-- The streams that hold most first; of a stream with nothing parked no change touches it.
CREATE INDEX stream_parked ON postrider.stream (consumer, parked DESC) WHERE parked > 0;

-- What the last reconciliation by a running process found, for `postrider status` on any machine.
CREATE TABLE postrider.reconciled (
    consumer       smallint PRIMARY KEY REFERENCES postrider.consumer ON DELETE CASCADE,
    at             timestamptz NOT NULL,
    lost           bigint NOT NULL,
    foreign_events bigint NOT NULL
);

-- ---------------------------------------------------------------- both sides

CREATE TABLE postrider.parked (
    id             bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    side           text NOT NULL CHECK (side IN ('relay', 'consumer')),
    reader         smallint NOT NULL, -- relay or consumer number
    lane           smallint,
    pos            bigint,            -- outbox id, of a relay's
    state          text NOT NULL CHECK (state IN ('waiting', 'retry', 'dead', 'discarded')),
    holds          boolean NOT NULL DEFAULT true, -- later events of its stream wait behind it
    aggregate_type text COLLATE "C",
    aggregate_id   text COLLATE "C",
    version        bigint,
    prev           bigint,
    event_id       uuid,              -- NULL: a foreign message without one
    digest         bytea,
    event_type     text,
    occurred_at    timestamptz,
    key            bytea,
    source         text,
    topic          text,
    part           int,
    off            bigint,
    header_names   text[] NOT NULL DEFAULT '{}',
    header_values  bytea[] NOT NULL DEFAULT '{}',
    body           bytea,
    content_type   text,
    revision       int NOT NULL DEFAULT 0,
    due_at         timestamptz,
    class          text NOT NULL,     -- gap, waiting, conflict, late, unhandled, transient, permanent, ...
    code           text,              -- SQLSTATE or our own dotted code
    message        text,
    owner          text,
    first_at       timestamptz NOT NULL DEFAULT clock_timestamp(),
    last_at        timestamptz NOT NULL DEFAULT clock_timestamp(),
    tries          int NOT NULL DEFAULT 0,
    replayed_at    timestamptz,       -- by an operator, of a consumer's: tries are counted from here
    request        text,              -- relay: what is asked of the lane's owner; consumer: what was done last
    request_by     text,
    request_reason text,
    CONSTRAINT parked_once UNIQUE (side, reader, event_id, digest)
);
-- A message without an id is known by where it came from.
CREATE UNIQUE INDEX parked_foreign ON postrider.parked (side, reader, source, topic, part, off)
    WHERE event_id IS NULL;
CREATE INDEX parked_stream ON postrider.parked (side, reader, aggregate_type, aggregate_id, version);
CREATE INDEX parked_state ON postrider.parked (side, reader, state, first_at); -- ages
CREATE INDEX parked_due ON postrider.parked (side, reader, due_at) WHERE state = 'retry';
CREATE INDEX parked_request ON postrider.parked (side, reader) WHERE request IS NOT NULL;

-- How many there are, without counting them: a state's number is the sum of its rows.  Written by
-- postrider.count_parked(), in the transactions that make the difference; summed by parked_counts().
CREATE TABLE postrider.parked_count (
    side   text NOT NULL,
    reader smallint NOT NULL,
    state  text NOT NULL,
    n      bigint NOT NULL
) WITH (autovacuum_vacuum_threshold = 500, autovacuum_vacuum_scale_factor = 0);
CREATE INDEX parked_count_reader ON postrider.parked_count (side, reader);

CREATE TABLE postrider.attempt (
    side      text NOT NULL,
    reader    smallint NOT NULL,
    parked_id bigint,          -- NULL: it was rejected at once, and never parked
    event_id  uuid,
    at        timestamptz NOT NULL DEFAULT clock_timestamp(),
    class     text NOT NULL,
    sqlstate  text,
    message   text
);
CREATE INDEX attempt_parked ON postrider.attempt (parked_id, at);
CREATE INDEX attempt_rejected ON postrider.attempt (side, reader, at) WHERE class = 'rejected';

-- What operators did, append-only: written by postrider.audit_write() alone, each row chained to the one
-- before by its hash, so that a row changed or removed later is seen (postrider.audit_check()).
CREATE TABLE postrider.audit (
    n          bigint PRIMARY KEY,   -- dense, from 1
    at         timestamptz NOT NULL,
    role       text NOT NULL,        -- the login
    given_name text NOT NULL,        -- the person, as given
    act        text NOT NULL,        -- "relay.replay", ...
    reason     text NOT NULL,
    ticket     text,
    before     jsonb,
    after      jsonb,
    prev_hash  bytea NOT NULL,
    hash       bytea NOT NULL
);
CREATE TABLE postrider.audit_head (
    only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    n        bigint NOT NULL DEFAULT 0,
    hash     bytea NOT NULL DEFAULT sha256('postrider')
);
INSERT INTO postrider.audit_head DEFAULT VALUES;

-- What a consumer hands over to be parked: postrider.park().
CREATE TYPE postrider.parked_entry AS (
    state          text,
    class          text,
    code           text,
    message        text,
    tries          int, -- 1: a handler has failed on it
    owner          text,
    event_id       uuid,
    digest         bytea,
    aggregate_type text,
    aggregate_id   text,
    version        bigint,
    prev           bigint,
    event_type     text,
    occurred_at    timestamptz,
    source         text,
    topic          text,
    part           int,
    off            bigint,
    key            bytea,
    header_names   text[],
    header_values  bytea[],
    body           bytea,
    content_type   text
);

-- ---------------------------------------------------------------- rights on tables

GRANT INSERT (event_id, aggregate_type, aggregate_id, aggregate_version, event_type, payload, body,
              content_type, headers, occurred_at),
      SELECT (event_id, aggregate_version)
    ON postrider.outbox TO postrider_producer;

GRANT SELECT ON postrider.schema_version, postrider.meta
    TO postrider_relay, postrider_consumer, postrider_operator, postrider_maint;
GRANT SELECT ON postrider.outbox, postrider.relay, postrider.lane, postrider.route, postrider.instance
    TO postrider_relay;
GRANT SELECT ON SEQUENCE postrider.outbox_id_seq TO postrider_relay; -- where the ids end; USAGE would let it take some
GRANT UPDATE (owner, epoch, lease_until, done_snap, open_snap, open_pos)
    ON postrider.lane TO postrider_relay;
GRANT INSERT ON postrider.route TO postrider_relay;
GRANT INSERT, SELECT, UPDATE, DELETE ON postrider.parked, postrider.instance TO postrider_relay;
GRANT INSERT ON postrider.attempt TO postrider_relay;

GRANT SELECT ON postrider.log, postrider.log_head, postrider.log_topic TO postrider_consumer;
GRANT SELECT ON postrider.log_head, postrider.log_topic, postrider.log_writer TO postrider_relay;

GRANT SELECT ON postrider.consumer, postrider.stream, postrider.consumed TO postrider_consumer;
GRANT SELECT ON postrider.parked, postrider.parked_count, postrider.attempt, postrider.consumer_partition
    TO postrider_consumer; -- a position moves only by consume_batch(), a parked event by its functions
GRANT INSERT, UPDATE (epoch, owner, lease_until) ON postrider.consumer_partition TO postrider_consumer;
GRANT INSERT, SELECT, UPDATE, DELETE ON postrider.instance TO postrider_consumer;
GRANT INSERT, SELECT, UPDATE ON postrider.reconciled TO postrider_consumer;
GRANT SELECT ON postrider.reconciled TO postrider_operator;

GRANT SELECT ON postrider.relay, postrider.lane, postrider.route, postrider.instance,
    postrider.consumer, postrider.consumer_partition, postrider.stream, postrider.consumed, postrider.log_topic,
    postrider.log_head, postrider.attempt, postrider.parked_count, postrider.janitor, postrider.audit, postrider.audit_head
    TO postrider_operator;
-- Everything of an event, a message and a dead letter, but what it says.
GRANT SELECT (topic, part, off, at, event_id) ON postrider.log TO postrider_operator;
GRANT SELECT (id, xid, lane, event_id, aggregate_type, aggregate_id, aggregate_version, event_type, occurred_at,
              inserted_at)
    ON postrider.outbox TO postrider_operator;
GRANT SELECT (id, side, reader, lane, pos, state, holds, aggregate_type, aggregate_id, version, prev, event_id,
              digest, event_type, occurred_at, source, topic, part, off, header_names, content_type,
              revision, due_at, class, code, message, owner, first_at, last_at, tries, replayed_at, request,
              request_by, request_reason)
    ON postrider.parked TO postrider_operator;
