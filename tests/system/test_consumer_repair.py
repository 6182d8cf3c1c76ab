"""What an operator does about a consumer's dead letters: replay and discard, once, in order, recorded."""
import json
import signal
import threading
import uuid

import pytest

from conftest import wait_until
from system.test_consume import Topic, balance, consumed_up_to, event, outcomes, parked, start

WHO = ("--actor", "ann", "--reason", "OPS-12: account made", "--ticket", "OPS-12")
MINE = ("--consumer", "rewards")


@pytest.fixture
def topic(place):
    place.sql("rewards", "INSERT INTO reward_account VALUES ('p1'), ('p2')")
    return Topic(place)


def ask(place, request, *ids, check=None, who=WHO):
    return place.run("dlq", request, *map(str, ids), *MINE, *who, check=check)


def ids(place, condition="state = 'dead'"):
    return [row[0] for row in place.sql("rewards", f"SELECT id FROM postrider.parked WHERE {condition} ORDER BY id")]


def audit(place):
    assert place.value("rewards", "SELECT postrider.audit_check()") is None
    return place.sql("rewards", "SELECT act, given_name, reason, ticket, before, after FROM postrider.audit ORDER BY n")


def stream(place, name="r1"):
    return place.sql("rewards", "SELECT version, base, parked FROM postrider.stream WHERE aggregate_id = %s", (name,))[0]


def entries(place, player="p1"):
    return [row[0] for row in place.sql("rewards", "SELECT delta FROM reward_entry WHERE player_id = %s ORDER BY n", (player,))]


def test_a_replay_applies_the_event_and_what_waits_behind_it(place, topic):
    topic.put(*[event(v, player="p9", points=v) for v in (1, 2, 3)], event(1, stream="r2"))
    start(place)
    consumed_up_to(place, 4)
    dead, = ids(place)
    said = ask(place, "replay", dead, "--dry-run", check=0).stdout
    assert f"would replay {dead}" in said and "stream at version 0, if all goes well to 3, 2 parked events follow" in said
    assert audit(place) == [] and parked(place)[0][0] == "dead"
    place.sql("rewards", "INSERT INTO reward_account VALUES ('p9')")
    done = json.loads(ask(place, "replay", dead, "--json", check=0).stdout)
    assert [(d["id"], d["stream_then"], d["follow"], d["stops"], d["done"]) for d in done] == [(dead, 3, 2, None, True)]
    wait_until(lambda: outcomes(place) == "AAAA", what="the stream to be applied")
    assert entries(place, "p9") == [1, 2, 3] and parked(place) == [] and stream(place) == (3, 0, 0)
    (act, who, reason, ticket, before, after), = audit(place)
    assert (act, who, reason, ticket) == ("consumer.replay", "ann", "OPS-12: account made", "OPS-12")
    assert before["id"] == dead and before["state"] == "dead" and before["class"] == "permanent" and after == {"state": "retry"}


def test_a_discard_moves_the_stream_past_the_event(place, topic):
    bad = event(2, points=-5)
    topic.put(event(1, points=1), bad, event(3, points=3), event(4, points=4))
    start(place)
    consumed_up_to(place, 4)
    dead, = ids(place)
    assert "stream at version 1, then to 4, 2 parked events follow" in ask(place, "discard", dead, "--dry-run", check=0).stdout
    ask(place, "discard", dead, check=0)
    wait_until(lambda: outcomes(place) == "AAAX", what="what waited")
    assert entries(place) == [1, 3, 4] and stream(place) == (4, 0, 0)
    assert parked(place, "state, holds, request, request_by, request_reason") == [
        ("discarded", False, "discard", "ann", "OPS-12: account made")]
    topic.put(bad, event(5, points=5))
    consumed_up_to(place, 6)
    assert entries(place) == [1, 3, 4, 5] and outcomes(place) == "AAAAX"
    assert "discarded by ann" in ask(place, "replay", dead, check=1).stderr


def dead_letter(place, topic, *more):
    """r1: version 1 applied, 2 dead, 3 waiting; returns the dead one's number."""
    topic.put(event(1, points=1), event(2, points=2, player="p9"), event(3, points=3), *more)
    start(place)
    consumed_up_to(place, 3 + len(more))
    return ids(place)[0]


def make_account(place, player="p9"):
    place.sql("rewards", f"INSERT INTO reward_account VALUES ('{player}')")


def test_every_wrong_number_is_named_and_nothing_is_done(place, topic):
    dead = dead_letter(place, topic)
    waiting, = ids(place, "state = 'waiting'")
    relays = place.value("rewards", "INSERT INTO postrider.parked (side, reader, state, event_id, class) "
                         "VALUES ('relay', 7, 'dead', gen_random_uuid(), 'permanent') RETURNING id")
    other = place.value("rewards", "WITH c AS (INSERT INTO postrider.consumer (name) VALUES ('other') RETURNING consumer) INSERT "
                        "INTO postrider.parked (side, reader, state, event_id, class) "
                        "SELECT 'consumer', consumer, 'dead', gen_random_uuid(), 'permanent' FROM c RETURNING id")
    before = parked(place, "id, state, tries")
    for request in ("replay", "discard"):
        said = ask(place, request, dead, 4711, waiting, relays, other, check=1).stderr
        for words in ("4711 is not parked here", f"{waiting} is no dead letter but waits behind another",
                      f"{relays} is parked by relay", f"{other} is parked by consumer other", "nothing was done",
                      "hint: postrider dlq list --all --consumer rewards"):
            assert words in said
        assert f": {dead} is" not in said and f"; {dead} is" not in said
    assert parked(place, "id, state, tries") == before and audit(place) == []
    assert json.loads(ask(place, "replay", 4711, "--json", check=1).stderr)["code"] == "dlq.refused"


@pytest.mark.parametrize("args, told", [
    (["1"], "--actor NAME and --reason TEXT"),
    (["1", "--actor", "ann", "--reason", " "], "--actor NAME and --reason TEXT"),
    (["--actor", "ann", "--reason", "x"], "IDs, or --all"),
    (["1", "--all", "--actor", "ann", "--reason", "x"], "IDs, or --all"),
    (["1", "--type", "E", "--actor", "ann", "--reason", "x"], "go with --all"),
    (["one", "--actor", "ann", "--reason", "x"], "is no ID"),
    (["1", "--relay", "registrations-to-events", "--actor", "ann", "--reason", "x"], "--relay NAME or --consumer NAME"),
])
def test_a_wrong_command_line_is_told(place, args, told):
    assert told in place.run("dlq", "replay", *args, *MINE, check=2).stderr


def test_F50_two_operators_at_once_have_one_effect(place, topic):
    topic.put(*[event(1, stream=f"r{n}", player="p9", points=1) for n in range(40)])
    start(place)
    consumed_up_to(place, 40)
    make_account(place)
    numbers, done = ids(place), []
    both = [threading.Thread(target=lambda who: done.append(ask(place, "replay", *numbers, who=("--actor", who, "--reason", "x"))),
                             args=(who,)) for who in ("ann", "bob")]
    for thread in both:
        thread.start()
    for thread in both:
        thread.join()
    assert sorted(d.returncode for d in done) == [0, 1]
    loser = next(d.stderr for d in done if d.returncode)
    winner, = {row[1] for row in audit(place)}
    assert f"by {winner}" in loser and "nothing was done" in loser
    wait_until(lambda: outcomes(place) == "A" * 40, what="the replay")
    assert balance(place, "p9") == 40 and len(audit(place)) == 40
    # The same again, when all is done: it is told who was first.
    assert f"is not parked here: replay by {winner}" in ask(place, "replay", numbers[0], check=1).stderr
    assert len(audit(place)) == 40


def slow(place):
    """The handler works as long as the table `gate` says."""
    place.sql("rewards", """CREATE TABLE gate (seconds float8); INSERT INTO gate VALUES (0);
        CREATE FUNCTION slow(c text, e uuid, p text, n int) RETURNS boolean LANGUAGE plpgsql AS $$ BEGIN
            PERFORM pg_sleep(seconds) FROM gate; RETURN apply_reward_event(c, e, p, n); END $$""")
    place.write_config(handler="SELECT slow(:consumer, :event_id, :payload.playerId, :payload.points)", lease="10s")


def busy(place):
    return place.value("rewards", "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep' AND datname = current_database()")


def test_F65_what_a_worker_is_at_is_not_taken_from_it(place, topic):
    slow(place)
    dead = dead_letter(place, topic, event(2, points=9))  # and a conflict of the same stream
    conflict, = ids(place, "class = 'conflict' OR version = 2 AND state = 'waiting'")
    make_account(place)
    place.sql("rewards", "UPDATE gate SET seconds = 8")
    ask(place, "replay", dead, check=0)
    wait_until(lambda: busy(place), what="the handler")
    for request in ("replay", "discard"):
        said = ask(place, request, dead, check=1).stderr
        assert f"{dead} is no dead letter but is tried by itself" in said and "replayed by ann" in said
    place.sql("rewards", "UPDATE gate SET seconds = 0")
    wait_until(lambda: outcomes(place)[:3] == "AAA", what="the replay")
    assert entries(place) + entries(place, "p9") == [1, 3, 2]
    wait_until(lambda: parked(place, "id, state, class") == [(conflict, "dead", "conflict")], what="the twin")
    assert [row[0] for row in audit(place)] == ["consumer.replay"]


def test_a_stream_that_is_held_for_long_is_waited_for_5_seconds(place, topic):
    dead = dead_letter(place, topic)
    import psycopg2
    with psycopg2.connect(place.dsns["rewards"]) as db:
        db.cursor().execute("SELECT FROM postrider.stream FOR UPDATE")
        said = ask(place, "replay", dead, check=1).stderr
    db.close()
    assert "at work on what this is about" in said and "nothing was done" in said and audit(place) == []
    assert ids(place) == [dead]


@pytest.mark.parametrize("failpoint", ["consumer.applied", "consumer.committed", "consumer.parked"])
def test_killed_in_a_replay_it_has_one_effect(place, topic, failpoint):
    dead = dead_letter(place, topic)
    place.stop(place.processes[-1])
    if failpoint != "consumer.parked":
        make_account(place)
    ask(place, "replay", dead, check=0)
    assert start(place, failpoint=f"{failpoint}@1=kill").wait(30) == -signal.SIGKILL
    if failpoint == "consumer.parked":  # it failed again, and that is recorded
        assert parked(place, "state, tries") == [("dead", 1), ("waiting", 0)]
        assert place.value("rewards", "SELECT count(*) FROM postrider.attempt") == 2
        make_account(place)
        ask(place, "replay", dead, check=0)
    start(place)
    wait_until(lambda: outcomes(place) == "AAA", what="the stream")
    assert (entries(place), entries(place, "p9"), parked(place), stream(place)) == ([1, 3], [2], [], (3, 0, 0))


def test_F104_a_replay_has_all_tries_before_it_and_keeps_the_history(place, topic):
    place.sql("rewards", "CREATE FUNCTION odd() RETURNS void LANGUAGE plpgsql AS $$ BEGIN RAISE 'odd' USING ERRCODE = 'XX000'; END $$")
    place.write_config(handler="SELECT odd(), :payload.points::int")
    topic.put(event(1))
    start(place)

    def hurry_until_dead():
        place.sql("rewards", "UPDATE postrider.parked SET due_at = now() WHERE state = 'retry' AND due_at < now() + interval '0.9 s'")
        return ids(place)

    number, = wait_until(hurry_until_dead, what="the last try")
    assert parked(place, "state, tries, class") == [("dead", 5, "unknown")]
    ask(place, "replay", number, check=0)
    wait_until(hurry_until_dead, what="the last try once more")
    assert parked(place, "state, tries, class") == [("dead", 5, "unknown")]
    assert place.value("rewards", "SELECT count(*) FROM postrider.attempt") == 10


def test_an_unhandled_type_is_applied_once_somebody_handles_it(place, topic):
    topic.put(event(1, points=1), event(2, kind="Upgraded", points=2), event(3, points=3))
    process = start(place)
    consumed_up_to(place, 3)
    number, = ids(place)
    ask(place, "replay", number, check=0)
    wait_until(lambda: parked(place, "state, class, tries") == [("dead", "unhandled", 0), ("waiting", "waiting", 0)], what="the look")
    place.stop(process)
    text = place.config.read_text()
    line = next(row for row in text.splitlines() if "RegistrationConfirmed:" in row)
    place.config.write_text(text.replace(line, line + "\n" + line.replace("RegistrationConfirmed", "Upgraded")))
    start(place)
    ask(place, "replay", number, check=0)
    wait_until(lambda: outcomes(place) == "AAA", what="the stream")
    assert entries(place) == [1, 2, 3]


def test_a_conflict_can_only_be_discarded(place, topic):
    first = event(1, points=1)
    topic.put(first, event(1, points=2, event_id=first["id"]), event(1, points=3), event(2, points=4))
    start(place)
    consumed_up_to(place, 4)
    same_id, same_version = ids(place)
    said = ask(place, "replay", same_id, same_version, check=1).stderr
    assert f"{same_id} is a conflict" in said and f"{same_version} is a conflict" in said and "only be discarded" in said
    assert "2 left alone" in ask(place, "replay", "--all", check=0).stdout and audit(place) == []
    ask(place, "discard", same_id, same_version, check=0)
    assert parked(place, "state, holds") == [("discarded", False)] * 2
    assert outcomes(place) == "AAX" and stream(place) == (2, 0, 0)  # the first event's own record is as it was


def test_a_late_event_can_only_be_discarded(place, topic):
    topic.put(event(5), event(3), event(6))
    start(place)
    consumed_up_to(place, 3)
    number, = ids(place)
    assert f"{number} is late: its stream is at version 6 and has passed version 3" in ask(place, "replay", number, check=1).stderr
    ask(place, "discard", number, check=0)
    assert outcomes(place) == "AAX" and stream(place) == (6, 4, 0)


def test_without_an_order_an_old_event_is_applied_on_the_operators_word(place, topic):
    place.write_config(order="none")
    place.sql("rewards", "UPDATE postrider.consumer SET floor = '2026-11-01 00:00+00'")
    topic.put(event(1, event_id="01890a5d-ac96-7b7e-9d2a-000000000001"))
    start(place)
    consumed_up_to(place, 1)
    assert parked(place) == [("dead", "late")]
    ask(place, "replay", *ids(place), check=0)
    wait_until(lambda: outcomes(place) == "A" and parked(place) == [], what="the replay")
    assert balance(place) == 10


def mend_headers(place, number, good):
    """What a later decoder, or a person, makes of a message: it carries what an event needs."""
    place.sql("rewards", "UPDATE postrider.parked SET header_names = %s, header_values = %s, body = %s WHERE id = %s",
              ([n for n, _ in good["headers"]], [v for _, v in good["headers"]], good["body"], number))


def test_a_foreign_message_is_read_anew(place, topic):
    topic.put(event(1, points=1))
    topic.raw([], event_id=None)
    topic.put(event(3, points=3))
    start(place)
    consumed_up_to(place, 3)
    number, = ids(place)
    assert "a message without an event" in ask(place, "replay", number, check=0).stdout
    wait_until(lambda: parked(place, "state, class, tries") == [("dead", "foreign", 0), ("waiting", "gap", 0)], what="the look")
    mend_headers(place, number, event(2, points=2))
    ask(place, "replay", number, check=0)
    wait_until(lambda: outcomes(place) == "AAA", what="the stream")
    assert entries(place) == [1, 2, 3] and parked(place) == [] and stream(place) == (3, 0, 0)


@pytest.mark.parametrize("change, state, end", [
    ({}, [], "A"),                                                       # a copy of what was applied
    ({"points": 7}, [("dead", "conflict", False)], "A"),                 # its id, other content
    ({"event_id": str(uuid.UUID(int=4)), "points": -1, "version": 2}, [("dead", "permanent", True)], "AD"),
    ({"event_id": str(uuid.UUID(int=5)), "version": 9}, [("waiting", "gap", True)], "AP"),
])
def test_a_foreign_message_that_became_an_event_passes_dedupe_and_order(place, topic, change, state, end):
    first = event(1, points=1)
    topic.put(first)
    topic.raw([], event_id=None)
    start(place)
    consumed_up_to(place, 2)
    number, = ids(place)
    mend_headers(place, number, event(change.pop("version", 1), **{"points": 1, "event_id": first["id"], **change}))
    ask(place, "replay", number, check=0)
    wait_until(lambda: parked(place, "state, class, holds") == state, what="the decision")
    assert outcomes(place) == end and entries(place) == [1]
    assert stream(place) == (1, 0, len([held for _, _, held in state if held]))


def test_a_discard_before_its_turn_waits_for_it(place, topic):
    topic.put(event(3, points=3, prev=0), event(6, points=-6, prev=3), event(5, points=-5, prev=3), event(7, points=7))
    start(place)
    consumed_up_to(place, 4)
    (six, _), (five, _) = parked(place, "id, version")[:2]
    assert parked(place, "version, state") == [(6, "dead"), (5, "dead"), (7, "waiting")]
    said = ask(place, "discard", six, check=0).stdout
    assert "stream at version 3, then to 3, 0 parked events follow" in said and f"version 5 is a dead letter ({five})" in said
    assert parked(place, "version, state, holds") == [(6, "discarded", True), (5, "dead", True), (7, "waiting", True)]
    assert stream(place)[0] == 3
    assert "then to 7, 1 parked events follow" in ask(place, "discard", five, "--dry-run", check=0).stdout
    ask(place, "discard", five, check=0)
    wait_until(lambda: entries(place) == [3, 7], what="the rest of the stream")
    assert outcomes(place) == "AAXX" and stream(place) == (7, 5, 0)
    assert parked(place, "version, state, holds") == [(6, "discarded", False), (5, "discarded", False)]


def test_a_discard_before_its_turn_is_passed_over_when_the_log_brings_the_turn(place, topic):
    topic.put(event(3, points=3, prev=0), event(6, points=-6, prev=3), event(5, points=5, prev=3, player="p9"))
    start(place)
    consumed_up_to(place, 3)
    six, five = [row[0] for row in parked(place, "id")]
    ask(place, "discard", six, check=0)
    topic.put(event(7, points=7))
    consumed_up_to(place, 4)
    make_account(place)
    ask(place, "replay", five, check=0)
    wait_until(lambda: entries(place) == [3, 7] and entries(place, "p9") == [5], what="the rest of the stream")
    assert stream(place) == (7, 5, 0) and outcomes(place) == "AAAX"


def test_of_two_with_one_version_the_other_takes_the_place(place, topic):
    topic.put(event(1, points=1), event(2, points=2, player="p9"), event(2, points=5), event(3, points=3))
    start(place)
    consumed_up_to(place, 4)
    number, = ids(place)
    ask(place, "discard", number, check=0)
    wait_until(lambda: entries(place) == [1, 5, 3], what="the twin and the rest")
    assert outcomes(place) == "AAAX" and stream(place) == (3, 0, 0)


def test_filters_choose_of_all(place, topic):
    topic.put(event(1, stream="a", player="p9"), event(1, stream="b", kind="Strange"), event(1, stream="c", points=-1),
              event(1, stream="d", kind="Strange"))
    start(place)
    consumed_up_to(place, 4)

    def chosen(*args):
        return [row["aggregate_id"] for row in json.loads(ask(place, "discard", "--all", *args, "--dry-run", "--json", check=0).stdout)]

    assert sorted(chosen()) == ["a", "b", "c", "d"]
    assert sorted(chosen("--type", "Strange")) == ["b", "d"]
    assert sorted(chosen("--class", "permanent")) == ["a", "c"]
    assert chosen("--class", "unhandled", "--aggregate", "registration:d") == ["d"]
    assert chosen("--before", "2020-01-01T00:00:00Z") == [] and len(chosen("--before", "2120-01-01T00:00:00Z")) == 4
    assert ask(place, "discard", "--all", "--type", "None", check=0).stdout == "no dead letters\n" and audit(place) == []
    ask(place, "discard", "--all", "--class", "unhandled", check=0)
    assert outcomes(place) == "DDXX" and len(audit(place)) == 2
    assert "no dead letters" not in place.run("dlq", "list", *MINE, "--state", "discarded", check=0).stdout
    assert place.value("rewards", "SELECT count(*) FROM postrider.stream WHERE version = 1") == 2


@pytest.mark.parametrize("order, after", [("latest", (5, "AS")), ("none", (5 + 3, "AA"))])
def test_in_other_orders_a_replay_is_decided_anew(place, topic, order, after):
    place.write_config(order=order)
    topic.put(event(1, points=3, player="p9"), event(2, points=5, player="p2"))
    start(place)
    consumed_up_to(place, 2)
    make_account(place)
    ask(place, "replay", *ids(place), check=0)
    wait_until(lambda: parked(place) == [], what="the replay")
    assert (balance(place, "p2") + balance(place, "p9"), outcomes(place)) == after


def test_only_an_operator_may(place, topic):
    dead = dead_letter(place, topic)
    logins = {role: f"{role}_{place.names['rewards']}" for role in ("operator", "consumer")}
    text = place.config.read_text()
    for role, login in logins.items():
        place.sql("rewards", f"CREATE ROLE {login} LOGIN; GRANT postrider_{role} TO {login}")
    place.config.write_text(text.replace("postgres@", f"{logins['consumer']}@"))
    assert ask(place, "discard", dead).returncode == 77
    place.config.write_text(text.replace("postgres@", f"{logins['operator']}@"))
    ask(place, "discard", "--all", check=0)
    assert place.value("rewards", "SELECT role FROM postrider.audit") == logins["operator"]
    for login in logins.values():
        place.sql("rewards", f"DROP OWNED BY {login}; DROP ROLE {login}")
