"""The consumer's server fails in the middle: a COMMIT whose answer is lost, a handler that takes the whole server down."""
import os
import signal

import psycopg2
import pytest

from conftest import Place, wait_until
from servers.postgres import PostgresServer
from servers.wire import Wire
from system.test_consume import Topic, balance, consumed_up_to, event, outcomes, parked, start


@pytest.fixture
def topic(place):
    place.sql("rewards", "INSERT INTO reward_account VALUES ('p1'), ('p2')")
    return Topic(place)


@pytest.fixture
def wire(place):
    wire = Wire(place.server.port)
    yield wire
    wire.remove()


def waiting(place, lock):
    return place.sql("rewards", "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND application_name LIKE 'postrider consumer%%'"
                                " AND wait_event_type = 'Lock' AND wait_event = %s", (lock,))


@pytest.mark.parametrize("end", ["it commits", "it rolls back"])
def test_a_commit_held_on_the_wire_and_lost(place, topic, wire, end):
    """The server is in the middle of COMMIT and stopped, the connection breaks: what became of it is read from the position, once the
    old transaction is at its end."""
    place.sql("rewards", """CREATE TABLE slow (n int);
        CREATE FUNCTION hold() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_advisory_xact_lock(42); RETURN NULL; END $$;
        CREATE CONSTRAINT TRIGGER hold AFTER INSERT ON slow DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION hold();
        CREATE FUNCTION pay(p text, n int) RETURNS void LANGUAGE plpgsql AS $$ BEGIN INSERT INTO slow VALUES (n);
        UPDATE reward_account SET balance = balance + n WHERE player_id = p; END $$""")
    place.write_config(handler="SELECT pay(:payload.playerId, :payload.points)", lease="500ms")
    rewards = place.dsns["rewards"]
    place.config.write_text(place.config.read_text().replace(rewards, rewards.replace(f":{place.server.port}/", f":{wire.port}/")))
    holder = psycopg2.connect(rewards)
    holder.cursor().execute("SELECT pg_advisory_xact_lock(42)")
    process = start(place)
    topic.put(*[event(v, points=v) for v in range(1, 6)])
    (backend,), = wait_until(lambda: waiting(place, "advisory"), what="a COMMIT under way")
    os.kill(backend, signal.SIGSTOP)
    try:
        wire.cut()
        # The new session waits for the old transaction; nothing is decided before its end.
        (heir,), = wait_until(lambda: waiting(place, "transactionid") or waiting(place, "tuple"), what="the new session")
        assert heir != backend and balance(place) == 0
        if end == "it rolls back":
            place.sql("rewards", "SELECT pg_terminate_backend(%s)", (backend,))
        else:
            holder.rollback()
    finally:
        os.kill(backend, signal.SIGCONT)
    consumed = wait_until(lambda: place.value("rewards", "SELECT sum(next_off) FROM postrider.consumer_partition") or waiting(place, "advisory"),
                          what="the end of the old transaction")
    assert consumed
    holder.rollback()
    holder.close()
    consumed_up_to(place, 5)
    topic.put(event(6, points=6))
    consumed_up_to(place, 6)
    assert balance(place) == 21 and outcomes(place) == "A" * 6 and parked(place) == []
    assert place.value("rewards", "SELECT count(*) FROM slow") == 6
    assert process.poll() is None


def test_an_event_that_takes_the_server_down_is_found(tmp_path):
    """Its handler kills its own backend, and with it the server: no error tells which event it was, three times."""
    server = PostgresServer()
    place = Place(server, tmp_path)
    try:
        place.run("init", check=0)
        place.story()
        place.sql("rewards", """INSERT INTO reward_account VALUES ('p1');
            CREATE FUNCTION pay(p text, n int) RETURNS void LANGUAGE plpgsql AS $$ BEGIN
            IF n = 13 THEN EXECUTE format('COPY (SELECT 1) TO PROGRAM %L', 'kill -9 ' || pg_backend_pid()); END IF;
            UPDATE reward_account SET balance = balance + n WHERE player_id = p; END $$""")
        place.write_config(handler="SELECT pay(:payload.playerId, :payload.points)")
        topic = Topic(place)
        topic.put(*[event(1, stream=f"r{n}", points=n) for n in range(10, 20)], event(2, stream="r13", points=1))
        process = start(place)

        def done():
            try:
                return parked(place, "state, class, code") == [("dead", "unknown", "handler.connection"), ("waiting", "waiting", "stream.waiting")] \
                    and balance(place) == sum(range(10, 20)) - 13
            except psycopg2.OperationalError:
                return False
        wait_until(done, timeout=90, what="the event found and the others applied")
        crashes = (server.folder / "log").read_text().count("was terminated by signal 9")
        assert 3 <= crashes <= 6
        topic.put(event(1, stream="after", points=100))
        wait_until(lambda: balance(place) == sum(range(10, 20)) - 13 + 100, what="the next event")
        assert process.poll() is None and (server.folder / "log").read_text().count("was terminated by signal 9") == crashes
    finally:
        place.close()
        server.remove()
