"""Day partitions: made ahead, kept while needed, dropped only after a look under the lock."""
import re
import threading
import time

import psycopg2
import pytest

from conftest import OLD_ID, old_day, put_old, wait_until


def names(place, database, table):
    return [row[0] for row in place.sql(database, "SELECT inhrelid::regclass::text FROM pg_inherits "
                                        f"WHERE inhparent = 'postrider.{table}'::regclass ORDER BY 1")]


def test_a_partition_made_by_a_superuser_is_the_owners(place):
    """Without SET ROLE: it would be the superuser's, and retention would stop at it."""
    place.sql("shop", "SELECT postrider.make_partition('outbox', '2023-06-30', postrider.day_floor('2023-06-30')::text,"
              " postrider.day_floor('2023-07-01')::text)")
    assert place.value("shop", "SELECT pg_get_userbyid(relowner) FROM pg_class WHERE relname = 'outbox_20230630'") == "postrider_owner"
    done = place.run("prune", "--json")
    assert done.returncode == 0 and "outbox_20230630" in done.stdout


def test_days_are_made_ahead(place):
    for table in ("outbox", "log", "consumed"):
        days = [name for name in names(place, "shop", table) if name[-8:].isdigit()]
        assert len(days) == 4, days
    assert place.value("shop", "SELECT postrider.make_partitions(3)") == 0
    assert place.value("shop", "SELECT postrider.make_partitions(5)") == 6


def test_every_partition_has_the_version_index(place):
    place.emit("a", 1)
    assert place.value("shop", """SELECT count(*) FROM pg_inherits i WHERE i.inhparent = 'postrider.outbox'::regclass
        AND NOT EXISTS (SELECT FROM pg_index x WHERE x.indrelid = i.inhrelid AND x.indisunique AND x.indnatts = 3)""") == 0
    assert place.value("shop", "SELECT count(*) FROM pg_index WHERE indrelid = 'postrider.outbox'::regclass") == 3


def test_rows_of_a_wrong_clock_are_moved_with_id_and_xid(place):
    later = place.value("shop", """
        SELECT (substr(h, 1, 8) || '-' || substr(h, 9, 4) || '-7000-8000-000000000001')::uuid::text
        FROM (SELECT lpad(to_hex((extract(epoch FROM now() + interval '4 days') * 1000)::bigint), 12, '0') AS h) x""")
    place.sql("shop", f"SELECT postrider.emit('registration', 'a', 1, 'E', '{{}}', event_id => '{later}')")
    before = place.sql("shop", "SELECT id, xid::text, lane, event_id::text FROM postrider.outbox_default")
    assert len(before) == 1
    place.sql("shop", "SELECT postrider.make_partitions(4)")
    assert place.sql("shop", "SELECT count(*) FROM postrider.outbox_default") == [(0,)]
    assert place.sql("shop", "SELECT id, xid::text, lane, event_id::text FROM postrider.outbox") == before


def prune(place):
    return place.run("prune", check=0).stdout


def test_a_day_stays_until_every_relay_has_passed_it(place):
    old_day(place)
    put_old(place, 1)
    assert "kept, relay registrations-to-events has not published" in prune(place)
    process = place.start("--only", "relays")
    wait_until(lambda: place.value("bus", "SELECT count(*) FROM postrider.log") == 1, what="the event")
    place.stop(process)
    assert "would drop" in place.run("prune", "--dry-run", check=0).stdout
    assert "postrider.outbox_20230630" in names(place, "shop", "outbox")
    assert "outbox_20230630: dropped" in prune(place)
    assert "postrider.outbox_20230630" not in names(place, "shop", "outbox")


def test_a_day_with_a_parked_event_stays(place):
    old_day(place)
    put_old(place, 1)
    place.sql("shop", "UPDATE postrider.lane SET done_snap = pg_current_snapshot()")
    place.sql("shop", f"INSERT INTO postrider.parked (side, reader, state, event_id, class) SELECT 'relay', relay, 'dead', "
              f"'{OLD_ID.format(n=1)}', 'permanent' FROM postrider.relay")
    assert "kept, parked event" in prune(place)


def test_without_a_relay_nothing_is_dropped(place):
    old_day(place)
    place.sql("shop", "DELETE FROM postrider.relay")
    assert "no relay is registered" in prune(place)


def test_a_late_writer_in_an_old_day_loses_nothing(place):
    """The check comes after the lock: a writer that is still open when retention wants the day keeps its event."""
    old_day(place)
    writer = psycopg2.connect(place.dsns["shop"])
    put_old(place, 1, writer)
    place.sql("shop", "UPDATE postrider.lane SET done_snap = pg_current_snapshot()")
    results = []
    thread = threading.Thread(target=lambda: results.append(place.run("prune")))
    thread.start()
    time.sleep(0.1)
    writer.commit()
    writer.close()
    thread.join()
    # Either it could not get the lock, or it looked after it had it, and saw the event.
    assert place.value("shop", "SELECT count(*) FROM postrider.outbox") == 1, results[0].stdout
    assert "kept, relay" in prune(place)
    process = place.start("--only", "relays")
    wait_until(lambda: place.value("bus", "SELECT count(*) FROM postrider.log") == 1, what="the event")
    place.stop(process)


def waits_for_lock(place):
    return place.value("shop", "SELECT count(*) FROM pg_locks WHERE relation = 'postrider.outbox'::regclass AND NOT granted")


@pytest.mark.parametrize("isolation", ["read committed", "repeatable read", "serializable"])
def test_a_writer_that_commits_while_retention_waits_for_it_keeps_its_event(place, isolation):
    """Looked at before the lock the day is empty; the event must be seen after it, whatever is usual on that server."""
    old_day(place)
    place.sql("shop", f"ALTER DATABASE {place.names['shop']} SET default_transaction_isolation = '{isolation}'")
    writer = psycopg2.connect(place.dsns["shop"])
    put_old(place, 1, writer)
    place.sql("shop", "UPDATE postrider.lane SET done_snap = pg_current_snapshot()")
    assert "would drop" in place.run("prune", "--dry-run", check=0).stdout
    results = []
    thread = threading.Thread(target=lambda: results.append(place.run("prune")))
    thread.start()
    wait_until(lambda: waits_for_lock(place), what="retention to wait")
    writer.commit()
    writer.close()
    thread.join()
    assert "kept, relay registrations-to-events has not published" in results[0].stdout, results[0].stderr
    assert place.value("shop", "SELECT count(*) FROM postrider.outbox") == 1


def test_F91_a_transaction_in_the_way_is_named_and_the_rest_is_pruned(place):
    old_day(place)
    old_day(place, "log")
    writer = psycopg2.connect(place.dsns["shop"], application_name="slow writer")
    put_old(place, 1, writer)
    place.sql("shop", "UPDATE postrider.lane SET done_snap = pg_current_snapshot()")
    text = prune(place)
    assert re.search(r"outbox_20230630: kept, in use by pid \d+ \(slow writer\)", text), text
    assert "log_20230630: dropped" in text
    writer.rollback()
    writer.close()
    assert "outbox_20230630: dropped" in prune(place)


def test_a_day_that_is_held_is_looked_at_without_a_lock(place):
    """Writers must not queue behind an hourly look that ends in nothing."""
    old_day(place)
    put_old(place, 1)
    writer = psycopg2.connect(place.dsns["shop"])
    put_old(place, 2, writer)
    assert "kept, relay registrations-to-events has not published" in prune(place)
    writer.rollback()
    writer.close()


def test_in_a_snapshot_nothing_is_dropped(place):
    old_day(place)
    place.sql("shop", "UPDATE postrider.lane SET done_snap = pg_current_snapshot()")
    conn = psycopg2.connect(place.dsns["shop"])
    conn.set_session(isolation_level="REPEATABLE READ")
    with pytest.raises(psycopg2.Error) as caught:
        conn.cursor().execute("SELECT postrider.prune_outbox(now(), false)")
    assert caught.value.pgcode == "PR023"
    conn.close()


def test_a_relay_of_another_table_holds_nothing(place):
    old_day(place)
    put_old(place, 1)
    place.sql("shop", "SELECT postrider.register_relay('mine', 'public.outbox', 'earliest', NULL)")
    place.sql("shop", "UPDATE postrider.lane SET lane = (SELECT lane FROM postrider.outbox) WHERE relay = 2")
    place.sql("shop", "UPDATE postrider.lane SET done_snap = pg_current_snapshot() WHERE relay = 1")
    assert "outbox_20230630: dropped" in prune(place)


def test_other_ids_are_refused_with_a_hint(place):
    insert = ("INSERT INTO postrider.outbox (event_id, aggregate_type, aggregate_id, aggregate_version, event_type, payload) "
              "VALUES (gen_random_uuid(), 't', 'a', 1, 'E', '{}')")
    with pytest.raises(psycopg2.Error) as caught:
        place.sql("shop", insert)
    assert caught.value.pgcode == "PR102" and "no UUIDv7" in caught.value.diag.message_primary
    with pytest.raises(psycopg2.Error) as caught:
        place.sql("shop", "SELECT postrider.emit('t', 'a', 1, 'E', '{}', event_id => gen_random_uuid())")
    assert caught.value.pgcode == "PR102" and "is no UUIDv7" in str(caught.value)
    assert "postrider.uuidv7()" in caught.value.diag.message_hint and "mapped table" in caught.value.diag.message_hint
    assert place.value("shop", "SELECT count(*) FROM postrider.outbox") == 0


def test_dropping_a_day_of_the_log_raises_its_first_offset(place):
    old_day(place, "log")
    place.sql("bus", "INSERT INTO postrider.log SELECT 'registration', 0, n, '2023-06-30 12:00+00', NULL, 'k', '{}', '{}', 'x' "
              "FROM generate_series(0, 4) n; UPDATE postrider.log_head SET next_off = 5 WHERE part = 0")
    assert "log_20230630: dropped" in prune(place)
    assert place.sql("bus", "SELECT first_off, next_off FROM postrider.log_head WHERE part = 0") == [(5, 5)]


def test_dropping_dedupe_records_raises_the_floor_and_waits_for_the_dead(place):
    old_day(place, "consumed")
    place.sql("rewards", f"INSERT INTO postrider.consumed VALUES (1, '2023-06-30', '{OLD_ID.format(n=1)}', 'd', 'D')")
    assert "kept, consumer rewards has event" in prune(place)
    place.sql("rewards", "UPDATE postrider.consumed SET outcome = 'A'")
    assert "consumed_20230630: dropped" in prune(place)
    assert place.value("rewards", "SELECT floor = '2023-07-01 00:00+00' FROM postrider.consumer")


def test_ids_that_are_no_uuidv7_have_a_place_of_their_own(place):
    other = "6ba7b810-9dad-41d1-80b4-00c04fd430c8"
    place.sql("rewards", f"INSERT INTO postrider.consumed SELECT 1, postrider.event_day('{other}'), '{other}', 'd', 'A'")
    assert place.value("rewards", "SELECT tableoid::regclass::text FROM postrider.consumed") == "postrider.consumed_other"
