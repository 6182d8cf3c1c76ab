"""`postrider reconcile`: the outbox against the consumer's outcomes, while both are at work."""
import json
import threading
import time
import uuid

import pytest

from conftest import http, port_of, wait_until
from system.test_consume import Topic, event


def compare(place, *args, check=None):
    return json.loads(place.run("reconcile", "--json", *args, check=check).stdout)


def decided(place, count):
    wait_until(lambda: place.value("rewards", "SELECT count(*) FROM postrider.consumed") == count, what=f"{count} outcomes")


@pytest.fixture
def story(place):
    place.sql("rewards", "INSERT INTO reward_account VALUES ('p1'), ('p2')")
    return place


def test_all_agrees(story):
    ids = [story.emit(f"r{n}", v) for n in range(5) for v in (1, 2)]
    story.start()
    decided(story, len(ids))
    report, = compare(story, check=0)
    assert report["ok"] and report["published"] == 10 and report["outcomes"]["applied"] == 10
    assert (report["lost"], report["foreign"], report["in_flight"], report["pending"]) == (0, 0, 0, 0)
    text = story.run("reconcile", "rewards", check=0).stdout
    assert "rewards  agrees" in text and "10 published: 10 applied, 0 in flight, 0 lost" in text


def test_a_lost_event_is_named(story):
    ids = [story.emit("r1", v) for v in (1, 2, 3)]
    story.start()
    decided(story, 3)
    story.sql("rewards", f"DELETE FROM postrider.consumed WHERE event_id = '{ids[1]}'")
    report, = compare(story, check=1)
    assert report["lost"] == 1 and report["outcomes"]["applied"] == 2
    assert report["differences"] == [{"kind": "lost", "event_id": ids[1], "aggregate_type": "registration", "aggregate_id": "r1",
                                      "version": 2, "relay": "registrations-to-events"}]
    text = story.run("reconcile", check=1).stdout
    assert "DIFFERS: 1 lost, 0 foreign" in text and f"lost     {ids[1]}  registration:r1 version 2" in text


def test_what_the_log_lost_is_found(story):
    relay = story.start("--only", "relays")
    ids = [story.emit("r1", v) for v in (1, 2)]
    wait_until(lambda: story.value("bus", "SELECT count(*) FROM postrider.log") == 2, what="the log")
    story.stop(relay)
    story.sql("bus", f"DELETE FROM postrider.log WHERE event_id = '{ids[0]}'")
    assert [d["event_id"] for d in compare(story, check=1)[0]["differences"]] == [ids[0]]
    assert compare(story, check=1)[0]["in_flight"] == 1


def test_a_foreign_outcome_is_named(story):
    known = story.emit("r1", 1)
    story.start()
    decided(story, 1)
    other = str(uuid.uuid4())
    seven = story.value("rewards", "SELECT postrider.uuidv7()::text")
    Topic(story).put(event(1, stream="r8", event_id=other), event(1, stream="r9", event_id=seven))
    decided(story, 3)
    report, = compare(story, check=1)
    assert report["foreign"] == 2 and report["lost"] == 0
    assert {(d["event_id"], d["outcome"]) for d in report["differences"]} == {(other, "applied"), (seven, "applied")}
    assert known not in json.dumps(report)
    text = story.run("reconcile", "--limit", "1", check=1).stdout
    assert "and 1 more" in text


def test_what_is_in_flight_is_left_out(story):
    for v in (1, 2, 3):
        story.emit("r1", v)
    report, = compare(story, check=0)
    assert (report["pending"], report["published"]) == (3, 0)
    relay = story.start("--only", "relays")
    wait_until(lambda: compare(story)[0]["published"] == 3, what="published")
    report, = compare(story, check=0)
    assert (report["in_flight"], report["lost"]) == (3, 0)
    story.start("--only", "consumers")
    decided(story, 3)
    wait_until(lambda: compare(story)[0]["outcomes"]["applied"] == 3, what="applied")
    story.stop(relay)


def test_parked_dead_and_rejected_are_outcomes(story):
    story.config.write_text(story.config.read_text().replace(
        "handlers:", "errors: [{sqlstate: P0002, class: rejected}]\n    handlers:"))
    story.emit("r1", 1)
    story.emit("r2", 1, player="nobody")                    # rejected: P0002
    story.emit("r3", 1, kind="Unhandled")                   # dead
    story.emit("r3", 2)                                     # parked behind it
    story.start()
    decided(story, 4)
    report, = compare(story, check=0)
    outcomes = report["outcomes"]
    assert {k: n for k, n in outcomes.items() if n} == {"applied": 1, "rejected": 1, "dead": 1, "parked": 1}
    assert report["lost"] == 0 and report["published"] == 4


def test_a_filter_is_respected(story):
    story.config.write_text(story.config.read_text().replace(
        "destination: events, lease", "destination: events, filter: {event_types: [RegistrationConfirmed]}, lease", 1))
    story.sql("shop", """UPDATE postrider.relay SET filter = '{"event_types": ["RegistrationConfirmed"]}'""")
    story.emit("r1", 1)
    story.emit("r2", 1, kind="Seen")
    story.start()
    decided(story, 1)
    report, = compare(story, check=0)
    assert report["published"] == 1 and report["lost"] == 0


def test_what_was_before_a_relay_that_starts_now_is_not_its_own(story):
    story.emit("r1", 1)
    story.sql("shop", "UPDATE postrider.relay SET start = pg_current_snapshot(); "
              "UPDATE postrider.lane SET done_snap = pg_current_snapshot()")
    story.emit("r2", 1)
    story.start()
    decided(story, 1)
    report, = compare(story, check=0)
    assert (report["published"], report["lost"]) == (1, 0)


def test_a_dead_letter_of_the_relay_is_not_lost(story):
    ids = [story.emit("r1", v) for v in (1, 2)]
    story.sql("shop", "INSERT INTO postrider.parked (side, reader, state, event_id, class) "
              f"SELECT 'relay', relay, 'dead', '{ids[0]}', 'permanent' FROM postrider.relay; "
              "INSERT INTO postrider.parked (side, reader, state, event_id, class) "
              f"SELECT 'relay', relay, 'discarded', '{ids[1]}', 'permanent' FROM postrider.relay; "
              "UPDATE postrider.lane SET done_snap = pg_current_snapshot()")
    report, = compare(story, check=0)
    assert (report["held"], report["given_up"], report["published"]) == (1, 1, 0)


def test_no_false_alarm_under_load(story):
    story.start()
    stop = threading.Event()

    def write():
        n = 0
        while not stop.is_set():
            n += 1
            story.sql("shop", "SELECT postrider.emit('registration', %s || g, 1, 'RegistrationConfirmed', "
                      """'{"playerId": "p1", "points": 1}') FROM generate_series(1, 40) g""", (f"s{n}-",))

    writer = threading.Thread(target=write)
    writer.start()
    try:
        until, runs = time.monotonic() + 8, 0
        while time.monotonic() < until:
            report, = compare(story, check=0)
            assert (report["lost"], report["foreign"]) == (0, 0)
            runs += 1
    finally:
        stop.set()
        writer.join()
    assert runs >= 3
    wait_until(lambda: compare(story)[0]["in_flight"] + compare(story)[0]["pending"] == 0, what="the rest")
    report, = compare(story, check=0)
    assert report["outcomes"]["applied"] == report["published"] > 100


def test_many_pages(story):
    story.sql("shop", "SELECT postrider.emit('registration', 'm' || g, 1, 'RegistrationConfirmed', "
              """'{"playerId": "p1", "points": 1}') FROM generate_series(1, 12000) g""")
    story.start()
    wait_until(lambda: story.value("rewards", "SELECT count(*) FROM postrider.consumed") == 12000, timeout=60, what="all")
    story.sql("rewards", "DELETE FROM postrider.consumed WHERE event_id IN (SELECT event_id FROM postrider.consumed "
              "ORDER BY event_id LIMIT 2000 OFFSET 4500)")
    report, = compare(story, "--limit", "1000", check=1)
    assert report["lost"] == 2000 and len(report["differences"]) == 1000
    assert report["published"] == 12000 == report["outcomes"]["applied"] + report["lost"]


def test_since_leaves_out_what_is_older(story):
    first = story.emit("r1", 1)
    story.start()
    decided(story, 1)
    story.sql("rewards", "DELETE FROM postrider.consumed")
    assert compare(story, check=1)[0]["lost"] == 1
    time.sleep(1.1)
    assert compare(story, "--since", "1s", check=0)[0]["published"] == 0
    assert compare(story, "--since", "2020-01-01T00:00:00Z", check=1)[0]["differences"][0]["event_id"] == first
    assert "--since takes a time or a duration" in story.run("reconcile", "--since", "soon", check=2).stderr
    assert "--limit takes a number" in story.run("reconcile", "--limit", "0", check=2).stderr


def test_what_was_before_the_dedupe_records_is_left_out(story):
    story.emit("r1", 1)
    story.start()
    decided(story, 1)
    story.sql("rewards", "DELETE FROM postrider.consumed; UPDATE postrider.consumer SET floor = now()")
    report, = compare(story, check=0)
    assert report["lost"] == 0 and report["since"]
    assert "are left out" in story.run("reconcile", check=0).stdout


def test_what_cannot_be_compared_is_told(story):
    assert 'no consumer "nobody"' in story.run("reconcile", "nobody", check=2).stderr
    text = story.config.read_text()
    story.config.write_text(text.replace("registrations: {database:", "registrations: {table: t, aggregate_type: r, database:"))
    done = story.run("reconcile", check=78)
    assert "reads table t: only postrider.outbox can be compared" in done.stderr and "hint: " in done.stderr
    story.config.write_text("\n".join(line for line in text.splitlines() if "registrations" not in line
                                      and line not in ("outboxes:", "relays:")))
    assert "no relay of this configuration feeds destination events" in story.run("reconcile", check=78).stderr


def test_the_running_process_compares_by_itself(story):
    with story.config.open("a") as file:
        file.write('http: {listen: "127.0.0.1:0"}\nreconcile: {every: 300ms}\n')
    ids = [story.emit("r1", v) for v in (1, 2)]
    process = story.start()
    port = port_of(process)
    decided(story, 2)
    wait_until(lambda: "reconcile.agrees" in process.log.read_text(), what="the first comparison")
    assert "ago: agrees" in story.run("status", check=0).stdout
    page = http(port, "/metrics")[1]
    assert 'postrider_reconcile_differences{consumer="rewards",kind="lost"} 0' in page
    story.sql("rewards", f"DELETE FROM postrider.consumed WHERE event_id = '{ids[0]}'")
    wait_until(lambda: 'differences{consumer="rewards",kind="lost"} 1' in http(port, "/metrics")[1], what="the metric")
    assert "reconcile.differs" in process.log.read_text() and ids[0] in process.log.read_text()
    wait_until(lambda: "ago: 1 lost, 0 foreign" in story.run("status").stdout, what="the status")
    assert "postrider reconcile rewards" in story.run("status", check=1).stdout
    age = [float(line.split()[1]) for line in http(port, "/metrics")[1].splitlines()
           if line.startswith("postrider_reconcile_age_seconds{")]
    assert len(age) == 1 and 0 <= age[0] < 5
    assert http(port, "/readyz")[0] == 200
    assert story.stop(process) == 0


def test_a_comparison_that_fails_holds_nobody_up(story):
    story.write_config(extra='reconcile: {every: 300ms}')
    story.config.write_text(story.config.read_text() + f"""checks:
  slow: {{left: {{database: "{story.dsns['shop']}", sql: "SELECT 1, pg_sleep(100)"}}, right: {{database: "{story.dsns['shop']}", sql: "SELECT 1, 2"}}}}
""")
    process = story.start()
    wait_until(lambda: story.value("shop", "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep' "
                                   "AND datname = current_database()") == 1, what="the slow check")
    story.emit("r1", 1)
    decided(story, 1)
    begun = time.monotonic()
    assert story.stop(process) == 0
    assert time.monotonic() - begun < 5 and "reconcile.failed" not in process.log.read_text()
