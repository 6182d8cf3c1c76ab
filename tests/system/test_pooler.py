"""Behind a real PgBouncer in transaction mode: the application may be there, we may not."""
import psycopg2
import pytest

from conftest import states, wait_until
from servers.pgbouncer import PgBouncer


@pytest.fixture
def pooler(place):
    bouncer = PgBouncer(place.server)
    yield bouncer
    bouncer.remove()


def behind(place, pooler, name):
    place.config.write_text(place.config.read_text().replace(place.dsns[name], pooler.dsn(place.names[name])))


@pytest.mark.parametrize("name", ["shop", "bus", "rewards"])
def test_F98_a_pooler_is_recognized_and_refused(place, pooler, name):
    behind(place, pooler, name)
    for args in ("run",), ("init",):
        done = place.run(*args, check=78)
        assert f"/{place.names[name]} is a pooler of connections, not the server" in done.stderr and "hint: connect to the server itself" in done.stderr
    # Its own sessions were not touched: what we set for ourselves would have held for strangers.
    with psycopg2.connect(pooler.dsn(place.names[name])) as stranger, stranger.cursor() as cur:
        cur.execute("SHOW statement_timeout")
        assert cur.fetchone() == ("0",)
    stranger.close()


def test_F98_an_application_behind_a_pooler_loses_nothing(place, pooler):
    place.start("--only", "relays")
    clients = [psycopg2.connect(pooler.dsn(place.names["shop"])) for _ in range(8)]
    for version in range(1, 20):
        for n, client in enumerate(clients):
            with client, client.cursor() as cur:
                cur.execute("SELECT postrider.emit('registration', %s, %s, 'E', '{}')", (f"a{n}", version))
    for client in clients:
        client.close()
    wait_until(lambda: list(states(place).values()) == ["PUBLISHED"] * 152, what="all published")
    order = place.sql("bus", "SELECT count(*) FROM (SELECT off, lead(off) OVER (PARTITION BY part, key ORDER BY"
                             " convert_from(header_values[array_position(header_names, 'postrider-version')], 'UTF8')::int) AS next,"
                             " key FROM postrider.log) AS l WHERE next < off")
    assert order == [(0,)]
