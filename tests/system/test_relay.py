"""The relay on real servers: order, windows, leases, destinations that fail."""
import json
import pathlib
import os
import signal
import subprocess
import threading
import time

import psycopg2
import pytest

from conftest import ROOT, http, port_of, published, states, wait_until


def test_F01_a_late_commit_with_an_early_id_is_published(place):
    process = place.start("--only", "relays")
    late = psycopg2.connect(place.dsns["shop"])
    cursor = late.cursor()
    cursor.execute("SELECT postrider.emit('registration', 'late', 1, 'E', '{}')::text")
    early_id = cursor.fetchone()[0]
    second = place.emit("other", 1)
    wait_until(lambda: published(place) == [second], what="the second event")
    assert states(place) == {second: "PUBLISHED"}
    late.commit()
    wait_until(lambda: published(place) == [second, early_id], what="the late event")
    late.close()
    assert place.stop(process) == 0


def test_F23_an_old_transaction_elsewhere_does_not_hold_events_back(place):
    other = psycopg2.connect(place.server.dsn("postgres"))
    other.cursor().execute("SELECT pg_current_xact_id()")
    place.sql("shop", "CREATE TABLE t (a int)")
    prepared = psycopg2.connect(place.dsns["shop"])
    prepared.cursor().execute("INSERT INTO t VALUES (1)")
    prepared.cursor().execute(f"PREPARE TRANSACTION 'forgotten {place.names['shop']}'")
    prepared.rollback()
    place.start("--only", "relays")
    ids = [place.emit("a", version) for version in range(1, 51)]
    wait_until(lambda: published(place) == ids, what="all events")
    place.sql("shop", f"ROLLBACK PREPARED 'forgotten {place.names['shop']}'")
    other.close()
    prepared.close()


def test_F34_a_prepared_event_comes_when_it_is_committed(place):
    place.start("--only", "relays")
    writer = psycopg2.connect(place.dsns["shop"])
    cursor = writer.cursor()
    cursor.execute("SELECT postrider.emit('registration', 'p', 1, 'E', '{}')::text")
    event_id = cursor.fetchone()[0]
    cursor.execute("PREPARE TRANSACTION %s", (place.names["shop"],))
    writer.rollback()
    others = [place.emit("a", version) for version in range(1, 6)]
    wait_until(lambda: published(place) == others, what="the others")
    place.sql("shop", "COMMIT PREPARED %s", (place.names["shop"],))
    wait_until(lambda: published(place) == others + [event_id], what="the prepared event")
    writer.close()


def test_rolled_back_and_savepoint_events_never_leave(place):
    place.start("--only", "relays")
    writer = psycopg2.connect(place.dsns["shop"])
    cursor = writer.cursor()
    cursor.execute("SELECT postrider.emit('registration', 'x', 1, 'E', '{}')::text")
    writer.rollback()
    cursor.execute("SAVEPOINT s; SELECT postrider.emit('registration', 'y', 1, 'E', '{}'); ROLLBACK TO s")
    cursor.execute("SELECT postrider.emit('registration', 'z', 1, 'E', '{}')::text")
    kept = cursor.fetchone()[0]
    writer.commit()
    last = place.emit("last", 1)
    wait_until(lambda: published(place) == [kept, last], what="the events that were committed")
    writer.close()


def test_a_big_backlog_goes_out_in_order(place):
    place.sql("shop", """INSERT INTO postrider.outbox (aggregate_type, aggregate_id, aggregate_version, event_type, payload)
        SELECT 'registration', 'a' || i % 100, i / 100 + 1, 'E', jsonb_build_object('i', i)
        FROM generate_series(0, 29999) i""")
    process = place.start("--only", "relays")
    wait_until(lambda: place.value("bus", "SELECT count(*) FROM postrider.log") == 30000, what="30000 events")
    assert "relay.catching_up" in process.log.read_text()
    assert place.value("bus", "SELECT count(DISTINCT event_id) FROM postrider.log") == 30000
    breaks = place.value("bus", """
        SELECT count(*) FROM (SELECT convert_from(header_values[5], 'UTF8')::bigint AS version,
            lag(convert_from(header_values[5], 'UTF8')::bigint) OVER (PARTITION BY key ORDER BY off) AS before
        FROM postrider.log) v WHERE version <> coalesce(before, 0) + 1""")
    assert breaks == 0
    wait_until(lambda: set(states(place).values()) == {"PUBLISHED"}, what="positions")
    # Events that come during and after a catch-up follow.
    more = place.emit("a0", 301)
    wait_until(lambda: states(place)[more] == "PUBLISHED", what="the next event")


def test_large_payloads_are_read_by_bytes(place):
    """A reading is bounded in bytes: twenty events of 900 kB do not come at once, and all come."""
    for n in range(20):
        place.sql("shop", "SELECT postrider.emit_bytes('registration', 'big', %s, 'E', %s)",
                  (n + 1, os.urandom(900000)))
    process = place.start("--only", "relays")
    wait_until(lambda: place.value("bus", "SELECT count(*) FROM postrider.log") == 20, what="20 events")
    rows = place.sql("bus", "SELECT event_id::text, md5(body) FROM postrider.log")
    assert rows.sort() == place.sql("shop", "SELECT event_id::text, md5(body) FROM postrider.outbox").sort()
    peak = int(next(line for line in open(f"/proc/{process.pid}/status") if line.startswith("VmHWM")).split()[1])
    assert peak < 100 * 1024


def test_bytes_are_sacred(place):
    place.start("--only", "relays")
    body = bytes(range(256)) * 3
    place.sql("shop", "SELECT postrider.emit_bytes('registration', 'é', 1, 'E', %s, 'application/x-raw')",
              (psycopg2.Binary(body),))
    wait_until(lambda: len(published(place)) == 1, what="the event")
    stored, key, headers, names = place.sql("bus", "SELECT body, key, header_values, header_names FROM postrider.log")[0]
    assert bytes(stored) == body and bytes(key).decode() == "é"
    assert bytes(headers[names.index("content-type")]) == b"application/x-raw"


def test_durable_before_published(place):
    """With an asynchronous commit an event is visible before it is safe; it must not leave before."""
    place.start("--only", "relays")
    place.sql("shop", "SET synchronous_commit = off; SELECT postrider.emit('registration', 'a', 1, 'E', '{}')")
    wait_until(lambda: len(published(place)) == 1, timeout=5, what="the event")


def test_F56_two_processes_share_the_lanes_and_one_takes_over(place):
    place.write_config(lease="1s")

    def owners():
        return dict(place.sql("shop", "SELECT owner::text, count(*) FROM postrider.lane WHERE owner IS NOT NULL "
                              "AND lease_until > clock_timestamp() GROUP BY 1"))
    first = place.start("--only", "relays")
    wait_until(lambda: list(owners().values()) == [16], what="one owner of all lanes")
    second = place.start("--only", "relays")
    wait_until(lambda: sorted(owners().values()) == [8, 8], what="two owners of eight lanes each")
    ids = [place.emit(f"a{n}", 1) for n in range(40)]
    wait_until(lambda: sorted(published(place)) == sorted(ids), what="all events")
    began = time.monotonic()
    second.kill()
    more = [place.emit(f"b{n}", 1) for n in range(40)]
    wait_until(lambda: sorted(published(place)) == sorted(ids + more), what="the events of the dead one's lanes")
    assert time.monotonic() - began < 10
    assert place.stop(first) == 0
    assert place.value("shop", "SELECT count(*) FROM postrider.lane WHERE owner IS NOT NULL") == 0


def test_a_zombie_records_and_publishes_nothing(place):
    place.write_config(lease="500ms")
    zombie = place.start("--only", "relays")
    first = place.emit("a", 1)
    wait_until(lambda: published(place) == [first], what="the first event")
    zombie.send_signal(signal.SIGSTOP)
    heir = place.start("--only", "relays")
    second = place.emit("a", 2)
    wait_until(lambda: published(place) == [first, second], what="the heir")
    epochs = place.sql("shop", "SELECT lane, epoch FROM postrider.lane ORDER BY lane")
    zombie.send_signal(signal.SIGCONT)
    third = place.emit("a", 3)
    wait_until(lambda: published(place) == [first, second, third], what="the third event")
    time.sleep(1)
    assert published(place) == [first, second, third]
    owned = place.sql("shop", "SELECT lane, epoch FROM postrider.lane ORDER BY lane")
    assert all(new >= old for (_, old), (_, new) in zip(epochs, owned))
    assert place.stop(zombie) == 0 and place.stop(heir) == 0


def test_a_restored_outbox_raises_its_epochs_above_the_logs(place):
    """The log has seen higher epochs than this database knows: an older copy of it was restored."""
    place.sql("bus", "INSERT INTO postrider.log_writer SELECT %s::uuid, n, 1000 FROM generate_series(0, 15) n",
              (place.value("shop", "SELECT writer::text FROM postrider.relay"),))
    place.start("--only", "relays")
    event_id = place.emit("a", 1)
    wait_until(lambda: published(place) == [event_id], what="the event")
    assert place.value("shop", "SELECT max(epoch) FROM postrider.lane") > 1000


def test_F04_a_destination_that_is_away_pauses_the_relay_and_costs_no_event(place):
    place.write_config(extra='http: {listen: "127.0.0.1:0"}')
    process = place.start("--only", "relays")
    port = port_of(process)
    first = place.emit("a", 1)
    wait_until(lambda: published(place) == [first], what="the first event")
    place.server_sql = place.server.dsn("postgres")
    away = f"ALTER DATABASE {place.names['bus']} ALLOW_CONNECTIONS false"
    back = f"ALTER DATABASE {place.names['bus']} ALLOW_CONNECTIONS true"
    admin = psycopg2.connect(place.server_sql)
    admin.autocommit = True
    admin.cursor().execute(away)
    admin.cursor().execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s",
                           (place.names["bus"],))
    ids = [place.emit("a", version) for version in range(2, 30)]
    status, body = wait_until(lambda: (lambda s: s if s[0] == 503 else None)(http(port, "/readyz")), what="not ready")
    assert json.loads(body)["workers"][0]["state"] == "paused"
    assert "events" in json.loads(body)["workers"][0]["reason"]
    assert http(port, "/healthz")[0] == 200
    assert "FAILED" not in states(place).values() and set(states(place).values()) <= {"PUBLISHED", "PENDING"}
    admin.cursor().execute(back)
    admin.close()
    wait_until(lambda: published(place) == [first] + ids, what="all events")
    wait_until(lambda: http(port, "/readyz")[0] == 200, what="ready again")
    assert place.value("shop", "SELECT count(*) FROM postrider.parked") == 0


def test_F73_a_position_that_cannot_be_written_is_written_later_without_publishing_again(place):
    place.sql("shop", '''CREATE SEQUENCE public.failures; CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
        IF (NEW.done_snap::text, NEW.open_pos) IS DISTINCT FROM (OLD.done_snap::text, OLD.open_pos) AND nextval('public.failures') <= 4 THEN
        RAISE deadlock_detected; END IF; RETURN NEW; END $$; GRANT USAGE ON SEQUENCE failures TO PUBLIC;
        CREATE TRIGGER fail BEFORE UPDATE ON postrider.lane FOR EACH ROW EXECUTE FUNCTION fail()''')
    process = place.start("--only", "relays")
    ids = [place.emit(f"r{n}", 1) for n in range(5)]
    wait_until(lambda: place.value("shop", "SELECT last_value FROM failures") > 4, timeout=40, what="the failures")
    last = place.emit("r0", 2)
    wait_until(lambda: last in published(place), what="the last one")
    assert sorted(published(place)) == sorted([*ids, last])
    assert place.stop(process) == 0


def test_F125_a_server_that_is_away_is_asked_at_a_quiet_pace(place):
    process = place.start()
    wait_until(lambda: "relay.running" in process.log.read_text(), what="the relay")
    place.server.stop()
    time.sleep(1)
    cpu = lambda: sum(int(n) for n in pathlib.Path(f"/proc/{process.pid}/stat").read_text().rsplit(")", 1)[1].split()[11:13])
    lines, ticks = len(process.log.read_text().splitlines()), cpu()
    time.sleep(8)
    assert len(process.log.read_text().splitlines()) - lines <= 60
    assert cpu() - ticks < 100, "more than a second of CPU in eight"
    place.server.start()
    event_id = place.emit("a", 1)
    wait_until(lambda: event_id in published(place), timeout=40, what="the event")
    assert place.stop(process) == 0


def test_F116_unusual_times_do_not_stop_the_stream(place):
    place.sql("shop", f"ALTER DATABASE {place.names['shop']} SET datestyle = 'German, DMY'")
    place.sql("shop", f"ALTER DATABASE {place.names['shop']} SET timezone = 'Asia/Kathmandu'")
    times = ["infinity", "-infinity", "0044-03-15 12:00+00 BC", "294276-12-31 23:59:59+00", "1900-01-01 00:00+00:19:32",
             "2026-12-01 05:34:30.123456+00"]
    ids = [place.value("shop", "SELECT postrider.emit('registration', %s, 1, 'E', '{}', occurred_at => %s)::text", (f"r{n}", at))
           for n, at in enumerate(times)]
    process = place.start("--only", "relays")
    wait_until(lambda: sorted(published(place)) == sorted(ids), what="all of them")
    told = dict(place.sql("bus", "SELECT event_id::text, convert_from(header_values[array_position(header_names,"
                          " 'postrider-occurred-at')], 'UTF8') FROM postrider.log"))
    assert [told[i] for i in ids[:2]] == ["infinity", "-infinity"] and told[ids[5]] == "2026-12-01T05:34:30.123456Z"
    assert told[ids[4]] == "1899-12-31T23:40:28.000000Z"
    assert place.stop(process) == 0


def test_F07_the_relay_survives_what_the_server_does(place):
    process = place.start("--only", "relays")
    wait_until(lambda: "relay.running" in process.log.read_text(), what="the relay")
    version = 0
    for _ in range(5):
        place.server.restart("immediate")
        version += 1
        event_id = place.emit("a", version)
        wait_until(lambda e=event_id: e in published(place), what="the event after a restart")
    assert process.poll() is None
    lines = process.log.read_text().splitlines()
    assert len(lines) < 200, "a log flood"


def test_a_full_disk_under_the_log_loses_nothing(place, tmp_path):
    if os.getuid() != 0:
        pytest.skip("mounting a small file system takes root")
    small = place.server.folder / f"small{os.getpid()}"
    small.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=6m", "tmpfs", small], check=True)
    try:
        os.chown(small, place.server.uid, place.server.gid)
        place.sql("bus", f"CREATE TABLESPACE small_{os.getpid()} LOCATION '{small}'")
        for (name,) in place.sql("bus", "SELECT inhrelid::regclass::text FROM pg_inherits "
                                 "WHERE inhparent = 'postrider.log'::regclass"):
            place.sql("bus", f"ALTER TABLE {name} SET TABLESPACE small_{os.getpid()}")
        place.write_config(extra='http: {listen: "127.0.0.1:0"}')
        process = place.start("--only", "relays")
        port = port_of(process)
        for n in range(30):
            place.sql("shop", "SELECT postrider.emit_bytes('registration', 'a', %s, 'E', %s)",
                      (n + 1, os.urandom(400000)))
        _, body = wait_until(lambda: (lambda s: s if s[0] == 503 and "disk" in s[1] else None)(http(port, "/readyz")),
                             what="the relay to say that the disk is full")
        assert "free disk space" in body
        subprocess.run(["mount", "-o", "remount,size=64m", small], check=True)
        wait_until(lambda: place.value("bus", "SELECT count(*) FROM postrider.log") == 30, what="all events")
        versions = [row[0] for row in place.sql("bus", "SELECT convert_from(header_values[5], 'UTF8')::int "
                                                "FROM postrider.log ORDER BY part, off")]
        assert versions == list(range(1, 31))
        assert place.stop(process) == 0
    finally:
        place.stop(place.processes[-1], signal.SIGKILL)
        place.server.drop(place.names["bus"])
        from servers.postgres import with_autocommit
        with_autocommit(place.server.dsn("postgres"), f"DROP TABLESPACE IF EXISTS small_{os.getpid()}")
        subprocess.run(["umount", small], check=True)


def test_changed_partitions_are_refused_with_the_remedy(place):
    process = place.start("--only", "relays")
    event_id = place.emit("a", 1)
    wait_until(lambda: published(place) == [event_id], what="the event")
    place.stop(process)
    place.config.write_text(place.config.read_text().replace("partitions: 4", "partitions: 8"))
    place.emit("a", 2)
    done = place.run("run", "--only", "relays", check=78)
    assert "begun with 4 partitions" in done.stderr and "to 4" in done.stderr
    assert published(place) == [event_id]


def test_an_order_violation_is_counted(place):
    place.write_config(extra='http: {listen: "127.0.0.1:0"}')
    process = place.start("--only", "relays")
    port = port_of(process)
    place.emit("a", 2)
    place.emit("a", 1)
    wait_until(lambda: len(published(place)) == 2, what="the events")
    wait_until(lambda: 'order_violations_total{relay="registrations-to-events"} 1' in http(port, "/metrics")[1],
               what="the count")


def test_events_of_several_types_go_to_their_topics(place):
    place.start("--only", "relays")
    place.sql("shop", "SELECT postrider.emit('registration', 'a', 1, 'E', '{}'), "
              "postrider.emit('payment', 'a', 1, 'E', '{}')")
    wait_until(lambda: len(published(place)) == 2, what="the events")
    assert place.sql("bus", "SELECT topic, partitions FROM postrider.log_topic ORDER BY 1") == [
        ("payment", 4), ("registration", 4)]


def test_file_destination(place, tmp_path):
    out = tmp_path / "events.jsonl"
    place.config.write_text(f"""
outboxes: {{registrations: {{database: "{place.dsns['shop']}"}}}}
destinations: {{events: {{transport: file, path: "{out}"}}}}
relays: {{registrations-to-events: {{outbox: registrations, destination: events}}}}
""")
    process = place.start()
    for version in range(1, 11):
        place.emit("a", version)
    wait_until(lambda: out.exists() and len(out.read_text().splitlines()) == 10, what="ten lines")
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    assert [line["headers"]["postrider-version"] for line in lines] == [str(n) for n in range(1, 11)]
    assert json.loads(lines[0]["body"]) == {"playerId": "p1", "points": 10}
    assert place.stop(process) == 0


def test_standard_output_destination(place):
    place.config.write_text(f"""
outboxes: {{registrations: {{database: "{place.dsns['shop']}"}}}}
destinations: {{events: {{transport: file, path: "-"}}}}
relays: {{registrations-to-events: {{outbox: registrations, destination: events}}}}
""")
    place.emit("a", 1)
    process = place.start()
    wait_until(lambda: '"postrider-version":"1"' in process.log.read_text(), what="the line")


def test_a_big_window_with_narrow_and_wide_rows_is_whole_and_in_order(place):
    """Wide ones stand first, alone, in rows of many, and last; all of 2 streams."""
    place.sql("shop", """INSERT INTO postrider.outbox (aggregate_type, aggregate_id, aggregate_version, event_type, body)
        SELECT 'registration', 'a' || n % 2, n, 'E',
               CASE WHEN n IN (1, 2, 700) OR n BETWEEN 9000 AND 9040 OR n = 30000
                    THEN decode((SELECT string_agg(md5(n::text || i), '') FROM generate_series(1, 1000 + n % 2 * 30000) i), 'hex')
                    ELSE 'x' END
        FROM generate_series(1, 30000) n""")
    place.start("--only", "relays")
    wait_until(lambda: place.sql("bus", "SELECT count(*) FROM postrider.log") == [(30000,)], what="all events")
    assert place.sql("bus", """SELECT count(*), count(DISTINCT event_id), bool_and(version > before)
        FROM (SELECT event_id, version, lag(version, 1, 0) OVER (PARTITION BY key ORDER BY off) AS before
              FROM (SELECT *, convert_from(header_values[5], 'UTF8')::int AS version FROM postrider.log) l) v""") == [
        (30000, 30000, True)]
    sizes = place.sql("bus", """SELECT convert_from(header_values[5], 'UTF8')::int, length(body) FROM postrider.log
        WHERE length(body) > 1 ORDER BY 1""")
    assert sizes == [(n, 16 * (1000 + n % 2 * 30000)) for n in [1, 2, 700, *range(9000, 9041), 30000]]


def append_sql(writer, epoch=1, topics="'{registration}'", parts="'{0}'", counts="'{1}'", keys="'{k}'"):
    """A call of log_append() from lane 0; as many messages as keys, without headers."""
    each = f"FROM unnest({keys}::text[]) k"
    return f"""SELECT postrider.log_append('{writer}', '{{0}}', '{{{epoch}}}', {topics}, {parts}, {counts},
        {keys}::bytea[], ARRAY(SELECT NULL::uuid {each}), ARRAY[ROW('{{}}')::postrider.log_names],
        ARRAY(SELECT 1::smallint {each}), ARRAY(SELECT ROW('{{}}')::postrider.log_values {each}),
        ARRAY(SELECT 'x'::bytea {each}))"""


WRITER = "0190a0b0-0000-4000-8000-000000000000"


def test_log_append_is_dense_and_fenced_under_racing_writers(place):
    place.sql("bus", "SELECT postrider.log_create_topic('registration', 4)")
    failures = []

    def append(writer):
        # Heads in another order by each writer: the function locks them in one.
        parts = [2, 0, 3, 1] if writer.endswith(("1", "3")) else [1, 3, 0, 2]
        statement = append_sql(writer, topics="array_fill('registration'::text, '{4}')", parts=f"ARRAY{parts}",
                               counts="'{5,5,5,5}'", keys="array_fill('k'::text, '{20}')")
        conn = psycopg2.connect(place.dsns["bus"])
        conn.autocommit = True
        try:
            for _ in range(60):
                conn.cursor().execute(statement)
        except psycopg2.Error as error:
            failures.append(error)
        conn.close()
    threads = [threading.Thread(target=append, args=(f"0190a0b0-0000-4000-8000-00000000000{n}",)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert place.sql("bus", "SELECT part, count(*), max(off) FROM postrider.log GROUP BY 1 ORDER BY 1") == [
        (n, 1200, 1199) for n in range(4)]
    with pytest.raises(psycopg2.Error) as caught:
        place.sql("bus", append_sql(WRITER, epoch=0))
    assert caught.value.pgcode == "PR010" and "0" in caught.value.diag.message_detail
    with pytest.raises(psycopg2.Error) as caught:
        place.sql("bus", append_sql(WRITER, topics="'{registration,nope}'", parts="'{0,7}'", counts="'{1,1}'",
                                    keys="'{k,k}'"))
    assert caught.value.pgcode == "PR011" and "nope/7" in caught.value.diag.message_primary
    assert "registration/0" not in caught.value.diag.message_primary


def test_log_append_keeps_order_and_refuses_arrays_that_do_not_fit(place):
    place.sql("bus", "SELECT postrider.log_create_topic('registration', 4), postrider.log_create_topic('b', 1)")
    call = {"topics": "'{b,registration,registration}'", "parts": "'{0,3,1}'", "counts": "'{1,3,2}'",
            "keys": "'{a,b,c,d,e,f}'"}
    assert place.sql("bus", append_sql(WRITER, **call)) == [([0, 0, 0],)]
    assert place.sql("bus", append_sql(WRITER, **call)) == [([1, 3, 2],)]
    assert place.sql("bus", "SELECT topic, part, string_agg(encode(key, 'escape'), '' ORDER BY off), min(off), max(off)"
                     " FROM postrider.log GROUP BY 1, 2 ORDER BY 1, 2") == [
        ("b", 0, "aa", 0, 1), ("registration", 1, "efef", 0, 3), ("registration", 3, "bcdbcd", 0, 5)]
    for wrong in ({"keys": "'{a,b,c,d,e}'"}, {"counts": "'{1,3,3}'"}, {"counts": "'{1,3}'"}, {"counts": "'{6,0,0}'"},
                  {"counts": "'{7,-2,1}'"}, {"topics": "'{b,registration}'"}, {"parts": "'{0,3,3}'"}, {"keys": "NULL"}):
        with pytest.raises(psycopg2.Error) as caught:
            place.sql("bus", append_sql(WRITER, **{**call, **wrong}))
        assert caught.value.pgcode == "PR013", wrong
    assert place.sql("bus", "SELECT sum(next_off)::int, (SELECT count(*) FROM postrider.log) FROM postrider.log_head") == [
        (12, 12)]


def test_headers_of_all_kinds_survive_in_one_unit(place):
    """Own headers make messages of one unit have different lists of names."""
    for n in range(1, 41):
        own = json.dumps({f"x-{i}": f"é{n}" for i in range(n % 7)})
        place.sql("shop", f"""INSERT INTO postrider.outbox (aggregate_type, aggregate_id, aggregate_version, event_type,
            payload, headers) VALUES ('registration', 'a{n % 3}', {n}, 'E', '{{}}', '{own}')""")
    place.start()
    wait_until(lambda: place.sql("bus", "SELECT count(*) FROM postrider.log") == [(40,)], what="40 messages")
    seen = {}
    for names, values in place.sql("bus", "SELECT header_names, header_values FROM postrider.log"):
        headers = dict(zip(names, (bytes(value).decode() for value in values)))
        assert len(names) == len(values) == len(headers)
        seen[int(headers["postrider-version"])] = {n: v for n, v in headers.items() if n.startswith("x-")}
    assert seen == {n: {f"x-{i}": f"é{n}" for i in range(n % 7)} for n in range(1, 41)}


def test_what_was_under_way_on_a_lost_connection_confirms_nothing_later(place):
    """The outbox connection dies while an append waits; its late word is not about the rows that are read again."""
    late = psycopg2.connect(place.dsns["shop"])
    late.cursor().execute("SELECT postrider.emit('registration', 'late', 1, 'E', '{}')")
    place.sql("bus", "SELECT postrider.log_create_topic('registration', 4)")
    first, second = (psycopg2.connect(place.dsns["bus"]) for _ in range(2))
    lock = "LOCK TABLE postrider.log_head IN EXCLUSIVE MODE"  # queues in order, which locks of rows do not
    appending = ("SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND query LIKE '%log_append(%'"
                 " AND wait_event_type = 'Lock'")
    waiting = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    first.cursor().execute(lock)
    process = place.start("--only", "relays")
    early = place.emit("early", 1)
    wait_until(lambda: place.sql("bus", appending), what="an append that waits")
    queued = threading.Thread(target=lambda: second.cursor().execute(lock))
    queued.start()
    wait_until(lambda: place.sql("bus", waiting) == [(2,)], what="another one behind it")
    late.commit()
    place.sql("shop", "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database()"
                      " AND application_name LIKE 'postrider relay%'")
    wait_until(lambda: process.log.read_text().count("event=relay.claimed") > 1, what="the relay being back")
    wait_until(lambda: process.log.read_text().count("event=relay.destination ") == 2, what="the destination opened again")
    first.rollback()  # the append that waited commits, then the lock is the second's
    queued.join()
    for pid, in wait_until(lambda: place.sql("bus", appending), what="the next append"):
        place.sql("bus", f"SELECT pg_terminate_backend({pid})")
    time.sleep(0.5)
    second.rollback()
    late_id = place.sql("shop", "SELECT event_id::text FROM postrider.outbox WHERE aggregate_id = 'late'")[0][0]
    wait_until(lambda: set(states(place).values()) == {"PUBLISHED"}, what="both published")
    assert set(published(place)) == {early, late_id}
    assert process.poll() is None
