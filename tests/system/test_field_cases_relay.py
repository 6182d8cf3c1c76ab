"""Faults that other outbox systems had in the field, played to the relay."""
import json
import signal
import time

import psycopg2
import pytest

from conftest import http, port_of, published, states, wait_until
from system.test_mark import TEXTBOOK, config
from system.test_relay_dead_letters import REFUSE, ask, emit, parked

BREAKS = """SELECT count(*) FROM (SELECT off, key, convert_from(header_values[array_position(header_names, 'postrider-version')], 'UTF8')::bigint AS v,
    lag(convert_from(header_values[array_position(header_names, 'postrider-version')], 'UTF8')::bigint) OVER (PARTITION BY key ORDER BY off) AS before
    FROM postrider.log) s WHERE v <> coalesce(before, 0) + 1"""
FILL = """INSERT INTO {} (event_id, aggregate_type, aggregate_id, aggregate_version, event_type, payload)
    SELECT postrider.uuidv7(), 'registration', 'a' || n % 97, 1 + n / 97, 'E', '{{}}' FROM generate_series({}, {}) n"""
TEXTBOOK_FILL = """INSERT INTO outbox SELECT gen_random_uuid(), 'a' || n % 97, 1 + n / 97, 'E', '{{}}', now(), 'PENDING'
    FROM generate_series({}, {}) n ORDER BY random()"""


def prepare(place, table):
    if table == "textbook":
        place.sql("shop", TEXTBOOK)
        config(place, "table: public.outbox, aggregate_type: registration")


def in_log(place):
    return place.value("bus", "SELECT count(*) FROM postrider.log")


@pytest.mark.parametrize("off", ["nestloop", "hashjoin", "mergejoin", "sort"])
@pytest.mark.parametrize("table", ["built-in", "textbook"])
def test_F40_the_order_is_the_same_under_every_plan(place, table, off):
    prepare(place, table)
    for name in ("shop", "bus"):
        place.sql(name, f"ALTER DATABASE {place.names[name]} SET enable_{off} = off")
    place.sql("shop", FILL.format("postrider.outbox", 0, 3999) if table == "built-in" else TEXTBOOK_FILL.format(0, 3999))
    place.sql("shop", "ANALYZE")
    place.start("--only", "relays")
    wait_until(lambda: in_log(place) == 4000, what="all events")
    assert place.value("bus", BREAKS) == 0


def test_F52_a_slow_destination_leaves_no_transaction_open(place):
    """The append waits for seconds; the outbox's session is in no transaction meanwhile, and nothing is published twice."""
    place.sql("shop", f"ALTER DATABASE {place.names['shop']} SET idle_in_transaction_session_timeout = '1s'")
    place.sql("bus", "SELECT postrider.log_create_topic('registration', 4)")
    with psycopg2.connect(place.dsns["bus"]) as holder:
        holder.cursor().execute("LOCK TABLE postrider.log_head IN EXCLUSIVE MODE")
        place.start("--only", "relays")
        for n in range(100):
            place.emit(f"a{n}", 1)
        wait_until(lambda: place.value("bus", "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
                                       " AND query LIKE '%%log_append(%%' AND datname = current_database()") == 1, what="an append that waits")
        for _ in range(30):
            open_ones = place.sql("shop", "SELECT query FROM pg_stat_activity WHERE datname = current_database() AND application_name LIKE"
                                  " 'postrider relay%%' AND xact_start < clock_timestamp() - interval '1 second'")
            assert open_ones == []
            time.sleep(0.1)
    holder.close()
    wait_until(lambda: in_log(place) == 100, what="all events")
    wait_until(lambda: set(states(place).values()) == {"PUBLISHED"}, what="their states")
    assert len(set(published(place))) == in_log(place) == 100


def touched(place):
    """Blocks of the outbox that statements have looked at."""
    return place.value("shop", "SELECT sum(heap_blks_hit + heap_blks_read + idx_blks_hit + idx_blks_read)::bigint FROM pg_statio_user_tables"
                               " WHERE schemaname = 'postrider' AND relname LIKE 'outbox%%'")


def test_F62_a_held_snapshot_does_not_make_reading_dearer(place):
    """A report holds a snapshot while events come and go: what is looked at for each does not grow with what is done."""
    report = psycopg2.connect(place.dsns["shop"])
    report.cursor().execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1")
    place.start("--only", "relays")
    costs = []
    for part in range(4):
        before = touched(place)
        for first in range(part * 4850, (part + 1) * 4850, 970):
            place.sql("shop", FILL.format("postrider.outbox", first, first + 969))
            wait_until(lambda count=first + 970: in_log(place) == count, what="the events of this piece")
        time.sleep(1.2)  # what the sessions counted is reported once a second
        costs.append(touched(place) - before)
    report.rollback()
    report.close()
    assert costs[0] > 0 and sum(costs[2:]) < 1.5 * sum(costs[:2]), costs
    assert place.value("bus", BREAKS) == 0
    assert place.value("shop", "SELECT sum(n_dead_tup) FROM pg_stat_user_tables WHERE relname LIKE 'outbox%%'") == 0


def test_F62_marking_is_linear_where_statistics_lag_behind(place):
    """A young table, never analyzed: its small index over what is pending tempts the planner to compare each row with each id."""
    prepare(place, "textbook")
    place.sql("shop", "ALTER TABLE outbox SET (autovacuum_enabled = off)")
    place.start("--only", "relays")
    last, seconds = 0, {250: [], 2000: []}
    for count in (2000, 250, 2000, 250, 2000, 250):
        place.sql("shop", TEXTBOOK_FILL.format(last, last + count - 1))
        began = time.monotonic()
        wait_until(lambda: place.value("shop", "SELECT count(*) FROM outbox WHERE publish_state = 'PENDING'") == 0, timeout=60, what="the marks")
        seconds[count].append(time.monotonic() - began)
        last += count
    assert min(seconds[2000]) < 12 * min(seconds[250]), seconds


def test_F86_versions_are_the_applications_and_are_checked(place):
    """Two sessions begin one aggregate: the second waits for the first, and is told clearly when that one commits."""
    first, second = (psycopg2.connect(place.dsns["shop"]) for _ in range(2))
    first.cursor().execute("SELECT postrider.emit('registration', 'new', 1, 'E', '{}')")
    second.cursor().execute("SET lock_timeout = '300ms'")
    second.commit()
    with pytest.raises(psycopg2.errors.LockNotAvailable):
        second.cursor().execute("SELECT postrider.emit('registration', 'new', 1, 'E', '{}')")
    second.rollback()
    first.rollback()
    second.cursor().execute("SELECT postrider.emit('registration', 'new', 1, 'E', '{}')")
    second.commit()
    with pytest.raises(psycopg2.errors.UniqueViolation, match="version"):
        first.cursor().execute("SELECT postrider.emit('registration', 'new', 1, 'E', '{}')")
    first.rollback()
    for version in (0, -1):
        with pytest.raises(psycopg2.Error, match="aggregate_version"):
            first.cursor().execute("SELECT postrider.emit('registration', 'new', %s, 'E', '{}')", (version,))
        first.rollback()
    # What a session without triggers writes is an event like any other.
    first.cursor().execute("SET session_replication_role = 'replica'; SELECT postrider.emit('registration', 'new', 2, 'E', '{}')")
    first.commit()
    first.close()
    second.close()
    place.start("--only", "relays")
    wait_until(lambda: list(states(place).values()) == ["PUBLISHED"] * 2, what="both published")


def test_F107_a_row_needs_nothing_beside_it(place):
    """Plain inserts into new and idle aggregates, and a version that is late, all leave; the late one is counted."""
    place.write_config(extra='http: {listen: "127.0.0.1:0"}')
    process = place.start("--only", "relays")
    port = port_of(process)
    for aggregate, version in (("new", 1), ("idle", 10), ("idle", 5)):
        place.sql("shop", "INSERT INTO postrider.outbox (aggregate_type, aggregate_id, aggregate_version, event_type, payload)"
                  " VALUES ('registration', %s, %s, 'E', '{}')", (aggregate, version))
    wait_until(lambda: list(states(place).values()) == ["PUBLISHED"] * 3, what="all three")
    wait_until(lambda: 'order_violations_total{relay="registrations-to-events"} 1' in http(port, "/metrics")[1], what="the count")


def test_F121_a_late_owner_finishes_nothing_of_a_newer_one(place):
    """A replay waits in the old owner's append; that one is frozen and its lanes are taken: what it does after waking up changes nothing."""
    place.write_config(lease="500ms")
    place.sql("bus", REFUSE)
    zombie = place.start("--only", "relays")
    evil = emit(place, "bad", 1, '{"x": "evil"}')
    behind = emit(place, "bad", 2)
    wait_until(lambda: parked(place) == [(evil, "dead"), (behind, "waiting")], what="the dead letter")
    place.sql("bus", "ALTER TABLE postrider.log DROP CONSTRAINT not_this")
    holder = psycopg2.connect(place.dsns["bus"])
    holder.cursor().execute("LOCK TABLE postrider.log_head IN EXCLUSIVE MODE")
    ask(place, evil, "replay")
    wait_until(lambda: place.value("bus", "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%%log_append(%%'"
                                   " AND datname = current_database()") == 1, what="the replay's append")
    zombie.send_signal(signal.SIGSTOP)
    heir = place.start("--only", "relays")
    # The heir's own replay waits behind the zombie's append.
    wait_until(lambda: place.value("bus", "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
                                   " AND datname = current_database()") >= 2, what="the heir")
    holder.rollback()
    holder.close()
    wait_until(lambda: parked(place) == [], what="the mended stream")
    zombie.send_signal(signal.SIGCONT)
    after = emit(place, "bad", 3)
    wait_until(lambda: after in published(place), what="the next event")
    time.sleep(1)
    order = published(place)
    assert sorted(set(order), key=order.index) == [evil, behind, after] and parked(place) == []
    assert place.sql("shop", "SELECT act FROM postrider.audit") == [("relay.replay",)]
    assert place.stop(zombie) == 0 and place.stop(heir) == 0


def test_F122_no_attempt_is_counted_where_none_was_made(place):
    """Ends, freezes and a destination that is away: claims come and go, tries stay at nothing, and all are published."""
    place.write_config(lease="300ms")
    place.sql("bus", f"ALTER DATABASE {place.names['bus']} CONNECTION LIMIT 0; CREATE ROLE away_login LOGIN")
    text = place.config.read_text()
    place.config.write_text(text.replace(f"postgres@127.0.0.1:{place.server.port}/{place.names['bus']}",
                                         f"away_login@127.0.0.1:{place.server.port}/{place.names['bus']}"))
    try:
        ids = [place.emit(f"a{n}", 1) for n in range(20)]
        for n in range(6):
            process = place.start("--only", "relays")
            wait_until(lambda p=process: "paused" in p.log.read_text() or p.poll() is not None, what="the pause")
            if n % 2 and process.poll() is None:
                process.send_signal(signal.SIGSTOP)
                time.sleep(0.5)
                process.send_signal(signal.SIGCONT)
            place.stop(process)
        assert place.value("shop", "SELECT (SELECT count(*) FROM postrider.attempt) + (SELECT count(*) FROM postrider.parked)") == 0
        assert set(states(place).values()) == {"PENDING"}
    finally:
        place.config.write_text(text)
        place.sql("bus", f"ALTER DATABASE {place.names['bus']} CONNECTION LIMIT -1; DROP ROLE away_login")
    place.start("--only", "relays")
    wait_until(lambda: set(published(place)) == set(ids), what="all events")


def test_F124_a_relay_that_stands_still_is_seen_whatever_its_rows_went_through(place):
    """Some published, some refused once, some behind them, some untouched: the states sum to the rows and the age of the oldest grows."""
    place.sql("bus", REFUSE)
    process = place.start("--only", "relays")
    for n in range(5):
        emit(place, f"good{n}", 1)
        emit(place, f"bad{n}", 1, '{"x": "evil"}')
        emit(place, f"bad{n}", 2)
    wait_until(lambda: [s for _, s in parked(place)].count("dead") == 5 and len(published(place)) == 5, what="the dead letters")
    process.send_signal(signal.SIGSTOP)
    for n in range(5):
        emit(place, f"good{n}", 2)
    counts = dict(place.sql("shop", "SELECT publish_state, count(*) FROM postrider.outbox_state GROUP BY 1"))
    assert counts == {"PUBLISHED": 5, "DEAD": 5, "PARKED": 5, "PENDING": 5}

    def finding():
        done = place.run("status", "--json", check=1)
        return next(f for f in json.loads(done.stdout) if "relay" in f)
    wait_until(lambda: finding()["todo"].startswith("no process runs this relay"), what="status to see it")
    assert "oldest pending" in place.run("status").stdout
    process.send_signal(signal.SIGCONT)
    wait_until(lambda: len(published(place)) == 10, what="the rest")
