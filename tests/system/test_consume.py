"""The consumer as a process: messages are put into the log by SQL, effects are read from
the consumer's database."""
import json
import signal
import uuid

import psycopg2
import psycopg2.extras
import pytest

from conftest import http, wait_until


class Topic:
    """The topic `registration` of the bus, written to as a relay does."""

    def __init__(self, place):
        self.place = place
        self.writer = str(uuid.uuid4())
        place.sql("bus", "SELECT postrider.log_create_topic('registration', 4)")

    def put(self, *messages):
        with psycopg2.connect(self.place.dsns["bus"]) as db, db.cursor() as cur:
            for m in messages:
                cur.execute("""SELECT postrider.log_append(%s, '{0}', '{1}', '{registration}', ARRAY[%s], '{1}',
                                   ARRAY[%s]::bytea[], ARRAY[%s]::uuid[], ARRAY[ROW(%s)::postrider.log_names], '{1}',
                                   ARRAY[ROW(%s)::postrider.log_values], ARRAY[%s]::bytea[])""",
                            (self.writer, m["part"], m["key"], m["log_id"], [n for n, _ in m["headers"]],
                             [v for _, v in m["headers"]], m["body"]))
        db.close()

    def raw(self, headers, body=b"{}", part=0, event_id=None):
        self.put({"part": part, "key": b"k", "log_id": event_id, "headers": headers, "body": body})


def event(version, stream="r1", points=10, player="p1", kind="RegistrationConfirmed", event_id=None,
          payload=None, prev=None, **headers):
    event_id = event_id or str(uuid.uuid4())
    fields = {"postrider-id": event_id, "postrider-type": kind, "postrider-aggregate-type": "registration",
              "postrider-aggregate-id": stream, "postrider-version": version,
              "postrider-occurred-at": "2026-12-01T05:34:30.123456Z", "content-type": "application/json"}
    if prev is not None:
        fields["postrider-prev"] = prev
    fields.update({name.replace("_", "-"): value for name, value in headers.items()})
    body = json.dumps({"playerId": player, "points": points}) if payload is None else payload
    return {"part": sum(stream.encode()) % 4, "key": stream.encode(), "log_id": event_id, "id": event_id,
            "headers": [(name, str(value).encode()) for name, value in fields.items() if value is not None],
            "body": body.encode() if isinstance(body, str) else body}


@pytest.fixture
def topic(place):
    place.sql("rewards", "INSERT INTO reward_account VALUES ('p1'), ('p2')")
    return Topic(place)


def balance(place, player="p1"):
    return place.value("rewards", "SELECT balance FROM reward_account WHERE player_id = %s", (player,))


def outcomes(place):
    """The outcomes of all decided events, sorted, as one word."""
    return place.value("rewards", "SELECT coalesce(string_agg(outcome, '' ORDER BY outcome), '')"
                       " FROM postrider.consumed")


def parked(place, columns="state, class"):
    return place.sql("rewards", f"SELECT {columns} FROM postrider.parked ORDER BY id")


def consumed_up_to(place, count):
    return wait_until(lambda: place.value("rewards", "SELECT coalesce(sum(next_off), 0)"
                                          " FROM postrider.consumer_partition") == count,
                      what=f"{count} messages decided")


def start(place, **options):
    return place.start("--only", "consumers", **options)


def test_events_are_applied_once_and_in_order(place, topic):
    start(place)
    first = event(1, points=1)
    topic.put(first, event(2, points=2), first, event(1, stream="r2", points=30, player="p2"))
    consumed_up_to(place, 4)
    assert (balance(place), balance(place, "p2")) == (3, 30)
    assert outcomes(place) == "AAA"
    assert place.sql("rewards", "SELECT delta FROM reward_entry WHERE player_id = 'p1' ORDER BY n") == [(1,), (2,)]


def test_a_handler_that_says_false_is_a_hit(place, topic):
    known = event(1)
    place.sql("rewards", "INSERT INTO consumed_message VALUES ('rewards', %s)", (known["id"],))
    topic.put(known, event(2, points=5))
    start(place)
    consumed_up_to(place, 2)
    assert balance(place) == 5
    assert outcomes(place) == "AH"


def test_a_backlog_is_worked_off_over_all_partitions(place, topic):
    topic.put(*[event(v, stream=f"r{s}", points=1) for v in range(1, 11) for s in range(40)])
    start(place)
    consumed_up_to(place, 400)
    assert balance(place) == 400


def test_what_follows_a_gap_waits_and_then_follows_by_itself(place, topic):
    start(place)
    topic.put(event(1), event(3), event(4))
    consumed_up_to(place, 3)
    assert parked(place, "state, class, version, message") == [
        ("waiting", "gap", 3, "the stream is at version 1, version 2 must come first"),
        ("waiting", "waiting", 4, "an earlier event of its stream is parked")]
    assert outcomes(place) == "APP"
    topic.put(event(2))
    wait_until(lambda: balance(place) == 40)
    wait_until(lambda: parked(place) == [])
    assert outcomes(place) == "AAAA"


def test_a_prev_header_lets_versions_be_missing(place, topic):
    topic.put(event(1), event(7, prev=1))
    start(place)
    consumed_up_to(place, 2)
    assert balance(place) == 20


def test_a_permanent_error_is_dead_and_holds_only_its_own_stream(place, topic):
    bad = event(2, points=-5)
    topic.put(event(1), bad, event(3), *[event(v, stream="r2", player="p2") for v in (1, 2, 3)])
    start(place)
    consumed_up_to(place, 6)
    assert (balance(place), balance(place, "p2")) == (10, 30)
    assert parked(place, "state, class, code, message, event_id::text, body = %s::bytea" % "'{\"playerId\": \"p1\", \"points\": -5}'") == [
        ("dead", "permanent", "22023", "delta must be positive, not -5", bad["id"], True),
        ("waiting", "waiting", "stream.waiting", "an earlier event of its stream is parked",
         parked(place, "event_id::text")[1][0], False)]
    assert place.sql("rewards", "SELECT class, sqlstate, message FROM postrider.attempt") == [
        ("permanent", "22023", "delta must be positive, not -5")]
    assert outcomes(place) == "AAAADP"
    # Nothing of ours or of the handler's is left that would swallow a replay.
    assert place.value("rewards", "SELECT count(*) FROM consumed_message WHERE event_id = %s", (bad["id"],)) == 0


def test_many_bad_events_in_one_batch_are_each_found(place, topic):
    topic.put(*[event(1, stream=f"r{n}", points=-1 if n % 7 == 3 else 1) for n in range(60)])
    start(place)
    consumed_up_to(place, 60)
    bad = len([n for n in range(60) if n % 7 == 3])
    assert balance(place) == 60 - bad
    assert outcomes(place) == "A" * (60 - bad) + "D" * bad


def test_an_account_made_later_lets_a_made_due_dead_letter_through(place, topic):
    topic.put(event(1, player="p9"), event(2, player="p9"))
    start(place)
    consumed_up_to(place, 2)
    assert parked(place, "state, code") == [("dead", "P0002"), ("waiting", "stream.waiting")]
    place.sql("rewards", "INSERT INTO reward_account VALUES ('p9')")
    place.sql("rewards", "UPDATE postrider.parked SET state = 'retry', due_at = now() WHERE state = 'dead'")
    wait_until(lambda: balance(place, "p9") == 20)
    assert parked(place) == []


def test_F16_attempts_are_counted_outside_the_failed_transaction(place, topic):
    place.write_config(handler="SELECT 1 / (1 - (:payload.points)::int), :payload.playerId::text")
    topic.put(event(1, points=1))
    start(place)
    consumed_up_to(place, 1)
    assert parked(place, "state, code, tries") == [("dead", "22012", 1)]
    assert place.sql("rewards", "SELECT sqlstate FROM postrider.attempt") == [("22012",)]


def test_F16_a_transient_error_is_tried_again_until_it_passes(place, topic):
    place.sql("rewards", "CREATE TABLE gate (open boolean); INSERT INTO gate VALUES (false);"
              "CREATE FUNCTION pass(p text, n int) RETURNS void LANGUAGE plpgsql AS $$ BEGIN"
              " IF n = 7 AND NOT (SELECT open FROM gate) THEN"
              "   RAISE EXCEPTION 'not yet' USING ERRCODE = '55P03'; END IF;"
              " UPDATE reward_account SET balance = balance + n WHERE player_id = p; END $$")
    place.write_config(handler="SELECT pass(:payload.playerId, :payload.points)")
    start(place)
    topic.put(event(1, points=7), event(2, points=1), event(1, stream="r2", points=2))
    consumed_up_to(place, 3)
    assert balance(place) == 2
    wait_until(lambda: place.value("rewards", "SELECT count(*) FROM postrider.attempt") >= 3)
    assert parked(place) == [("retry", "transient"), ("waiting", "waiting")]
    assert place.value("rewards", "SELECT tries FROM postrider.parked WHERE state = 'retry'") >= 3
    place.sql("rewards", "UPDATE gate SET open = true; UPDATE postrider.parked SET due_at = now()"
              " WHERE state = 'retry'")
    wait_until(lambda: balance(place) == 10)
    wait_until(lambda: outcomes(place) == "AAA")


def test_F16_an_error_at_commit_finds_its_event(place, topic):
    place.sql("rewards", "CREATE TABLE good (n int PRIMARY KEY); INSERT INTO good SELECT generate_series(1, 20);"
              "CREATE TABLE effect (n int REFERENCES good DEFERRABLE INITIALLY DEFERRED)")
    place.write_config(handler="INSERT INTO effect VALUES (:payload.points)")
    topic.put(*[event(1, stream=f"r{n}", points=n) for n in range(1, 22)])
    start(place)
    consumed_up_to(place, 21)
    assert place.value("rewards", "SELECT count(*) FROM effect") == 20
    assert parked(place, "state, class, code") == [("retry", "transient", "23503")]


def test_F16_a_handler_that_kills_its_backend_is_found(place, topic):
    place.sql("rewards", "CREATE FUNCTION pay(p text, n int) RETURNS void LANGUAGE plpgsql AS $$ BEGIN"
              " IF n = 13 THEN PERFORM pg_terminate_backend(pg_backend_pid()); END IF;"
              " UPDATE reward_account SET balance = balance + n WHERE player_id = p; END $$")
    place.write_config(handler="SELECT pay(:payload.playerId, :payload.points)")
    topic.put(*[event(1, stream=f"r{n}", points=n) for n in range(10, 20)])
    start(place)
    consumed_up_to(place, 10)
    assert balance(place) == sum(range(10, 20)) - 13
    assert parked(place, "state, class, code") == [("dead", "unknown", "handler.connection")]


def test_F58_deadlocks_and_serialization_failures_are_no_attempts(place, topic):
    place.sql("rewards", "CREATE SEQUENCE tries; CREATE FUNCTION pay(p text, n int) RETURNS void LANGUAGE plpgsql"
              " AS $$ BEGIN IF nextval('tries') < 4 THEN RAISE EXCEPTION 'again' USING ERRCODE ="
              " CASE nextval('tries') % 2 WHEN 0 THEN '40001' ELSE '40P01' END; END IF;"
              " UPDATE reward_account SET balance = balance + n WHERE player_id = p; END $$")
    place.write_config(handler="SELECT pay(:payload.playerId, :payload.points)")
    topic.put(event(1), event(2))
    start(place)
    consumed_up_to(place, 2)
    assert balance(place) == 20
    assert place.value("rewards", "SELECT count(*) FROM postrider.attempt") == 0


def test_a_handler_broken_for_all_pauses_and_charges_no_event(place, topic):
    place.sql("rewards", "CREATE FUNCTION pay(p text, n int) RETURNS void LANGUAGE plpgsql AS $$ BEGIN"
              " UPDATE missing SET balance = balance + n WHERE player_id = p; END $$")
    place.write_config(handler="SELECT pay(:payload.playerId, :payload.points)",
                       extra='http: {listen: "127.0.0.1:0"}')
    process = start(place)
    topic.put(event(1), event(1, stream="r2"))
    port = listening(process)
    status, body = wait_until(lambda: paused(port))
    assert status == 503 and "42P01" in body and "RegistrationConfirmed" in body
    assert (outcomes(place), parked(place)) == ("", [])
    place.sql("rewards", "CREATE VIEW missing AS SELECT * FROM reward_account")
    wait_until(lambda: balance(place) == 20)
    assert place.value("rewards", "SELECT count(*) FROM postrider.attempt") == 0


def listening(process):
    def port():
        for line in process.log.read_text().splitlines():
            if "daemon.listening" in line:
                return int(line.split("port=")[1].split()[0])
        return None
    return wait_until(port)


def paused(port):
    status, body = http(port, "/readyz")
    return (status, body) if '"paused"' in body or '"halted"' in body else None


def test_a_missing_right_that_is_one_events_own_is_charged_to_it(place, topic):
    place.sql("rewards", "CREATE FUNCTION pay(p text, n int) RETURNS void LANGUAGE plpgsql AS $$ BEGIN"
              " IF n = 13 THEN RAISE EXCEPTION 'row security' USING ERRCODE = '42501'; END IF;"
              " UPDATE reward_account SET balance = balance + n WHERE player_id = p; END $$")
    place.write_config(handler="SELECT pay(:payload.playerId, :payload.points)")
    topic.put(event(1, points=13), event(1, stream="r2", points=1), event(1, stream="r3", points=2))
    start(place)
    consumed_up_to(place, 3)
    assert balance(place) == 3
    assert parked(place, "state, class, code") == [("retry", "unknown", "42501")]


def test_F46_unhandled_and_ignored_types(place, topic):
    text = place.config.read_text().replace("    handlers:", "    ignore: [Noted]\n    handlers:")
    place.config.write_text(text)
    topic.put(event(1, kind="Noted"), event(2), event(3, kind="Strange"), event(4))
    start(place)
    consumed_up_to(place, 4)
    assert outcomes(place) == "ADIP"
    assert parked(place, "state, class, message") == [
        ("dead", "unhandled", "no handler takes event type Strange"),
        ("waiting", "waiting", "an earlier event of its stream is parked")]


FOREIGN = {
    "no headers at all": [],
    "id is no uuid": {"postrider_id": "42"},
    "version 0": {"postrider_version": 0},
    "negative version": {"postrider_version": -1},
    "version beyond bigint": {"postrider_version": 2 ** 63},
    "version is no number": {"postrider_version": "1x"},
    "prev not below version": {"postrider_prev": 1},
    "no aggregate": {"postrider_aggregate_id": None},
    "empty type": {"postrider_type": ""},
    "no day like that": {"postrider_occurred_at": "2026-02-31T00:00:00Z"},
}


def test_foreign_messages_are_dead_letters_that_hold_nothing(place, topic):
    for changes in FOREIGN.values():
        if changes:
            topic.put(event(1, **changes))
        else:
            topic.raw([])
    topic.raw([("postrider-type", b"\xff\xfe\x00")], b"\x00\x01", event_id=None)
    topic.put(event(1))
    start(place)
    consumed_up_to(place, len(FOREIGN) + 2)
    assert balance(place) == 10
    letters = parked(place, "state, class, event_id, holds")
    assert letters == [("dead", "foreign", None, False)] * (len(FOREIGN) + 1)
    assert place.value("rewards", "SELECT body FROM postrider.parked ORDER BY id DESC LIMIT 1").tobytes() in (
        b"\x00\x01", b"{}", b'{"playerId": "p1", "points": 10}')


def test_the_same_id_with_other_content_is_a_conflict_and_kept(place, topic):
    first = event(1, points=1)
    topic.put(first, event(1, points=2, event_id=first["id"]), event(1, points=3), event(2, points=4))
    start(place)
    consumed_up_to(place, 4)
    assert balance(place) == 5
    assert parked(place, "state, class, holds") == [("dead", "conflict", False)] * 2


def test_parameters_arrive_as_they_were_written(place, topic):
    place.sql("rewards", "CREATE TABLE seen (a text, b numeric, c text, d text, e jsonb, f boolean, g text, h bigint,"
              " i timestamptz, j text, k uuid)")
    place.write_config(handler="INSERT INTO seen VALUES (:payload.s, :payload.n, :payload.o, :payload.nil, :payload,"
                       " :payload.deep.er.flag, :header.tenant, :version, :occurred_at, :aggregate_id || '::' || 'a:b',"
                       " :event_id)")
    payload = ('{ "s": "a\\u00e4\\ud83d\\ude00\\n\\"", "n": 12345678901234567890.10, "o": {"x" : [1, 2.50]},'
               ' "nil": null, "deep": {"er": {"flag": true}} }')
    sent = event(1, payload=payload, tenant="ü")
    topic.put(sent)
    start(place)
    consumed_up_to(place, 1)
    rows = place.sql("rewards", "SELECT a, b::text, c, d, e, f, g, h, i = '2026-12-01 05:34:30.123456+00', j, k::text"
                     " FROM seen")
    assert rows == [('aä😀\n"', "12345678901234567890.10", '{"x":[1,2.50]}', None, json.loads(payload), True, "ü", 1,
                     True, "r1::a:b", sent["id"])]


def test_a_missing_member_is_permanent_and_named(place, topic):
    topic.put(event(1, payload='{"playerId": "p1"}'), event(1, stream="r2", payload="{broken"),
              event(1, stream="r3"))
    start(place)
    consumed_up_to(place, 3)
    assert balance(place) == 10
    assert sorted(parked(place, "code, message, state")) == [
        ("payload.json", "the payload is no JSON text that PostgreSQL can hold", "dead"),
        ("payload.missing", "the payload has no payload.points", "dead")]


@pytest.mark.parametrize("handler, told", [
    ("SELECT apply_reward_event(:consumer, :event_id, :playerId, :payload.points)", "parameter :playerId"),
    ("SELECT no_such_function(:event_id)", "42883"),
    ("COMMIT", "cannot be a statement"),
    ("SELECT apply_reward_event($1, :event_id, 'p', 1)", "by number"),
])
def test_a_handler_that_cannot_work_is_told_before_anything_starts(place, handler, told):
    place.write_config(handler=handler)
    done = place.run("run", "--only", "consumers")
    assert done.returncode == 78
    assert told in done.stderr and "rewards" in done.stderr and "RegistrationConfirmed" in done.stderr
    assert len([line for line in done.stderr.splitlines() if line.strip()]) <= 2


def owners(place):
    return place.sql("rewards", "SELECT owner, count(*) FROM postrider.consumer_partition WHERE owner IS NOT NULL"
                     " AND lease_until > now() GROUP BY 1")


def test_partitions_are_shared_and_given_back_at_the_end(place, topic):
    first = start(place)
    wait_until(lambda: [n for _, n in owners(place)] == [4])
    second = start(place)
    wait_until(lambda: [n for _, n in owners(place)] == [2, 2])
    topic.put(*[event(v, stream=f"r{s}", points=1) for v in range(1, 6) for s in range(20)])
    consumed_up_to(place, 100)
    assert balance(place) == 100
    assert place.stop(first) == 0
    wait_until(lambda: [n for _, n in owners(place)] == [4])
    assert place.stop(second) == 0
    assert owners(place) == []
    assert place.value("rewards", "SELECT count(*) FROM postrider.instance") == 0


def test_a_process_that_was_frozen_cannot_apply_what_it_lost(place, topic):
    place.sql("rewards", "CREATE FUNCTION slow(p text, n int) RETURNS void LANGUAGE plpgsql AS $$ BEGIN"
              " PERFORM pg_sleep(0.02); UPDATE reward_account SET balance = balance + n WHERE player_id = p; END $$")
    place.write_config(handler="SELECT slow(:payload.playerId, :payload.points)")
    first = start(place)
    wait_until(lambda: [n for _, n in owners(place)] == [4])
    topic.put(*[event(v, stream=f"r{s}", points=1) for v in range(1, 6) for s in range(40)])
    wait_until(lambda: balance(place) > 0)
    first.send_signal(signal.SIGSTOP)
    start(place)
    consumed_up_to(place, 200)
    first.send_signal(signal.SIGCONT)
    wait_until(lambda: [n for _, n in owners(place)] == [2, 2])
    assert balance(place) == 200
    assert outcomes(place) == "A" * 200


def test_a_take_over_by_a_consumer_that_has_moved_on_is_no_false_alarm(place, topic):
    topic.put(*[event(1, stream=f"r{s}", points=1) for s in range(20)])
    before = start(place)
    consumed_up_to(place, 20)
    place.stop(before)
    first, second = start(place), start(place)
    wait_until(lambda: sorted(n for _, n in owners(place)) == [2, 2])
    topic.put(*[event(v, stream=f"r{s}", points=1) for v in range(2, 6) for s in range(20)])
    consumed_up_to(place, 100)
    first.kill()
    topic.put(*[event(v, stream=f"r{s}", points=1) for v in range(6, 8) for s in range(20)])
    wait_until(lambda: balance(place) == 140, timeout=20)
    assert "consumer.went_back" not in second.log.read_text()


@pytest.mark.parametrize("twin_at", [0, 3, 99, 100, 150, 199])
def test_two_messages_at_one_offset_stop_loudly(place, topic, twin_at):
    topic.put(*[event(v, stream="r1", points=1) for v in range(1, 201)])  # one partition, two batches
    place.sql("bus", "INSERT INTO postrider.log SELECT topic, part, off, at - interval '1 second', gen_random_uuid(), key,"
              " header_names, header_values, body FROM postrider.log WHERE off = %s", (twin_at,))
    place.write_config(extra='http: {listen: "127.0.0.1:0"}')
    status, body = wait_until(lambda port=listening(start(place)): paused(port))
    assert status == 503 and f"two messages at offset {twin_at}" in body
    assert balance(place) <= twin_at


def test_a_hole_in_the_log_is_not_called_retention(place, topic):
    topic.put(*[event(v) for v in range(1, 4)])
    place.sql("bus", "DELETE FROM postrider.log WHERE off = 1")
    place.write_config(extra='http: {listen: "127.0.0.1:0"}')
    status, body = wait_until(lambda port=listening(start(place)): paused(port))
    assert status == 503 and "offset 1" in body and "retention" not in body


def test_a_position_the_log_does_not_have_stops_loudly(place, topic):
    process = start(place)
    topic.put(event(1))
    consumed_up_to(place, 1)
    place.stop(process)
    # The log is restored to before that message, and goes on with others.
    place.sql("bus", "DELETE FROM postrider.log; UPDATE postrider.log_head SET next_off = 0")
    topic.put(event(2, points=77), event(3, points=77))
    place.write_config(extra='http: {listen: "127.0.0.1:0"}')
    status, body = wait_until(lambda port=listening(start(place)): paused(port))
    assert status == 503 and "restored" in body
    assert balance(place) == 10


def test_messages_dropped_before_they_were_read_stop_loudly(place, topic):
    process = start(place)
    topic.put(event(1))
    consumed_up_to(place, 1)
    place.stop(process)
    topic.put(event(2), event(3))
    place.sql("bus", "DELETE FROM postrider.log; UPDATE postrider.log_head SET first_off = next_off")
    place.write_config(extra='http: {listen: "127.0.0.1:0"}')
    status, body = wait_until(lambda port=listening(start(place)): paused(port))
    assert status == 503 and "retention" in body


def test_start_now_passes_over_what_is_there(place, topic):
    text = place.config.read_text().replace("topic: registration}", "topic: registration, start: now}")
    place.config.write_text(text)
    topic.put(event(1))
    start(place)
    wait_until(lambda: [n for _, n in owners(place)] == [4])
    topic.put(event(2, points=5))
    wait_until(lambda: balance(place) == 5)


def test_a_topic_that_does_not_exist_yet_is_waited_for(place):
    place.sql("rewards", "INSERT INTO reward_account VALUES ('p1')")
    place.sql("bus", "DELETE FROM postrider.log_head; DELETE FROM postrider.log_topic")
    process = start(place)
    wait_until(lambda: "consumer.no_topic" in process.log.read_text())
    Topic(place).put(event(1))
    wait_until(lambda: balance(place) == 10)


def test_lost_connections_are_come_back_from(place, topic):
    start(place)
    for n in range(1, 6):
        topic.put(event(n))
        wait_until(lambda n=n: balance(place) == 10 * n)
        for database in ("rewards", "bus"):
            place.sql(database, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                      " WHERE application_name LIKE 'postrider consumer%'")
    assert outcomes(place) == "AAAAA"


def test_a_running_handler_is_cut_off_when_told_to_stop(place, topic):
    place.write_config(handler="SELECT pg_sleep(20), :payload.points::int")
    process = start(place)
    topic.put(event(1))
    wait_until(lambda: place.sql("rewards", "SELECT 1 FROM pg_stat_activity WHERE query LIKE '%pg_sleep(20)%'"
                                 " AND state = 'active' AND pid <> pg_backend_pid()"))
    process.send_signal(signal.SIGTERM)
    assert process.wait(6) == 0
    assert (outcomes(place), parked(place), owners(place)) == ("", [], [])


@pytest.mark.parametrize("order, messages, total", [
    ("latest", [(1, 1), (5, 5), (3, 3), (6, 6)], 12),
    ("none", [(5, 5), (1, 1), (3, 3)], 9),
])
def test_other_orders(place, topic, order, messages, total):
    place.write_config(order=order)
    topic.put(*[event(version, points=points) for version, points in messages])
    start(place)
    consumed_up_to(place, len(messages))
    assert balance(place) == total
    assert parked(place) == []


@pytest.mark.parametrize("failpoint", ["consumer.received", "consumer.deduped", "consumer.applied",
                                       "consumer.committed"])
def test_F08_killed_at_any_step_no_event_is_lost_or_applied_twice(place, topic, failpoint):
    place.config.write_text(place.config.read_text().replace("    handlers:", "    batch: 20\n    handlers:"))
    topic.put(*[event(v, stream=f"r{s}", points=s + 1) for v in range(1, 11) for s in range(30)])
    for visit in (1, 2, 3):
        assert start(place, failpoint=f"{failpoint}@{visit}=kill").wait(30) == -signal.SIGKILL
    start(place)
    consumed_up_to(place, 300)
    assert balance(place) == 10 * sum(range(1, 31))
    assert outcomes(place) == "A" * 300
    assert place.value("rewards", "SELECT count(*) FROM postrider.consumed c FULL JOIN reward_entry e"
                       " USING (event_id) WHERE c.event_id IS NULL OR e.event_id IS NULL") == 0


def test_killed_while_a_parked_event_is_recorded(place, topic):
    topic.put(event(1, player="p9"), event(2, player="p9"))
    assert start(place, failpoint="consumer.parked@1=kill").wait(30) == -signal.SIGKILL
    start(place)
    consumed_up_to(place, 2)
    assert parked(place) == [("dead", "permanent"), ("waiting", "waiting")]
    assert place.value("rewards", "SELECT count(*) FROM postrider.attempt") == 1


def test_the_digest_in_sql_is_the_one_of_the_program(place, topic):
    sent = event(7)
    topic.put(sent)
    start(place)
    consumed_up_to(place, 1)
    assert place.value("rewards", "SELECT digest = postrider.event_digest('registration', 'r1', 7,"
                       " 'RegistrationConfirmed', %s) FROM postrider.consumed", (sent["body"],))
    # The golden vector of tests/unit/digest_test.c.
    assert place.value("rewards", "SELECT encode(postrider.event_digest('a', 'b', 1, 't', 'xyz'), 'hex')") == \
        "b1fad4daf65282ca4f95153876fe07c7"
