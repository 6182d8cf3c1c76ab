"""A judge that never saw a breach is no judge: each kind is made by hand and must be found."""
import json

import pytest

from checker import checker

HEADERS = ("postrider-id", "postrider-type", "postrider-aggregate-type", "postrider-aggregate-id",
           "postrider-version")


class World:
    """Tables of the three databases, filled by hand with a correct history of two streams."""

    def __init__(self, place):
        self.place = place
        place.sql("bus", "SELECT postrider.log_create_topic('registration', 4)")
        place.sql("rewards", "SELECT postrider.register_consumer('x')")
        place.sql("rewards", "INSERT INTO reward_account VALUES ('p1', 0), ('p2', 0)")
        self.offset = {0: 0, 1: 0}
        self.events = []
        for version in (1, 2, 3):
            for stream, part, player in (("a", 0, "p1"), ("b", 1, "p2")):
                self.events.append((place.emit(stream, version, version * 10 + part, player), stream, version, part,
                                    player, version * 10 + part))
        for event in self.events:
            self.publish(event)
            self.apply(event)

    def publish(self, event, body=None, part=None, version=None):
        event_id, stream, own_version, own_part, player, points = event
        part = own_part if part is None else part
        if body is None:
            body = self.place.value("shop", "SELECT payload::text FROM postrider.outbox WHERE event_id = %s",
                                    (event_id,)) or json.dumps({"playerId": player, "points": points})
        values = (event_id, "RegistrationConfirmed", "registration", stream, str(version or own_version))
        self.place.sql("bus", "INSERT INTO postrider.log VALUES ('registration', %s, %s, now(), %s, 'k', %s, %s, %s)",
                       (part, self.offset[part], event_id, list(HEADERS), [v.encode() for v in values],
                        body.encode()))
        self.offset[part] += 1

    def apply(self, event, points=None, record=True):
        event_id, _, _, _, player, own_points = event
        points = own_points if points is None else points
        self.place.sql("rewards", "INSERT INTO reward_entry (event_id, player_id, delta) VALUES (%s, %s, %s)",
                       (event_id, player, points))
        self.place.sql("rewards", "UPDATE reward_account SET balance = balance + %s WHERE player_id = %s",
                       (points, player))
        if record:
            self.place.sql("rewards", "INSERT INTO postrider.consumed SELECT 1, postrider.event_day(%s), %s, 'd', 'A'"
                           " ON CONFLICT DO NOTHING", (event_id, event_id))

    def faults(self):
        result = checker.check(self.place.dsns["shop"], self.place.dsns["bus"], self.place.dsns["rewards"])
        return {name for name in checker.FAULTS if result[name]}, result


@pytest.fixture
def world(place):
    return World(place)


def test_a_correct_history_has_no_fault(world):
    faults, result = world.faults()
    assert faults == set()
    assert (result["events"], result["published"], result["applied"]) == (6, 6, 6)


def test_a_repeated_message_is_no_fault(world):
    world.publish(world.events[0])
    faults, result = world.faults()
    assert faults == set() and result["repeated"] == 1


def test_a_lost_event(world):
    lost = world.place.emit("a", 4)
    faults, result = world.faults()
    assert faults == {"lost"} and result["lost"] == [lost]


def test_an_event_of_a_rolled_back_transaction(world):
    world.publish(("0190a0b0-0000-7000-8000-000000000001", "c", 1, 0, "p1", 5), body="{}")
    assert "foreign" in world.faults()[0]


def test_an_altered_payload(world):
    world.publish(world.events[0], body='{"points": 10,  "playerId": "p1"}')
    assert world.faults()[0] == {"altered"}


def test_an_inversion(world):
    late = (world.place.emit("a", 4), "a", 4, 0, "p1", 10)
    later = (world.place.emit("a", 5), "a", 5, 0, "p1", 10)
    for event in (later, late):
        world.publish(event)
        world.apply(event)
    assert world.faults()[0] == {"order_breaks", "early"}


def test_a_stream_in_two_partitions(world):
    world.publish(world.events[0], part=1)
    assert world.faults()[0] == {"split_streams"}


def test_a_hole_in_the_log(world):
    world.offset[0] += 1
    world.publish(world.events[0])
    assert world.faults()[0] == {"holes"}


def test_a_missing_effect(world):
    event = (world.place.emit("a", 4, 7), "a", 4, 0, "p1", 7)
    world.publish(event)
    faults, result = world.faults()
    assert faults == {"missing"} and result["missing"] == [event[0]]


def test_a_double_effect(world):
    world.apply(world.events[0])
    assert world.faults()[0] == {"doubled", "wrong_balances"}


def test_a_dedupe_record_without_effect(world):
    event = (world.place.emit("a", 4, 7), "a", 4, 0, "p1", 7)
    world.publish(event)
    world.place.sql("rewards", "INSERT INTO postrider.consumed SELECT 1, postrider.event_day(%s), %s, 'd', 'A'",
                    (event[0], event[0]))
    assert world.faults()[0] == {"missing", "orphans"}


def test_an_effect_without_dedupe_record(world):
    event = (world.place.emit("a", 4, 7), "a", 4, 0, "p1", 7)
    world.publish(event)
    world.apply(event, record=False)
    assert world.faults()[0] == {"orphans"}


def test_a_sum_that_hides_a_loss_behind_a_double(world):
    """One event of 7 points is lost and another of 7 is applied twice: the balance is right, nothing else is."""
    lost = (world.place.emit("a", 4, 7), "a", 4, 0, "p1", 7)
    twice = (world.place.emit("a", 5, 7), "a", 5, 0, "p1", 7)
    world.publish(lost)
    world.publish(twice)
    world.apply(twice)
    world.apply(twice)
    faults, result = world.faults()
    assert faults == {"missing", "doubled", "wrong_balances"}
    assert result["missing"] == [lost[0]] and result["doubled"] == [twice[0]]


def test_a_wrong_amount(world):
    event = (world.place.emit("a", 4, 7), "a", 4, 0, "p1", 7)
    world.publish(event)
    world.apply(event, points=8)
    assert world.faults()[0] == {"wrong_amount", "wrong_balances"}
