"""The wrong algorithms under interleavings driven by hand: the checker sees each of them fail, and the real relay
passes where they fail."""
import datetime
import threading
import time
import uuid

import psycopg2
import pytest

from checker import checker
from conftest import Place, published, wait_until
from crash.wrong_relays import CheckThenLock, HighWater, KeptPosition, SkipLocked, XidHorizon
from servers.postgres import PostgresServer


def verdict(place):
    return checker.check(place.dsns["shop"], place.dsns["bus"])


def emit(cursor, aggregate, version):
    cursor.execute("SELECT postrider.emit('registration', %s, %s, 'E', '{}')::text", (aggregate, version))
    return cursor.fetchone()[0]


class Writer:
    """A transaction that is moved on by hand."""

    def __init__(self, place):
        self.conn = psycopg2.connect(place.dsns["shop"])
        self.cursor = self.conn.cursor()

    def emit(self, aggregate, version):
        return emit(self.cursor, aggregate, version)

    def take_number(self):
        self.cursor.execute("SELECT pg_current_xact_id()")

    def commit(self):
        self.conn.commit()
        self.conn.close()


def late_commit(place, look):
    """An early id commits late."""
    first, second = Writer(place), Writer(place)
    first.emit("early", 1)
    second.emit("other", 1)
    second.commit()
    look()
    first.commit()
    look()


def early_number(place, look):
    """A transaction takes its number, waits for the aggregate, and writes the later version."""
    second, first = Writer(place), Writer(place)
    second.take_number()
    first.take_number()
    first.emit("a", 1)
    first.commit()
    second.emit("a", 2)
    second.commit()
    look()


def run_real_relay(place, story):
    process = place.start("--only", "relays")
    story(place, lambda: time.sleep(0.3))
    count = place.sql("shop", "SELECT count(*) FROM postrider.outbox")[0][0]
    wait_until(lambda: len(set(published(place))) == count, what="all events")
    result = verdict(place)
    assert result["faults"] == 0, checker.shorten(result)
    assert place.stop(process) == 0


@pytest.mark.parametrize("relay, story, fault", [
    (HighWater, late_commit, "lost"), (XidHorizon, early_number, "order_breaks")], ids=["high water", "xid horizon"])
def test_a_wrong_cursor_is_seen(place, relay, story, fault):
    wrong = relay(place)
    story(place, wrong.step)
    wrong.step()
    wrong.close()
    assert len(verdict(place)[fault]) == 1


@pytest.mark.parametrize("story", [late_commit, early_number])
def test_the_real_relay_passes_where_they_fail(place, story):
    run_real_relay(place, story)


def test_skip_locked_is_seen(place):
    place.sql("shop", "CREATE TABLE done (event_id uuid PRIMARY KEY)")
    place.emit("a", 1)
    place.emit("a", 2)
    one, two = SkipLocked(place), SkipLocked(place)
    one.claim()
    two.claim()
    two.finish()  # the later version was quicker
    one.finish()
    one.close()
    two.close()
    assert len(verdict(place)["order_breaks"]) == 1


def rolled_back_numbers(place):
    """Numbers that no commit has flushed."""
    for _ in range(30):
        place.sql("shop", "DO $$ BEGIN PERFORM pg_current_xact_id(); RAISE division_by_zero; "
                  "EXCEPTION WHEN division_by_zero THEN NULL; END $$")
        conn = psycopg2.connect(place.dsns["shop"])
        conn.cursor().execute("SELECT pg_current_xact_id()")
        conn.rollback()
        conn.close()


def test_a_position_kept_over_a_crash_is_seen(tmp_path):
    server = PostgresServer("15")
    try:
        place = Place(server, tmp_path)
        place.run("init", check=0)
        wrong = KeptPosition(place)
        place.emit("a", 1)
        wrong.step()
        rolled_back_numbers(place)
        wrong.step()  # sees the numbers go by
        server.restart("immediate")
        wrong.bus = wrong.connect("bus")
        place.emit("a", 2)
        for _ in range(3):
            wrong.step()
        wrong.close()
        assert len(verdict(place)["lost"]) == 1
        place.close()
    finally:
        server.remove()


def old_day(place, days=20):
    """An id of a day whose partition is there and empty, and that partition."""
    at = datetime.datetime.now(datetime.timezone.utc) - datetime.timedelta(days=days)
    place.sql("shop", "SET ROLE postrider_owner; SELECT postrider.make_partition('outbox', d, postrider.day_floor(d)::text, "
              "postrider.day_floor(d + 1)::text) FROM (SELECT %s::date AS d) s", (at.date(),))
    value = (int(at.timestamp() * 1000) << 80) | (7 << 76) | (2 << 62) | 1
    return str(uuid.UUID(int=value)), f"postrider.outbox_{at:%Y%m%d}"


def write_late(place, event_id):
    writer = Writer(place)
    writer.cursor.execute("INSERT INTO postrider.outbox (event_id, aggregate_type, aggregate_id, aggregate_version, event_type, "
                          "payload) VALUES (%s, 'registration', 'late', 1, 'E', '{}')", (event_id,))
    return writer


def in_background(action):
    thread = threading.Thread(target=action)
    thread.start()
    time.sleep(0.5)
    return thread


def test_looking_before_locking_is_seen(place):
    event_id, partition = old_day(place)
    wrong = CheckThenLock(place)
    writer = write_late(place, event_id)
    assert wrong.look(partition) == 0
    dropping = in_background(lambda: wrong.drop(partition))
    writer.commit()
    dropping.join()
    wrong.close()
    # The event was committed and is gone: the application's own record of it is all that tells.
    assert place.sql("shop", "SELECT count(*) FROM postrider.outbox WHERE event_id = %s", (event_id,)) == [(0,)]
    assert published(place) == []


def test_the_real_retention_keeps_a_late_event(place):
    """The same interleaving: prune waits for the lock, looks after it, and keeps the partition."""
    event_id, partition = old_day(place)
    writer = write_late(place, event_id)
    pruning = in_background(lambda: place.run("prune"))
    writer.commit()
    pruning.join()
    assert place.sql("shop", "SELECT count(*) FROM postrider.outbox WHERE event_id = %s", (event_id,)) == [(1,)]
    held = place.run("prune", "--dry-run", check=0).stdout
    assert partition.split(".")[1] in held and "has not published all" in held
    place.start("--only", "relays")
    wait_until(lambda: published(place) == [event_id], what="the late event")
    assert verdict(place)["faults"] == 0
