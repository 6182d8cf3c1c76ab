"""Racing producers against three relays alone: from the built-in outbox and the textbook's table, to the log and to a
real Kafka; relays and brokers killed and stopped at random.  The judge reads the databases and the broker."""
import os
import random
import signal
import time

import psycopg2
import pytest

from checker import checker
from conftest import HAS_KAFKA, wait_until
from crash.story import Producer
from servers.kafka import Kafka

SECONDS = float(os.environ.get("RACE_SECONDS", "8"))
TEXTBOOK = """
CREATE TABLE outbox (event_id uuid PRIMARY KEY, aggregate_id text NOT NULL, aggregate_version bigint NOT NULL, event_type text NOT NULL,
    payload jsonb NOT NULL, occurred_at timestamptz NOT NULL, publish_state text NOT NULL, UNIQUE (aggregate_id, aggregate_version));
CREATE INDEX ON outbox (aggregate_id, aggregate_version) WHERE publish_state = 'PENDING';
"""


@pytest.fixture(scope="module")
def kafka():
    if not HAS_KAFKA:
        yield None
        return
    cluster = Kafka()
    yield cluster
    cluster.remove()


class TextbookProducer(Producer):
    table = "outbox"


def configure(place, table, kafka, topic):
    outbox = ", table: public.outbox, aggregate_type: registration" if table else ""
    destination = (f'transport: kafka, bootstrap: "{kafka.bootstrap}", topic: "{topic}"' if kafka else
                   f'transport: postgres, database: "{place.dsns["bus"]}", topic: "{topic}", partitions: 4')
    place.config.write_text(f"""
outboxes: {{o: {{database: "{place.dsns['shop']}"{outbox}}}}}
destinations: {{d: {{{destination}}}}}
relays: {{race: {{outbox: o, destination: d, lease: 300ms}}}}
""")
    if table:
        place.sql("shop", TEXTBOOK)
    place.sql("shop", "CREATE TABLE aggregate (id text PRIMARY KEY, version bigint NOT NULL DEFAULT 0);"
              "INSERT INTO aggregate SELECT 'a' || n FROM generate_series(0, 12) n")
    place.run("init", check=0)


def at_rest(place, table):
    try:
        for (gid,) in place.sql("shop", "SELECT gid FROM pg_prepared_xacts WHERE database = current_database()"):
            place.sql("shop", "COMMIT PREPARED %s", (gid,))
        if table:
            return place.value("shop", "SELECT count(*) FROM outbox WHERE publish_state = 'PENDING'") == 0
        return place.value("shop", "SELECT count(*) FROM postrider.outbox_state WHERE relay = 'race' AND publish_state <> 'PUBLISHED'") == 0
    except psycopg2.Error:
        return False


def disturb(place, kafka, until, rng):
    """One process or the broker at a time; what was killed is started again, what was stopped wakes up as a zombie."""
    processes = [place.start("--only", "relays") for _ in range(3)]
    kills = 0
    while time.monotonic() < until:
        time.sleep(rng.uniform(0.2, 0.8))
        n = rng.randrange(3)
        if kafka and rng.random() < 0.1:
            kafka.brokers[0].pause()
            time.sleep(rng.uniform(0.1, 1.5))
            kafka.brokers[0].resume()
        elif rng.random() < 0.5:
            processes[n].kill()
            processes[n].wait()
            processes[n] = place.start("--only", "relays")
            kills += 1
        else:
            processes[n].send_signal(signal.SIGSTOP)
            time.sleep(rng.uniform(0.1, 0.7))
            processes[n].send_signal(signal.SIGCONT)
            kills += 1
    return processes, kills


@pytest.mark.parametrize("table", [False, True], ids=["built-in", "textbook"])
@pytest.mark.parametrize("to", ["postgres", "kafka"])
def test_race(place, kafka, table, to):
    seed = int(os.environ.get("RACE_SEED", random.randrange(1 << 30)))
    print("RACE_SEED", seed)
    rng = random.Random(seed)
    topic = f"race-{place.names['shop']}"
    broker = kafka if to == "kafka" else None
    if to == "kafka" and not HAS_KAFKA:
        pytest.skip("built without transport kafka")
    if broker:
        broker.create(topic, 4)
    configure(place, table, broker, topic)
    kind = TextbookProducer if table else Producer
    producers = [kind(place.dsns["shop"], seconds=SECONDS, seed=seed + n) for n in range(6)]
    for producer in producers:
        producer.start()
    processes, kills = disturb(place, broker, time.monotonic() + SECONDS, rng)
    for producer in producers:
        producer.join()
    wait_until(lambda: at_rest(place, table), timeout=90, what=f"rest (seed {seed})")
    result = checker.check(place.dsns["shop"], place.dsns["bus"], table="outbox" if table else None,
                           kafka=(broker.bootstrap, topic) if broker else None)
    print(f"{result['events']} events, {result['repeated']} repeated, {kills} kills and pauses")
    assert result["faults"] == 0, checker.shorten(result)
    assert result["events"] == result["published"] > 300 and kills
    for process in processes:
        assert place.stop(process) == 0


def test_kills_in_the_middle_of_half_a_million(place):
    """A backlog is read by ranges; each kill may repeat what was under way, and nothing else."""
    configure(place, False, None, "backlog")
    place.sql("shop", """INSERT INTO postrider.outbox (aggregate_type, aggregate_id, aggregate_version, event_type, payload)
        SELECT 'registration', 'b' || n % 1000, 1 + n / 1000, 'E', jsonb_build_object('n', n) FROM generate_series(0, 499999) n""")
    rng = random.Random(4)
    for _ in range(6):
        process = place.start("--only", "relays")
        time.sleep(rng.uniform(0.6, 1.5))
        process.kill()
        process.wait()
    place.start("--only", "relays")
    wait_until(lambda: place.value("shop", "SELECT count(*) FROM postrider.lane JOIN postrider.relay USING (relay) WHERE name = 'race' "
                                   "AND (open_snap IS NOT NULL OR NOT pg_visible_in_snapshot((SELECT xid FROM postrider.outbox LIMIT 1), done_snap))") == 0,
               timeout=120, what="the end of the backlog")
    result = checker.check(place.dsns["shop"], place.dsns["bus"])
    assert result["faults"] == 0, checker.shorten(result)
    assert result["published"] == 500000 and result["repeated"] <= 6 * 40000
