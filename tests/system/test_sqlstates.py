"""The table of SQLSTATEs (docs/internals/errors.md), each row raised by a handler, with what it must end in."""
import json

import pytest

from conftest import wait_until
from system.test_consume import Topic, balance, consumed_up_to, event, outcomes, parked, start

# One event alone raises it: nothing proves that it is the handler's or the server's.
ALONE = {
    **dict.fromkeys("0A000 21000 22003 22012 22021 22023 22P02 22P05 22032 23001 23502 23505 23514 23P01 40002 42601 "
                    "42846 44000 54000 54001 HV000 HV001 P0001 P0002 P0003 PR100 PR104".split(), ("dead", "permanent")),
    **dict.fromkeys("23503 25P03 25P04 40001 40P01 42P05 55P03 57014 72000 HV00N 26000".split(), ("retry", "transient")),
    **dict.fromkeys("08000 08001 08003 08004 08006 08007 08P01 25006 28000 28P01 3D000 3F000 40003 42501 42703 42883 "
                    "42P01 42P02 53000 53300 53400 55000 55006 57000 57P01 57P02 57P03 57P04 57P05 58000 58030 58P01 "
                    "F0000 F0001".split(), ("retry", "unknown")),
    **dict.fromkeys("24000 25001 25P02 2D000 34000 3B001 P0004 XX000 ZZ999 U0001 01000".split(), ("retry", "unknown")),
}
# Every event raises it: the handler or the server pauses the consumer, and no event is charged.
SHARED = ("08000 08001 08003 08004 08006 08007 08P01 25006 28000 28P01 3D000 3F000 40003 42501 42703 42883 42P01 42P02 "
          "53000 53100 53200 53300 53400 55000 55006 57P01 57P02 57P03 57P04 57P05 58000 58030 F0000").split()
PAY = """
CREATE TABLE gate (raise text);
CREATE FUNCTION pay(p jsonb) RETURNS void LANGUAGE plpgsql AS $$
DECLARE v_raise text := coalesce(p->>'raise', (SELECT raise FROM gate));
BEGIN
    UPDATE reward_account SET balance = balance + (p->>'points')::int WHERE player_id = p->>'playerId';
    IF v_raise IS NOT NULL THEN
        RAISE EXCEPTION USING ERRCODE = v_raise, MESSAGE = coalesce(p->>'say', 'told to');
    END IF;
END $$
"""


@pytest.fixture(scope="module")
def running(shared_place):
    """One consumer that many rows are tried on, each in streams of its own."""
    place = shared_place
    place.sql("rewards", "INSERT INTO reward_account VALUES ('p1'), ('p2')")
    place.sql("rewards", PAY)
    place.write_config(handler="SELECT pay(:payload)")
    place.topic = Topic(place)
    place.process = start(place)
    return place


def payload(**members):
    return json.dumps({"playerId": "p1", "points": 10, **members})


def of_stream(place, stream, columns="state, class, code"):
    return place.sql("rewards", f"SELECT {columns} FROM postrider.parked WHERE aggregate_id = %s ORDER BY version", (stream,))


@pytest.mark.parametrize("sqlstate", sorted(ALONE))
def test_one_event_alone(running, sqlstate):
    place, before = running, balance(running)
    place.topic.put(event(1, stream=sqlstate, payload=payload(**{"raise": sqlstate})), event(2, stream=sqlstate),
                    event(1, stream="after " + sqlstate))
    wait_until(lambda: len(of_stream(place, sqlstate)) == 2 and balance(place) == before + 10,
               what="it is parked, its stream waits, the other goes on")
    assert of_stream(place, sqlstate) == [(*ALONE[sqlstate], sqlstate), ("waiting", "waiting", "stream.waiting")]
    assert place.sql("rewards", "SELECT DISTINCT class, message FROM postrider.attempt WHERE sqlstate = %s", (sqlstate,)) == [
        (ALONE[sqlstate][1], "told to")]
    # No retries into other rows; locked in the consumer's own order.
    place.sql("rewards", "UPDATE postrider.stream SET parked = 0; DELETE FROM postrider.parked")


@pytest.mark.parametrize("sqlstate", SHARED)
def test_every_event(running, sqlstate):
    place, before = running, balance(running)
    said = place.process.log.read_text().count("consumer.paused")
    place.sql("rewards", "INSERT INTO gate VALUES (%s)", (sqlstate,))
    place.topic.put(event(1, stream=f"a {sqlstate}"), event(1, stream=f"b {sqlstate}"))
    wait_until(lambda: place.process.log.read_text().count("consumer.paused") > said, what="the consumer pauses")
    assert sqlstate in [line for line in place.process.log.read_text().splitlines() if "consumer.paused" in line][-1]
    assert place.value("rewards", "SELECT count(*) FROM postrider.attempt WHERE event_id IN (SELECT event_id FROM"
                       " postrider.parked WHERE aggregate_id = %s)", (f"a {sqlstate}",)) == 0
    assert balance(place) == before
    place.sql("rewards", "DELETE FROM gate")
    wait_until(lambda: balance(place) == before + 20, what="both are applied once the cause is gone")
    assert place.sql("rewards", "SELECT 1 FROM postrider.parked") == []


@pytest.fixture
def topic(place):
    place.sql("rewards", "INSERT INTO reward_account VALUES ('p1'), ('p2')")
    place.sql("rewards", PAY)
    place.write_config(handler="SELECT pay(:payload)", extra='http: {listen: "127.0.0.1:0"}')
    return Topic(place)


@pytest.mark.parametrize("sqlstate", ["XX001", "XX002"])
def test_damaged_data_halts_at_once(place, topic, sqlstate):
    topic.put(event(1, payload=payload(**{"raise": sqlstate})), event(2))
    process = start(place)
    wait_until(lambda: "consumer.halted" in process.log.read_text())
    assert (outcomes(place), parked(place), balance(place)) == ("", [], 0)


@pytest.mark.parametrize("sqlstate, tries, ends", [
    ("23503", 3, "transient"), ("57014", 3, "transient"), ("XX000", 5, "unknown"), ("ZZ999", 5, "unknown"),
    ("P0004", 5, "unknown"), ("08P01", 5, "unknown"), ("2D000", 5, "unknown")])
def test_what_does_not_pass_is_dead_in_the_end(place, topic, sqlstate, tries, ends):
    topic.put(event(1, payload=payload(**{"raise": sqlstate})), event(2))
    start(place)

    def hurry():
        place.sql("rewards", "UPDATE postrider.parked SET due_at = now() WHERE state = 'retry' AND due_at > now() + '1 s'")
        return parked(place)[:1] == [("dead", ends)]
    wait_until(hurry)
    assert place.value("rewards", "SELECT tries FROM postrider.parked WHERE state = 'dead'") == tries
    assert place.sql("rewards", "SELECT sqlstate FROM postrider.attempt") == [(sqlstate,)] * tries


def test_what_may_pass_is_tried_for_longer(place, topic):
    topic.put(event(1, payload=payload(**{"raise": "55P03"})))
    start(place)

    def hurry():
        place.sql("rewards", "UPDATE postrider.parked SET due_at = now() WHERE state = 'retry' AND due_at > now() + '1 s'")
        return place.value("rewards", "SELECT count(*) FROM postrider.attempt") >= 8
    wait_until(hurry)
    assert parked(place) == [("retry", "transient")]


def test_an_empty_message(place, topic):
    topic.put(event(1, payload=payload(**{"raise": "P0001", "say": ""})))
    start(place)
    consumed_up_to(place, 1)
    assert parked(place, "state, code, message") == [("dead", "P0001", "")]


def test_a_handler_that_ends_the_transaction_itself(place, topic):
    place.sql("rewards", "CREATE PROCEDURE finish(p jsonb) LANGUAGE plpgsql AS $$ BEGIN"
              " UPDATE reward_account SET balance = balance + 1 WHERE player_id = 'p1';"
              " IF p->>'points' = '13' THEN COMMIT; END IF; END $$")
    place.write_config(handler="CALL finish(:payload)")
    topic.put(event(1, points=13), event(1, stream="r2"), event(2))
    start(place)
    consumed_up_to(place, 3)
    assert parked(place, "state, class, code") == [("retry", "unknown", "2D000"), ("waiting", "waiting", "stream.waiting")]
    assert (balance(place), outcomes(place)) == (1, "APP")


def test_a_handler_that_moves_the_search_path_harms_nobody_for_long(place, topic):
    place.sql("rewards", "CREATE FUNCTION move(p jsonb) RETURNS void LANGUAGE plpgsql AS $$ BEGIN"
              " PERFORM public.pay(p);"
              " IF p->>'points' = '13' THEN PERFORM set_config('search_path', 'pg_catalog', false); END IF; END $$;"
              "CREATE OR REPLACE FUNCTION pay(p jsonb) RETURNS void LANGUAGE sql SET search_path = public AS"
              " $$ UPDATE reward_account SET balance = balance + (p->>'points')::int $$")
    place.write_config(handler="SELECT move(:payload)")
    start(place)
    topic.put(event(1, points=13))
    consumed_up_to(place, 1)
    topic.put(event(2), event(1, stream="r2"))
    consumed_up_to(place, 3)
    wait_until(lambda: outcomes(place) == "AAA")
    assert balance(place) == 33


def test_a_handler_that_sleeps_beyond_the_lease(place, topic):
    place.sql("rewards", "CREATE FUNCTION nap(p jsonb) RETURNS void LANGUAGE plpgsql AS $$ BEGIN"
              " PERFORM pg_sleep(2.5); PERFORM pay(p); END $$")
    place.write_config(handler="SELECT nap(:payload)")  # lease 1s
    topic.put(event(1), event(1, stream="r2"))
    start(place)
    start(place)
    consumed_up_to(place, 2)
    wait_until(lambda: outcomes(place) == "AA")
    assert balance(place) == 20


def test_a_result_that_changes_its_type_charges_nobody(place, topic):
    place.sql("rewards", "CREATE TABLE wide (a int); INSERT INTO wide VALUES (1)")
    place.write_config(handler="SELECT w.*, pay(:payload) FROM wide w")
    start(place)
    topic.put(event(1))
    consumed_up_to(place, 1)
    place.sql("rewards", "ALTER TABLE wide ADD COLUMN b int")
    topic.put(event(2), event(1, stream="r2"))
    consumed_up_to(place, 3)
    assert (outcomes(place), balance(place)) == ("AAA", 30)
    assert place.value("rewards", "SELECT count(*) FROM postrider.attempt") == 0


@pytest.mark.parametrize("points, player, code, mended", [
    (3000000000, "p1", "22003", '{"playerId": "p1", "points": 3}'),
    (0, "p1", "22023", '{"playerId": "p1", "points": 3}'),
    (-1, "p1", "22023", '{"playerId": "p1", "points": 3}'),
    (3, "p9", "P0002", '{"playerId": "p1", "points": 3}'),
    (2147483647, "rich", "22003", '{"playerId": "p1", "points": 3}'),
])
def test_the_textbooks_refusals_leave_nothing_that_swallows_a_replay(place, topic, points, player, code, mended):
    place.sql("rewards", "INSERT INTO reward_account VALUES ('rich', 1)")
    place.write_config()
    topic.put(event(1, points=points, player=player), event(2, points=4))
    start(place)
    consumed_up_to(place, 2)
    assert parked(place, "state, class, code") == [("dead", "permanent", code), ("waiting", "waiting", "stream.waiting")]
    assert place.sql("rewards", "SELECT 1 FROM consumed_message") == []
    assert place.sql("rewards", "SELECT 1 FROM reward_entry") == []
    place.sql("rewards", "UPDATE postrider.parked SET state = 'retry', due_at = now(), body = %s WHERE state = 'dead'", (mended,))
    wait_until(lambda: outcomes(place) == "AA")
    assert (balance(place), parked(place)) == (7, [])
