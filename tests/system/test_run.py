"""Starts that cannot work, and the way a program ends: one clear message, a stable exit code, nothing half-done."""
import json
import os
import signal
import socket
import subprocess
import time

import psycopg2
import pytest

from conftest import BIN, wait_until


def fails(place, code, *words, args=("run",)):
    began = time.monotonic()
    done = place.run(*args)
    text = done.stdout + done.stderr
    assert done.returncode == code, f"exit {done.returncode}, not {code}: {text}"
    for word in words:
        assert word in text, f"{word!r} is not in: {text}"
    assert "hint:" in done.stderr
    assert time.monotonic() - began < 15
    return text


def test_wrong_configuration(place):
    place.config.write_text(place.config.read_text().replace("outbox: registrations", "outbox: registration"))
    fails(place, 78, "postrider.yaml:", 'did you mean "registrations"')


def test_no_configuration(place):
    place.config.unlink()
    fails(place, 78, "cannot read")


def test_missing_secret(place):
    place.config.write_text(place.config.read_text().replace(place.dsns["shop"], "${T_NOT_SET_ANYWHERE}"))
    fails(place, 78, "T_NOT_SET_ANYWHERE")


def test_wrong_password(place):
    place.sql("shop", "DROP ROLE IF EXISTS nobody_here")
    place.config.write_text(place.config.read_text().replace("postgres@", "nobody_here@"))
    fails(place, 77, "nobody_here")


def test_missing_database(place):
    place.config.write_text(place.config.read_text().replace(place.names["shop"], "no_such_db"))
    fails(place, 78, "no_such_db")


def test_server_away(place):
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]
    place.config.write_text(place.config.read_text().replace(f":{place.server.port}/", f":{port}/"))
    fails(place, 69, f"127.0.0.1:{port}")


def test_unreadable_connection_string(place):
    place.config.write_text(place.config.read_text().replace(place.dsns["shop"], "postgresql://[::1"))
    fails(place, 78, "connection string")


def test_read_only_server(place):
    place.sql("shop", f"ALTER DATABASE {place.names['shop']} SET default_transaction_read_only = on")
    fails(place, 69, "read-only")


def test_no_schema(empty):
    fails(empty, 78, "postrider init")


def test_schema_too_new(place):
    place.sql("shop", "INSERT INTO postrider.schema_version VALUES (99, 'later', 'x', 99)")
    fails(place, 75, "newer")


def test_F101_a_newer_schema_that_allows_this_program(place):
    place.sql("shop", "INSERT INTO postrider.schema_version VALUES (99, 'later', 'x', 1)")
    process = place.start()
    wait_until(lambda: "relay.running" in process.log.read_text(), what="the relay")
    assert place.stop(process) == 0


def test_missing_grants(place):
    place.sql("shop", "DROP ROLE IF EXISTS poor; CREATE ROLE poor LOGIN")
    place.config.write_text(place.config.read_text().replace("postgres@", "poor@"))
    fails(place, 77, "permission denied")


def test_unregistered_relay(place):
    place.config.write_text(place.config.read_text().replace("registrations-to-events:", "other:"))
    fails(place, 78, "other", "postrider init")


def test_F20_another_cluster(place):
    place.sql("shop", "UPDATE postrider.meta SET system_identifier = 1")
    fails(place, 1, "copy")


def test_a_cached_sequence(place):
    place.sql("shop", "ALTER TABLE postrider.outbox ALTER COLUMN id SET CACHE 50")
    fails(place, 78, "SET CACHE 1")


def test_port_in_use(place):
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        sock.listen()
        place.write_config(extra=f'http: {{listen: "127.0.0.1:{sock.getsockname()[1]}"}}')
        fails(place, 69, "cannot listen")


def test_F43_positions_ahead_of_the_server(place):
    """A dump loaded into a younger cluster: its transactions have lower numbers than the positions."""
    place.emit("a", 1)
    place.sql("shop", "UPDATE postrider.lane SET done_snap = '99999999:99999999:'")
    fails(place, 1, "is ahead of the server's transactions")
    assert place.value("bus", "SELECT count(*) FROM postrider.log") == 0


def test_events_ahead_of_the_server(place):
    place.emit("a", 1)
    place.sql("shop", "UPDATE postrider.outbox SET xid = '99999999'")
    fails(place, 1, "was written by transaction 99999999, which is ahead of the server's transactions")


def test_a_position_that_gets_ahead_while_it_runs(place):
    """The server was set back under a running relay: what it reads of its lanes when it comes again is refused."""
    process = place.start("--only", "relays")
    wait_until(lambda: place.value("shop", "SELECT count(owner) FROM postrider.lane") == 16, what="its lanes")
    place.sql("shop", "UPDATE postrider.lane SET done_snap = '99999999:99999999:'")
    place.sql("shop", "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE 'postrider %' "
              "AND datname = current_database()")
    place.emit("a", 1)
    wait_until(lambda: "relay.xid_regression" in process.log.read_text(), what="the refusal")
    assert place.value("bus", "SELECT count(*) FROM postrider.log") == 0
    assert place.stop(process) == 0


def test_F74_sigterm_drains_and_gives_everything_back(place):
    place.sql("rewards", "INSERT INTO reward_account VALUES ('p1', 0)")
    process = place.start()
    wait_until(lambda: "consumer.running" in process.log.read_text(), what="the consumer")
    for version in range(1, 200):
        place.emit("a", version, 1)
    began = time.monotonic()
    assert place.stop(process) == 0
    assert time.monotonic() - began < 10
    assert place.value("shop", "SELECT count(*) FROM postrider.lane WHERE owner IS NOT NULL") == 0
    assert place.value("rewards", "SELECT count(*) FROM postrider.consumer_partition WHERE owner IS NOT NULL") == 0
    published = place.value("bus", "SELECT count(*) FROM postrider.log")
    pending = place.value("shop", "SELECT count(*) FROM postrider.outbox_state WHERE publish_state = 'PENDING'")
    assert published + pending == 199


def test_json_logs_carry_no_payload(place):
    place.sql("rewards", "INSERT INTO reward_account VALUES ('p1', 0)")
    place.write_config(extra="log: {format: json, level: debug}")
    process = place.start()
    place.emit("a", 1, 424242)
    place.emit("b", 1, 424242, player="player-who-does-not-exist")
    wait_until(lambda: place.value("rewards", "SELECT count(*) FROM postrider.consumed") == 2, what="both events")
    place.stop(process)
    text = process.log.read_text()
    assert "424242" not in text and "playerId" not in text
    for line in text.splitlines():
        assert {"ts", "level", "event"} <= set(json.loads(line))


def dev(*args, env=None):
    return subprocess.Popen([BIN, "dev", "--json", *args], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                            env={**os.environ, **(env or {})})


def test_dev_runs_and_leaves_nothing_behind():
    process = dev()
    place = json.loads(process.stdout.readline())
    conn = psycopg2.connect(place["rewards"])
    conn.autocommit = True
    conn.cursor().execute("INSERT INTO reward_account VALUES ('p1', 0)")
    done = subprocess.run([BIN, "emit", "--aggregate", "registration:r1", "--aggregate-version", "1", "--type",
                           "RegistrationConfirmed", "--payload", '{"playerId": "p1", "points": 7}'],
                          env={**os.environ, "POSTRIDER_CONFIG": place["config"]}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr

    def balance():
        cursor = conn.cursor()
        cursor.execute("SELECT balance FROM reward_account")
        return cursor.fetchone()[0]
    wait_until(lambda: balance() == 7, what="the reward")
    conn.close()
    process.send_signal(signal.SIGINT)
    assert process.wait(30) == 0
    assert not os.path.exists(place["folder"])


def test_a_second_dev_in_one_folder_says_so(tmp_path):
    folder = tmp_path / "kept"
    os.chmod(tmp_path, 0o755)
    for parent in tmp_path.parents:  # the server's user must get there
        if "pytest" in str(parent):
            os.chmod(parent, 0o755)
    process = dev("--keep", str(folder), "--no-run")
    place = json.loads(process.stdout.readline())
    second = subprocess.run([BIN, "dev", "--keep", str(folder)], capture_output=True, text=True, timeout=30, check=False)
    assert second.returncode == 1 and str(folder) in second.stderr and str(process.pid) in second.stderr
    assert "hint:" in second.stderr
    conn = psycopg2.connect(place["shop"])
    conn.autocommit = True
    conn.cursor().execute("SELECT postrider.emit('registration', 'r', 1, 'E', '{}')")
    conn.close()
    process.send_signal(signal.SIGTERM)
    assert process.wait(30) == 0
    again = dev("--keep", str(folder), "--no-run")
    kept = json.loads(again.stdout.readline())
    assert kept["shop"] == place["shop"]
    conn = psycopg2.connect(kept["shop"])
    cursor = conn.cursor()
    cursor.execute("SELECT count(*) FROM postrider.outbox")
    assert cursor.fetchone()[0] == 1
    conn.close()
    again.send_signal(signal.SIGTERM)
    assert again.wait(30) == 0


def test_a_killed_dev_leaves_no_server():
    process = dev("--no-run")
    place = json.loads(process.stdout.readline())
    process.kill()
    process.wait()

    def gone():
        try:
            psycopg2.connect(place["shop"]).close()
            return False
        except psycopg2.OperationalError:
            return True
    wait_until(gone, what="the server to end")
    subprocess.run(["rm", "-rf", place["folder"]], check=True)


def test_tail_ends_with_its_reader(place):
    place.emit("a", 1)
    place.start("--only", "relays")
    tail = subprocess.Popen([BIN, "tail", "--follow", "--config", str(place.config)], stdout=subprocess.PIPE)
    assert b"RegistrationConfirmed" in tail.stdout.readline()
    tail.stdout.close()
    assert tail.wait(timeout=5) in (0, 73)


@pytest.mark.parametrize("command", ["status", "doctor", "lanes"])
def test_an_output_that_cannot_be_written_is_told(place, command):
    with open("/dev/full", "w") as full:
        done = subprocess.run([BIN, command, "--config", str(place.config)], stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 73 and "cannot write" in done.stderr


@pytest.mark.parametrize("args,word", [
    (("statsu",), 'did you mean "status"'), (("run", "--onyl", "x"), "--onyl"), (("run", "--only", "x"), "relays or consumers"),
    (("dlq",), "dlq"), (("status", "extra"), "extra"), (("emit", "--type", "x"), "--aggregate"), (("tail", "--limit", "0"), "--limit")])
def test_wrong_command_lines(place, args, word):
    done = place.run(*args)
    assert done.returncode == 2 and word in done.stdout + done.stderr
