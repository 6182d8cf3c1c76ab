"""Faults that other consumers, dedupe tables and dead letter stores had in the field, played to ours."""
import json
import random
import re
import signal
import subprocess
import time

import psycopg2
import pytest

from conftest import BIN, http, port_of, wait_until
from system.test_consume import Topic, balance, consumed_up_to, event, outcomes, parked, start

WHO = ("--actor", "ann", "--reason", "OPS-12")
MINE = ("--consumer", "rewards")
PAY = """CREATE FUNCTION pay(p text, n int) RETURNS void LANGUAGE plpgsql AS $$ BEGIN {}
    UPDATE reward_account SET balance = balance + n WHERE player_id = p; END $$"""


@pytest.fixture
def topic(place):
    place.sql("rewards", "INSERT INTO reward_account VALUES ('p1'), ('p2')")
    return Topic(place)


def test_F13_what_a_failed_try_wrote_is_gone(place, topic):
    """The first try writes A and fails, the second writes B: each try has a transaction of its own, which is also that of its record."""
    place.sql("rewards", """CREATE SEQUENCE tries; CREATE TABLE wrote (what text, xid xid8);
        CREATE FUNCTION work() RETURNS void LANGUAGE plpgsql AS $$ DECLARE n bigint := nextval('tries'); BEGIN
        INSERT INTO wrote VALUES (chr(64 + n::int), pg_current_xact_id());
        IF n = 1 THEN RAISE 'not yet' USING ERRCODE = '55P03'; END IF; END $$""")
    place.write_config(handler="SELECT work(), :payload.points::int")
    topic.put(event(1))
    start(place)
    wait_until(lambda: outcomes(place) == "A", what="the second try")
    assert place.sql("rewards", "SELECT what FROM wrote") == [("B",)]
    assert place.value("rewards", "SELECT w.xid = c.xmin::text::xid8 FROM wrote w, postrider.consumed c")


def test_F17_two_consumers_of_one_database_each_have_the_effect(place, topic):
    place.sql("rewards", "CREATE TABLE mail (event_id uuid)")
    place.config.write_text(place.config.read_text() + f"""\
  mail:
    database: "{place.dsns['rewards']}"
    from: {{destination: events, topic: registration}}
    order: stream
    handlers:
      RegistrationConfirmed: {{sql: "INSERT INTO mail VALUES (:event_id)"}}
""")
    place.run("init", check=0)
    topic.put(*[event(v, stream=f"r{n}") for n in range(20) for v in (1, 2)])
    start(place)
    wait_until(lambda: outcomes(place) == "A" * 80, what="both consumers")
    assert balance(place) == 400 and place.sql("rewards", "SELECT count(*), count(DISTINCT event_id) FROM mail") == [(40, 40)]


def test_F22_dead_letters_are_in_every_view_and_no_clean_up_takes_them(place, topic):
    place.write_config(extra='http: {listen: "127.0.0.1:0"}')
    topic.put(*[event(1, stream=f"r{n}", player="nobody") for n in range(10)], event(1, stream="good"))
    process = start(place)
    consumed_up_to(place, 11)
    listed = json.loads(place.run("dlq", "list", *MINE, "--json", check=0).stdout)
    assert len(listed) == 10
    assert "10 dead (" in place.run("status", check=1).stdout
    metrics = wait_until(lambda: (lambda m: m if 'state="dead"} 10' in m else None)(http(port_of(process), "/metrics")[1]), what="the gauge")
    assert re.search(r'outcome="applied"[^}]*} 1\n', metrics)
    place.run("prune", check=0)
    assert len(parked(place)) == 10 and outcomes(place) == "A" + "D" * 10
    numbers = [str(letter["id"]) for letter in listed]
    place.sql("rewards", "INSERT INTO reward_account VALUES ('nobody')")
    place.run("dlq", "replay", *numbers[:5], *MINE, *WHO, check=0)
    place.run("dlq", "discard", *numbers[5:], *MINE, *WHO, check=0)
    wait_until(lambda: parked(place, "state") == [("discarded",)] * 5, what="all mended")
    assert balance(place, "nobody") == 50
    assert place.value("rewards", "SELECT count(*) FROM postrider.audit") == 10


@pytest.mark.parametrize("sig", [signal.SIGINT, signal.SIGKILL])
def test_F25_a_bulk_replay_that_is_cut_off_has_moved_all_or_none(place, topic, sig):
    topic.put(*[event(1, stream=f"r{n}", player="nobody") for n in range(300)])
    process = start(place)
    consumed_up_to(place, 300)
    place.stop(process)
    rng = random.Random(7)
    for _ in range(12):
        asking = subprocess.Popen([BIN, "dlq", "replay", "--all", *MINE, *WHO, "--config", str(place.config)],
                                  stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(rng.uniform(0, 0.15))
        asking.send_signal(sig)
        asking.wait(30)
        # The server may be at it still, though nobody listens.
        wait_until(lambda: place.value("rewards", "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND backend_type ="
                                       " 'client backend' AND pid <> pg_backend_pid()") == 0, what="the session's end")
        counts = dict(place.sql("rewards", "SELECT state, count(*) FROM postrider.parked GROUP BY 1"))
        audited = place.value("rewards", "SELECT count(*) FROM postrider.audit")
        assert (counts, audited) in [({"dead": 300}, 0), ({"retry": 300}, 300)]
    place.run("dlq", "replay", "--all", *MINE, *WHO, check=0)
    assert place.sql("rewards", "SELECT state, count(*) FROM postrider.parked GROUP BY 1") == [("retry", 300)]
    assert place.value("rewards", "SELECT count(*) FROM postrider.audit") == 300 and place.value("rewards", "SELECT postrider.audit_check()") is None


@pytest.mark.parametrize("payload", ["[" * 100000 + "]" * 100000, '{"playerId":' * 50000 + "1" + "}" * 50000, '{"playerId": "p1", "points": 1'],
                         ids=["deep array", "deep object", "cut off"])
def test_F26_a_payload_that_cannot_be_read_is_its_own_dead_letter(place, topic, payload):
    bad = event(1, stream="bad", payload=payload)
    topic.put(bad, *[event(1, stream=f"r{n}", points=1) for n in range(50)])
    process = start(place)
    consumed_up_to(place, 51)
    assert balance(place) == 50 and process.poll() is None
    letter, = place.sql("rewards", "SELECT state, class, body FROM postrider.parked")
    assert letter[:2] == ("dead", "permanent") and bytes(letter[2]) == payload.encode()


def test_F26_ten_megabytes_pass_byte_for_byte(place, topic):
    place.sql("rewards", "CREATE TABLE got (body text)")
    place.write_config(handler="INSERT INTO got VALUES (:payload)")
    payload = json.dumps({"playerId": "p1", "points": 1, "text": "ä" * 5_000_000}, ensure_ascii=False)
    topic.put(event(1, payload=payload), event(2, payload='{"a": 1}'))
    start(place)
    consumed_up_to(place, 2)
    assert place.value("rewards", "SELECT count(*) FROM got WHERE body = %s", (payload,)) == 1 and outcomes(place) == "AA"


def test_F82_a_long_error_text_is_cut_at_a_character_and_does_not_grow(place, topic):
    place.sql("rewards", PAY.format("RAISE EXCEPTION '%', repeat('ä€', 40000) USING ERRCODE = '22023';"))
    place.write_config(handler="SELECT pay(:payload.playerId, :payload.points)")
    topic.put(event(1))
    start(place)

    def dead():
        return place.sql("rewards", "SELECT id, octet_length(message), pg_column_size(header_values) FROM postrider.parked WHERE state = 'dead'")
    (number, size, headers), = wait_until(dead, what="the dead letter")
    assert 0 < size < 1000
    for _ in range(3):
        place.run("dlq", "replay", str(number), *MINE, *WHO, check=0)
        wait_until(dead, what="the dead letter again")
    (again, longer, same), = dead()
    assert again == number and longer < 1000 and same == headers
    assert place.value("rewards", "SELECT max(octet_length(message)) FROM postrider.attempt") < 1000
    assert "ä€ä€" in place.run("dlq", "show", str(number), *MINE, check=0).stdout


def test_F109_looking_reads_a_bounded_number_of_rows(place, topic):
    """Status and metrics while much is parked, dead, consumed and waiting in the outbox."""
    place.write_config(extra='http: {listen: "127.0.0.1:0"}')
    topic.put(*[event(v, stream=f"r{n}", player="nobody") for n in range(100) for v in range(1, 21)])
    place.sql("shop", """INSERT INTO postrider.outbox (aggregate_type, aggregate_id, aggregate_version, event_type, payload)
        SELECT 'other', 'b' || n % 1000, 1 + n / 1000, 'E', '{}' FROM generate_series(0, 19999) n""")
    process = place.start("--only", "consumers")
    consumed_up_to(place, 2000)
    port = port_of(process)
    wait_until(lambda: 'state="waiting"} 1900' in http(port, "/metrics")[1], what="the gauge")

    def read(name):
        return place.value(name, "SELECT coalesce(sum(seq_tup_read + coalesce(idx_tup_fetch, 0)), 0)::bigint FROM pg_stat_user_tables"
                                 " WHERE schemaname = 'postrider' AND relname ~ '^(outbox|log|parked|consumed|stream)(_|$)' AND relname !~ 'count|parked$'"
                                 " OR relname = 'parked'")
    time.sleep(1.5)
    before = {name: read(name) for name in place.dsns}
    for _ in range(10):
        http(port, "/metrics")
        http(port, "/readyz")
        place.run("status")
    time.sleep(1.5)
    for name, count in before.items():
        assert read(name) - count < 10 * 200, name


def test_F127_no_audit_no_act(place, topic):
    topic.put(event(1, player="nobody"))
    start(place)
    consumed_up_to(place, 1)
    number = place.value("rewards", "SELECT id FROM postrider.parked")
    place.sql("rewards", """CREATE FUNCTION postrider.broken() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
        RAISE 'the audit cannot be written'; END $$;
        CREATE TRIGGER broken BEFORE INSERT ON postrider.audit FOR EACH ROW EXECUTE FUNCTION postrider.broken()""")
    for request in ("replay", "discard"):
        done = place.run("dlq", request, str(number), *MINE, *WHO)
        assert done.returncode != 0 and "the audit cannot be written" in done.stderr
    assert parked(place, "state, tries") == [("dead", 1)]
    place.sql("rewards", "DROP TRIGGER broken ON postrider.audit; DROP FUNCTION postrider.broken()")
    place.run("dlq", "replay", str(number), *MINE, *WHO, check=0)
    place.sql("rewards", "CREATE ROLE op_f127 LOGIN; GRANT postrider_operator TO op_f127")
    try:
        conn = psycopg2.connect(place.dsns["rewards"].replace("postgres@", "op_f127@"))
        for statement in ("UPDATE postrider.audit SET reason = ''", "DELETE FROM postrider.audit", "TRUNCATE postrider.audit",
                          "INSERT INTO postrider.audit (n) VALUES (9)"):
            with pytest.raises(psycopg2.errors.InsufficientPrivilege):
                conn.cursor().execute(statement)
            conn.rollback()
        conn.close()
    finally:
        place.sql("rewards", "DROP ROLE op_f127")
