"""Clocks that are wrong: leases, positions and effects go by the database's; waits by a clock that cannot be set."""
import glob
import time

import psycopg2
import pytest

from conftest import published, wait_until

LIBRARY = glob.glob("/usr/lib/*/faketime/libfaketime.so.1")


@pytest.fixture
def at_another_time(place, monkeypatch):
    """Starts the program with a clock of its own."""
    assert LIBRARY, "faketime is missing: tools/setup --tests"

    def start(skew, *args):
        with monkeypatch.context() as patch:
            patch.setenv("LD_PRELOAD", LIBRARY[0])
            patch.setenv("FAKETIME", skew)
            if "x" not in skew:
                patch.setenv("DONT_FAKE_MONOTONIC", "1")  # the wall clock alone is off
            return place.start(*args)
    return start


def owners(place):
    return dict(place.sql("shop", "SELECT owner::text, count(*) FROM postrider.lane WHERE lease_until > clock_timestamp() GROUP BY 1"))


@pytest.mark.parametrize("skew", ["+120s", "-120s", "+0 x1.2", "+0 x0.8"])
def test_F70_a_process_with_a_wrong_clock_neither_steals_nor_loses(place, at_another_time, skew):
    place.write_config(lease="3s")
    place.sql("rewards", "INSERT INTO reward_account VALUES ('p1')")
    wrong = at_another_time(skew)
    wait_until(lambda: list(owners(place).values()) == [16], what="the lanes")
    right = place.start()
    wait_until(lambda: sorted(owners(place).values()) == [8, 8], what="the shares")
    before = owners(place)
    ids = []
    for version in range(1, 11):  # for longer than two leases
        ids += [place.emit(f"r{n}", version, points=1) for n in range(20)]
        time.sleep(0.7)
    wait_until(lambda: place.value("rewards", "SELECT balance FROM reward_account") == 200, what="all effects")
    assert owners(place) == before and sorted(published(place)) == sorted(ids)
    for process in (wrong, right):
        assert "fenced" not in process.log.read_text()
    wrong.kill()
    ids += [place.emit(f"r{n}", 11, points=1) for n in range(20)]
    wait_until(lambda: place.value("rewards", "SELECT balance FROM reward_account") == 220, timeout=20, what="the take-over")
    assert place.stop(right) == 0


def test_F119_a_database_that_is_not_utf8_is_read_as_utf8(empty):
    name = empty.names["shop"] + "_latin1"
    empty.server.drop(name)
    conn = psycopg2.connect(empty.server.dsn("postgres"))
    conn.autocommit = True
    conn.cursor().execute(f"CREATE DATABASE {name} ENCODING 'LATIN1' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0")
    conn.cursor().execute(f"ALTER DATABASE {name} SET client_encoding = 'LATIN1'")
    conn.close()
    empty.names["latin1"] = name
    empty.dsns["latin1"] = empty.server.dsn(name)
    empty.write_config(empty.config.read_text().replace(empty.dsns["shop"], empty.dsns["latin1"]))
    empty.run("init", check=0)
    empty.sql("latin1", "SET client_encoding = 'UTF8'; SELECT postrider.emit('registration', 'Zoë', 1, 'Größe', '{\"naïve\": \"é\"}')")
    process = empty.start("--only", "relays")
    wait_until(lambda: len(published(empty)) == 1, what="the event")
    key, body, values = empty.sql("bus", "SELECT key, body, header_values FROM postrider.log")[0]
    assert bytes(key).decode() == "Zoë" and bytes(body).decode() == '{"naïve": "é"}'
    assert "Größe" in [bytes(v).decode() for v in values]
    assert empty.stop(process) == 0
