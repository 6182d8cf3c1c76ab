"""Each metric of a consumer is moved by its cause, read from /metrics of the real program."""
import re
import signal
import threading

import psycopg2
import pytest

from conftest import http, port_of, wait_until
from system.test_consume import Topic, balance, consumed_up_to, event, parked, start
from system.test_status import in_state

LINE = re.compile(r'^(postrider_\w+)\{(?:consumer|relay)="[^"]*"(?:,\w+="([^"]*)")?\} (\S+)$', re.M)
HTTP = 'http: {listen: "127.0.0.1:0"}'


@pytest.fixture
def topic(place):
    place.sql("rewards", "INSERT INTO reward_account VALUES ('p1'), ('p2')")
    place.write_config(extra=HTTP)
    return Topic(place)


def metrics(process):
    """{name or (name, second label): value}, without `postrider_consumer_`."""
    text = http(port_of(process), "/metrics")[1]
    return {(name.removeprefix("postrider_consumer_"), label) if label else name.removeprefix("postrider_consumer_"):
            float(value) for name, label, value in LINE.findall(text)}


def becomes(process, key, value):
    wait_until(lambda: metrics(process)[key] == value, what=f"{key} is {value}, not {metrics(process)[key]}")


def limited(place, stream=10000, total=100000):
    text = place.config.read_text()
    text = re.sub(r"\n *parked_limit:.*", "", text)
    place.config.write_text(text.replace("    lease: 1s\n    handlers:", f"    parked_limit: {{stream: {stream}, total: {total}}}\n"
                                         "    lease: 1s\n    handlers:"))
    assert "parked_limit" in place.config.read_text()


def counts_are_true(place):
    """The counts that are kept, and those that are."""
    kept = dict(place.sql("rewards", "SELECT state, sum(n)::bigint FROM postrider.parked_count GROUP BY state HAVING sum(n) <> 0"))
    real = dict(place.sql("rewards", "SELECT state, count(*) FROM postrider.parked GROUP BY state"))
    assert kept == real
    return real


def test_outcomes_and_latencies(place, topic):
    process = start(place)
    first = event(1)
    topic.put(first)
    consumed_up_to(place, 1)
    becomes(process, ("messages_total", "applied"), 1)
    seen = metrics(process)
    assert seen["latency_seconds_count"] == seen["whole_latency_seconds_count"] == 1
    assert seen["latency_seconds_sum"] < 60 < seen["whole_latency_seconds_sum"]  # it says that it is days old
    topic.put(first)
    becomes(process, ("messages_total", "duplicate"), 1)
    topic.put(event(1, points=999))  # same version, another event
    becomes(process, ("messages_total", "conflict"), 1)
    becomes(process, ("parked", "dead"), 1)
    topic.put(event(4))
    becomes(process, ("messages_total", "gap"), 1)
    topic.put(event(5))
    becomes(process, ("messages_total", "parked"), 1)
    becomes(process, ("parked", "waiting"), 2)
    wait_until(lambda: metrics(process)["parked_oldest_seconds", "waiting"] > 1, what="the oldest gets older")
    topic.put(event(2), event(3))
    becomes(process, ("parked", "waiting"), 0)
    becomes(process, ("parked", "retry"), 0)
    becomes(process, ("messages_total", "applied"), 5)
    seen = metrics(process)
    assert seen["parked_oldest_seconds", "waiting"] == 0 < seen["parked_oldest_seconds", "dead"]
    assert (seen["latency_seconds_count"], seen["whole_latency_seconds_count"]) == (3, 5)  # two were parked
    assert counts_are_true(place) == {"dead": 1}


def test_failures_and_retries(place, topic):
    process = start(place)
    topic.put(event(1, player="nobody"))
    wait_until(lambda: parked(place))
    wait_until(lambda: sum(metrics(process)["failures_total", c] for c in ("transient", "permanent", "unknown")) >= 1)
    state = parked(place, "state")[0][0]
    becomes(process, ("parked", state), 1)
    wait_until(lambda: metrics(process)["parked_oldest_seconds", state] > 0)
    counts_are_true(place)


def test_state_progress_and_leases(place, topic):
    process = start(place)
    becomes(process, ("state", "running"), 1)
    becomes(process, "partitions", 4)
    assert metrics(process)["lease_changes_total"] == 4
    other = start(place)
    becomes(other, "partitions", 2)
    wait_until(lambda: metrics(process)["lease_changes_total"] == 6, what="two were given away")
    place.stop(other)
    becomes(process, "lease_changes_total", 8)
    process.send_signal(signal.SIGSTOP)
    try:
        threading.Event().wait(1.2)
    finally:
        process.send_signal(signal.SIGCONT)
    assert metrics(process)["seconds_since_progress"] < 15
    place.sql("rewards", "ALTER FUNCTION apply_reward_event RENAME TO away")
    topic.put(event(1), event(1, stream="r2"))
    becomes(process, ("state", "paused"), 1)
    seen = metrics(process)
    assert seen["state", "running"] == 0
    wait_until(lambda: metrics(process)["seconds_since_progress"] > 0.5, what="no progress")
    wait_until(lambda: metrics(process)["oldest_pending_seconds"] > 0.5, what="the pending message gets older")
    place.sql("rewards", "ALTER FUNCTION away RENAME TO apply_reward_event")
    becomes(process, ("state", "running"), 1)
    becomes(process, ("messages_total", "applied"), 2)
    becomes(process, "oldest_pending_seconds", 0)


def test_the_relay_says_its_state(place, topic):
    process = place.start("--only", "relays")
    becomes(process, ("postrider_relay_state", "running"), 1)
    place.emit("r1", 1)
    becomes(process, "postrider_relay_publish_latency_seconds_count", 1)
    assert metrics(process)["postrider_relay_seconds_since_progress"] < 15


def test_the_total_is_bounded_and_reading_goes_on_by_itself(place, topic):
    limited(place, total=5)
    process = start(place)
    becomes(process, ("state", "running"), 1)
    for n in range(5):
        topic.put(event(1, stream=f"s{n}", kind="Unknown"))
    becomes(process, ("parked", "dead"), 5)
    becomes(process, ("parked_limit_reached", "total"), 4)
    topic.put(event(1))
    finding = in_state(place, "paused")
    assert "5 events are parked, and parked_limit.total is 5" in finding["why"] and "dlq list" in finding["todo"]
    code, text = http(port_of(process), "/readyz")
    assert code == 503 and "parked_limit.total is 5" in text
    wait_until(lambda: metrics(process)["oldest_pending_seconds"] > 1, what="the unread message gets older")
    assert balance(place) == 0 and metrics(process)["lag_messages"] == 1  # for longer than a look takes
    assert process.log.read_text().count("consumer.full") == 1
    ids = place.value("rewards", "SELECT min(id) FROM postrider.parked")
    place.run("dlq", "discard", str(ids), "--consumer", "rewards", "--actor", "ann", "--reason", "test", check=0)
    becomes(process, ("state", "running"), 1)
    wait_until(lambda: balance(place) == 10)
    becomes(process, ("parked_limit_reached", "total"), 0)
    assert http(port_of(process), "/readyz")[0] == 200
    assert counts_are_true(place) == {"dead": 4, "discarded": 1}


def test_a_stream_is_bounded_its_partition_rests_and_follows_in_order(place, topic):
    limited(place, stream=3)
    process = start(place)
    topic.put(event(1, kind="Unknown"), event(2), event(3))
    becomes(process, ("parked_limit_reached", "stream"), 1)
    topic.put(*(event(n) for n in range(4, 9)))
    other = next(s for s in ("a", "b", "c") if sum(s.encode()) % 4 != sum(b"r1") % 4)
    topic.put(event(1, stream=other, player="p2"))
    wait_until(lambda: balance(place, "p2") == 10, what="the other partitions go on")
    becomes(process, "lag_messages", 5)
    assert len(parked(place)) == 3
    finding = in_state(place, "paused")
    assert "stream registration:r1 has 3 events parked, and parked_limit.stream is 3" in finding["why"]
    number = place.value("rewards", "SELECT id FROM postrider.parked WHERE state = 'dead'")
    place.run("dlq", "discard", str(number), "--consumer", "rewards", "--actor", "ann", "--reason", "test", check=0)
    wait_until(lambda: balance(place) == 70, what="versions 2 to 8 are applied")
    becomes(process, ("state", "running"), 1)
    becomes(process, ("parked_limit_reached", "stream"), 0)
    assert place.value("rewards", "SELECT version FROM postrider.stream WHERE aggregate_id = 'r1'") == 8
    assert counts_are_true(place) == {"discarded": 1}


def test_a_limit_is_exceeded_by_no_more_than_a_batch(place, topic):
    limited(place, total=20)
    place.config.write_text(place.config.read_text().replace("    lease: 1s\n    handlers:", "    lease: 1s\n    batch: 10\n    handlers:"))
    topic.put(*(event(1, stream=f"s{n}", kind="Unknown") for n in range(300)))
    process = start(place)
    becomes(process, ("parked_limit_reached", "total"), 4)
    assert 20 <= len(parked(place)) <= 30


def test_the_counts_hold_when_many_write_at_once(place, topic):
    place.sql("rewards", "INSERT INTO postrider.consumer (name) SELECT 'x' WHERE NOT EXISTS (SELECT FROM postrider.consumer)")

    def work(n):
        with psycopg2.connect(place.dsns["rewards"]) as db:
            db.autocommit = True
            with db.cursor() as cur:
                for i in range(60):
                    cur.execute("BEGIN")
                    cur.execute("INSERT INTO postrider.parked (side, reader, state, class, event_id, digest) SELECT 'consumer', 1, "
                                "(ARRAY['waiting', 'retry', 'dead'])[1 + s %% 3], 'gap', gen_random_uuid(), '' "
                                "FROM generate_series(%s, %s) s", (n + i, n + i + 4))
                    cur.execute("UPDATE postrider.parked SET state = 'dead' WHERE id IN (SELECT id FROM postrider.parked "
                                "WHERE state = 'retry' LIMIT 2 FOR UPDATE SKIP LOCKED)")
                    cur.execute("DELETE FROM postrider.parked WHERE id IN (SELECT id FROM postrider.parked "
                                "WHERE state = 'waiting' LIMIT 1 FOR UPDATE SKIP LOCKED)")
                    cur.execute("ROLLBACK" if i % 4 == 0 else "COMMIT")
                    cur.execute("SELECT state, n FROM postrider.parked_counts('consumer', 1::smallint)")
        db.close()

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    real = counts_are_true(place)
    assert sum(real.values()) > 500
    assert dict(place.sql("rewards", "SELECT state, n FROM postrider.parked_counts('consumer', 1::smallint)")) == {
        state: real.get(state, 0) for state in ("waiting", "retry", "dead")}
    assert place.value("rewards", "SELECT count(*) FROM postrider.parked_count") <= 110  # made one again and again
