"""A table of the user's own with a state column, swept by key and marked when confirmed."""
import psycopg2
import pytest

from conftest import published, wait_until

TEXTBOOK = """
DROP TABLE IF EXISTS registration CASCADE;
CREATE TABLE registration (id text PRIMARY KEY, status text NOT NULL DEFAULT 'PENDING_PAYMENT', version bigint NOT NULL DEFAULT 0);
CREATE TABLE outbox (
    event_id uuid PRIMARY KEY, aggregate_id text NOT NULL, aggregate_version bigint NOT NULL, event_type text NOT NULL,
    payload jsonb NOT NULL, occurred_at timestamptz NOT NULL DEFAULT now(), publish_state text NOT NULL DEFAULT 'PENDING',
    UNIQUE (aggregate_id, aggregate_version));
CREATE INDEX outbox_pending ON outbox (aggregate_id, aggregate_version) WHERE publish_state = 'PENDING';
"""
STATEMENT = """
WITH confirmed AS (
    UPDATE registration SET status = 'CONFIRMED', version = version + 1
    WHERE id = %s AND status = 'PENDING_PAYMENT' AND version = %s RETURNING id, version)
INSERT INTO outbox (event_id, aggregate_id, aggregate_version, event_type, payload, occurred_at, publish_state)
SELECT gen_random_uuid(), id, version, 'RegistrationConfirmed', '{"playerId": "p1", "points": 10}', now(), 'PENDING' FROM confirmed
RETURNING event_id::text, aggregate_version"""


def config(place, outbox, init=True, extra=""):
    place.config.write_text(f"""
outboxes:
  registrations: {{database: "{place.dsns['shop']}", {outbox}}}
destinations:
  events: {{transport: postgres, database: "{place.dsns['bus']}", topic: "{{aggregate_type}}", partitions: 4}}
relays:
  textbook: {{outbox: registrations, destination: events, lease: 1s{extra}}}
""")
    if init:
        place.run("init", check=0)


@pytest.fixture
def textbook(place):
    place.sql("shop", TEXTBOOK)
    config(place, "table: public.outbox, aggregate_type: registration")
    return place


def put(place, aggregate, version, payload='{"a": 1}', state="PENDING"):
    return place.sql("shop", "INSERT INTO outbox VALUES (gen_random_uuid(), %s, %s, 'E', %s, now(), %s) RETURNING event_id::text",
                     (aggregate, version, payload, state))[0][0]


def table(place):
    return dict(place.sql("shop", "SELECT event_id::text, publish_state FROM outbox"))


def message(place, event_id):
    names, values, body = place.sql("bus", "SELECT header_names, header_values, body FROM postrider.log WHERE event_id = %s",
                                    (event_id,))[0]
    return dict(zip(names, (bytes(v).decode() for v in values))), bytes(body).decode(errors="replace")


def test_the_textbooks_table_and_statement_as_they_stand(textbook):
    place = textbook
    process = place.start("--only", "relays")
    place.sql("shop", "INSERT INTO registration (id) VALUES ('r1')")
    event_id, version = place.sql("shop", STATEMENT, ("r1", 0))[0]
    assert version == 1
    assert place.sql("shop", STATEMENT, ("r1", 0)) == []  # a business answer, no event
    wait_until(lambda: table(place) == {event_id: "PUBLISHED"}, what="the state")
    headers, body = message(place, event_id)
    assert headers["postrider-aggregate-type"] == "registration" and headers["postrider-aggregate-id"] == "r1"
    assert headers["postrider-version"] == "1" and headers["content-type"] == "application/json"
    assert body == '{"points": 10, "playerId": "p1"}'  # jsonb's own text
    assert published(place) == [event_id]
    assert place.stop(process) == 0


def test_F89_versions_go_out_in_order_whatever_the_insert_order(textbook):
    place = textbook
    ids = {}
    for version in (3, 1, 2):
        for n in range(50):
            ids[(n, version)] = put(place, f"a{n}", version)
    place.start("--only", "relays")
    wait_until(lambda: len(published(place)) == 150, what="all events")
    order = published(place)
    for n in range(50):
        positions = [order.index(ids[(n, version)]) for version in (1, 2, 3)]
        assert positions == sorted(positions)
    assert len(set(order)) == 150
    wait_until(lambda: set(table(place).values()) == {"PUBLISHED"}, what="the states")


def test_a_backlog_is_cut_between_versions(textbook):
    place = textbook
    place.sql("shop", "INSERT INTO outbox SELECT gen_random_uuid(), 'a' || n % 7, 1 + n / 7, 'E', '{}', now(), 'PENDING' "
              "FROM generate_series(0, 23999) n ORDER BY random()")
    place.start("--only", "relays")
    wait_until(lambda: place.sql("bus", "SELECT count(*) FROM postrider.log") == [(24000,)], timeout=60, what="all events")
    assert place.sql("bus", """SELECT count(*) FROM (SELECT convert_from(header_values[5], 'UTF8')::bigint AS v,
        lag(convert_from(header_values[5], 'UTF8')::bigint) OVER (PARTITION BY key ORDER BY off) AS before
        FROM postrider.log) s WHERE v <> coalesce(before, 0) + 1""") == [(0,)]
    wait_until(lambda: place.sql("shop", "SELECT count(*) FROM outbox WHERE publish_state <> 'PUBLISHED'") == [(0,)], what="states")


def test_states_it_does_not_know_are_not_touched(textbook):
    place = textbook
    odd = put(place, "a", 1, state="ON_HOLD")
    good = put(place, "b", 1)
    place.start("--only", "relays")
    wait_until(lambda: table(place) == {odd: "ON_HOLD", good: "PUBLISHED"}, what="the states")
    assert "1 of 1 lanes owned" in place.run("status", check=0).stdout
    place.processes[0].kill()
    place.processes[0].wait()
    put(place, "b", 2)
    wait_until(lambda: "oldest pending" in place.run("status").stdout, what="the pending row in status")
    assert published(place) == [good]


def test_names_like_debeziums_and_ids_of_any_kind(place):
    place.sql("shop", """CREATE SCHEMA app; CREATE TYPE app.state AS ENUM ('new', 'it''s done');
        CREATE TABLE app."OutboxEvent" (id bigserial PRIMARY KEY, aggregatetype varchar(50) NOT NULL, aggregateid bigint NOT NULL,
            seq int NOT NULL, type text NOT NULL, payload bytea, state app.state NOT NULL DEFAULT 'new')""")
    config(place, "table: app.OutboxEvent, columns: {event_id: id, aggregate_type: aggregatetype, aggregate_id: aggregateid, "
           "aggregate_version: seq, event_type: type}, mark: {column: state, pending: new, published: \"it's done\"}")
    for n in (2, 1, 10):
        place.sql("shop", "INSERT INTO app.\"OutboxEvent\" (aggregatetype, aggregateid, seq, type, payload) "
                  "VALUES ('order', %s, 1, 'Made', %s), ('order', %s, 2, 'Paid', %s)", (n, b"\x00\xff", n, b"x"))
    process = place.start("--only", "relays")
    wait_until(lambda: len(published(place)) == 6, what="all events")
    assert "relay.no_index" in process.log.read_text() and "CREATE INDEX CONCURRENTLY ON app.\\\"OutboxEvent\\\"" in process.log.read_text()
    wait_until(lambda: place.sql("shop", "SELECT DISTINCT state::text FROM app.\"OutboxEvent\"") == [("it's done",)], what="states")
    ids = published(place)
    assert all(event_id[14] == "8" for event_id in ids) and len(set(ids)) == 6
    headers, _ = message(place, ids[0])
    assert headers["content-type"] == "application/octet-stream" and headers["postrider-aggregate-type"] == "order"
    bodies = {bytes(row[0]) for row in place.sql("bus", "SELECT body FROM postrider.log")}
    assert bodies == {b"\x00\xff", b"x"}


def test_a_late_commit_of_an_older_version_is_found(textbook):
    """The sweep has passed the aggregate; what commits later is found by the next one."""
    place = textbook
    place.start("--only", "relays")
    late = psycopg2.connect(place.dsns["shop"])
    late.cursor().execute("INSERT INTO outbox VALUES (gen_random_uuid(), 'a', 1, 'E', '{}', now(), 'PENDING')")
    other = put(place, "z", 1)
    wait_until(lambda: published(place) == [other], what="the other")
    late.commit()
    late.close()
    wait_until(lambda: len(published(place)) == 2, what="the late one")


@pytest.mark.parametrize("failpoint", ["relay.sent", "relay.confirmed", "relay.acked", "relay.advanced"])
def test_a_kill_anywhere_loses_nothing(textbook, failpoint):
    place = textbook
    ids = [put(place, f"a{n % 5}", 1 + n // 5) for n in range(50)]
    first = place.start("--only", "relays", failpoint=f"{failpoint}@1=kill")
    first.wait(timeout=20)
    place.start("--only", "relays")
    wait_until(lambda: set(table(place).values()) == {"PUBLISHED"}, what="the states")
    order = list(dict.fromkeys(published(place)))
    assert set(order) == set(ids)
    for n in range(5):
        assert [i for i in order if i in ids[n::5]] == ids[n::5]


def test_a_second_process_takes_over_and_a_zombie_marks_nothing(textbook):
    place = textbook
    first = place.start("--only", "relays", failpoint="relay.acked@1=sleep:4000")
    event_id = put(place, "a", 1)
    wait_until(lambda: published(place) == [event_id], what="the event")
    second = place.start("--only", "relays")
    wait_until(lambda: table(place) == {event_id: "PUBLISHED"}, what="the take-over")
    assert published(place) == [event_id, event_id]  # what the first had not recorded came again
    wait_until(lambda: "relay.fenced" in first.log.read_text(), what="the first to see it")
    assert place.stop(first) == 0 and place.stop(second) == 0


def test_a_dead_letter_stays_pending_and_can_be_replayed_or_discarded(textbook):
    place = textbook
    relay = ("--relay", "textbook", "--actor", "ann", "--reason", "why")
    place.sql("bus", "ALTER TABLE postrider.log ADD CONSTRAINT not_this CHECK (position('evil'::bytea IN body) = 0)")
    process = place.start("--only", "relays")
    evil = put(place, "bad", 1, '{"x": "evil"}')
    behind = put(place, "bad", 2)
    good = put(place, "good", 1)
    wait_until(lambda: table(place) == {evil: "PENDING", behind: "PENDING", good: "PUBLISHED"}, what="the good one")
    parked = lambda: place.sql("shop", "SELECT id, event_id::text, state, tries FROM postrider.parked WHERE side = 'relay'")
    wait_until(lambda: len(parked()) == 1, what="the dead letter")
    number = str(parked()[0][0])
    assert parked()[0][1:] == (evil, "dead", 1)
    place.run("dlq", "replay", number, *relay, check=0)
    wait_until(lambda: parked()[0][1:] == (evil, "dead", 2), what="the second refusal")
    assert place.stop(process) == 0
    place.sql("bus", "ALTER TABLE postrider.log DROP CONSTRAINT not_this")
    place.start("--only", "relays")  # knows of the dead letter, so does not publish yet
    late = put(place, "good", 2)
    wait_until(lambda: table(place)[late] == "PUBLISHED", what="another event")
    assert table(place)[evil] == "PENDING"
    place.run("dlq", "replay", number, *relay, check=0)
    wait_until(lambda: set(table(place).values()) == {"PUBLISHED"} and parked() == [], what="the replay")
    assert [i for i in published(place) if i in (evil, behind)] == [evil, behind]
    place.sql("bus", "ALTER TABLE postrider.log ADD CONSTRAINT not_this CHECK (position('evil'::bytea IN body) = 0) NOT VALID")
    evil = put(place, "bad", 3, '{"x": "evil"}')
    behind = put(place, "bad", 4)
    wait_until(lambda: len(parked()) == 1, what="the next dead letter")
    place.run("dlq", "discard", str(parked()[0][0]), *relay, check=0)
    wait_until(lambda: table(place)[behind] == "PUBLISHED", what="what waited")
    assert table(place)[evil] == "DISCARDED"
    assert message(place, behind)[0]["postrider-prev"] == "2"


def test_F73_marking_that_fails_is_done_again_without_publishing_again(textbook):
    place = textbook
    place.sql("shop", '''CREATE SEQUENCE public.failures; CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
        IF NEW.publish_state = 'PUBLISHED' AND nextval('public.failures') <= 4 THEN RAISE deadlock_detected; END IF; RETURN NEW; END $$;
        CREATE TRIGGER fail BEFORE UPDATE ON outbox FOR EACH ROW EXECUTE FUNCTION fail()''')
    ids = [put(place, f"r{n}", 1) for n in range(5)]
    process = place.start("--only", "relays")
    wait_until(lambda: set(table(place).values()) == {"PUBLISHED"}, timeout=40, what="the states")
    assert sorted(published(place)) == sorted(ids)
    assert place.stop(process) == 0


def test_F79_rows_that_no_consumer_could_trust_are_dead_letters(textbook):
    place = textbook
    place.sql("shop", "ALTER TABLE outbox ADD headers jsonb")
    config(place, "table: public.outbox, aggregate_type: registration, columns: {headers: headers}")
    forged = [put(place, f"bad{n}", 1) for n in range(6)]
    for event_id, headers in zip(forged, ['{"postrider-prev": "0"}', '{"a": "x\\r\\ny"}', '[]', '{"content-type": "a"}',
                                          '{"": "x"}', '{"POSTRIDER-ID": "x"}']):
        place.sql("shop", "UPDATE outbox SET headers = %s WHERE event_id = %s", (headers, event_id))
    version = put(place, "zero", 0)
    process = place.start("--only", "relays")
    dead = lambda: place.sql("shop", "SELECT event_id::text, code FROM postrider.parked WHERE side = 'relay' AND state = 'dead'")
    wait_until(lambda: len(dead()) == 7, what="the dead letters")
    assert dict(dead()) == {event_id: "event.headers" for event_id in forged} | {version: "event.version"}
    good = put(place, "good", 1)
    wait_until(lambda: published(place) == [good], what="the good one")
    place.sql("shop", "UPDATE outbox SET headers = NULL WHERE event_id = %s", (forged[0],))
    number = str(place.value("shop", "SELECT id FROM postrider.parked WHERE event_id = %s", (forged[0],)))
    place.run("dlq", "replay", number, "--relay", "textbook", "--actor", "ann", "--reason", "corrected", check=0)
    wait_until(lambda: published(place) == [good, forged[0]], what="the corrected one")
    assert place.stop(process) == 0


def test_a_discard_that_the_table_refuses_is_told(textbook):
    place = textbook
    place.sql("shop", "ALTER TABLE outbox ADD CHECK (publish_state IN ('PENDING', 'PUBLISHED'))")
    place.sql("bus", "ALTER TABLE postrider.log ADD CONSTRAINT not_this CHECK (position('evil'::bytea IN body) = 0)")
    place.start("--only", "relays")
    put(place, "bad", 1, '{"x": "evil"}')
    put(place, "good", 1)
    parked = lambda: place.sql("shop", "SELECT id, request, message FROM postrider.parked")
    wait_until(lambda: len(parked()) == 1, what="the dead letter")
    place.run("dlq", "discard", str(parked()[0][0]), "--relay", "textbook", "--actor", "ann", "--reason", "why", check=0)
    wait_until(lambda: parked()[0][1] is None and "mark.discarded" in parked()[0][2], what="the reason")
    good = put(place, "good", 2)
    wait_until(lambda: table(place)[good] == "PUBLISHED", what="other streams")


@pytest.mark.parametrize("outbox, sql, words", [
    ("table: public.nowhere", "", ["has no table public.nowhere"]),
    ("table: public.outbox", TEXTBOOK, ["aggregate_type", "outboxes.registrations.aggregate_type"]),
    ("table: public.outbox, aggregate_type: r, mark: {column: status}", TEXTBOOK, ["no column status"]),
    ("table: public.outbox, aggregate_type: r", TEXTBOOK + "ALTER TABLE outbox ALTER aggregate_version DROP NOT NULL",
     ["may be null", "SET NOT NULL"]),
], ids=["no table", "no type", "no state", "nullable version"])
def test_a_table_that_will_not_do_is_explained(place, outbox, sql, words):
    if sql:
        place.sql("shop", sql)
    config(place, outbox)
    done = place.run("run", "--only", "relays")
    assert done.returncode == 78
    for word in words:
        assert word in done.stderr


def test_missing_rights_are_named_with_their_grant(textbook):
    place = textbook
    place.sql("shop", "REVOKE ALL ON outbox FROM PUBLIC; CREATE ROLE r%s LOGIN IN ROLE postrider_relay" % place.names["shop"])
    try:
        dsn = place.dsns["shop"]
        place.config.write_text(place.config.read_text().replace(dsn, f"{dsn}{'&' if '?' in dsn else '?'}options=-c%20role%3Dr{place.names['shop']}", 1))
        done = place.run("run", "--only", "relays")
        assert done.returncode == 77 and "GRANT SELECT, UPDATE (publish_state) ON public.outbox" in done.stderr
    finally:
        place.sql("shop", "DROP OWNED BY r%s; DROP ROLE r%s" % (place.names["shop"], place.names["shop"]))


def test_one_relay_per_table(textbook):
    place = textbook
    place.config.write_text(place.config.read_text().replace("  textbook:", "  second:"))
    done = place.run("init")
    assert done.returncode != 0 and "read by relay textbook already" in done.stderr


@pytest.mark.parametrize("extra, words", [
    (", start: now", "relays.textbook.start: found now"), (", filter: {event_types: [A]}", "its rows would stay pending"),
    ("}\n  second: {outbox: registrations, destination: events2", "one relay"),
])
def test_what_a_state_column_cannot_do_is_refused(place, extra, words):
    config(place, "table: public.outbox, aggregate_type: r", init=False, extra=extra)
    place.config.write_text(place.config.read_text().replace("relays:", "  events2: {transport: 'null'}\nrelays:"))
    done = place.run("config", "check")
    assert done.returncode == 78 and words in done.stdout + done.stderr


def test_columns_without_a_table_are_refused(place):
    config(place, "columns: {event_id: id}, mark: {pending: P}", init=False)
    done = place.run("config", "check")
    assert done.returncode == 78
    assert "outboxes.registrations.columns.event_id: found without table" in done.stdout + done.stderr
    assert "outboxes.registrations.mark.pending: found without table" in done.stdout + done.stderr
