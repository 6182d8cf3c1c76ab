"""The relay to a real Kafka: order, bytes, and every way a broker or a topic can fail."""
import json
import os
import signal
import time

import pytest

from conftest import HAS_KAFKA, http, needs_kafka, port_of, states, wait_until
from servers.kafka import Kafka

PAYLOAD = '{"playerId": "p1", "points": 10, "text": "\\u00fcn\\u00efc\\u00f6de \\u65e5"}'


@pytest.fixture(scope="module")
def kafka():
    if not HAS_KAFKA:
        pytest.skip("built without transport kafka")
    cluster = Kafka()
    yield cluster
    cluster.remove()


@pytest.fixture(scope="module")
def three():
    if not HAS_KAFKA:
        pytest.skip("built without transport kafka")
    cluster = Kafka(3)
    yield cluster
    cluster.remove()


def to_kafka(place, kafka, topic, more="", relay_more=""):
    place.config.write_text(f"""
outboxes:
  registrations: {{database: "{place.dsns['shop']}"}}
destinations:
  events: {{transport: kafka, bootstrap: "{kafka.bootstrap}", topic: "{topic}"{more}}}
relays:
  to-kafka: {{outbox: registrations, destination: events, lease: 2s{relay_more}}}
http: {{listen: "127.0.0.1:0"}}
""")
    place.run("init", check=0)
    return place


@pytest.fixture
def topic(place):
    return f"t{os.getpid()}-{place.names['shop']}"


def emit_many(place, streams, versions, first=1, size=10):
    """Every stream's versions, interleaved; each event has its own content."""
    place.sql("shop", """INSERT INTO postrider.outbox (aggregate_type, aggregate_id, aggregate_version, event_type, payload)
        SELECT 'registration', 's' || s, v, 'E', jsonb_build_object('s', s, 'v', v, 'x', repeat('x', %s))
        FROM generate_series(%s, %s) v, generate_series(1, %s) s ORDER BY v, s""",
              (size, first, first + versions - 1, streams))


def header(message, name):
    return dict(message[3])[name].decode()


def judge(place, messages, repeated=None):
    """Nothing lost, nothing altered, first publications in version order, each stream in one partition."""
    committed = {row[0]: row[1:] for row in place.sql("shop", "SELECT event_id::text, aggregate_id, aggregate_version, "
                                                      "payload::text FROM postrider.outbox")}
    seen, last, place_of = set(), {}, {}
    for message in messages:
        part, _, key, _, value = message
        event_id = header(message, "postrider-id")
        aggregate, version, body = committed[event_id]
        assert (key.decode(), int(header(message, "postrider-version")), value.decode()) == (aggregate, version, body)
        assert place_of.setdefault(aggregate, part) == part
        if event_id in seen:
            continue
        seen.add(event_id)
        assert version == last.get(aggregate, version - 1) + 1, f"{aggregate} v{version} after v{last.get(aggregate)}"
        last[aggregate] = version
    assert seen == set(committed)
    if repeated is not None:
        assert len(messages) - len(seen) == repeated


def at_rest(place):
    return all(state == "PUBLISHED" for state in states(place).values())


def test_headers_key_and_bytes_arrive_as_they_were_written(place, kafka, topic):
    kafka.create(topic, 4)
    to_kafka(place, kafka, topic)
    event_id = place.sql("shop", "SELECT postrider.emit('registration', 'customer:0190a0b0', 7, 'Confirmed', %s::jsonb, "
                         "headers => '{\"traceparent\": \"00-1-2-01\", \"x\": \"\\u00fc\"}')::text", (PAYLOAD,))[0][0]
    binary = place.sql("shop", "SELECT postrider.emit_bytes('registration', 'order-42', 1, 'Printed', %s, 'application/pdf')::text",
                       (b"%PDF\x00\xff",))[0][0]
    process = place.start("--only", "relays")
    wait_until(lambda: len(kafka.read(topic)) == 2, what="two messages")
    by_id = {header(m, "postrider-id"): m for m in kafka.read(topic)}
    part, _, key, headers, value = by_id[event_id]
    assert key == b"customer:0190a0b0" and value.decode() == place.value("shop", "SELECT payload::text FROM postrider.outbox "
                                                                         "WHERE payload IS NOT NULL")
    assert part == 4283370037 % 2**31 % 4  # murmur2 as Java's client computes it
    names = [name for name, _ in headers]
    assert names == ["postrider-id", "postrider-type", "postrider-aggregate-type", "postrider-aggregate-id", "postrider-version",
                     "postrider-occurred-at", "postrider-relay", "postrider-lane", "postrider-epoch", "postrider-sequence",
                     "content-type", "x", "traceparent"]
    assert dict(headers)["x"] == "ü".encode() and dict(headers)["traceparent"] == b"00-1-2-01"
    assert by_id[binary][4] == b"%PDF\x00\xff" and header(by_id[binary], "content-type") == "application/pdf"
    assert by_id[binary][0] == 501153024 % 4
    log = process.log.read_text()
    assert "replication_factor=1" in log and "min_insync_replicas=1" in log and "kafka.one_copy" in log
    assert place.stop(process) == 0


def test_a_backlog_arrives_in_order(place, kafka, topic):
    kafka.create(topic, 6)
    to_kafka(place, kafka, topic)
    emit_many(place, 300, 100)
    process = place.start("--only", "relays")
    wait_until(lambda: at_rest(place), timeout=60, what="rest")
    judge(place, kafka.read(topic), repeated=0)
    assert place.stop(process) == 0


@pytest.mark.parametrize("how", ["kill", "stop"])
def test_F05_a_broker_that_goes_away_loses_nothing(place, kafka, topic, how):
    kafka.create(topic, 6)
    to_kafka(place, kafka, topic)
    process = place.start("--only", "relays")
    port = port_of(process)
    emit_many(place, 200, 50)
    wait_until(lambda: kafka.read(topic), what="the first messages")
    broker = kafka.brokers[0]
    broker.kill() if how == "kill" else broker.pause()
    emit_many(place, 200, 50, first=51)
    if how == "kill":
        wait_until(lambda: "kafka.away" in http(port, "/readyz")[1] or "Connection refused" in http(port, "/readyz")[1],
                   what="the reason in /readyz")
        broker.restart()
    else:
        time.sleep(4)
        broker.resume()
    wait_until(lambda: at_rest(place), timeout=60, what="rest")
    judge(place, kafka.read(topic), repeated=0)
    assert place.sql("shop", "SELECT count(*) FROM postrider.parked") == [(0,)]
    wait_until(lambda: http(port, "/readyz")[0] == 200, what="readiness")
    assert place.stop(process) == 0


def test_a_missing_topic_pauses_and_charges_nobody(place, kafka, topic):
    to_kafka(place, kafka, topic)
    emit_many(place, 3, 2)
    process = place.start("--only", "relays")
    port = port_of(process)
    wait_until(lambda: "kafka-topics.sh --create" in http(port, "/readyz")[1], what="the remedy in /readyz")
    assert place.sql("shop", "SELECT count(*) FROM postrider.parked") == [(0,)]
    kafka.create(topic, 3)
    wait_until(lambda: at_rest(place), timeout=40, what="rest")
    judge(place, kafka.read(topic), repeated=0)
    assert place.stop(process) == 0


def test_a_topic_deleted_and_made_again(place, kafka, topic):
    kafka.create(topic, 3)
    to_kafka(place, kafka, topic)
    process = place.start("--only", "relays")
    emit_many(place, 10, 3)
    wait_until(lambda: at_rest(place), what="rest")
    kafka.delete(topic)
    time.sleep(1)
    emit_many(place, 10, 3, first=4)
    time.sleep(2)
    kafka.create(topic, 3)
    wait_until(lambda: at_rest(place), timeout=90, what="rest after it was made again")
    later = [m for m in kafka.read(topic)]
    versions = {}
    for m in later:
        versions.setdefault(m[2], []).append(int(header(m, "postrider-version")))
    assert set(versions) == {f"s{n}".encode() for n in range(1, 11)}
    assert all(list(dict.fromkeys(v))[-3:] == [4, 5, 6] for v in versions.values())
    assert place.sql("shop", "SELECT count(*) FROM postrider.parked") == [(0,)]
    assert place.stop(process) == 0


def test_F59_a_topic_made_again_under_load(place, kafka, topic):
    """What was in it is gone with it; what comes after is whole and in order."""
    kafka.create(topic, 3)
    to_kafka(place, kafka, topic)
    process = place.start("--only", "relays")
    version = 1
    for _ in range(3):
        for _ in range(10):
            emit_many(place, 50, 4, first=version)
            version += 4
        kafka.delete(topic)
        emit_many(place, 50, 4, first=version)
        version += 4
        time.sleep(0.3)
        kafka.create(topic, 3)
    emit_many(place, 50, 4, first=version)
    wait_until(lambda: at_rest(place), timeout=120, what="rest")
    first_seen = {}
    for m in kafka.read(topic):
        versions = first_seen.setdefault(m[2], [])
        if int(header(m, "postrider-version")) not in versions:
            versions.append(int(header(m, "postrider-version")))
    assert len(first_seen) == 50
    for versions in first_seen.values():
        assert versions == list(range(versions[0], version + 4))
    assert place.sql("shop", "SELECT count(*) FROM postrider.parked") == [(0,)]
    assert place.stop(process) == 0


def test_added_partitions_stay_empty(place, kafka, topic):
    kafka.create(topic, 2)
    to_kafka(place, kafka, topic)
    process = place.start("--only", "relays")
    emit_many(place, 50, 2)
    wait_until(lambda: at_rest(place), what="rest")
    kafka.add_partitions(topic, 5)
    assert place.stop(process) == 0
    process = place.start("--only", "relays")
    emit_many(place, 50, 2, first=3)
    wait_until(lambda: at_rest(place), what="rest")
    messages = kafka.read(topic)
    judge(place, messages, repeated=0)
    assert {m[0] for m in messages} == {0, 1}
    assert "kafka.partitions_added" in process.log.read_text()
    assert place.stop(process) == 0


def test_F88_partitions_added_while_running_are_told_and_stay_empty(place, kafka, topic):
    kafka.create(topic, 2)
    to_kafka(place, kafka, topic, more=", settings: {topic.metadata.refresh.interval.ms: 300}")
    process = place.start("--only", "relays")
    emit_many(place, 50, 2)
    wait_until(lambda: at_rest(place), what="rest")
    kafka.add_partitions(topic, 5)
    kafka.wait_topic(topic, 5)
    time.sleep(0.5)
    for version in range(3, 8):
        emit_many(place, 50, 1, first=version)
        wait_until(lambda: at_rest(place), what="rest")
        time.sleep(0.4)
    messages = kafka.read(topic)
    judge(place, messages, repeated=0)
    assert {m[0] for m in messages} == {0, 1}
    assert process.log.read_text().count("kafka.partitions_added") == 1
    assert place.stop(process) == 0


def test_fewer_partitions_are_refused(place, kafka, topic):
    kafka.create(topic, 4)
    to_kafka(place, kafka, topic)
    process = place.start("--only", "relays")
    emit_many(place, 5, 1)
    wait_until(lambda: at_rest(place), what="rest")
    assert place.stop(process) == 0
    kafka.delete(topic)
    time.sleep(1)
    kafka.create(topic, 2)
    process = place.start("--only", "relays")
    port = port_of(process)
    emit_many(place, 5, 1, first=2)
    wait_until(lambda: "it was begun with 4" in http(port, "/readyz")[1], what="the refusal in /readyz")
    assert kafka.read(topic) == []
    assert place.stop(process) == 0


def test_F61_a_limit_lowered_at_the_broker_hurts_only_what_is_too_large(place, kafka, topic):
    """Batches of small events are refused as a whole; each event alone is fine, so none may die."""
    kafka.create(topic, 3)
    to_kafka(place, kafka, topic)
    process = place.start("--only", "relays")
    emit_many(place, 100, 5, size=300)
    wait_until(lambda: at_rest(place), what="rest")
    kafka.configure(topic, max_message_bytes=3000)
    emit_many(place, 100, 20, first=6, size=300)
    place.sql("shop", "SELECT postrider.emit('registration', 'big', 1, 'E', jsonb_build_object('x', repeat('x', 5000)))")
    place.sql("shop", "SELECT postrider.emit('registration', 'big', 2, 'E', '{}')")
    wait_until(lambda: len(place.sql("shop", "SELECT 1 FROM postrider.parked")) == 2, timeout=60, what="the dead letter")
    wait_until(lambda: sorted(set(states(place).values())) == ["DEAD", "PARKED", "PUBLISHED"], timeout=60, what="rest")
    dead = place.sql("shop", "SELECT aggregate_id, version, state, class, code FROM postrider.parked ORDER BY version")
    assert dead == [("big", 1, "dead", "permanent", "kafka.too_large"), ("big", 2, "waiting", "waiting", None)]
    kafka.configure(topic, max_message_bytes=100000)
    time.sleep(1.2)  # for a second the relay takes what it was told for new enough
    number = str(place.value("shop", "SELECT id FROM postrider.parked WHERE state = 'dead'"))
    place.run("dlq", "replay", number, "--relay", "to-kafka", "--actor", "ann", "--reason", "limit raised", check=0)
    wait_until(lambda: at_rest(place), timeout=60, what="the replay")
    judge(place, kafka.read(topic))
    assert place.stop(process) == 0


def test_batches_fit_a_topic_that_takes_little(place, kafka, topic):
    """Not one batch is refused, so not one event is sent twice or alone."""
    kafka.create(topic, 3, config={"max.message.bytes": "3000"})
    to_kafka(place, kafka, topic)
    emit_many(place, 100, 30, size=300)
    process = place.start("--only", "relays")
    wait_until(lambda: at_rest(place), timeout=60, what="rest")
    judge(place, kafka.read(topic), repeated=0)
    assert "kafka.fresh_producer" not in process.log.read_text()
    assert place.stop(process) == 0


def test_sizes_around_the_limit(place, kafka, topic):
    """Each event is stored or a dead letter by its own size; none that fits dies, none that does not holds up another."""
    kafka.create(topic, 3, config={"max.message.bytes": "3000"})
    to_kafka(place, kafka, topic)
    place.sql("shop", """INSERT INTO postrider.outbox (aggregate_type, aggregate_id, aggregate_version, event_type, payload)
        SELECT 'registration', 's' || n, 1, 'E', jsonb_build_object('x', repeat('x', n)) FROM generate_series(2000, 3100, 20) n""")
    process = place.start("--only", "relays")
    wait_until(lambda: sorted(set(states(place).values())) == ["DEAD", "PUBLISHED"], timeout=60, what="rest")
    dead = {int(row[0][1:]) for row in place.sql("shop", "SELECT aggregate_id FROM postrider.parked WHERE code = 'kafka.too_large'")}
    stored = {int(m[2].decode()[1:]) for m in kafka.read(topic)}
    assert max(stored) < min(dead) and stored | dead == set(range(2000, 3101, 20))
    assert 2300 < max(stored) < 3000
    assert place.stop(process) == 0


def test_F68_events_that_are_all_too_large_do_not_stall_the_relay(place, kafka, topic):
    """Not one of the window is stored, but each is refused for its own size: that says nothing of the broker."""
    kafka.create(topic, 3, config={"max.message.bytes": "3000"})
    to_kafka(place, kafka, topic)
    place.sql("shop", """INSERT INTO postrider.outbox (aggregate_type, aggregate_id, aggregate_version, event_type, payload)
        SELECT 'registration', 'big' || n, 1, 'E', jsonb_build_object('x', repeat('x', 9000)) FROM generate_series(1, 8) n""")
    process = place.start("--only", "relays")
    wait_until(lambda: list(states(place).values()) == ["DEAD"] * 8, timeout=30, what="the dead letters")
    emit_many(place, 5, 1)
    wait_until(lambda: sorted(set(states(place).values())) == ["DEAD", "PUBLISHED"], timeout=30, what="the others")
    assert place.stop(process) == 0


def test_an_impossible_topic_name_is_the_events_fault(place, kafka, topic):
    kafka.create(topic + ".registration", 3)
    to_kafka(place, kafka, topic + ".{aggregate_type}")
    place.sql("shop", "SELECT postrider.emit('no good/name', 'a', 1, 'E', '{}')")
    emit_many(place, 3, 2)
    process = place.start("--only", "relays")
    wait_until(lambda: place.sql("shop", "SELECT code FROM postrider.parked") == [("kafka.topic_name",)], what="the dead letter")
    wait_until(lambda: len(kafka.read(topic + ".registration")) == 6, what="the others")
    assert place.stop(process) == 0


def test_one_partition_without_a_leader_pauses_the_relay(place, three, topic):
    three.create(topic, 3, replication=1)
    to_kafka(place, three, topic)
    process = place.start("--only", "relays")
    port = port_of(process)
    emit_many(place, 60, 5)
    wait_until(lambda: at_rest(place), what="rest")
    lost = three.admin.list_topics(topic, timeout=10).topics[topic].partitions[1].leader
    three.brokers[lost - 1].kill()
    emit_many(place, 60, 5, first=6)
    wait_until(lambda: http(port, "/readyz")[0] == 503, timeout=60, what="the pause")
    assert place.sql("shop", "SELECT count(*) FROM postrider.parked") == [(0,)]
    three.brokers[lost - 1].restart()
    wait_until(lambda: at_rest(place), timeout=90, what="rest")
    judge(place, three.read(topic))
    assert place.stop(process) == 0


def test_F49_three_brokers_and_one_killed_go_on(place, three, topic):
    three.create(topic, 6)
    to_kafka(place, three, topic)
    process = place.start("--only", "relays")
    emit_many(place, 100, 20)
    wait_until(lambda: three.read(topic), what="the first messages")
    three.brokers[1].kill()
    emit_many(place, 100, 20, first=21)
    wait_until(lambda: at_rest(place), timeout=60, what="rest")
    three.brokers[1].restart()
    judge(place, three.read(topic), repeated=0)
    assert "several machines" in process.log.read_text()
    assert place.stop(process) == 0


@pytest.mark.parametrize("failpoint", ["relay.sent", "relay.confirmed", "relay.acked"])
def test_a_kill_between_send_and_record_repeats_and_loses_nothing(place, kafka, topic, failpoint):
    kafka.create(topic, 4)
    to_kafka(place, kafka, topic)
    emit_many(place, 100, 20)
    place.start("--only", "relays", failpoint=f"{failpoint}@1=kill").wait(timeout=30)
    place.start("--only", "relays")
    wait_until(lambda: at_rest(place), timeout=60, what="rest")
    judge(place, kafka.read(topic))


def test_a_process_that_slept_past_its_lease_adds_nothing_new(place, kafka, topic):
    kafka.create(topic, 4)
    to_kafka(place, kafka, topic)
    first = place.start("--only", "relays")
    emit_many(place, 100, 20)
    wait_until(lambda: kafka.read(topic), what="the first messages")
    first.send_signal(signal.SIGSTOP)
    place.start("--only", "relays")
    emit_many(place, 100, 20, first=21)
    wait_until(lambda: at_rest(place), timeout=60, what="rest")
    first.send_signal(signal.SIGCONT)
    emit_many(place, 100, 5, first=41)
    wait_until(lambda: at_rest(place), timeout=60, what="rest")
    judge(place, kafka.read(topic))


@pytest.mark.skipif(HAS_KAFKA, reason="built with transport kafka")
def test_a_program_without_kafka_says_so(place):
    place.config.write_text(f"""
outboxes: {{registrations: {{database: "{place.dsns['shop']}"}}}}
destinations: {{events: {{transport: kafka, bootstrap: "127.0.0.1:1", topic: t}}}}
relays: {{to-kafka: {{outbox: registrations, destination: events}}}}
""")
    assert place.run("config", "check").returncode == 0
    place.run("init", check=0)
    done = place.run("run", "--only", "relays")
    assert done.returncode == 78 and "built without transport kafka" in done.stderr and "-Dkafka=enabled" in done.stderr


@needs_kafka
def test_no_broker_at_the_start_ends_with_a_reason(place):
    place.config.write_text(f"""
outboxes: {{registrations: {{database: "{place.dsns['shop']}"}}}}
destinations: {{events: {{transport: kafka, bootstrap: "127.0.0.1:1", topic: t}}}}
relays: {{to-kafka: {{outbox: registrations, destination: events}}}}
""")
    place.run("init", check=0)
    done = place.run("run", "--only", "relays")
    assert done.returncode == 69 and "127.0.0.1:1" in done.stderr and "can be reached" in done.stderr


@pytest.mark.parametrize("setting, words", [
    ("acks: 1", "all in-sync replicas"), ("enable.idempotence: false", "rest on it"), ("partitioner: random", "murmur2"),
    ("message.timeout.ms: 500", "rest on it")])
def test_settings_that_would_lose_or_reorder_are_refused(place, setting, words):
    place.config.write_text(f"""
outboxes: {{registrations: {{database: "{place.dsns['shop']}"}}}}
destinations: {{events: {{transport: kafka, bootstrap: "127.0.0.1:1", topic: t, settings: {{{setting}}}}}}}
relays: {{to-kafka: {{outbox: registrations, destination: events}}}}
""")
    done = place.run("config", "check")
    assert done.returncode == 78 and words in done.stdout + done.stderr


def test_an_unknown_setting_is_named(place, kafka, topic):
    kafka.create(topic, 1)
    place.config.write_text(f"""
outboxes: {{registrations: {{database: "{place.dsns['shop']}"}}}}
destinations: {{events: {{transport: kafka, bootstrap: "{kafka.bootstrap}", topic: {topic}, settings: {{lingre.ms: 5}}}}}}
relays: {{to-kafka: {{outbox: registrations, destination: events}}}}
""")
    place.run("init", check=0)
    done = place.run("run", "--only", "relays")
    assert done.returncode == 78 and "lingre.ms" in done.stderr


def test_doctor_asks_the_broker(place, kafka, topic):
    def found():
        done = place.run("doctor", "--json")
        return done.returncode, [row for row in json.loads(done.stdout) if row["number"] == 42]
    to_kafka(place, kafka, topic)
    code, (row,) = found()
    assert code != 0 and row["result"] == "MEND" and topic in row["what"] and row["remedy"]
    kafka.create(topic, 4)
    assert [row["result"] for row in found()[1]] == ["ok"]
    process = place.start("--only", "relays")
    emit_many(place, 3, 1)
    wait_until(lambda: len(kafka.read(topic)) == 3, what="the events")
    place.stop(process)
    assert found()[1][0]["result"] == "ok"
    kafka.add_partitions(topic, 6)
    kafka.wait_topic(topic, 6)
    code, (row,) = found()
    assert row["result"] == "note" and "begun with 4 partitions and has 6" in row["what"] and row["remedy"]
    kafka.delete(topic)
    kafka.create(topic, 2)
    code, (row,) = found()
    assert code == 1 and row["result"] == "MEND" and "has 2 partitions, it was begun with 4" in row["what"]
    assert "make it again with 4" in row["remedy"]
    place.config.write_text(place.config.read_text().replace(kafka.bootstrap, "127.0.0.1:1"))
    code, (row,) = found()
    assert code == 69 and row["result"] == "MEND"
