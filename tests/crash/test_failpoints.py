"""SIGKILL at every named place of relay and consumer: nothing lost, no double effect, no order break."""
import itertools
import signal

import pytest

from conftest import wait_until
from crash.story import Producer, at_rest, judge, prepare

# name, the case it stands for (docs/internals/failpoints.md), which visits to die at
POINTS = [
    ("relay.claimed", "K1", (1,)),
    ("relay.sent", "K2", (1, 7)),
    ("relay.confirmed", "K3", (1, 9)),
    ("relay.acked", "K3", (2,)),
    ("relay.advanced", "K3", (3,)),
    ("relay.part", "K3", (1,)),
    ("consumer.received", "K4", (1, 8)),
    ("consumer.deduped", "K5", (1, 6)),
    ("consumer.applied", "K6", (1, 6)),
    ("consumer.committed", "K7", (1, 6)),
]
CASES = [(name, case, visit) for name, case, visits in POINTS for visit in visits]


@pytest.mark.parametrize("name,case,visit", CASES, ids=[f"{c}-{n}-{v}" for n, c, v in CASES])
def test_killed_at(place, name, case, visit):
    place.write_config(lease="500ms")
    prepare(place)
    backlog = name == "relay.part"
    if backlog:
        # A big window needs a backlog larger than one reading.
        place.sql("shop", """SELECT count(postrider.emit('registration', 'b' || i % 50, i / 50 + 1,
            'RegistrationConfirmed', jsonb_build_object('playerId', 'p1', 'points', i + 10000)))
            FROM generate_series(0, 11999) i""")
    producers = [Producer(place.dsns["shop"], seconds=120, seed=seed, pause=0.01) for seed in range(3)]
    for producer in producers:
        producer.start()
    process = place.start(failpoint=f"{name}@{visit}=kill")
    wait_until(lambda: process.poll() is not None, what=f"failpoint {name}")
    assert process.returncode == -signal.SIGKILL, process.log.read_text()[-2000:]
    assert f"failpoint {name}" in process.log.read_text()
    process = place.start()
    wait_until(lambda: "consumer.running" in process.log.read_text(), what="the new process")
    for producer in producers:
        producer.finish()
    wait_until(lambda: at_rest(place), timeout=60, what="rest")
    judge(place)
    assert place.stop(process) == 0
    assert sum(producer.committed for producer in producers) > 10


def test_killed_again_and_again(place):
    """Dies at one place after the other without ever coming to rest in between."""
    place.write_config(lease="300ms")
    prepare(place)
    producers = [Producer(place.dsns["shop"], seconds=600, seed=seed, pause=0.02) for seed in range(3)]
    for producer in producers:
        producer.start()
    for name, visit in itertools.product(("relay.confirmed", "consumer.applied", "relay.sent", "consumer.committed"),
                                         (3, 11)):
        process = place.start(failpoint=f"{name}@{visit}=kill")
        wait_until(lambda p=process: p.poll() is not None, what=f"failpoint {name}")
    place.start()
    for producer in producers:
        producer.finish()
    wait_until(lambda: at_rest(place), timeout=60, what="rest")
    result = judge(place)
    assert result["events"] > 100
