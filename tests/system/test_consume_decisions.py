"""Decisions of the consumer, on postrider.consume_batch() itself: what each message
becomes, given the stream's state, and the state it leaves."""
import hashlib
import os
import pathlib
import time
import uuid

import psycopg2
import psycopg2.errors
import psycopg2.extras
import pytest

from conftest import VERSIONS

SQL = pathlib.Path(__file__).resolve().parents[2] / "sql"
psycopg2.extras.register_uuid()
START_MS = int(time.time() * 1000)


def ident(name, days_ago=0):
    """A UUIDv7 that is the same for the same name."""
    made_ms = START_MS - days_ago * 86400000
    raw = bytearray(made_ms.to_bytes(6, "big") + hashlib.sha256(name.encode()).digest()[:10])
    raw[6] = 0x70 | raw[6] & 0x0F
    raw[8] = 0x80 | raw[8] & 0x3F
    return uuid.UUID(bytes=bytes(raw))


def digest(content):
    return hashlib.sha256(content.encode()).digest()[:16]


class Message:
    """v7 of stream s1: its id comes from `name`, its digest from `content`."""

    def __init__(self, version, name=None, content=None, stream="s1", prev=None, kind="h", days_ago=0):
        self.name = name or f"{stream}/v{version}"
        self.id = ident(self.name, days_ago)
        self.digest = digest(content or self.name)
        self.version, self.stream, self.prev, self.kind = version, stream, prev, kind


class Consumer:
    """Runs batches the way the program does: decide, park what is to be parked, commit."""

    classes = {"g": ("waiting", "gap"), "w": ("waiting", "waiting"), "c": ("dead", "conflict"),
               "l": ("dead", "late"), "u": ("dead", "unhandled")}

    def __init__(self, db, order="stream", first="any"):
        self.db, self.order, self.first = db, order, first
        self.cur = db.cursor()

    def decide(self, messages, partitions=()):
        columns = list(zip(*partitions)) or [[]] * 6
        self.cur.execute(
            "SELECT n, decision, last FROM postrider.consume_batch(1::smallint, %s::text[], %s::text[],"
            " %s::int[], %s::bigint[], %s::bigint[], %s::bigint[], %s::uuid[], %s, %s, %s::uuid[],"
            " %s::bytea[], %s::text[], %s::text[], %s::bigint[], %s::bigint[], %s::\"char\"[]) ORDER BY n",
            (*map(list, columns), [None] * len(partitions), self.order, self.first,
             [m.id for m in messages], [m.digest for m in messages], ["t"] * len(messages),
             [m.stream for m in messages], [m.version for m in messages],
             [m.prev for m in messages], [m.kind for m in messages]))
        rows = self.cur.fetchall()
        assert [n for n, _, _ in rows] == list(range(1, len(messages) + 1))
        return [d for _, d, _ in rows]

    def park(self, message, decision):
        state, cls = self.classes[decision]
        self.cur.execute(
            "SELECT postrider.park(1::smallint, %s, ARRAY[ROW(%s, %s, NULL, NULL, 0, NULL, %s, %s, 't', %s,"
            " %s, %s, 'E', now(), 'bus', 'topic', 0, 0, NULL, '{}', '{}', '\\x', NULL)"
            "::postrider.parked_entry])",
            (self.order, state, cls, message.id, message.digest, message.stream, message.version,
             message.prev))

    def batch(self, *messages):
        """The decisions, one letter each."""
        decisions = self.decide(messages)
        for message, decision in zip(messages, decisions):
            if decision in self.classes:
                self.park(message, decision)
        self.db.commit()
        return "".join(decisions)

    def run_due(self, kind="h"):
        """Applies due parked events until none is left; their decisions in order."""
        decisions = ""
        while True:
            self.cur.execute("UPDATE postrider.parked SET due_at = clock_timestamp() WHERE due_at IS NOT NULL")
            self.cur.execute("SELECT parked_id FROM postrider.claim_parked(1::smallint, 10, '10 s')")
            claimed = self.cur.fetchall()
            self.db.commit()
            if not claimed:
                return decisions
            for (parked_id,) in claimed:
                self.cur.execute("SELECT decision FROM postrider.consume_parked(1::smallint, %s, %s, %s)",
                                 (parked_id, self.order, kind))
                decisions += "".join(d for (d,) in self.cur.fetchall())
                self.db.commit()

    def stream(self, name="s1"):
        self.cur.execute("SELECT version, base, parked FROM postrider.stream WHERE aggregate_id = %s", (name,))
        return self.cur.fetchone()

    def outcome(self, message):
        self.cur.execute("SELECT outcome FROM postrider.consumed WHERE event_id = %s", (message.id,))
        row = self.cur.fetchone()
        return row and row[0]

    def parked(self):
        self.cur.execute("SELECT version, state, class, holds FROM postrider.parked ORDER BY id")
        return self.cur.fetchall()


@pytest.fixture(scope="module", params=VERSIONS)
def installed(request, servers):
    """One database with the schema for all these tests."""
    name = f"decisions_{os.getpid()}"
    server = servers(request.param)
    dsn = server.create(name)
    with psycopg2.connect(dsn) as connection, connection.cursor() as cur:
        cur.execute("SET check_function_bodies = off")  # as init does
        for file in sorted(SQL.glob("[0-9]*.sql")) + sorted(SQL.glob("functions/*.sql")):
            cur.execute(file.read_text())
        cur.execute("SELECT postrider.make_partitions(3)")
    connection.close()
    yield dsn
    server.drop(name)


@pytest.fixture
def db(installed):
    connection = psycopg2.connect(installed)
    connection.cursor().execute(
        "TRUNCATE postrider.consumer, postrider.reconciled, postrider.consumer_partition, postrider.consumed, postrider.stream,"
        " postrider.parked, postrider.attempt RESTART IDENTITY;"
        " SELECT postrider.register_consumer('rewards')")
    connection.commit()
    yield connection
    connection.close()


V = Message

# order, first: batches before; the batch; its decisions; outcomes of its messages; stream (version, base, parked)
TABLE = {
    "apply": ("stream", "any", [[V(1)]], [V(2)], "a", "A", (2, 0, 0)),
    "opens_at_any_version": ("stream", "any", [], [V(8)], "a", "A", (8, 7, 0)),
    "opens_at_prev": ("stream", "any", [], [V(8, prev=3)], "a", "A", (8, 7, 0)),
    "opens_at_1": ("stream", "1", [], [V(1)], "a", "A", (1, 0, 0)),
    "does_not_open_at_2": ("stream", "1", [], [V(2)], "g", "P", (0, 0, 1)),
    "does_not_open_past_a_parked_first": ("stream", "any", [[V(1, kind="u")]], [V(2)], "w", "P", (0, 0, 2)),
    "duplicate": ("stream", "any", [[V(1)], [V(2)]], [V(1)], "d", "A", (2, 0, 0)),
    "duplicate_of_the_last": ("stream", "any", [[V(1)]], [V(1)], "d", "A", (1, 0, 0)),
    "duplicate_in_the_batch": ("stream", "any", [], [V(1), V(1), V(2)], "ada", "AAA", (2, 0, 0)),
    "conflict_same_id_other_content": ("stream", "any", [[V(1)]], [V(1, content="x")], "c", "A", (1, 0, 0)),
    "conflict_in_the_batch": ("stream", "any", [], [V(1), V(1, content="x")], "ac", "AA", (1, 0, 0)),
    "conflict_same_version_other_id": ("stream", "any", [[V(1)]], [V(1, name="other")], "c", "D", (1, 0, 0)),
    "late": ("stream", "any", [[V(8)]], [V(5)], "l", "D", (8, 7, 0)),
    "late_below_a_jump": ("stream", "any", [[V(1)], [V(5, prev=1)]], [V(3)], "l", "D", (5, 4, 0)),
    "gap": ("stream", "any", [[V(1)]], [V(3)], "g", "P", (1, 0, 1)),
    "waiting_behind_a_parked_one": ("stream", "any", [[V(1)], [V(3)]], [V(4)], "w", "P", (1, 0, 2)),
    "waiting_behind_one_of_the_batch": ("stream", "any", [[V(1)]], [V(3), V(4), V(5)], "gww", "PPP", (1, 0, 3)),
    "two_of_one_version_wait": ("stream", "any", [[V(6)], [V(8)]], [V(8, name="b")], "w", "P", (6, 5, 2)),
    "prev_lets_versions_be_missing": ("stream", "any", [[V(1)]], [V(5, prev=1)], "a", "A", (5, 4, 0)),
    "prev_not_applied_is_a_gap": ("stream", "any", [[V(1)]], [V(9, prev=5)], "g", "P", (1, 0, 1)),
    "prev_below_last": ("stream", "any", [[V(4)]], [V(7, prev=2)], "a", "A", (7, 6, 0)),
    "ignored_moves_the_stream": ("stream", "any", [[V(1)]], [V(2, kind="i"), V(3)], "ia", "IA", (3, 0, 0)),
    "ignored_in_a_gap": ("stream", "any", [[V(1)]], [V(3, kind="i")], "g", "P", (1, 0, 1)),
    "unhandled_holds_the_stream": ("stream", "any", [[V(1)]], [V(2, kind="u"), V(3)], "uw", "DP", (1, 0, 2)),
    "unhandled_in_a_gap": ("stream", "any", [[V(1)]], [V(3, kind="u")], "g", "P", (1, 0, 1)),
    "duplicate_of_a_parked_one": ("stream", "any", [[V(1)], [V(3)]], [V(3)], "d", "P", (1, 0, 1)),
    "duplicate_of_a_dead_one": ("stream", "any", [[V(1, kind="u")]], [V(1)], "d", "D", (0, 0, 1)),
    "chain": ("stream", "any", [], [V(n) for n in range(1, 6)], "aaaaa", "AAAAA", (5, 0, 0)),
    "gap_closed_in_the_batch": ("stream", "any", [[V(6)]], [V(8), V(7), V(9)], "gaw", "PAP", (7, 5, 2)),
    "latest_applies_a_later_one": ("latest", "any", [[V(1)]], [V(5)], "a", "A", (5, 0, 0)),
    "latest_stale": ("latest", "any", [[V(5)]], [V(4)], "s", "S", (5, 4, 0)),
    "latest_conflict": ("latest", "any", [[V(5)]], [V(5, name="b")], "c", "D", (5, 4, 0)),
    "latest_duplicate": ("latest", "any", [[V(5)]], [V(5)], "d", "A", (5, 4, 0)),
    "latest_unhandled_holds_nothing": ("latest", "any", [[V(1)]], [V(2, kind="u"), V(3)], "ua", "DA", (3, 0, 0)),
    "latest_first_is_any": ("latest", "1", [], [V(5)], "a", "A", (5, 4, 0)),
    "none_takes_any_order": ("none", "any", [], [V(5), V(2), V(9)], "aaa", "AAA", None),
    "none_duplicate": ("none", "any", [[V(5)]], [V(5)], "d", "A", None),
    "none_conflict": ("none", "any", [[V(5)]], [V(5, content="x")], "c", "A", None),
    "none_unhandled": ("none", "any", [], [V(5, kind="u")], "u", "D", None),
    "none_ignored": ("none", "any", [], [V(5, kind="i")], "i", "I", None),
}


@pytest.mark.parametrize("case", TABLE)
def test_decision(db, case):
    order, first, before, batch, decisions, outcomes, stream = TABLE[case]
    consumer = Consumer(db, order, first)
    for earlier in before:
        consumer.batch(*earlier)
    assert consumer.batch(*batch) == decisions
    assert "".join(consumer.outcome(m) for m in batch) == outcomes
    assert consumer.stream() == stream
    parked = [(version, holds) for version, state, _, holds in consumer.parked()]
    assert sum(holds for _, holds in parked) == (stream[2] if stream else 0)


def floor(db, days_ago):
    db.cursor().execute("UPDATE postrider.consumer SET floor = now() - %s * interval '1 day'", (days_ago,))
    db.commit()


def test_F64_an_id_older_than_the_records_is_stale_in_a_stream(db):
    consumer = Consumer(db)
    consumer.batch(V(1), V(2))
    floor(db, 3)
    assert consumer.batch(V(1, name="forgotten", days_ago=10)) == "s"
    assert consumer.batch(V(1, name="new", days_ago=1)) == "c"
    assert consumer.batch(V(3, name="old", days_ago=10)) == "a"


def test_an_id_older_than_the_records_needs_a_person_without_order(db):
    consumer = Consumer(db, "none")
    floor(db, 3)
    message = V(1, days_ago=10)
    assert consumer.batch(message) == "l"
    assert consumer.outcome(message) == "D"


def test_an_id_that_is_no_uuidv7_is_known_for_ever(db):
    consumer = Consumer(db, "none")
    floor(db, 3)
    message = V(1)
    message.id = uuid.uuid4()
    assert consumer.batch(message) == "a"
    assert consumer.batch(message) == "d"


def test_streams_of_one_batch_are_apart(db):
    consumer = Consumer(db)
    consumer.batch(V(1, stream="a"), V(1, stream="b"))
    assert consumer.batch(V(2, stream="b"), V(3, stream="a"), V(3, stream="b"), V(1, stream="c")) == "agaa"
    assert consumer.stream("a") == (1, 0, 1)
    assert consumer.stream("b") == (3, 0, 0)
    assert consumer.stream("c") == (1, 0, 0)


def test_what_waits_behind_a_gap_follows_in_order(db):
    consumer = Consumer(db)
    consumer.batch(V(6))
    consumer.batch(V(8), V(9), V(10))
    assert consumer.run_due() == ""
    assert consumer.batch(V(7)) == "a"
    assert consumer.run_due() == "aaa"
    assert consumer.stream() == (10, 5, 0)
    assert consumer.parked() == []
    assert consumer.outcome(V(9)) == "A"


def test_a_second_gap_stops_what_follows(db):
    consumer = Consumer(db)
    consumer.batch(V(1))
    consumer.batch(V(3), V(6))
    assert consumer.batch(V(2)) == "a"
    assert consumer.run_due() == "a"
    assert consumer.stream() == (3, 0, 1)
    consumer.batch(V(5), V(4))
    assert consumer.run_due() == "aa"
    assert consumer.stream() == (6, 0, 0)


def test_a_gap_closed_in_its_own_batch_leaves_the_parked_one_due(db):
    consumer = Consumer(db)
    consumer.batch(V(6))
    consumer.batch(V(8), V(7))
    assert consumer.run_due() == "a"
    assert consumer.stream() == (8, 5, 0)


def test_of_two_parked_with_one_version_the_second_becomes_a_conflict(db):
    consumer = Consumer(db)
    second = V(8, name="b")
    consumer.batch(V(6))
    consumer.batch(V(8), second, V(9))
    consumer.batch(V(7))
    assert consumer.run_due() == "aca"
    assert consumer.stream() == (9, 5, 0)
    assert consumer.parked() == [(8, "dead", "conflict", False)]
    assert consumer.outcome(V(8)) == "A" and consumer.outcome(second) == "D"


def test_a_copy_of_a_conflict_adds_nothing(db):
    consumer = Consumer(db)
    consumer.batch(V(1))
    for _ in range(3):
        assert consumer.batch(V(1, content="x")) == "c"
    assert consumer.parked() == [(1, "dead", "conflict", False)]
    assert consumer.batch(V(2)) == "a"


def fail(db, state, cls="transient"):
    db.cursor().execute(
        "SELECT postrider.fail_parked(1::smallint, id, %s, %s, '40000', 'no') FROM postrider.parked"
        " WHERE state = 'retry'", (state, cls))
    db.commit()


def test_a_failed_event_rests_longer_each_time_and_dies_in_the_end(db):
    consumer = Consumer(db)
    consumer.decide([V(1, kind="u")])
    Consumer.classes = dict(Consumer.classes, r=("retry", "transient"))
    consumer.park(V(1), "r")
    db.commit()
    assert consumer.outcome(V(1)) == "P"
    assert consumer.batch(V(2)) == "w"
    cur = db.cursor()
    for tries in (1, 2, 3):
        cur.execute("UPDATE postrider.parked SET due_at = clock_timestamp() WHERE due_at IS NOT NULL")
        cur.execute("SELECT tried FROM postrider.claim_parked(1::smallint, 10, '10 s')")
        assert cur.fetchall() == [(tries,)]
        cur.execute("SELECT * FROM postrider.claim_parked(1::smallint, 10, '10 s')")
        assert cur.fetchall() == []
        fail(db, "retry")
    fail(db, "dead", "permanent")
    assert consumer.parked() == [(1, "dead", "permanent", True), (2, "waiting", "waiting", True)]
    assert consumer.outcome(V(1)) == "D"
    assert consumer.run_due() == ""
    cur.execute("SELECT class, sqlstate, message FROM postrider.attempt ORDER BY at")
    assert cur.fetchall() == [("transient", "40000", "no")] * 3 + [("permanent", "40000", "no")]
    cur.execute("UPDATE postrider.parked SET state = 'retry', due_at = now() WHERE version = 1")
    assert consumer.run_due() == "aa"
    assert consumer.stream() == (2, 0, 0)


def test_the_rest_between_tries_doubles_up_to_ten_minutes(db):
    cur = db.cursor()
    for tries, most in ((1, 1), (2, 2), (5, 16), (11, 600), (1000, 600)):
        cur.execute("SELECT date_part('epoch', max(postrider.backoff(%s))) FROM generate_series(1, 300)",
                    (tries,))
        longest = cur.fetchone()[0]
        assert most * 0.9 < longest <= most


def test_a_parked_event_whose_handler_is_gone_needs_a_person(db):
    consumer = Consumer(db)
    consumer.batch(V(1))
    consumer.batch(V(3))
    consumer.batch(V(2))
    assert consumer.run_due(kind="u") == "u"
    assert consumer.parked() == [(3, "dead", "unhandled", True)]
    assert consumer.batch(V(4)) == "w"


def test_a_parked_event_is_ignored_once_it_is_to_be(db):
    consumer = Consumer(db)
    consumer.batch(V(1))
    consumer.batch(V(3))
    consumer.batch(V(2))
    assert consumer.run_due(kind="i") == "i"
    assert consumer.outcome(V(3)) == "I"
    assert consumer.stream() == (3, 0, 0)


def partitions(db, *epochs):
    cur = db.cursor()
    for part, epoch in enumerate(epochs):
        cur.execute("INSERT INTO postrider.consumer_partition (consumer, source, topic, part, next_off, epoch)"
                    " VALUES (1, 'bus', 'topic', %s, 10, %s)", (part, epoch))
    db.commit()


def positions(db):
    cur = db.cursor()
    cur.execute("SELECT next_off FROM postrider.consumer_partition ORDER BY part")
    return [n for (n,) in cur.fetchall()]


def test_positions_move_with_the_batch(db):
    partitions(db, 3, 4)
    consumer = Consumer(db)
    assert consumer.decide([V(1)], [("bus", "topic", 0, 3, 10, 12), ("bus", "topic", 1, 4, 11, 15)]) == ["a"]
    db.commit()
    assert positions(db) == [12, 15]


@pytest.mark.parametrize("epoch, first", [(3, 10), (5, 10), (4, 9)])
def test_one_partition_fenced_off_undoes_the_whole_batch(db, epoch, first):
    partitions(db, 3, 4)
    consumer = Consumer(db)
    with pytest.raises(psycopg2.Error) as failed:
        consumer.decide([V(1)], [("bus", "topic", 0, 3, 10, 12), ("bus", "topic", 1, epoch, first, 15)])
    assert failed.value.pgcode == "PR001"
    assert "topic/1" in failed.value.diag.message_detail
    db.rollback()
    assert positions(db) == [10, 10]
    assert consumer.outcome(V(1)) is None


def test_a_batch_without_events_moves_its_position(db):
    partitions(db, 3)
    Consumer(db).decide([], [("bus", "topic", 0, 3, 10, 12)])
    db.commit()
    assert positions(db) == [12]


def test_an_unregistered_consumer_is_told(db):
    db.cursor().execute("DELETE FROM postrider.consumer")
    with pytest.raises(psycopg2.Error) as failed:
        Consumer(db).decide([V(1)])
    assert failed.value.pgcode == "PR002"


def test_two_who_open_one_stream_at_once_do_not_both_apply(db):
    consumer = Consumer(db)
    assert consumer.decide([V(1)]) == ["a"]
    with psycopg2.connect(db.dsn) as other:
        other.cursor().execute("SET lock_timeout = '200ms'")
        with pytest.raises(psycopg2.errors.LockNotAvailable):
            Consumer(other).decide([V(1, name="b")])
    other.close()
    db.commit()
    with psycopg2.connect(db.dsn) as other:
        assert Consumer(other).decide([V(1, name="b")]) == ["c"]
    other.close()


def test_the_consumer_role_can_consume_and_not_write_the_tables(db):
    cur = db.cursor()
    cur.execute("SET ROLE postrider_consumer")
    assert Consumer(db).batch(V(2), V(4)) == "ag"
    cur.execute("SELECT postrider.settle(1::smallint, ARRAY[%s], '{H}')", (V(2).id,))
    db.commit()
    assert Consumer(db).outcome(V(2)) == "H"
    for statement in ("UPDATE postrider.consumed SET outcome = 'A'", "DELETE FROM postrider.consumed",
                      "UPDATE postrider.stream SET version = 9", "DELETE FROM postrider.parked",
                      "UPDATE postrider.consumer_partition SET next_off = 9",
                      "UPDATE postrider.consumer SET floor = now()"):
        with pytest.raises(psycopg2.errors.InsufficientPrivilege):
            cur.execute(statement)
        db.rollback()
        cur.execute("SET ROLE postrider_consumer")
