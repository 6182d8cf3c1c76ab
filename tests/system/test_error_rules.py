"""What a handler's errors mean by configuration: `errors:` of a consumer and of a handler."""
import textwrap

import pytest

from conftest import wait_until
from system.test_consume import (Topic, balance, consumed_up_to, event, outcomes, parked, start,  # noqa: F401
                          topic)

# Raises what the payload says: {"playerId", "points", "raise": SQLSTATE, "say": message, "until": n-th call}
PAY = """
CREATE SEQUENCE calls;
CREATE FUNCTION pay(p jsonb) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    UPDATE reward_account SET balance = balance + (p->>'points')::int WHERE player_id = p->>'playerId';
    IF p ? 'raise' AND nextval('calls') < coalesce((p->>'until')::int, 1000000) THEN
        RAISE EXCEPTION USING ERRCODE = p->>'raise', MESSAGE = p->>'say';
    END IF;
END $$
"""


def configure(place, rules="", own="", order="stream"):
    place.sql("rewards", PAY)
    place.config.write_text(textwrap.dedent(f"""\
        destinations:
          events: {{transport: postgres, database: "{place.dsns['bus']}", partitions: 4}}
        consumers:
          rewards:
            database: "{place.dsns['rewards']}"
            from: {{destination: events, topic: registration}}
            order: {order}
            lease: 1s
            errors: [{rules}]
            handlers:
              RegistrationConfirmed: {{sql: "SELECT pay(:payload)", errors: [{own}]}}
              Other: {{sql: "SELECT pay(:payload)"}}
        """))


def raising(version, sqlstate, say="no", points=10, until=None, **kwargs):
    extra = f', "until": {until}' if until else ""
    return event(version, payload=f'{{"playerId": "p1", "points": {points}, "raise": "{sqlstate}", "say": "{say}"{extra}}}',
                 **kwargs)


def rejections(place, columns="event_id::text, sqlstate, message"):
    return place.sql("rewards", f"SELECT {columns} FROM postrider.attempt WHERE class = 'rejected' ORDER BY at")


@pytest.mark.parametrize("order", ["stream", "latest", "none"])
def test_a_rejected_event_is_an_outcome_and_the_stream_goes_on(place, topic, order):  # noqa: F811
    configure(place, '{sqlstate: "P0001", class: rejected}', order=order)
    no = raising(2, "P0001", "the season is closed")
    topic.put(event(1), no, event(3), event(1, stream="r2"))
    process = start(place)
    consumed_up_to(place, 4)
    assert balance(place) == 30  # nothing of the rejected handler's own effect
    assert outcomes(place) == "AAAR"
    assert parked(place) == []
    assert rejections(place) == [(no["id"], "P0001", "the season is closed")]
    if order != "none":
        assert place.value("rewards", "SELECT version FROM postrider.stream WHERE aggregate_id = 'r1'") == 3
    wait_until(lambda: "consumer.rejected" in process.log.read_text())
    line = next(line for line in process.log.read_text().splitlines() if "consumer.rejected" in line)
    assert no["id"] in line and "P0001" in line and "the season is closed" in line and "info" in line
    topic.put(no)  # a copy of it is a duplicate
    consumed_up_to(place, 5)
    assert (outcomes(place), len(rejections(place))) == ("AAAR", 1)


def test_many_rejected_ones_in_one_batch_are_each_found(place, topic):  # noqa: F811
    configure(place, '{sqlstate: "P0001", class: rejected}')
    topic.put(*[raising(v, "P0001") if v % 3 == 0 else event(v, points=1) for v in range(1, 31)])
    start(place)
    consumed_up_to(place, 30)
    assert (outcomes(place), balance(place), len(rejections(place))) == ("A" * 20 + "R" * 10, 20, 10)


def test_a_parked_event_is_rejected_when_its_turn_comes(place, topic):  # noqa: F811
    configure(place, '{sqlstate: "P0001", class: rejected}')
    no = raising(2, "P0001", "the season is closed")
    topic.put(event(1), event(3), no)
    start(place)
    consumed_up_to(place, 3)
    wait_until(lambda: outcomes(place) == "AAR")
    topic.put(event(6), raising(5, "P0001", "^anchored"), event(4))  # 5 and 6 are parked behind the gap
    wait_until(lambda: outcomes(place) == "AAAARR")
    assert (parked(place), balance(place)) == ([], 40)
    assert rejections(place, "message") == [("the season is closed",), ("^anchored",)]
    assert place.value("rewards", "SELECT parked FROM postrider.stream WHERE aggregate_id = 'r1'") == 0


def test_first_match_wins_and_a_handlers_own_rules_come_first(place, topic):  # noqa: F811
    configure(place, '{sqlstate: "23505", message: "^seen", class: rejected}, {sqlstate: "23***", class: transient},'
              ' {message: "^closed ", class: rejected}, {sqlstate: "P0", class: unknown}',
              '{sqlstate: "23505", class: permanent}')
    topic.put(raising(1, "23505", "seen", stream="a"), raising(1, "23505", "seen", stream="b", kind="Other"),
              raising(1, "23505", "not seen", stream="c", kind="Other"), raising(1, "P0001", "closed now", stream="d"),
              raising(1, "P0001", "not closed ", stream="e"), raising(1, "22023", "closed as well", stream="f"))
    start(place)
    consumed_up_to(place, 6)
    rows = place.sql("rewards", "SELECT aggregate_id, state, class FROM postrider.parked ORDER BY 1")
    assert rows == [("a", "dead", "permanent"), ("c", "retry", "transient"), ("e", "retry", "unknown")]
    assert sorted(rejections(place, "message")) == [("closed as well",), ("closed now",), ("seen",)]
    assert balance(place) == 0


def test_a_transient_rule_is_tried_until_it_passes(place, topic):  # noqa: F811
    configure(place, '{sqlstate: "P0001", message: "locked", class: transient}')
    topic.put(raising(1, "P0001", "row is locked", until=8), event(2))
    start(place)
    consumed_up_to(place, 2)

    def hurry():
        place.sql("rewards", "UPDATE postrider.parked SET due_at = now() WHERE state = 'retry' AND due_at > now() + '1 s'")
        return outcomes(place) == "AA"
    wait_until(hurry)
    assert place.value("rewards", "SELECT count(*) FROM postrider.attempt") == 6  # beyond the five of an unknown one


def test_a_rule_for_a_class_does_not_hide_a_broken_handler(place, topic):  # noqa: F811
    configure(place, '{sqlstate: "42", class: rejected}, {message: "missing", class: rejected}')
    place.sql("rewards", "CREATE OR REPLACE FUNCTION pay(p jsonb) RETURNS void LANGUAGE plpgsql AS $$ BEGIN"
              " UPDATE missing SET balance = balance + 10; END $$")
    topic.put(event(1), event(1, stream="r2"))
    process = start(place)
    wait_until(lambda: "consumer.paused" in process.log.read_text())
    assert (outcomes(place), rejections(place)) == ("", [])
    place.sql("rewards", "CREATE VIEW missing AS SELECT * FROM reward_account WHERE player_id = 'p1'")
    wait_until(lambda: outcomes(place) == "AA")


def test_a_right_that_is_named_may_be_rejected(place, topic):  # noqa: F811
    configure(place, '{sqlstate: "42501", message: "row-level security", class: rejected}')
    topic.put(raising(1, "42501", "violates row-level security policy"), raising(1, "42501", "row-level security", stream="r2"),
              event(2))
    start(place)
    consumed_up_to(place, 3)
    assert outcomes(place) == "ARR"


def test_a_rejection_at_commit(place, topic):  # noqa: F811
    place.sql("rewards", "CREATE TABLE good (n int PRIMARY KEY); INSERT INTO good VALUES (1);"
              "CREATE TABLE effect (n int REFERENCES good DEFERRABLE INITIALLY DEFERRED)")
    configure(place, '{sqlstate: "23503", class: rejected}')
    place.config.write_text(place.config.read_text().replace("SELECT pay(:payload)\", errors",
                                                             "INSERT INTO effect VALUES (:payload.points)\", errors"))
    topic.put(*[event(v, points=1 if v % 4 else 9) for v in range(1, 13)])
    start(place)
    consumed_up_to(place, 12)
    assert (outcomes(place), place.value("rewards", "SELECT count(*) FROM effect")) == ("A" * 9 + "RRR", 9)


def test_killed_before_a_rejection_is_committed(place, topic):  # noqa: F811
    configure(place, '{sqlstate: "P0001", class: rejected}')
    topic.put(event(1), raising(2, "P0001"), event(3))
    for visit in (2, 3):
        start(place, failpoint=f"consumer.deduped@{visit}=kill").wait(30)
    start(place)
    consumed_up_to(place, 3)
    assert (outcomes(place), balance(place), len(rejections(place))) == ("AAR", 20, 1)
