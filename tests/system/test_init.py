"""postrider init: once, completely, and never over somebody's change."""
import json
import subprocess

import psycopg2

from conftest import BIN, ROOT

STATE = """SELECT (SELECT json_agg(v ORDER BY version) FROM postrider.schema_version v),
    (SELECT json_agg(r) FROM postrider.relay r), (SELECT count(*) FROM postrider.lane),
    (SELECT json_agg(c.relname ORDER BY c.oid) FROM pg_class c WHERE relnamespace = 'postrider'::regnamespace)"""


def test_a_second_run_changes_nothing(empty):
    first = empty.run("init", check=0)
    assert "schema 1 installed" in first.stdout and "registered" in first.stdout
    before = {name: empty.sql(name, STATE) for name in empty.names}
    second = empty.run("init", check=0)
    assert "up to date" in second.stdout and "installed" not in second.stdout
    assert {name: empty.sql(name, STATE) for name in empty.names} == before


def test_everything_is_registered(empty):
    empty.run("init", "--json", check=0)
    assert empty.value("shop", "SELECT name FROM postrider.relay") == "registrations-to-events"
    assert empty.value("shop", "SELECT count(*) FROM postrider.lane WHERE done_snap::text = '1:1:'") == 16
    assert empty.value("rewards", "SELECT name FROM postrider.consumer") == "rewards"
    assert empty.sql("bus", "SELECT topic, partitions FROM postrider.log_topic") == [("registration", 4)]
    assert json.loads(empty.run("init", "--json", check=0).stdout)[0]["schema"] == "1"


def test_start_now_leaves_out_what_is_there(empty):
    empty.config.write_text(empty.config.read_text().replace("destination: events, lease", "destination: events, start: now, lease"))
    empty.run("init", check=0)
    assert empty.value("shop", "SELECT count(*) FROM postrider.lane WHERE done_snap::text <> '1:1:'") == 16


def test_dry_run_prints_what_it_would_do_and_touches_nothing(empty):
    done = empty.run("init", "--dry-run", check=0)
    assert empty.value("shop", "SELECT to_regnamespace('postrider')") is None
    # What it prints is a script that psql runs, and the same schema.
    subprocess.run(["psql", "-qX", "-v", "ON_ERROR_STOP=1", "-f", "-", empty.dsns["shop"]], input=done.stdout, text=True,
                   check=True, capture_output=True)
    assert "up to date" in empty.run("init", check=0).stdout


def refused(place, code, *words):
    before = {name: place.sql(name, STATE) for name in place.names}
    done = place.run("init")
    assert done.returncode == code, done.stdout + done.stderr
    for word in words:
        assert word in done.stderr, done.stderr
    assert "hint:" in done.stderr
    assert {name: place.sql(name, STATE) for name in place.names} == before


def test_a_newer_schema_is_refused(place):
    place.sql("shop", "INSERT INTO postrider.schema_version VALUES (99, 'later', 'x', 1)")
    refused(place, 75, "newer")


def test_a_changed_migration_is_refused(place):
    place.sql("shop", "UPDATE postrider.schema_version SET checksum = 'x' WHERE version = 1")
    refused(place, 78, "differs")


def test_an_altered_schema_is_refused_and_named(place):
    place.sql("shop", "ALTER TABLE postrider.lane ADD COLUMN mine int")
    refused(place, 78, "lane.mine")
    place.sql("shop", "ALTER TABLE postrider.lane DROP COLUMN mine; DROP INDEX postrider.outbox_id")
    refused(place, 78, "outbox_id")


def test_two_at_once(empty):
    processes = [subprocess.Popen([BIN, "init", "--config", str(empty.config)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                  text=True) for _ in range(3)]
    outputs = [process.communicate()[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0, 0], outputs
    for name in empty.names:
        assert empty.value(name, "SELECT count(*) FROM postrider.schema_version") == 2


def test_missing_rights_are_told(empty):
    login = f"poor_{empty.names['shop']}"
    empty.sql("shop", f"CREATE ROLE {login} LOGIN")
    empty.config.write_text(empty.config.read_text().replace("postgres@", f"{login}@"))
    done = empty.run("init")
    assert done.returncode == 77, done.stderr
    assert "hint:" in done.stderr
    assert empty.value("shop", "SELECT to_regnamespace('postrider')") is None
    empty.sql("shop", f"DROP ROLE {login}")


def test_the_owner_of_a_database_can_install(empty):
    login = f"owner_{empty.names['shop']}"
    empty.sql("shop", f"CREATE ROLE {login} LOGIN CREATEROLE")
    version = int(empty.server.version)
    for role in ("owner", "producer", "relay", "consumer", "operator", "maint"):
        if empty.value("shop", f"SELECT EXISTS (SELECT FROM pg_roles WHERE rolname = 'postrider_{role}')") and version >= 16:
            empty.sql("shop", f"GRANT postrider_{role} TO {login} WITH ADMIN OPTION")
    for name, database in empty.names.items():
        empty.sql(name, f"ALTER DATABASE {database} OWNER TO {login}")
    empty.config.write_text(empty.config.read_text().replace("postgres@", f"{login}@"))
    empty.run("init", check=0)
    assert "up to date" in empty.run("init", check=0).stdout
    for name, database in empty.names.items():
        empty.sql(name, f"REASSIGN OWNED BY {login} TO postgres; DROP OWNED BY {login}")
    empty.sql("shop", f"DROP ROLE {login}")


def test_the_sample_is_a_good_configuration(empty):
    sample = empty.run("config", "sample", check=0).stdout
    empty.config.write_text(sample)
    env = {"SHOP_DSN": empty.dsns["shop"], "BUS_DSN": empty.dsns["bus"], "REWARDS_DSN": empty.dsns["rewards"]}
    assert empty.run("config", "check", env=env).returncode == 0
    assert empty.run("init", env=env).returncode == 0


def test_the_embedded_sql_is_that_of_the_folder():
    text = subprocess.run([BIN, "init", "--dry-run"], capture_output=True, text=True, check=True).stdout
    for path in sorted((ROOT / "sql/functions").glob("*.sql")):
        assert path.read_text().strip() in text, path


def test_a_login_of_our_own_name_is_no_trap(place):
    """A role called postrider has our schema in its search path; what init made must not depend on it."""
    conn = psycopg2.connect(place.dsns["shop"])
    conn.cursor().execute("SET search_path = postrider; SELECT postrider.emit('t', 'a', 1, 'E', '{}')")
    conn.rollback()
    conn.close()
