"""Racing producers, several relays and consumers with short leases, killed and stopped at random."""
import os
import random
import signal
import time

import pytest

from conftest import VERSIONS, wait_until
from crash.story import Producer, at_rest, judge, prepare

SECONDS = float(os.environ.get("RACE_SECONDS", "10"))


def disturb(place, processes, until, rng):
    """SIGKILL and SIGSTOP at random; what was killed is started again."""
    stopped = []
    counts = {"killed": 0, "stopped": 0}
    while time.monotonic() < until:
        time.sleep(rng.uniform(0.2, 0.7))
        for process in stopped:
            process.send_signal(signal.SIGCONT)
        stopped = []
        n = rng.randrange(len(processes))
        part, process = processes[n]
        if rng.random() < 0.5:
            process.kill()
            process.wait()
            processes[n] = (part, place.start("--only", part))
            counts["killed"] += 1
        else:
            # Longer than the lease: it wakes up as a zombie.
            process.send_signal(signal.SIGSTOP)
            stopped.append(process)
            counts["stopped"] += 1
    for process in stopped:
        process.send_signal(signal.SIGCONT)
    return counts


def test_race(place):
    seed = int(os.environ.get("RACE_SEED", random.randrange(1 << 30)))
    rng = random.Random(seed)
    print("RACE_SEED", seed)
    place.write_config(lease="300ms")
    prepare(place)
    producers = [Producer(place.dsns["shop"], seconds=SECONDS, seed=seed + n) for n in range(6)]
    processes = [(part, place.start("--only", part)) for part in ("relays",) * 3 + ("consumers",) * 2]
    for producer in producers:
        producer.start()
    counts = disturb(place, processes, time.monotonic() + SECONDS, rng)
    for producer in producers:
        producer.join()
    wait_until(lambda: at_rest(place), timeout=90, what=f"rest (seed {seed})")
    result = judge(place)
    assert result["events"] > 500 and counts["killed"] and counts["stopped"]
    for _, process in processes:
        assert place.stop(process) == 0


@pytest.mark.parametrize("version", VERSIONS)
def test_server_crash_takes_transaction_numbers_back(version, tmp_path):
    """The server is stopped with `immediate` while rolled-back transactions were seen and the programs live on:
    their numbers are given again, and a position remembered over the lost connection would skip the events."""
    from conftest import Place
    from servers.postgres import PostgresServer

    server = PostgresServer(version)
    try:
        place = Place(server, tmp_path)
        place.run("init", check=0)
        place.story()
        place.write_config(lease="500ms")
        prepare(place)
        process = place.start()
        place.emit("first", 1, 500000, "p1")
        wait_until(lambda: at_rest(place), what="rest")
        for n in range(3):
            for _ in range(20):
                place.sql("shop", "DO $$ BEGIN PERFORM pg_current_xact_id(); RAISE division_by_zero; "
                          "EXCEPTION WHEN division_by_zero THEN NULL; END $$")
                place.sql("shop", "BEGIN; SELECT pg_current_xact_id(); ROLLBACK")
            time.sleep(0.3)
            server.restart("immediate")
            for m in range(5):
                place.emit(f"after{n}", m + 1, 500001 + n * 10 + m, "p1")
        wait_until(lambda: at_rest(place), timeout=60, what="rest")
        judge(place)
        assert place.stop(process) == 0
        place.close()
    finally:
        server.remove()
