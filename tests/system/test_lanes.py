"""postrider lanes: who publishes which lane, and how far it is."""
import json

import psycopg2

from conftest import published, wait_until

RELAY = "registrations-to-events"


def lanes(place, *args):
    return json.loads(place.run("lanes", "--json", *args, check=0).stdout)


def pending(place):
    return sum(lane["pending"] for lane in lanes(place))


def test_nobody_runs_it(place):
    for n in range(40):
        place.emit(f"a{n}", 1)
    rows = lanes(place)
    assert [row["lane"] for row in rows] == list(range(16))
    assert all(row["owner"] is None and row["host"] is None and row["lease_left_ms"] is None for row in rows)
    assert all(row["position"] == "1:1:" and row["epoch"] == 0 for row in rows)
    by_lane = dict(place.sql("shop", "SELECT lane, count(*) FROM postrider.outbox GROUP BY lane"))
    assert {row["lane"]: row["pending"] for row in rows if row["pending"]} == by_lane
    assert all((row["oldest_pending_ms"] is not None) == (row["pending"] > 0) for row in rows)
    text = place.run("lanes", check=0).stdout
    assert text.count("nobody") == 16 and "1:1:" in text


def test_owner_epoch_lease_and_position(place):
    process = place.start("--only", "relays")
    place.emit("a", 1)
    wait_until(lambda: len(published(place)) == 1, what="the event")
    wait_until(lambda: pending(place) == 0, what="its position")
    rows = lanes(place, "--relay", RELAY)
    assert len({row["owner"] for row in rows}) == 1 and rows[0]["owner"]
    assert all(row["host"] and row["epoch"] == 1 and 0 < row["lease_left_ms"] <= 1000 for row in rows)
    assert any(row["position"] != "1:1:" for row in rows)
    assert all(row["oldest_pending_ms"] is None for row in rows)
    assert rows[0]["owner"][-8:] in place.run("lanes", check=0).stdout
    process.kill()
    process.wait(30)
    wait_until(lambda: all(row["lease_left_ms"] < 0 for row in lanes(place)), what="the end of the leases")
    assert "expired" in place.run("lanes", check=0).stdout


def test_a_half_done_window_counts_only_what_is_left(place):
    for n in range(20):
        place.emit(f"a{n}", 1)
    middle = place.value("shop", "SELECT id FROM postrider.outbox ORDER BY id OFFSET 9 LIMIT 1")
    place.sql("shop", "UPDATE postrider.lane SET open_snap = pg_current_snapshot(), open_pos = %s", (middle,))
    assert pending(place) == 10
    row = lanes(place)[0]
    assert row["window"] and row["window_published_to"] == middle
    assert f"big window {row['window']} published to id {middle}" in place.run("lanes", check=0).stdout
    place.emit("later", 1)
    assert pending(place) == 11


def test_a_transaction_that_was_open_at_the_position_is_counted(place):
    writer = psycopg2.connect(place.dsns["shop"])
    writer.cursor().execute("SELECT postrider.emit('registration', 'late', 1, 'E', '{}')")
    place.emit("a", 1)
    place.sql("shop", "UPDATE postrider.lane SET done_snap = pg_current_snapshot()")
    assert pending(place) == 0
    writer.commit()
    writer.close()
    assert pending(place) == 1


def test_what_the_filter_leaves_out_is_not_pending(place):
    place.emit("a", 1)
    place.emit("b", 1, kind="Other")
    place.sql("shop", "UPDATE postrider.relay SET filter = '{\"event_types\": [\"Other\"]}'")
    assert pending(place) == 1


def test_the_count_is_bounded(place):
    place.sql("shop", "SELECT postrider.emit('registration', n::text, 1, 'E', '{}') FROM generate_series(1, 300) n")
    rows = place.sql("shop", "SELECT pending, more FROM postrider.relay r, postrider.relay_lag(r.relay, 100)")
    assert sum(row[0] for row in rows) == 100 and all(row[1] for row in rows)
    rows = place.sql("shop", "SELECT pending, more FROM postrider.relay r, postrider.relay_lag(r.relay, 10000)")
    assert sum(row[0] for row in rows) == 300 and not any(row[1] for row in rows)


def test_an_operator_may_look(place):
    login = f"op_{place.names['shop']}"
    place.sql("shop", f"CREATE ROLE {login} LOGIN; GRANT postrider_operator TO {login}")
    place.emit("a", 1)
    place.config.write_text(place.config.read_text().replace("postgres@", f"{login}@"))
    assert pending(place) == 1
    place.sql("shop", f"DROP OWNED BY {login}; DROP ROLE {login}")


def test_an_unknown_relay(place):
    done = place.run("lanes", "--relay", "nobody", check=1)
    assert "relay nobody is not registered" in done.stderr and "hint: postrider relay list" in done.stderr


def test_a_table_of_the_users_own(place):
    place.sql("shop", """CREATE TABLE public.outbox (event_id uuid PRIMARY KEY, aggregate_id text NOT NULL,
        aggregate_version bigint NOT NULL, event_type text NOT NULL, payload jsonb NOT NULL,
        publish_state text NOT NULL DEFAULT 'PENDING', occurred_at timestamptz NOT NULL DEFAULT now());
        INSERT INTO public.outbox VALUES (gen_random_uuid(), 'a', 1, 'E', '{}', 'PENDING', now() - interval '1 minute')""")
    text = place.config.read_text().replace(
        "destinations:", f"  mine: {{database: \"{place.dsns['shop']}\", table: public.outbox, aggregate_type: registration, "
        "mark: {column: publish_state, pending: PENDING, published: PUBLISHED}}\ndestinations:").replace(
        "consumers:", "  mine-to-events: {outbox: mine, destination: events}\nconsumers:")
    place.config.write_text(text)
    place.run("init", check=0)
    row, = lanes(place, "--relay", "mine-to-events")
    assert row["lane"] == 0 and row["position"] is None and row["pending"] is None
    assert row["oldest_pending_ms"] > 50000
    assert "its state column" in place.run("lanes", check=0).stdout
