"""A consumer that is set back reads again, applies nothing twice, and says where it cannot know."""
import json
import signal
import time

import pytest

from conftest import old_day, wait_until
from system.test_consume import Topic, balance, consumed_up_to, event, outcomes, owners, parked, start
from system.test_consumer_repair import audit, entries, stream

WHO = ("--actor", "ann", "--reason", "OPS-9: the effects of Monday are missing")


@pytest.fixture
def topic(place):
    place.sql("rewards", "INSERT INTO reward_account VALUES ('p1'), ('p2')")
    return Topic(place)


def rewind(place, to, *args, check=None, who=WHO):
    return place.run("consumer", "rewind", "--consumer", "rewards", "--to", to, *who, *args, check=check)


def positions(place):
    return dict(place.sql("rewards", "SELECT part, next_off FROM postrider.consumer_partition ORDER BY part"))


def story(place, topic, streams=8, versions=3):
    topic.put(*[event(v, stream=f"r{n}", points=v) for v in range(1, versions + 1) for n in range(streams)])
    process = start(place)
    consumed_up_to(place, streams * versions)
    return process


def test_what_was_applied_is_a_duplicate_after_a_rewind(place, topic):
    process = story(place, topic)
    end = positions(place)
    place.stop(process)
    said = rewind(place, "earliest", "--dry-run", check=0).stdout
    assert "partition 0: 6 to 0, 6 messages would be read again" in said and positions(place) == end and audit(place) == []
    rewind(place, "earliest", "--ticket", "OPS-9", check=0)
    assert set(positions(place).values()) == {0}
    (act, who, _, ticket, before, after), = audit(place)
    assert (act, who, ticket) == ("consumer.rewind", "ann", "OPS-9")
    assert before["positions"] == {str(k): v for k, v in end.items()} and set(after["positions"].values()) == {0}
    start(place)
    wait_until(lambda: positions(place) == end, what="everything again")
    assert balance(place) == 8 * 6 and outcomes(place) == "A" * 24 and len(entries(place)) == 24


def test_a_lost_effect_does_not_come_back_by_rewinding_alone(place, topic):
    """The records say it was applied; --reset-streams is what applies again."""
    process = story(place, topic, streams=4)
    end = positions(place)
    place.stop(process)
    place.sql("rewards", "DELETE FROM reward_entry; DELETE FROM consumed_message; UPDATE reward_account SET balance = 0")
    said = rewind(place, "earliest", "--reset-streams", "--dry-run", check=0).stdout
    assert "streams and dedupe records would be forgotten: what is read again is applied again" in said
    assert outcomes(place) == "A" * 12
    rewind(place, "earliest", "--reset-streams", check=0)
    assert outcomes(place) == "" and place.value("rewards", "SELECT count(*) FROM postrider.stream") == 0
    start(place)
    wait_until(lambda: positions(place) == end, what="everything again")
    assert balance(place) == 4 * 6 and outcomes(place) == "A" * 12 and audit(place)[0][5]["reset"] is True


def test_a_running_process_is_fenced_and_goes_on_from_the_new_position(place, topic):
    process = story(place, topic)
    end = positions(place)
    wait_until(lambda: sum(n for _, n in owners(place)) == 4)
    done = json.loads(rewind(place, "earliest", "--json", check=0).stdout)
    assert done["done"] and all(p["owner"] and p["now"] == 0 for p in done["partitions"])
    wait_until(lambda: positions(place) == end and process.poll() is None, what="everything again")
    topic.put(event(4, stream="r0", points=4))
    wait_until(lambda: balance(place) == 8 * 6 + 4, what="what comes after")
    assert outcomes(place) == "A" * 25


def test_a_rewind_waits_for_the_transaction_under_way_and_fences_it_after(place, topic):
    place.sql("rewards", """CREATE FUNCTION slow(p text, n int) RETURNS void LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_sleep(n);
        UPDATE reward_account SET balance = balance + n WHERE player_id = p; END $$""")
    place.write_config(handler="SELECT slow(:payload.playerId, :payload.points)", lease="10s")
    place.config.write_text(place.config.read_text().replace("    handlers:", "    batch: 1\n    handlers:"))
    process = start(place)
    topic.put(*[event(v, points=2) for v in (1, 2, 3)])
    wait_until(lambda: place.value("rewards", "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep'"))
    begun = time.monotonic()
    rewind(place, "earliest", check=0)
    assert time.monotonic() - begun < 5
    wait_until(lambda: balance(place) == 6 and max(positions(place).values()) == 3, what="each once")
    assert outcomes(place) == "AAA" and process.poll() is None
    place.stop(process)


@pytest.mark.parametrize("failpoint", ["consumer.deduped", "consumer.applied", "consumer.committed"])
def test_killed_while_reading_again_nothing_is_applied_twice(place, topic, failpoint):
    process = story(place, topic, streams=4)
    end = positions(place)
    place.stop(process)
    topic.put(event(4, stream="r0", points=4))
    rewind(place, "earliest", check=0)
    assert start(place, failpoint=f"{failpoint}@1=kill").wait(30) == -signal.SIGKILL
    start(place)
    wait_until(lambda: sum(positions(place).values()) == sum(end.values()) + 1, what="everything again")
    assert balance(place) == 4 * 6 + 4 and outcomes(place) == "A" * 13


def test_a_zombie_cannot_write_after_a_rewind(place, topic):
    process = story(place, topic)
    wait_until(lambda: sum(n for _, n in owners(place)) == 4)
    process.send_signal(signal.SIGSTOP)
    rewind(place, "earliest", check=0)
    topic.put(*[event(4, stream=f"r{n}", points=4) for n in range(8)])
    process.send_signal(signal.SIGCONT)
    wait_until(lambda: balance(place) == 8 * 10, what="the rest")
    wait_until(lambda: sum(positions(place).values()) == 32, what="everything")
    assert outcomes(place) == "A" * 32


def test_offsets_and_times(place, topic):
    process = story(place, topic)
    place.stop(process)
    rewind(place, "0=2,3=5", check=0)
    assert positions(place) == {0: 2, 1: 6, 2: 6, 3: 5}
    middle = place.value("bus", "SELECT clock_timestamp()::text")
    topic.put(event(4, stream="r0", points=4))
    start(place)
    consumed_up_to(place, 25)
    assert "24 to" not in rewind(place, middle, check=0).stdout
    wait_until(lambda: sum(positions(place).values()) == 25, what="the last again")
    assert balance(place) == 8 * 6 + 4
    rows = audit(place)
    moved = {k: v for k, v in rows[1][5]["positions"].items() if v != rows[1][4]["positions"][k]}
    assert len(moved) == 1 and rows[1][4]["positions"][list(moved)[0]] - list(moved.values())[0] == 1


@pytest.mark.parametrize("to, code, told", [
    ("0=99", 1, "partition 0 holds offsets 0 to 6, not 99"), ("7=0", 1, "has no partition 7"), ("0=x", 2, "PART=OFFSET"),
    ("yesterdayish", 2, "--to takes earliest, PART=OFFSET"), (" ", 2, "needs --consumer NAME and --to")])
def test_a_position_that_cannot_be_is_told(place, topic, to, code, told):
    process = story(place, topic)
    place.stop(process)
    before = positions(place)
    assert told in rewind(place, to, check=code).stderr
    assert positions(place) == before and audit(place) == []


def test_going_forward_is_refused(place, topic):
    process = story(place, topic)
    place.stop(process)
    rewind(place, "earliest", check=0)
    assert "partition 0 is at offset 0, 3 would pass messages over" in rewind(place, "0=3", check=1).stderr
    for who in ((), ("--actor", "ann"), ("--actor", "ann", "--reason", " ")):
        assert "both go to the audit" in rewind(place, "earliest", who=who, check=2).stderr
    assert len(audit(place)) == 1


def test_below_the_dedupe_records_is_refused_with_the_arithmetic(place, topic):
    old = "01890a5d-ac96-7b7e-9d2a-000000000001"  # 2023-06-30
    topic.put(event(1, event_id=old), event(2))
    process = start(place)
    consumed_up_to(place, 2)
    place.stop(process)
    old_day(place, "consumed")
    assert "consumed_20230630: dropped" in place.run("prune", check=0).stdout
    said = rewind(place, "earliest", check=1).stderr
    assert "an id of 2023-06-30" in said and "records of ids before 2023-07-01 are gone" in said and "--reset-streams" in said
    part = [p for p, n in positions(place).items() if n == 2][0]
    assert audit(place) == []
    rewind(place, f"{part}=1", check=0)
    place.sql("rewards", "DELETE FROM consumed_message; DELETE FROM reward_entry; UPDATE reward_account SET balance = 0")
    assert "are not named" in rewind(place, f"{part}=0", "--reset-streams", check=1).stderr
    rewind(place, "earliest", "--reset-streams", check=0)
    start(place)
    consumed_up_to(place, 2)
    assert balance(place) == 20 and outcomes(place) == "AA"


def test_a_version_below_a_streams_base_is_stale_after_a_rewind(place, topic):
    place.config.write_text(place.config.read_text().replace("topic: registration}", "topic: registration, start: now}"))
    topic.put(event(1), event(2))
    start(place)
    wait_until(lambda: sum(n for _, n in owners(place)) == 4)
    topic.put(event(3, points=3))
    wait_until(lambda: balance(place) == 3)
    rewind(place, "earliest", check=0)
    wait_until(lambda: outcomes(place) == "ASS", what="what was never applied")
    assert parked(place) == [] and balance(place) == 3 and stream(place) == (3, 2, 0)
    topic.put(event(2, points=9))  # not read again, but late
    wait_until(lambda: parked(place) == [("dead", "late")], what="the late one")


def test_a_reset_does_not_lose_what_is_parked(place, topic):
    topic.put(event(1, player="p9"), event(2), event(1, stream="r2"))
    process = start(place)
    consumed_up_to(place, 3)
    place.stop(process)
    dead, = [row[0] for row in place.sql("rewards", "SELECT id FROM postrider.parked WHERE state = 'dead'")]
    at = positions(place)
    said = rewind(place, ",".join(f"{p}={n}" for p, n in at.items()), "--reset-streams", check=1).stderr
    assert f"2 parked events lie before these positions and would be lost: {dead}" in said and "hint: Replay or discard" in said
    rewind(place, "earliest", "--reset-streams", check=0)
    assert parked(place) == []
    place.sql("rewards", "INSERT INTO reward_account VALUES ('p9'); DELETE FROM consumed_message; DELETE FROM reward_entry")
    start(place)
    wait_until(lambda: outcomes(place) == "AAA", what="all of it")
    assert stream(place) == (2, 0, 0)


def test_a_discarded_event_can_fail_again_after_a_reset(place, topic):
    topic.put(event(1, points=-1), event(2))
    process = start(place)
    consumed_up_to(place, 2)
    dead = place.value("rewards", "SELECT id FROM postrider.parked WHERE state = 'dead'")
    place.run("dlq", "discard", str(dead), "--consumer", "rewards", *WHO, check=0)
    wait_until(lambda: outcomes(place) == "AX")
    place.stop(process)
    rewind(place, "earliest", "--reset-streams", check=0)
    place.sql("rewards", "DELETE FROM consumed_message; DELETE FROM reward_entry")
    start(place)
    wait_until(lambda: parked(place, "state") == [("dead",), ("waiting",)], what="the dead letter anew")


def test_overtaken_by_retention_it_goes_on_where_the_log_begins(place, topic):
    process = story(place, topic, streams=4, versions=1)
    place.stop(process)
    topic.put(*[event(2, stream=f"r{n}") for n in range(4)], *[event(3, stream=f"r{n}", prev=1) for n in range(4)])
    place.sql("bus", "DELETE FROM postrider.log WHERE off < 2; UPDATE postrider.log_head SET first_off = 2 WHERE next_off > 0")
    said = rewind(place, "earliest", check=0).stdout
    assert "1 messages that the log has dropped are passed over" in said
    start(place)
    wait_until(lambda: sum(positions(place).values()) == 12, what="the rest")
    assert outcomes(place) == "A" * 8 and parked(place) == []


def test_a_log_that_went_back_is_read_from_its_beginning(place, topic):
    process = story(place, topic, streams=4)
    place.stop(process)
    place.sql("bus", "DELETE FROM postrider.log WHERE off > 0; UPDATE postrider.log_head SET next_off = 1 WHERE next_off > 0")
    rewind(place, "earliest", check=0)
    topic.put(*[event(4, stream=f"r{n}", points=4) for n in range(4)])
    start(place)
    wait_until(lambda: balance(place) == 4 * 10, what="what is new")
    assert outcomes(place) == "A" * 16


def test_list_tells_positions_and_processes(place, topic):
    assert "consumer.refused" in rewind(place, "earliest", "--json", check=1).stderr
    story(place, topic)
    row, = json.loads(place.run("consumer", "list", "--json", check=0).stdout)
    assert (row["consumer"], row["topic"], row["remembers_from"]) == ("rewards", "registration", None)
    assert [(p["position"], p["log_first"], p["log_next"]) for p in row["partitions"]] == [(6, 0, 6)] * 4
    assert all(":" in p["owner"] for p in row["partitions"])
    text = place.run("consumer", "list", "--consumer", "rewards", check=0).stdout
    assert "partition 0    at 6, 0 behind, the log holds 0 to 6" in text and "remembers    every event" in text


def test_only_an_operator_may(place, topic):
    process = story(place, topic)
    place.stop(process)
    text = place.config.read_text()
    logins = {role: f"{role}_{place.names['rewards']}" for role in ("operator", "consumer")}
    for role, login in logins.items():
        place.sql("rewards", f"CREATE ROLE {login} LOGIN")
        for database in ("rewards", "bus"):
            place.sql(database, f"GRANT postrider_{role} TO {login}")
    place.config.write_text(text.replace("postgres@", f"{logins['consumer']}@"))
    assert rewind(place, "earliest").returncode == 77
    place.config.write_text(text.replace("postgres@", f"{logins['operator']}@"))
    rewind(place, "earliest", check=0)
    rewind(place, "earliest", "--reset-streams", check=0)
    assert place.run("consumer", "list", check=0).stdout and place.run("gaps", "list", "--consumer", "rewards", check=0).stdout
    for login in logins.values():
        for database in ("bus", "rewards"):
            place.sql(database, f"DROP OWNED BY {login}")
        place.sql("rewards", f"DROP ROLE {login}")
