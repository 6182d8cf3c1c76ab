"""Streams that wait for versions which do not come: named, looked for in the outboxes, and closed."""
import json
import signal
import threading

import pytest

from conftest import wait_until
from system.test_consume import Topic, balance, consumed_up_to, event, outcomes, parked, start
from system.test_consumer_repair import audit, entries, stream

WHO = ("--actor", "ann", "--reason", "OPS-3: lost in the old system")


@pytest.fixture
def topic(place):
    place.sql("rewards", "INSERT INTO reward_account VALUES ('p1'), ('p2')")
    return Topic(place)


def listed(place):
    return json.loads(place.run("gaps", "list", "--json", check=0).stdout)


def close(place, *args, check=None, who=WHO, stream_id="r1"):
    return place.run("gaps", "close", "--consumer", "rewards", "--aggregate-type", "registration", "--aggregate-id", stream_id,
                     *who, *args, check=check)


def gap(place, topic):
    """r1: 1 applied, 2 and 3 missing, 4 and 5 parked, 6 missing, 7 parked."""
    topic.put(*[event(v, points=v) for v in (1, 4, 5, 7)], event(1, stream="r2"))
    start(place)
    consumed_up_to(place, 5)


def test_gaps_are_listed_with_what_is_missing_and_where_it_is_not(place, topic):
    assert place.run("gaps", "list", check=0).stdout == "no stream waits for a missing version\n"
    gap(place, topic)
    row, = listed(place)
    assert {k: row[k] for k in ("consumer", "aggregate_type", "aggregate_id", "last", "missing", "missing_versions", "parked",
                                "found")} == {
        "consumer": "rewards", "aggregate_type": "registration", "aggregate_id": "r1", "last": 1, "missing": "2-3, 6",
        "missing_versions": 3, "parked": 3, "found": []}
    assert row["since"].endswith("Z")
    text = place.run("gaps", "list", "--consumer", "rewards", check=0).stdout
    assert "registration:r1  at version 1, missing 2-3, 6, 3 parked behind" in text
    assert "all of them: not there, in no outbox whose relay feeds events" in text
    assert "postrider gaps list --consumer rewards" in place.run("status").stdout
    assert 'no consumer "nobody"' in place.run("gaps", "list", "--consumer", "nobody", check=2).stderr


def test_a_missing_version_is_found_in_the_outbox_with_its_state(place, topic):
    sent = {v: place.emit("r1", v) for v in (1, 2, 3)}
    topic.put(event(1, event_id=sent[1]), event(4), event(7))
    start(place)
    consumed_up_to(place, 3)
    row, = listed(place)
    assert [(f["version"], f["event_id"], f["state"], f["relay"]) for f in row["found"]] == [
        (v, sent[v], "PENDING", "registrations-to-events") for v in (2, 3)]
    text = place.run("gaps", "list", check=0).stdout
    assert f"version 2: event {sent[2]}, PENDING (relay registrations-to-events)" in text and "the others: not there" in text
    place.sql("shop", "UPDATE postrider.lane SET done_snap = pg_current_snapshot()")
    assert {f["state"] for f in listed(place)[0]["found"]} == {"PUBLISHED"}
    place.sql("shop", "INSERT INTO postrider.parked (side, reader, state, event_id, class) "
              f"SELECT 'relay', relay, 'dead', '{sent[3]}', 'permanent' FROM postrider.relay")
    assert [f["state"] for f in listed(place)[0]["found"]] == ["PUBLISHED", "DEAD"]


def test_a_missing_version_is_found_in_a_table_of_the_users_own(place, topic):
    place.sql("shop", """CREATE TABLE outbox_events ("Event Id" uuid PRIMARY KEY, aggregate_id uuid, aggregate_version int, event_type text,
        payload jsonb, occurred_at timestamptz, publish_state text); INSERT INTO outbox_events VALUES
        ('00000000-0000-4000-8000-000000000001', '00000000-0000-4000-8000-00000000000a', 2, 'E', '{}', now(), 'NEW')""")
    place.config.write_text(place.config.read_text().replace("registrations: {database:", "registrations: {table: outbox_events, "
                            "aggregate_type: registration, columns: {event_id: Event Id}, mark: {pending: NEW}, database:"))
    name = "00000000-0000-4000-8000-00000000000a"
    topic.put(event(1, stream=name), event(3, stream=name), event(1), event(3))
    start(place)
    consumed_up_to(place, 4)
    rows = {row["aggregate_id"]: row["found"] for row in listed(place)}
    assert rows == {"r1": [], name: [{"version": 2, "event_id": "00000000-0000-4000-8000-000000000001", "state": "PENDING",
                                      "relay": "registrations-to-events"}]}


def test_a_closed_gap_lets_the_rest_follow_and_a_late_version_is_never_applied(place, topic):
    gap(place, topic)
    said = close(place, "--dry-run", check=0).stdout
    assert "versions 2 to 3 would be given up, 2 parked events follow, stream then at version 5" in said
    assert "version 6 is missing" in said and audit(place) == [] and stream(place) == (1, 0, 3)
    done = json.loads(close(place, "--ticket", "OPS-3", "--json", check=0).stdout)
    assert done == {"done": True, "given_up_from": 2, "given_up_to": 3, "stream_then": 5, "follow": 2, "stops": "version 6 is missing"}
    wait_until(lambda: stream(place) == (5, 3, 1), what="the stream")
    assert listed(place)[0]["missing"] == "6"
    (act, who, reason, ticket, before, after), = audit(place)
    assert (act, who, reason, ticket) == ("consumer.close_gap", "ann", WHO[3], "OPS-3")
    assert before == {"consumer": "rewards", "stream": "registration:r1", "version": 1, "base": 0}
    assert after == {"version": 3, "base": 3}
    topic.put(event(2, points=2), event(6, points=6))
    wait_until(lambda: stream(place) == (7, 3, 0), what="the rest")
    assert parked(place, "version, state, class, holds") == [(2, "dead", "late", False)]
    assert [n for n in entries(place) if n != 10] == [1, 4, 5, 6, 7] and listed(place) == []


def test_a_gap_can_be_closed_in_part(place, topic):
    gap(place, topic)
    assert "0 parked events follow" in close(place, "--up-to", "2", check=0).stdout
    assert stream(place) == (2, 2, 3) and listed(place)[0]["missing"] == "3, 6"
    topic.put(event(3, points=3))
    wait_until(lambda: stream(place) == (5, 2, 1), what="what waited")
    assert [n for n in entries(place) if n != 10] == [1, 3, 4, 5]


def test_what_cannot_be_closed_is_told(place, topic):
    gap(place, topic)
    topic.put(event(2, stream="r2", player="p9"), event(3, stream="r2"))
    consumed_up_to(place, 7)
    for args, name, told in [
            (("--up-to", "4"), "r1", "waits for versions 2 to 3, so the gap cannot be closed up to 4"),
            (("--up-to", "1"), "r1", "waits for versions 2 to 3"),
            ((), "r2", "has no gap: it is at version 1 and its version 2 is parked as dead"),
            ((), "r9", "knows no stream registration:r9")]:
        done = close(place, *args, check=1, stream_id=name)
        assert told in done.stderr and "hint: postrider " in done.stderr
    assert "needs --consumer" in place.run("gaps", "close", *WHO, check=2).stderr
    assert "both go to the audit" in close(place, who=("--actor", "ann"), check=2).stderr
    assert "--up-to takes a version" in close(place, "--up-to", "two", check=2).stderr
    assert audit(place) == [] and stream(place) == (1, 0, 3)


def test_two_operators_close_a_gap_once(place, topic):
    topic.put(*[event(v, points=v) for v in (1, 4)])
    start(place)
    consumed_up_to(place, 2)
    done = []
    both = [threading.Thread(target=lambda: done.append(close(place).returncode)) for _ in range(2)]
    for thread in both:
        thread.start()
    for thread in both:
        thread.join()
    assert sorted(done) == [0, 1] and len(audit(place)) == 1
    wait_until(lambda: entries(place) == [1, 4], what="what waited")


@pytest.mark.parametrize("failpoint", ["consumer.applied", "consumer.committed"])
def test_killed_while_the_rest_follows_nothing_is_lost(place, topic, failpoint):
    topic.put(*[event(v, points=v) for v in (1, 4, 5, 6)])
    process = start(place)
    consumed_up_to(place, 4)
    place.stop(process)
    close(place, check=0)
    for visit in (1, 1):
        assert start(place, failpoint=f"{failpoint}@{visit}=kill").wait(30) == -signal.SIGKILL
        place.sql("rewards", "UPDATE postrider.parked SET due_at = now() WHERE due_at IS NOT NULL")
    start(place)
    wait_until(lambda: entries(place) == [1, 4, 5, 6], what="the stream")
    assert outcomes(place) == "AAAA" and stream(place) == (6, 3, 0) and balance(place) == 16
