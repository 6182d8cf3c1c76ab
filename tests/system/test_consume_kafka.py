"""The consumer reads from a real Kafka: positions, start, a group of two, and what must stop it loudly."""
import os
import signal

import pytest

from conftest import HAS_KAFKA, wait_until
from servers.kafka import Kafka


@pytest.fixture(scope="module")
def kafka():
    if not HAS_KAFKA:
        pytest.skip("built without transport kafka")
    cluster = Kafka(settings={"log.retention.check.interval.ms": "300", "log.initial.task.delay.ms": "0"})
    yield cluster
    cluster.remove()


@pytest.fixture
def topic(place, kafka):
    name = f"c{os.getpid()}-{place.names['shop']}"
    kafka.create(name, 4)
    place.sql("rewards", "INSERT INTO reward_account VALUES ('p1')")
    configure(place, kafka, name)
    return name


def configure(place, kafka, topic, start="earliest"):
    place.config.write_text(f"""
outboxes:
  registrations: {{database: "{place.dsns['shop']}"}}
destinations:
  events: {{transport: kafka, bootstrap: "{kafka.bootstrap}", topic: "{topic}"}}
relays:
  to-kafka: {{outbox: registrations, destination: events, lease: 2s}}
consumers:
  rewards:
    database: "{place.dsns['rewards']}"
    from: {{destination: events, topic: "{topic}", start: {start}}}
    lease: 2s
    handlers:
      RegistrationConfirmed:
        sql: "SELECT apply_reward_event(:consumer, :event_id, :payload.playerId, :payload.points)"
""")
    place.run("init", check=0)


def emit(place, first, last, streams=8):
    place.sql("shop", """SELECT count(postrider.emit('registration', 's' || s, v, 'RegistrationConfirmed',
        '{"playerId": "p1", "points": 1}')) FROM generate_series(%s, %s) v, generate_series(1, %s) s""", (first, last, streams))


def balance(place):
    return place.value("rewards", "SELECT balance FROM reward_account")


def effects(place):
    return place.value("rewards", "SELECT count(*) FROM reward_entry")


def stopped_with(process, code):
    wait_until(lambda: code in process.log.read_text(), timeout=60, what=code)
    assert "consumer.halted" in process.log.read_text()


def test_events_come_through_kafka_and_are_applied_once(place, kafka, topic):
    process = place.start()
    emit(place, 1, 20)
    wait_until(lambda: balance(place) == 160, what="160 effects")
    assert place.stop(process) == 0
    emit(place, 21, 30)
    process = place.start()
    wait_until(lambda: balance(place) == 240, what="240 effects")
    assert effects(place) == 240
    assert place.stop(process) == 0
    assert place.value("rewards", "SELECT count(*) FROM postrider.parked") == 0


def test_a_start_that_is_not_said_is_refused(place, kafka, topic):
    place.config.write_text(place.config.read_text().replace(", start: earliest", ""))
    done = place.run("config", "check", check=78)
    assert "from.start: missing, expected earliest, latest or a time" in done.stdout + done.stderr


def test_a_member_that_slept_past_its_session_writes_nothing(place, kafka, topic):
    first = place.start("--only", "consumers", failpoint="consumer.received@1=stop")
    wait_until(lambda: "consumer.claimed" in first.log.read_text(), timeout=60, what="the first member's claim")
    relay = place.start("--only", "relays")
    emit(place, 1, 50)
    wait_until(lambda: "failpoint consumer.received" in first.log.read_text(), what="the failpoint")
    second = place.start("--only", "consumers")
    wait_until(lambda: balance(place) == 400, timeout=90, what="the second member")
    first.send_signal(signal.SIGCONT)
    emit(place, 51, 60)
    wait_until(lambda: balance(place) == 480, timeout=60, what="the rest")
    assert effects(place) == 480
    for process in (first, second, relay):
        assert place.stop(process) == 0


def test_what_retention_dropped_stops_it(place, kafka, topic):
    process = place.start()
    emit(place, 1, 5)
    wait_until(lambda: balance(place) == 40, what="40 effects")
    assert place.stop(process) == 0
    relay = place.start("--only", "relays")
    emit(place, 6, 20)
    wait_until(lambda: len(kafka.read(topic)) == 160, what="160 messages")
    kafka.configure(topic, retention_ms=100, segment_ms=100)
    wait_until(lambda: not kafka.read(topic), timeout=60, what="retention")
    process = place.start("--only", "consumers")
    stopped_with(process, "consumer.overtaken")
    assert balance(place) == 40
    assert place.stop(process) == 0 and place.stop(relay) == 0


@pytest.mark.parametrize("refilled", [False, True])
def test_a_topic_made_anew_stops_it(place, kafka, topic, refilled):
    process = place.start()
    emit(place, 1, 5)
    wait_until(lambda: balance(place) == 40, what="40 effects")
    assert place.stop(process) == 0
    kafka.delete(topic)
    kafka.create(topic, 4)
    if refilled:  # its offsets are beyond ours by now: only the events tell
        relay = place.start("--only", "relays")
        emit(place, 6, 20)
        wait_until(lambda: len(kafka.read(topic)) == 120, what="120 messages")
        assert place.stop(relay) == 0
    process = place.start("--only", "consumers")
    stopped_with(process, "consumer.went_back")
    assert balance(place) == 40
    assert place.stop(process) == 0
