"""What an operator does about a consumer's dead letters: replay and discard, once, in order, recorded."""
import json
import signal
import threading
import uuid

import pytest

from conftest import wait_until
from system.test_consume import Topic, balance, consumed_up_to, event, outcomes, parked, start

WHO = ("--actor", "ann", "--reason", "OPS-12: account made", "--ticket", "OPS-12")
MINE = ("--consumer", "rewards")


@pytest.fixture
def topic(place):
    place.sql("rewards", "INSERT INTO reward_account VALUES ('p1'), ('p2')")
    return Topic(place)


def ask(place, request, *ids, check=None, who=WHO):
    return place.run("dlq", request, *map(str, ids), *MINE, *who, check=check)


def ids(place, condition="state = 'dead'"):
    return [row[0] for row in place.sql("rewards", f"SELECT id FROM postrider.parked WHERE {condition} ORDER BY id")]


def audit(place):
    assert place.value("rewards", "SELECT postrider.audit_check()") is None
    return place.sql("rewards", "SELECT act, given_name, reason, ticket, before, after FROM postrider.audit ORDER BY n")


def stream(place, name="r1"):
    return place.sql("rewards", "SELECT version, base, parked FROM postrider.stream WHERE aggregate_id = %s", (name,))[0]


def entries(place, player="p1"):
    return [row[0] for row in place.sql("rewards", "SELECT delta FROM reward_entry WHERE player_id = %s ORDER BY n", (player,))]


def test_a_replay_applies_the_event_and_what_waits_behind_it(place, topic):
    topic.put(*[event(v, player="p9", points=v) for v in (1, 2, 3)], event(1, stream="r2"))
    start(place)
    consumed_up_to(place, 4)
    dead, = ids(place)
    said = ask(place, "replay", dead, "--dry-run", check=0).stdout
    assert f"would replay {dead}" in said and "stream at version 0, if all goes well to 3, 2 parked events follow" in said
    assert audit(place) == [] and parked(place)[0][0] == "dead"
    place.sql("rewards", "INSERT INTO reward_account VALUES ('p9')")
    done = json.loads(ask(place, "replay", dead, "--json", check=0).stdout)
    assert [(d["id"], d["stream_then"], d["follow"], d["stops"], d["done"]) for d in done] == [(dead, 3, 2, None, True)]
    wait_until(lambda: outcomes(place) == "AAAA", what="the stream to be applied")
    assert entries(place, "p9") == [1, 2, 3] and parked(place) == [] and stream(place) == (3, 0, 0)
    (act, who, reason, ticket, before, after), = audit(place)
    assert (act, who, reason, ticket) == ("consumer.replay", "ann", "OPS-12: account made", "OPS-12")
    assert before["id"] == dead and before["state"] == "dead" and before["class"] == "permanent" and after == {"state": "retry"}


def test_a_discard_moves_the_stream_past_the_event(place, topic):
    bad = event(2, points=-5)
    topic.put(event(1, points=1), bad, event(3, points=3), event(4, points=4))
    start(place)
    consumed_up_to(place, 4)
    dead, = ids(place)
    assert "stream at version 1, then to 4, 2 parked events follow" in ask(place, "discard", dead, "--dry-run", check=0).stdout
    ask(place, "discard", dead, check=0)
    wait_until(lambda: outcomes(place) == "AAAX", what="what waited")
    assert entries(place) == [1, 3, 4] and stream(place) == (4, 0, 0)
    assert parked(place, "state, holds, request, request_by, request_reason") == [
        ("discarded", False, "discard", "ann", "OPS-12: account made")]
    topic.put(bad, event(5, points=5))
    consumed_up_to(place, 6)
    assert entries(place) == [1, 3, 4, 5] and outcomes(place) == "AAAAX"
    assert "discarded by ann" in ask(place, "replay", dead, check=1).stderr
