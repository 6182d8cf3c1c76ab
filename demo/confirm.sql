-- One client of the story: looks at a registration, then confirms it, or reopens it.
-- A few registrations are hot; now and then a client thinks before it acts, and somebody else is first.
\set kind random(1, 100)
\if :kind <= 30
\set r random(1, 12)
\else
\set r random(1, :registrations)
\endif
SELECT (status = 'PENDING_PAYMENT')::int AS pending, version, player_id, tournament_id
FROM registration WHERE id = 'r:r' \gset
\if :kind % 10 = 0
\set thinking random(0, 2000)
\sleep :thinking us
\endif
BEGIN;
\if :pending
SELECT count(*) AS paid FROM payment WHERE registration_id = 'r:r' \gset
WITH place AS (UPDATE tournament SET places = places - 1 WHERE id = ':tournament_id' AND places > 0 RETURNING 1)
SELECT count(*) AS place FROM place \gset
\if :paid = 1 and :place = 1
WITH confirmed AS (
    UPDATE registration
    SET status = 'CONFIRMED', version = version + 1, confirmations = confirmations + 1,
        points_owed = points_owed + nextval('reward_points')
    WHERE id = 'r:r' AND status = 'PENDING_PAYMENT' AND version = :version
    RETURNING id, version, player_id),
written AS (
    INSERT INTO postrider.outbox (aggregate_type, aggregate_id, aggregate_version, event_type, payload)
    SELECT 'registration', id, version, 'RegistrationConfirmed',
           jsonb_build_object('registrationId', id, 'playerId', player_id, 'points', currval('reward_points'))
    FROM confirmed
    RETURNING event_id, aggregate_version)
SELECT count(*) AS done FROM written \gset
\if :done = 0
-- Somebody else was first: no event was written, and the client asks how things stand.
ROLLBACK;
SELECT status FROM registration WHERE id = 'r:r';
\else
\if :kind = 7
ROLLBACK;
\else
COMMIT;
\endif
\endif
\else
ROLLBACK;
\endif
\else
\if :kind % 7 = 0
-- A savepoint that is rolled back leaves no event behind.
SAVEPOINT before;
WITH reopened AS (
    UPDATE registration SET status = 'PENDING_PAYMENT', version = version + 1
    WHERE id = 'r:r' AND status = 'CONFIRMED' AND version = :version RETURNING id, version)
INSERT INTO postrider.outbox (aggregate_type, aggregate_id, aggregate_version, event_type, payload)
SELECT 'registration', id, version, 'RegistrationReopened', '{"undone": true}' FROM reopened;
ROLLBACK TO SAVEPOINT before;
\endif
WITH reopened AS (
    UPDATE registration SET status = 'PENDING_PAYMENT', version = version + 1
    WHERE id = 'r:r' AND status = 'CONFIRMED' AND version = :version RETURNING id, version)
INSERT INTO postrider.outbox (aggregate_type, aggregate_id, aggregate_version, event_type, payload)
SELECT 'registration', id, version, 'RegistrationReopened', jsonb_build_object('registrationId', id) FROM reopened;
COMMIT;
\endif
