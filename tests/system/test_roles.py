"""What each login may do, as real logins: docs/guide/install.md."""
import psycopg2
import pytest

ROLES = ("producer", "relay", "consumer", "operator", "maint", "nobody")
INSERT = """INSERT INTO postrider.outbox (event_id, aggregate_type, aggregate_id, aggregate_version, event_type, payload,
    content_type, headers, occurred_at) VALUES (postrider.uuidv7(), 't', 'a', {v}, 'E', '{{}}', 'application/json', NULL, now())
    RETURNING event_id, aggregate_version"""

# what is tried, and who may
MATRIX = [
    (INSERT.format(v=1), {"producer"}),
    ("INSERT INTO postrider.outbox (aggregate_type, aggregate_id, aggregate_version, event_type, body) "
     "VALUES ('t', 'a', 2, 'E', 'x')", {"producer"}),
    ("INSERT INTO postrider.outbox (xid, aggregate_type, aggregate_id, aggregate_version, event_type, payload) "
     "VALUES ('1', 't', 'a', 3, 'E', '{}')", set()),
    ("INSERT INTO postrider.outbox (id, aggregate_type, aggregate_id, aggregate_version, event_type, payload) "
     "OVERRIDING SYSTEM VALUE VALUES (1, 't', 'a', 3, 'E', '{}')", set()),
    ("INSERT INTO postrider.outbox (inserted_at, aggregate_type, aggregate_id, aggregate_version, event_type, payload) "
     "VALUES (now(), 't', 'a', 3, 'E', '{}')", set()),
    ("INSERT INTO postrider.outbox_default (aggregate_type, aggregate_id, aggregate_version, event_type, payload) "
     "VALUES ('t', 'a', 3, 'E', '{}')", set()),
    ("SELECT postrider.emit('t', 'b', 1, 'E', '{}')", {"producer", "operator"}),
    ("SELECT postrider.emit_bytes('t', 'c', 1, 'E', 'x')", {"producer", "operator"}),
    ("SELECT event_id, aggregate_version FROM postrider.outbox", {"producer", "relay", "operator"}),
    ("SELECT payload FROM postrider.outbox", {"relay"}),
    ("UPDATE postrider.outbox SET payload = '{}'", set()),
    ("DELETE FROM postrider.outbox", set()),
    ("TRUNCATE postrider.outbox", set()),
    ("SELECT nextval(pg_get_serial_sequence('postrider.outbox', 'id'))", set()),
    ("SELECT publish_state FROM postrider.outbox_state", {"relay", "operator"}),
    ("UPDATE postrider.lane SET done_snap = done_snap", {"relay"}),
    ("UPDATE postrider.lane SET relay = relay", set()),
    ("INSERT INTO postrider.lane VALUES (9, 9)", set()),
    ("UPDATE postrider.relay SET name = name", set()),
    ("SELECT postrider.log_create_topic('t', 1)", {"relay", "operator"}),
    ("SELECT postrider.log_append(gen_random_uuid(), '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}')", {"relay"}),
    ("SELECT body FROM postrider.log", {"consumer"}),
    ("DELETE FROM postrider.log", set()),
    ("UPDATE postrider.log_head SET next_off = 0", set()),
    ("SELECT name FROM postrider.consumer", {"consumer", "operator"}),
    ("SELECT version FROM postrider.stream", {"consumer", "operator"}),
    ("SELECT event_id, outcome FROM postrider.consumed", {"consumer", "operator"}),
    ("DELETE FROM postrider.consumed", set()),
    ("SELECT at, lost FROM postrider.reconciled", {"consumer", "operator"}),
    ("SELECT id, class, message FROM postrider.parked", {"relay", "consumer", "operator"}),
    ("SELECT body FROM postrider.parked", {"relay", "consumer"}),
    ("SELECT postrider.make_partitions(3)", {"maint", "relay", "consumer"}),
    ("SELECT postrider.prune_outbox(now(), true)", {"maint", "relay"}),
    ("SELECT postrider.register_relay('x', 'postrider.outbox', 'now', NULL)", set()),
    ("SELECT postrider.register_consumer('x')", set()),
    ("SELECT postrider.make_partition('log', '2030-01-01', '2030-01-01', '2030-01-02')", set()),
    ("SELECT count(*) FROM postrider.schema_version", {"relay", "consumer", "operator", "maint"}),
    ("CREATE TABLE postrider.mine (a int)", set()),
    ("SELECT * FROM postrider.relay_lag(1::smallint, 10)", {"relay", "operator", "maint"}),
    ("SELECT * FROM postrider.relay_drop('x', 'ann', 'why', NULL, true, true)", {"operator"}),
    ("SELECT * FROM postrider.default_rows()", {"relay", "consumer", "operator", "maint"}),
    ("SELECT postrider.audit_write('x', 'ann', 'why', NULL, NULL, NULL)", set()),
]


@pytest.fixture
def logins(place):
    names = {role: f"{role}_{place.names['shop']}" for role in ROLES}
    for role, login in names.items():
        place.sql("shop", f"CREATE ROLE {login} LOGIN")
        if role != "nobody":
            place.sql("shop", f"GRANT postrider_{role} TO {login}")
    yield names
    for login in names.values():
        place.sql("shop", f"DROP OWNED BY {login}; DROP ROLE {login}")


def allowed(place, login, statement):
    conn = psycopg2.connect(place.server.dsn(place.names["shop"], login))
    try:
        conn.cursor().execute(statement)
        return True
    except psycopg2.Error as error:
        # Overriding an identity is refused by its kind, the rest by rights.
        assert error.pgcode == "42501", (statement, error.pgcode, str(error))
        return False
    finally:
        conn.rollback()
        conn.close()


def test_privilege_matrix(place, logins):
    place.emit("a", 1)
    wrong = [(role, statement) for statement, may in MATRIX for role in ROLES
             if allowed(place, logins[role], statement) != (role in may)]
    assert wrong == []


def test_public_has_nothing(place):
    assert place.value("shop", """
        SELECT count(*) FROM pg_proc p, aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) a
        WHERE p.pronamespace = 'postrider'::regnamespace AND a.grantee = 0""") == 0
    assert place.value("shop", """
        SELECT count(*) FROM pg_class c, aclexplode(c.relacl) a
        WHERE c.relnamespace = 'postrider'::regnamespace AND a.grantee = 0""") == 0


def test_definer_functions_fix_their_search_path(place):
    assert place.sql("shop", """SELECT proname FROM pg_proc WHERE pronamespace = 'postrider'::regnamespace AND prosecdef
        AND NOT coalesce(proconfig::text, '') LIKE '%search_path=pg_catalog, pg_temp%'""") == []


def test_a_relay_and_a_consumer_work_with_their_roles_alone(place):
    from conftest import wait_until
    names = {"relay": f"r_{place.names['shop']}", "consumer": f"c_{place.names['shop']}"}
    place.sql("shop", "".join(f"CREATE ROLE {login} LOGIN; GRANT postrider_{role} TO {login};"
                              for role, login in names.items()))
    place.sql("rewards", f"GRANT SELECT, INSERT, UPDATE ON reward_account, reward_entry, consumed_message TO {names['consumer']};"
              "INSERT INTO reward_account VALUES ('p1', 0)")
    text = place.config.read_text()
    place.config.write_text(text.replace("postgres@", f"{names['relay']}@"))
    relay = place.start("--only", "relays")
    wait_until(lambda: "relay.running" in relay.log.read_text(), what="the relay")
    place.config.write_text(text.replace("postgres@", f"{names['consumer']}@"))
    consumer = place.start("--only", "consumers")
    place.emit("a", 1)
    wait_until(lambda: place.value("rewards", "SELECT balance FROM reward_account") == 10, what="the reward")
    assert place.stop(relay) == 0 and place.stop(consumer) == 0
    assert "denied" not in relay.log.read_text() + consumer.log.read_text()
    for database in place.names:
        place.sql(database, "".join(f"DROP OWNED BY {login};" for login in names.values()))
    place.sql("shop", "".join(f"DROP ROLE {login};" for login in names.values()))
