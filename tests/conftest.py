"""Fixtures for tests that use the real program on real servers."""
import itertools
import json
import os
import pathlib
import signal
import subprocess
import sys
import textwrap
import time
import urllib.error
import urllib.request

import psycopg2.extras
import pytest

psycopg2.extras.register_uuid()  # for all tests alike: it holds for the whole process
ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from servers.postgres import PostgresServer, with_autocommit  # noqa: E402

BIN = os.environ.get("POSTRIDER_BIN", str(ROOT / "build" / "src" / "postrider"))
TEST_BIN = os.environ.get("TEST_BIN", str(ROOT / "build-test" / "src" / "postrider"))
VERSIONS = os.environ.get("PG_VERSIONS", "15 16 18").split() + os.environ.get("PG", "").split()
# What depends on the server runs on all of them, the rest on the first.
EVERYWHERE = {"test_relay", "test_mark", "test_init", "test_race", "test_race_relay", "test_failpoints", "test_consume_decisions"}
numbers = itertools.count(1)
HAS_KAFKA = b"librdkafka.so" in pathlib.Path(BIN).read_bytes() if os.path.exists(BIN) else True
needs_kafka = pytest.mark.skipif(not HAS_KAFKA, reason="built without transport kafka")


def wait_until(condition, timeout=30, what="the condition"):
    """Polls until condition() is true; returns its value."""
    deadline = time.monotonic() + timeout
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            pytest.fail(f"{what} did not come true in {timeout} s")
        time.sleep(0.03)


@pytest.fixture(scope="session")
def servers():
    started = {}

    def get(version):
        if version not in started:
            started[version] = PostgresServer(version)
        return started[version]

    yield get
    for server in started.values():
        server.remove()


# What init would have made anew in a database of its own.
AS_NEW = """
UPDATE postrider.meta SET log_id = gen_random_uuid(), installed_at = clock_timestamp(),
    database_oid = (SELECT oid FROM pg_database WHERE datname = current_database());
UPDATE postrider.relay SET writer = gen_random_uuid();
"""


class Place:
    """Three fresh databases, a configuration for them, and the program."""

    def __init__(self, server, folder, copy_of=None):
        self.server = server
        self.folder = folder
        n = next(numbers)
        self.names = {name: f"{name}_{os.getpid()}_{n}" for name in ("shop", "bus", "rewards")}
        self.dsns = {name: server.create(database, copy_of.names[name] if copy_of else "template0")
                     for name, database in self.names.items()}
        for name in self.dsns if copy_of else ():
            self.sql(name, AS_NEW)
        self.processes = []
        self.config = folder / "postrider.yaml"
        self.write_config()

    def write_config(self, text=None, **replace):
        values = {"lease": "1s", "handler": "SELECT apply_reward_event(:consumer, :event_id, :payload.playerId, "
                  ":payload.points)", "extra": "", "order": "stream", "transport": "postgres", **replace}
        self.config.write_text(text or textwrap.dedent(f"""\
            outboxes:
              registrations: {{database: "{self.dsns['shop']}"}}
            destinations:
              events: {{transport: postgres, database: "{self.dsns['bus']}", topic: "{{aggregate_type}}", partitions: 4}}
            relays:
              registrations-to-events: {{outbox: registrations, destination: events, lease: {values['lease']}}}
            consumers:
              rewards:
                database: "{self.dsns['rewards']}"
                from: {{destination: events, topic: registration}}
                order: {values['order']}
                lease: {values['lease']}
                handlers:
                  RegistrationConfirmed: {{sql: "{values['handler']}"}}
            {values['extra']}
            """))

    def story(self):
        """The tables of the story, as `postrider dev` makes them."""
        self.sql("shop", (ROOT / "sql/demo/shop.sql").read_text())
        self.sql("rewards", (ROOT / "sql/demo/rewards.sql").read_text())

    def run(self, *args, stdin=None, env=None, binary=None, check=None):
        done = subprocess.run([binary or BIN, *args], input=stdin, capture_output=True, text=True, timeout=120,
                              env={**os.environ, "POSTRIDER_CONFIG": str(self.config), **(env or {})}, check=False)
        if check is not None and done.returncode != check:
            pytest.fail(f"{args}: exit {done.returncode}, not {check}\n{done.stdout}{done.stderr}")
        return done

    def start(self, *args, failpoint=None, binary=None):
        """`postrider run …` in the background."""
        env = {**os.environ, "POSTRIDER_CONFIG": str(self.config)}
        if failpoint:
            env["POSTRIDER_FAILPOINT"] = failpoint
        log = open(self.folder / f"run-{len(self.processes)}.log", "wb")
        process = subprocess.Popen([binary or (TEST_BIN if failpoint else BIN), "run", *args], env=env,
                                   stdout=log, stderr=subprocess.STDOUT)
        log.close()
        process.log = pathlib.Path(log.name)
        self.processes.append(process)
        return process

    def stop(self, process, sig=signal.SIGTERM):
        if process.poll() is None:
            process.send_signal(sig)
        return process.wait(30)

    def sql(self, database, statement, args=None):
        return with_autocommit(self.dsns[database], statement, args)

    def value(self, database, statement, args=None):
        return self.sql(database, statement, args)[0][0]

    def emit(self, aggregate, version, points=10, player="p1", kind="RegistrationConfirmed"):
        return self.value("shop", "SELECT postrider.emit('registration', %s, %s, %s, %s::jsonb)::text",
                          (aggregate, version, kind, json.dumps({"playerId": player, "points": points})))

    def close(self):
        for process in self.processes:
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.kill()
                process.wait(30)
        for name in self.names.values():
            self.server.drop(name)


def pytest_generate_tests(metafunc):
    if "pg" in metafunc.fixturenames:
        name = metafunc.module.__name__.rsplit(".", 1)[-1]
        metafunc.parametrize("pg", VERSIONS if name in EVERYWHERE else VERSIONS[:1], indirect=True)


@pytest.fixture(scope="module")
def shared_place(servers, tmp_path_factory):
    """As `place`, one for all tests of a file."""
    place = Place(servers(VERSIONS[0]), tmp_path_factory.mktemp("shared"))
    place.run("init", check=0)
    place.story()
    yield place
    place.close()


@pytest.fixture
def pg(request, servers):
    return servers(request.param)


@pytest.fixture
def empty(pg, tmp_path):
    """Databases without our schema."""
    place = Place(pg, tmp_path)
    yield place
    place.close()


@pytest.fixture(scope="session")
def originals(servers, tmp_path_factory):
    """One installed place per server, to copy: an init for each test is half the time of many."""
    made = {}

    def get(server):
        if server not in made:
            made[server] = Place(server, tmp_path_factory.mktemp("original"))
            made[server].run("init", check=0)
            made[server].story()
        return made[server]

    return get


@pytest.fixture
def place(pg, originals, tmp_path):
    """Databases with our schema and the story's tables."""
    place = Place(pg, tmp_path, copy_of=originals(pg))
    yield place
    place.close()


def http(port, path):
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def port_of(process):
    """The port of a program whose configuration says 127.0.0.1:0."""
    def find():
        for line in process.log.read_text().splitlines():
            if "daemon.listening" in line:
                return int(line.rsplit("port=", 1)[1])
        return None
    return wait_until(find, what="the HTTP server")


def published(place):
    return [row[0] for row in place.sql("bus", "SELECT event_id::text FROM postrider.log ORDER BY at, topic, part, off")]


def states(place):
    return dict(place.sql("shop", "SELECT event_id::text, publish_state FROM postrider.outbox_state"))


OLD_ID = "01890a5d-ac96-7b7e-9d2a-{n:012d}"  # 2023-06-30


def old_day(place, table="outbox"):
    """A partition for 2023-06-30."""
    if table == "consumed":
        # What lies before the first day is one partition; under a day's name it is that day's.
        place.sql("rewards", "ALTER TABLE postrider.consumed_before RENAME TO consumed_20230630")
        return
    bounds = {"outbox": ("postrider.day_floor('2023-06-30')::text", "postrider.day_floor('2023-07-01')::text"),
              "log": ("'2023-06-30 00:00+00'", "'2023-07-01 00:00+00'")}[table]
    place.sql("shop" if table == "outbox" else "bus", "SET ROLE postrider_owner; "
              f"SELECT postrider.make_partition('{table}', '2023-06-30', {bounds[0]}, {bounds[1]})")


def put_old(place, n, conn=None):
    statement = ("INSERT INTO postrider.outbox (event_id, aggregate_type, aggregate_id, aggregate_version, event_type, payload) "
                 f"VALUES ('{OLD_ID.format(n=n)}', 'registration', 'old', {n}, 'E', '{{}}')")
    if conn:
        conn.cursor().execute(statement)
    else:
        place.sql("shop", statement)
