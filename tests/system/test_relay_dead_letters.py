"""Events that their destination refuses: each hurts its own stream only, and is mended in order."""
import json

import pytest

from conftest import http, port_of, published, states, wait_until

REFUSE = """ALTER TABLE postrider.log ADD CONSTRAINT not_this
    CHECK (position('evil'::bytea IN body) = 0 AND position('evil' IN topic) = 0)"""


def emit(place, aggregate, version, payload="{}", aggregate_type="registration", event_type="E"):
    return place.sql("shop", "SELECT postrider.emit(%s, %s, %s, %s, %s)::text",
                     (aggregate_type, aggregate, version, event_type, payload))[0][0]


def parked(place):
    return place.sql("shop", "SELECT event_id::text, state FROM postrider.parked WHERE side = 'relay' ORDER BY pos")


def ask(place, event_id, request, by="ann", reason="mended"):
    parked_id = place.sql("shop", "SELECT id FROM postrider.parked WHERE event_id = %s", (event_id,))[0][0]
    place.run("dlq", request, str(parked_id), "--relay", "registrations-to-events", "--actor", by, "--reason", reason, check=0)


def header(place, event_id, name):
    rows = place.sql("bus", "SELECT header_names, header_values FROM postrider.log WHERE event_id = %s", (event_id,))
    names, values = rows[0]
    return bytes(values[names.index(name)]).decode() if name in names else None


@pytest.fixture
def refusing(place):
    place.sql("bus", REFUSE)
    return place


def test_F11_a_refused_event_holds_its_own_stream_only(refusing):
    place = refusing
    before = [emit(place, f"a{n}", 1) for n in range(20)]
    evil = emit(place, "bad", 1, '{"x": "evil"}')
    behind = emit(place, "bad", 2)
    after = [emit(place, f"a{n}", 2) for n in range(20)]
    process = place.start("--only", "relays")
    wait_until(lambda: set(published(place)) == set(before + after), what="all other streams")
    wait_until(lambda: parked(place) == [(evil, "dead"), (behind, "waiting")], what="the dead letter")
    later = emit(place, "bad", 3)
    good = emit(place, "a0", 3)
    wait_until(lambda: good in published(place), what="an event after it")
    wait_until(lambda: parked(place) == [(evil, "dead"), (behind, "waiting"), (later, "waiting")], what="the rest")
    assert states(place)[evil] == "DEAD" and states(place)[later] == "PARKED"
    row = place.sql("shop", "SELECT class, code, owner, tries, body, message, topic FROM postrider.parked WHERE event_id = %s",
                    (evil,))[0]
    assert row[:4] == ("permanent", "23514", "registrations-to-events", 1) and bytes(row[4]) == b'{"x": "evil"}'
    assert "not_this" in row[5] and row[6] == "registration"
    assert place.sql("shop", "SELECT class, sqlstate FROM postrider.attempt") == [("permanent", "23514")]
    # Each message is there once: a refusal of many is resent, what was stored is not.
    assert len(published(place)) == len(set(published(place))) == 41
    assert place.stop(process) == 0


def test_a_replay_publishes_the_stream_in_order(refusing):
    place = refusing
    place.start("--only", "relays")
    evil = emit(place, "bad", 1, '{"x": "evil"}')
    rest = [emit(place, "bad", version) for version in range(2, 250)]
    emit(place, "other", 1)
    wait_until(lambda: len(parked(place)) == 249, what="the stream to be parked")
    ask(place, evil, "replay")
    wait_until(lambda: place.sql("shop", "SELECT tries FROM postrider.parked WHERE event_id = %s AND request IS NULL",
                                 (evil,)) == [(2,)], what="the second refusal")
    assert place.sql("shop", "SELECT count(*) FROM postrider.attempt") == [(2,)]
    place.sql("bus", "ALTER TABLE postrider.log DROP CONSTRAINT not_this")
    ask(place, evil, "replay")
    wait_until(lambda: parked(place) == [], what="the stream to be published")
    assert [i for i in published(place) if i in {evil, *rest}] == [evil, *rest]
    last = emit(place, "bad", 250)
    wait_until(lambda: published(place)[-1] == last, what="the stream to go on")
    assert set(states(place).values()) == {"PUBLISHED"}


def test_a_discard_closes_the_gap_it_leaves(refusing):
    place = refusing
    place.start("--only", "relays")
    first = emit(place, "bad", 1)
    wait_until(lambda: published(place) == [first], what="the first")
    evil = emit(place, "bad", 2, '{"x": "evil"}')
    third, fourth = emit(place, "bad", 3), emit(place, "bad", 4)
    wait_until(lambda: len(parked(place)) == 3, what="the stream to be parked")
    ask(place, evil, "discard", reason="test booking")
    wait_until(lambda: published(place) == [first, third, fourth], what="what waited")
    assert header(place, third, "postrider-prev") == "1"
    assert header(place, fourth, "postrider-prev") in (None, "3")
    assert parked(place) == [(evil, "discarded")]
    assert place.sql("shop", "SELECT request_by, request_reason FROM postrider.parked") == [("ann", "test booking")]
    assert states(place)[evil] == "DEAD"


def test_a_discard_with_nothing_behind_it_is_told_by_the_next_event(refusing):
    place = refusing
    process = place.start("--only", "relays")
    emit(place, "bad", 1)
    evil = emit(place, "bad", 2, '{"x": "evil"}')
    wait_until(lambda: parked(place) == [(evil, "dead")], what="the dead letter")
    ask(place, evil, "discard")
    wait_until(lambda: parked(place) == [(evil, "discarded")], what="the discard")
    assert place.stop(process) == 0
    place.start("--only", "relays")  # another process has to know it, too
    third = emit(place, "bad", 3)
    wait_until(lambda: third in published(place), what="the next event")
    assert header(place, third, "postrider-prev") == "1"
    wait_until(lambda: place.sql("shop", "SELECT holds FROM postrider.parked") == [(False,)], what="the end of it")
    fourth = emit(place, "bad", 4)
    wait_until(lambda: fourth in published(place), what="the one after")
    assert header(place, fourth, "postrider-prev") is None


def test_a_new_owner_knows_what_is_parked(refusing):
    place = refusing
    process = place.start("--only", "relays")
    evil = emit(place, "bad", 1, '{"x": "evil"}')
    wait_until(lambda: parked(place) == [(evil, "dead")], what="the dead letter")
    process.kill()
    process.wait()
    place.start("--only", "relays")
    behind, good = emit(place, "bad", 2), emit(place, "good", 1)
    wait_until(lambda: published(place) == [good], what="the other stream")
    wait_until(lambda: parked(place) == [(evil, "dead"), (behind, "waiting")], what="the one behind")


@pytest.mark.parametrize("failpoint", ["relay.parked", "relay.acked", "relay.advanced", "relay.mended"])
def test_a_kill_while_parking_or_mending_loses_nothing(refusing, failpoint):
    place = refusing
    evil = emit(place, "bad", 1, '{"x": "evil"}')
    behind = emit(place, "bad", 2)
    good = [emit(place, f"a{n}", 1) for n in range(5)]
    first = place.start("--only", "relays", failpoint=f"{failpoint}@1=kill")
    if failpoint == "relay.mended":
        wait_until(lambda: len(parked(place)) == 2, what="the dead letter")
        place.sql("bus", "ALTER TABLE postrider.log DROP CONSTRAINT not_this")
        ask(place, evil, "replay")
    if failpoint == "relay.advanced":  # the end of a small window, which the first never is
        wait_until(lambda: len(parked(place)) == 2, what="the dead letter")
        good.append(emit(place, "later", 1))
    first.wait(timeout=20)
    place.start("--only", "relays")
    if failpoint != "relay.mended":
        wait_until(lambda: parked(place) == [(evil, "dead"), (behind, "waiting")], what="the dead letter")
        place.sql("bus", "ALTER TABLE postrider.log DROP CONSTRAINT not_this")
        ask(place, evil, "replay")
    wait_until(lambda: parked(place) == [] and set(published(place)) == {evil, behind, *good}, what="everything")
    order = published(place)
    assert order.index(evil) < order.index(behind)
    assert set(states(place).values()) == {"PUBLISHED"}


def test_a_destination_that_refuses_everything_charges_nobody(place):
    place.sql("bus", "ALTER TABLE postrider.log ADD CONSTRAINT nothing CHECK (false)")
    place.write_config(extra='http: {listen: "127.0.0.1:0"}')
    ids = [emit(place, f"a{n}", 1) for n in range(12)]
    process = place.start("--only", "relays")
    port = port_of(process)
    wait_until(lambda: "refuses every event" in json.dumps(http(port, "/readyz")), what="the reason in /readyz")
    assert parked(place) == []
    place.sql("bus", "ALTER TABLE postrider.log DROP CONSTRAINT nothing")
    wait_until(lambda: set(published(place)) == set(ids), what="all events")
    assert parked(place) == [] and len(published(place)) == 12


def test_events_refused_one_after_the_other_do_not_hide_a_good_one(place):
    """What seems to refuse everything may be bad events alone: one that comes later and is taken proves it."""
    place.sql("bus", "ALTER TABLE postrider.log ADD CONSTRAINT no_evil CHECK (position('evil' in encode(body, 'escape')) = 0)")
    place.write_config(extra='http: {listen: "127.0.0.1:0"}')
    evil = [emit(place, f"a{n}", 1, '{"evil": 1}') for n in range(8)]
    process = place.start("--only", "relays")
    port = port_of(process)
    wait_until(lambda: "refuses every event" in json.dumps(http(port, "/readyz")), what="the reason in /readyz")
    good = emit(place, "b", 1)
    wait_until(lambda: published(place) == [good], timeout=30, what="the good one")
    wait_until(lambda: {row[0] for row in parked(place)} == set(evil), what="the dead letters")


def test_an_impossible_topic_is_the_events_fault(place):
    name = "".join(chr(97 + (n * 7919 + n * n) % 26) for n in range(250))
    place.sql("bus", """CREATE FUNCTION no_evil() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
        IF length(NEW.topic) > 200 THEN RAISE program_limit_exceeded USING MESSAGE = 'topic name too long'; END IF;
        RETURN NEW; END $$; CREATE TRIGGER no_evil BEFORE INSERT ON postrider.log_topic
        FOR EACH ROW EXECUTE FUNCTION no_evil()""")
    place.sql("shop", "INSERT INTO postrider.outbox (aggregate_type, aggregate_id, aggregate_version, event_type, payload) "
              "VALUES (%s, 'x', 1, 'E', '{}'), (%s, 'x', 2, 'E', '{}')", (name, name))
    good = emit(place, "a", 1)
    place.start("--only", "relays")
    wait_until(lambda: published(place) == [good], what="the good event")
    wait_until(lambda: [state for _, state in parked(place)] == ["dead", "waiting"], what="the dead letter")


def test_what_a_big_window_refuses_is_parked_with_its_part(refusing):
    place = refusing
    place.sql("shop", """INSERT INTO postrider.outbox (aggregate_type, aggregate_id, aggregate_version, event_type, payload)
        SELECT 'registration', 's' || n % 500, 1 + n / 500, 'E',
               jsonb_build_object('n', n, 'x', CASE WHEN n = 17100 THEN 'evil' ELSE 'ok' END)
        FROM generate_series(0, 39999) n""")
    place.start("--only", "relays")
    wait_until(lambda: place.sql("bus", "SELECT count(*) FROM postrider.log")[0][0] == 40000 - 46, timeout=60, what="the others")
    assert place.sql("shop", "SELECT state, count(*) FROM postrider.parked GROUP BY 1 ORDER BY 1") == [("dead", 1), ("waiting", 45)]
    assert place.sql("bus", "SELECT count(DISTINCT event_id) FROM postrider.log") == [(40000 - 46,)]


def test_sparse_versions_carry_the_one_before(place):
    place.write_config()
    text = place.config.read_text().replace('registrations: {database:', 'registrations: {versions: sparse, database:')
    place.config.write_text(text)
    process = place.start("--only", "relays")
    ids = [emit(place, "a", version) for version in (1, 4, 9)]
    wait_until(lambda: len(published(place)) == 3, what="three events")
    assert place.stop(process) == 0
    place.start("--only", "relays")  # knows nothing any more
    ids += [emit(place, "a", 12), emit(place, "b", 5)]
    wait_until(lambda: len(published(place)) == 5, what="five events")
    assert [header(place, i, "postrider-prev") for i in ids] == ["0", "1", "4", "9", "0"]


def test_a_filter_publishes_its_events_and_stamps_the_rest_away(place):
    text = place.config.read_text().replace("lease: 1s}", "lease: 1s, filter: {aggregate_types: [registration], event_types: [A, C]}}", 1)
    place.config.write_text(text)
    place.run("init", check=0)
    place.start("--only", "relays")
    a1 = emit(place, "x", 1, event_type="A")
    emit(place, "x", 2, event_type="B")
    c3 = emit(place, "x", 3, event_type="C")
    emit(place, "x", 1, aggregate_type="payment", event_type="A")
    a4 = emit(place, "x", 4, event_type="A")
    wait_until(lambda: published(place) == [a1, c3, a4], what="what passes the filter")
    assert [header(place, i, "postrider-prev") for i in (a1, c3, a4)] == ["0", "1", "3"]
    wait_until(lambda: sorted(states(place).values()) == ["FILTERED", "FILTERED", "PUBLISHED", "PUBLISHED", "PUBLISHED"],
               what="the states")


def test_a_relay_with_another_filter_than_registered_says_so(place):
    text = place.config.read_text().replace("lease: 1s}", "lease: 1s, filter: {event_types: [A]}}", 1)
    place.config.write_text(text)
    done = place.run("run", "--only", "relays")
    assert done.returncode == 78 and "another filter" in done.stderr and "postrider init" in done.stderr


def test_requests_are_audited_and_checked(refusing):
    place = refusing
    relay = ("--relay", "registrations-to-events")
    place.start("--only", "relays")
    evil = [emit(place, f"bad{n}", 1, '{"x": "evil"}') for n in range(3)]
    emit(place, "good", 1)
    wait_until(lambda: len(parked(place)) == 3, what="the dead letters")
    rows = json.loads(place.run("dlq", "list", *relay, "--json", check=0).stdout)
    assert sorted(row["event_id"] for row in rows) == sorted(evil) and {row["relay"] for row in rows} == {relay[1]}
    assert place.run("status").returncode == 1
    assert "postrider dlq list --relay registrations-to-events" in place.run("status").stdout
    first = str(rows[0]["id"])
    shown = place.run("dlq", "show", first, *relay, "--payload", check=0).stdout
    assert '{"x": "evil"}' in shown and "23514" in shown and "registrations-to-events" in shown
    for missing in ([], ["--actor", "ann"], ["--reason", "why"], ["--actor", " ", "--reason", "why"]):
        done = place.run("dlq", "replay", first, *relay, *missing)
        assert done.returncode == 2 and ("--actor" in done.stderr or "--reason" in done.stderr)
    act = ("--actor", "ann", "--reason", "test booking")
    assert place.run("dlq", "discard", "4711", *relay, *act).returncode == 1
    assert place.run("dlq", "discard", first, "4711", *relay, *act).returncode == 1  # all or none
    assert place.sql("shop", "SELECT count(*) FROM postrider.audit") == [(0,)]
    dry = place.run("dlq", "discard", first, *relay, *act, "--dry-run", check=0).stdout
    assert rows[0]["event_id"] in dry and len(parked(place)) == 3
    place.run("dlq", "discard", "--all", *relay, *act, "--ticket", "OPS-1", check=0)
    wait_until(lambda: {state for _, state in parked(place)} == {"discarded"}, what="the discards")
    assert place.sql("shop", "SELECT DISTINCT act, given_name, reason, ticket FROM postrider.audit") == \
        [("relay.discard", "ann", "test booking", "OPS-1")]
    assert place.sql("shop", "SELECT postrider.audit_check()") == [(None,)]
    place.sql("shop", "UPDATE postrider.audit SET reason = 'other' WHERE n = 2")
    assert place.sql("shop", "SELECT postrider.audit_check()") == [("row 2 was changed",)]
    place.sql("shop", "DELETE FROM postrider.audit WHERE n = 2")
    assert place.sql("shop", "SELECT postrider.audit_check()") == [("row 2 is missing",)]
    assert place.run("dlq", "list", *relay, check=0).stdout == "no dead letters\n"
