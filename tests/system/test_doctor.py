"""postrider doctor: each precondition is broken, seen, and mended by the remedy that was printed."""
import json
import re
import time

import psycopg2
import pytest

from conftest import OLD_ID, published, put_old, wait_until
from servers.postgres import PostgresServer

RELAY = "registrations-to-events"


@pytest.fixture(autouse=True)
def durable(request):
    """The servers of tests are not, and doctor would say so."""
    fixture = next((name for name in ("place", "empty") if name in request.fixturenames), None)
    if not fixture:
        yield
        return
    place = request.getfixturevalue(fixture)
    for change in ("SET fsync = on", "RESET fsync"):
        place.sql("shop", f"ALTER SYSTEM {change}")
        place.sql("shop", "SELECT pg_reload_conf()")
        if change.startswith("SET"):
            wait_until(lambda: place.value("shop", "SHOW fsync") == "on", what="fsync")
            yield


def examine(place, check=None, **kwargs):
    done = place.run("doctor", "--json", check=check, **kwargs)
    return done.returncode, json.loads(done.stdout)


def findings(place, *results):
    return [row for row in examine(place)[1] if row["result"] in (results or ("MEND",))]


def finding(place, number, *words, result="MEND", database="shop"):
    """The one finding of that check; all its words are there."""
    rows = [row for row in findings(place, "MEND", "note") if row["number"] == number and place.names[database] in row["database"]]
    assert [row["result"] for row in rows] == [result], findings(place, "MEND", "note")
    for word in words:
        assert word in rows[0]["what"], rows
    assert rows[0]["why"] and rows[0]["remedy"], rows
    return rows[0]


def sql_of(remedy):
    """The SQL in a remedy, without the words around it."""
    return re.search(r"(ALTER|BEGIN|CREATE|DELETE|DROP|GRANT|REVOKE|SELECT|SET|UPDATE)\b.*", remedy).group(0)


def mend(place, row, database="shop"):
    conn = psycopg2.connect(place.dsns[database])
    conn.autocommit = True
    for statement in sql_of(row["remedy"]).split("; "):
        conn.cursor().execute(statement)
    conn.close()


def is_well(place):
    code, rows = examine(place)
    assert code == 0 and {row["result"] for row in rows} <= {"ok", "note"}, [r for r in rows if r["result"] != "ok"]


def test_a_fresh_install_is_well(place):
    is_well(place)
    rows = examine(place)[1]
    by_database = {name: [row["number"] for row in rows if place.names[name] in row["database"]] for name in place.names}
    assert set(by_database["shop"]) >= set(range(1, 13)) | {20, 21, 22, 23, 24, 25, 26, 27, 28, 40, 42}
    assert 30 in by_database["bus"] and {43, 44, 50, 51, 52} <= set(by_database["rewards"])
    done = place.run("doctor", check=0)
    assert done.stdout.rstrip().endswith("all right") and "MEND" not in done.stdout
    # What is well while it works is well, too.
    process = place.start()
    place.emit("a", 1)
    wait_until(lambda: len(published(place)) == 1, what="the event")
    is_well(place)
    place.stop(process)


def test_text_says_what_why_and_what_to_do(place):
    place.sql("shop", "CREATE INDEX mine ON postrider.outbox (id)")
    text = place.run("doctor", check=1).stdout
    assert re.search(r"24 MEND +indexes of the outbox\n +index postrider.mine .*\n +why: .*\n +→ DROP INDEX postrider.mine\n", text)
    assert text.rstrip().endswith("to mend: do what the arrows say")


def test_a_server_that_is_away(place):
    place.config.write_text(place.config.read_text().replace(f"{place.server.port}/{place.names['bus']}", f"1/{place.names['bus']}"))
    code, rows = examine(place)
    assert code == 69
    assert [row["check"] for row in rows if row["result"] == "MEND" and row["number"] == 1] == ["server"]
    assert any(row["number"] == 20 and row["result"] == "ok" for row in rows)  # the others are looked at all the same


def test_no_schema(empty):
    code, rows = examine(empty)
    missing = [row for row in rows if row["result"] == "MEND"]
    assert code == 1 and [row["number"] for row in missing] == [2, 2, 2]
    assert "postrider init" in missing[0]["remedy"]
    empty.run("init", check=0)
    empty.story()
    is_well(empty)


def test_a_cached_sequence(place):
    place.sql("shop", "ALTER TABLE postrider.outbox ALTER COLUMN id SET CACHE 50")
    row = finding(place, 4, "CACHE 50")
    mend(place, row)
    is_well(place)


def test_a_copy_of_another_cluster(place):
    for n in range(3):
        place.emit("a", n + 1)
    place.sql("shop", "UPDATE postrider.meta SET system_identifier = 1; UPDATE postrider.lane SET done_snap = pg_current_snapshot()")
    row = finding(place, 3, "is a copy")
    assert [r["result"] for r in examine(place)[1] if r["number"] == 4][0] == "-"
    mend(place, {"remedy": row["remedy"].split(" -- ")[0]})
    is_well(place)
    process = place.start("--only", "relays")
    wait_until(lambda: len(published(place)) == 3, what="all that is in the outbox")
    place.stop(process)


def test_an_altered_schema(place):
    place.sql("shop", "ALTER TABLE postrider.lane ADD COLUMN mine int")
    row = finding(place, 5, "not ours: column lane.mine")
    mend(place, row)
    is_well(place)


def test_settings(place):
    place.sql("shop", "ALTER SYSTEM SET fsync = off")
    place.sql("shop", "SELECT pg_reload_conf()")
    try:
        wait_until(lambda: any(row["number"] == 7 for row in findings(place)), what="the setting")
        row = finding(place, 7, "fsync is off")
        mend(place, row)
        wait_until(lambda: not findings(place), what="the setting")
    finally:
        place.sql("shop", "ALTER SYSTEM SET fsync = on")
        place.sql("shop", "SELECT pg_reload_conf()")
    place.sql("shop", f"ALTER DATABASE {place.names['shop']} SET synchronous_commit = off")
    row = finding(place, 7, "synchronous_commit is off for sessions of all roles", result="note")
    mend(place, row)
    assert not findings(place, "note")


def test_our_own_sessions_commit_to_disk(place):
    place.sql("bus", f"ALTER DATABASE {place.names['bus']} SET synchronous_commit = off")
    place.sql("bus", """CREATE TABLE seen (s text); GRANT INSERT ON seen TO PUBLIC;
        CREATE FUNCTION look() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
            INSERT INTO public.seen VALUES (current_setting('synchronous_commit')); RETURN NULL; END $$;
        CREATE TRIGGER look AFTER UPDATE ON postrider.log_head FOR EACH ROW EXECUTE FUNCTION look()""")
    process = place.start("--only", "relays")
    place.emit("a", 1)
    wait_until(lambda: len(published(place)) == 1, what="the event")
    place.stop(process)
    assert place.sql("bus", "SELECT DISTINCT s FROM seen") == [("on",)]


def test_encoding(empty):
    for name in empty.names.values():
        empty.server.drop(name)
    conn = psycopg2.connect(empty.server.dsn("postgres"))
    conn.autocommit = True
    for name in empty.names.values():
        conn.cursor().execute(f"CREATE DATABASE {name} ENCODING 'LATIN1' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0")
    conn.close()
    empty.run("init", check=0)
    finding(empty, 8, "LATIN1", result="note")


def test_missing_partitions(place):
    day = place.value("shop", "SELECT to_char((now() AT TIME ZONE 'UTC')::date + 1, 'YYYYMMDD')")
    for table in ("outbox", "log", "consumed"):
        place.sql("shop", f"DROP TABLE postrider.{table}_{day}")
    rows = [row for row in findings(place) if row["number"] == 9]
    assert sorted(row["what"].split()[0] for row in rows) == ["consumed", "log", "outbox"]
    mend(place, {"remedy": rows[0]["remedy"].replace("; a running", " -- a running")})
    is_well(place)


def test_rows_in_default(place):
    put_old(place, 1)
    place.sql("shop", "INSERT INTO postrider.log SELECT 't', 0, 0, '2023-06-30 12:00+00', NULL, 'k', '{}', '{}', 'x'")
    place.sql("shop", "INSERT INTO postrider.consumed VALUES (1, '2999-01-01', gen_random_uuid(), 'd', 'A')")
    rows = [row for row in findings(place) if row["number"] == 10]
    assert [row["what"] for row in rows] == ["consumed_default has 1 rows of 2999-01-01", "log_default has 1 rows of 2023-06-30",
                                             "outbox_default has 1 rows of 2023-06-30"]
    for row in rows:
        mend(place, row)
    is_well(place)
    assert place.value("shop", "SELECT tableoid::regclass::text FROM postrider.outbox") == "postrider.outbox_20230630"


def test_rows_of_the_end_of_time(place):
    place.sql("shop", "INSERT INTO postrider.outbox (event_id, aggregate_type, aggregate_id, aggregate_version, event_type,"
              " payload) VALUES ('ffffffff-ffff-7fff-bfff-ffffffffffff', 'a', 'b', 1, 'E', '{}')")
    mend(place, {"remedy": finding(place, 10)["remedy"].split(": ", 1)[1]})
    is_well(place)


def test_a_partition_of_another_owner(place):
    place.sql("shop", "ALTER TABLE postrider.consumed_before OWNER TO postgres")
    mend(place, finding(place, 13))
    is_well(place)


def test_prepared_transactions(place):
    conn = psycopg2.connect(place.dsns["shop"])
    conn.autocommit = True
    conn.cursor().execute("BEGIN; SELECT postrider.emit('t', 'a', 1, 'E', '{}'); PREPARE TRANSACTION 'forgotten'")
    try:
        time.sleep(5.5)
        row = finding(place, 11, "'forgotten' of postgres", result="note")
        conn.cursor().execute(re.search(r"ROLLBACK PREPARED '[a-z]+'", row["remedy"]).group(0))
    except BaseException:
        conn.cursor().execute("ROLLBACK PREPARED 'forgotten'")
        raise
    conn.close()
    assert not [row for row in findings(place, "note") if row["number"] == 11]


def test_long_transactions(place):
    conn = psycopg2.connect(place.dsns["shop"], application_name="sleeper")
    conn.cursor().execute("SELECT pg_current_xact_id()")
    time.sleep(10.5)
    row = [row for row in findings(place, "note") if row["number"] == 12 and "(sleeper, " in row["what"]][0]
    mend(place, row)
    with pytest.raises(psycopg2.OperationalError):
        conn.cursor().execute("SELECT 1")
    assert not [row for row in findings(place, "note") if row["number"] == 12 and "(sleeper, " in row["what"]]
    conn.close()


@pytest.fixture
def login(place):
    name = f"l_{place.names['shop']}"
    place.sql("shop", f"CREATE ROLE {name} LOGIN")
    yield name
    for database in place.names:
        place.sql(database, f"DROP OWNED BY {name}")
    place.sql("shop", f"DROP ROLE {name}")


def test_rights_of_the_logins(place, login):
    for database in place.names:  # what each kind of login has to have to look at all
        place.sql(database, f"GRANT postrider_operator TO {login}")
    text = place.config.read_text()
    place.config.write_text(text.replace("postgres@", f"{login}@"))
    place.sql("rewards", f"GRANT SELECT, INSERT, UPDATE ON reward_account, reward_entry, consumed_message TO {login}")
    relay, log, consumer = finding(place, 20), finding(place, 30, database="bus"), finding(place, 43, database="rewards")
    mend(place, relay)
    assert not [row for row in findings(place) if row["number"] == 20]
    mend(place, {"remedy": log["remedy"].split(",")[0]}, "bus")
    mend(place, consumer, "rewards")
    is_well(place)


def test_a_relays_login_may_look(place, login):
    place.sql("shop", f"GRANT postrider_relay, postrider_consumer TO {login}")
    place.sql("rewards", f"GRANT SELECT, INSERT, UPDATE ON reward_account, reward_entry, consumed_message TO {login}")
    place.config.write_text(place.config.read_text().replace("postgres@", f"{login}@"))
    is_well(place)


@pytest.mark.parametrize("grant, words", [
    ("INSERT ON postrider.outbox", "may INSERT on postrider.outbox"),
    ("UPDATE, DELETE, TRUNCATE ON postrider.outbox", "may DELETE, TRUNCATE, UPDATE on postrider.outbox"),
    ("INSERT (id, xid) ON postrider.outbox", "may INSERT (id), INSERT (xid) on postrider.outbox"),
    ("UPDATE (payload) ON postrider.outbox", "may UPDATE (payload) on postrider.outbox"),
    ("INSERT ON postrider.outbox_default", "may INSERT on postrider.outbox_default"),
    ("USAGE ON SEQUENCE postrider.outbox_id_seq", "may USAGE on SEQUENCE postrider.outbox_id_seq"),
])
def test_forgers(place, login, grant, words):
    for who in (login, "PUBLIC"):
        place.sql("shop", f"GRANT {grant} TO {who}")
        row = finding(place, 21, words, who)
        mend(place, row)
        is_well(place)


def test_the_producers_role_keeps_its_rights(place, login):
    place.sql("shop", f"GRANT postrider_producer TO {login}; GRANT INSERT ON postrider.outbox TO postrider_producer")
    mend(place, finding(place, 21, "postrider_producer may INSERT on postrider.outbox"))
    is_well(place)
    conn = psycopg2.connect(place.server.dsn(place.names["shop"], login))
    conn.cursor().execute("INSERT INTO postrider.outbox (aggregate_type, aggregate_id, aggregate_version, event_type, payload) "
                          "VALUES ('t', 'a', 1, 'E', '{}')")
    conn.rollback()
    conn.close()


def test_F97_row_security(place, login):
    place.sql("shop", f"GRANT postrider_relay, postrider_consumer TO {login}")
    place.sql("rewards", f"GRANT SELECT, INSERT, UPDATE ON reward_account, reward_entry, consumed_message TO {login}")
    place.config.write_text(place.config.read_text().replace("postgres@", f"{login}@"))
    place.sql("shop", "ALTER TABLE postrider.outbox ENABLE ROW LEVEL SECURITY")
    mend(place, finding(place, 22, f"applies to login {login}"))
    is_well(place)


def test_unlogged(place):
    part = place.value("shop", "SELECT min(inhrelid::regclass::text) FROM pg_inherits WHERE inhparent = 'postrider.outbox'::regclass")
    place.sql("shop", f"ALTER TABLE {part} SET UNLOGGED")
    mend(place, finding(place, 23, f"{part} is unlogged"))
    is_well(place)


def test_an_index_on_bare_id(place):
    place.sql("shop", "CREATE INDEX mine ON postrider.outbox (id, aggregate_type)")
    row = finding(place, 24, "index postrider.mine of postrider.outbox begins with id")
    mend(place, row)
    is_well(place)


def test_positions_ahead_of_the_server(place):
    place.emit("a", 1)
    place.sql("shop", "UPDATE postrider.lane SET done_snap = '99999999:99999999:'")
    mend(place, finding(place, 25, "the position of lane 0 (99999999:99999999:) is ahead of the server's transactions"))
    is_well(place)


def test_events_ahead_of_the_server(place):
    place.emit("a", 1)
    place.sql("shop", "UPDATE postrider.outbox SET xid = '99999999'")
    mend(place, finding(place, 26, "was written by transaction 99999999, which is ahead"))
    is_well(place)
    process = place.start("--only", "relays")
    wait_until(lambda: len(published(place)) == 1, what="the event")
    place.stop(process)


def test_unregistered_and_abandoned(place):
    place.sql("shop", "UPDATE postrider.relay SET name = 'another'")
    place.sql("rewards", "UPDATE postrider.consumer SET name = 'another'")
    row = finding(place, 27, f"relay {RELAY} is not registered")
    assert row["remedy"] == "postrider init"
    assert finding(place, 44, "consumer rewards is not registered", database="rewards")["remedy"] == "postrider init"
    abandoned = finding(place, 28, "relay another is not in this configuration", result="note")
    place.run("init", check=0)
    is_well(place)
    command = abandoned["remedy"].split("postrider ")[1].replace("NAME", "ann").replace("TEXT", "gone")
    place.run(*command.split(), check=0)
    assert not findings(place, "note")


def test_versions_that_skip(place):
    for version in (1, 2, 3):
        place.emit("dense", version)
    # One of a transaction that began early, so that it stands before the one it follows: no gap.
    early = psycopg2.connect(place.dsns["shop"])
    early.cursor().execute("SELECT pg_current_xact_id()")
    place.emit("early", 1)
    early.cursor().execute("SELECT postrider.emit('registration', 'early', 2, 'E', '{}')")
    early.commit()
    early.close()
    place.emit("early", 3)
    is_well(place)
    place.emit("gap", 1)
    place.emit("gap", 5)
    row = finding(place, 40, "registration:gap has version 5 after 1")
    assert row["remedy"].startswith("set outboxes.registrations.versions to sparse")
    text = place.config.read_text()
    place.config.write_text(text.replace("registrations: {database:", "registrations: {versions: sparse, database:"))
    is_well(place)


def test_topics_of_the_destination(place):
    place.sql("shop", "INSERT INTO postrider.route SELECT relay, 'registration', 4 FROM postrider.relay")
    is_well(place)
    place.sql("bus", "UPDATE postrider.log_topic SET partitions = 8")
    row = finding(place, 42, "topic registration was begun with 4 partitions", "has 8")
    mend(place, row, "bus")
    is_well(place)
    place.sql("bus", "DELETE FROM postrider.log_head; DELETE FROM postrider.log_topic")
    row = finding(place, 42, "topic registration is not in")
    assert any(r["number"] == 51 and "is not there" in r["what"] for r in findings(place))
    mend(place, row, "bus")
    is_well(place)
    text = place.config.read_text()
    place.config.write_text(text.replace("partitions: 4", "partitions: 8"))
    row = finding(place, 42, "was begun with 4 partitions, the configuration says 8")
    assert row["remedy"] == "set destinations.events.partitions to 4"


def test_handlers(place):
    place.write_config(handler="SELECT nothing_of_that_name(:event_id)")
    row = finding(place, 50, "nothing_of_that_name", database="rewards")
    assert row["remedy"]


def test_positions_and_the_log(place):
    log = place.value("bus", "SELECT log_id::text FROM postrider.meta")
    place.sql("rewards", f"INSERT INTO postrider.consumer_partition (consumer, source, topic, part, next_off) "
              f"SELECT consumer, '{log}', 'registration', n, 0 FROM postrider.consumer, generate_series(0, 3) n")
    is_well(place)
    place.sql("bus", "UPDATE postrider.log_head SET first_off = 7, next_off = 9 WHERE part = 1")
    place.sql("rewards", "UPDATE postrider.consumer_partition SET next_off = 5 WHERE part = 2")
    rows = [row for row in findings(place) if row["number"] == 51]
    assert ["dropped messages 0 to 6" in rows[0]["what"], "it ends at 0" in rows[1]["what"]] == [True, True], rows
    assert "Overtaken" in rows[0]["remedy"] and "went back" in rows[1]["remedy"]
    place.sql("rewards", "UPDATE postrider.consumer_partition SET next_off = CASE part WHEN 1 THEN 7 WHEN 2 THEN 0 ELSE next_off END")
    is_well(place)


def test_records_that_are_gone_too_early(place):
    place.sql("rewards", "UPDATE postrider.consumer SET floor = now() - interval '1 day'")
    row = finding(place, 52, "consumer rewards has records from", result="note", database="rewards")
    assert "do not set its positions back" in row["remedy"]
    place.sql("rewards", "UPDATE postrider.consumer SET floor = now() - interval '8 days'")
    assert not findings(place, "note")


def test_a_table_of_the_users_own(place):
    place.sql("shop", """CREATE TABLE public.outbox (event_id uuid PRIMARY KEY, aggregate_id text NOT NULL,
        aggregate_version bigint NOT NULL, event_type text NOT NULL, payload jsonb NOT NULL,
        publish_state text NOT NULL DEFAULT 'PENDING', occurred_at timestamptz NOT NULL DEFAULT now())""")
    text = place.config.read_text().replace(
        "destinations:", f"  mine: {{database: \"{place.dsns['shop']}\", table: public.outbox, aggregate_type: registration, "
        "mark: {column: publish_state, pending: PENDING, published: PUBLISHED}}\ndestinations:").replace(
        "consumers:", "  mine-to-events: {outbox: mine, destination: events}\nconsumers:")
    place.config.write_text(text)
    place.run("init", check=0)
    mend(place, finding(place, 41, "has no index on its pending rows"))
    is_well(place)
    place.sql("shop", "DROP TABLE public.outbox")
    finding(place, 41, "public.outbox")


def test_a_standby(tmp_path):
    """A connection string that lets a standby through is told; and nothing starts there."""
    from conftest import Place
    server = PostgresServer("15", {"fsync": "on"})
    try:
        place = Place(server, tmp_path)
        place.run("init", check=0)
        place.story()
        server.stop()
        (server.data / "standby.signal").touch()
        server.start()
        done = place.run("doctor")
        assert done.returncode == 69 and "read-only" in done.stdout and "connect to the primary" in done.stdout
        assert place.run("run").returncode == 69
        place.config.write_text(re.sub(r'(postgresql://[^"]*)"', r'\1?target_session_attrs=any"', place.config.read_text()))
        row = [row for row in findings(place) if row["number"] == 6][0]
        place.sql("shop", re.search(r"SELECT pg_promote\(\)", row["remedy"]).group(0))
        wait_until(lambda: not findings(place), what="the promotion")
    finally:
        server.remove()
