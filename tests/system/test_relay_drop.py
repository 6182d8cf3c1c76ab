"""postrider relay list and drop: what is registered, and how a relay ends."""
import json

import pytest

from conftest import OLD_ID, old_day, published, put_old, wait_until

RELAY = "registrations-to-events"
WHO = ("--actor", "ann", "--reason", "OPS-7: replaced")


def listed(place):
    return json.loads(place.run("relay", "list", "--json", check=0).stdout)


def drop(place, *args, check=None, who=WHO, name=RELAY):
    return place.run("relay", "drop", name, *who, *args, check=check)


def registered(place):
    return place.value("shop", "SELECT count(*) FROM postrider.relay")


def audit(place):
    assert place.value("shop", "SELECT postrider.audit_check()") is None
    return place.sql("shop", "SELECT act, given_name, reason, ticket, before FROM postrider.audit ORDER BY n")


def unconfigured(place, name="old-relay", start="now"):
    place.sql("shop", f"SELECT postrider.register_relay('{name}', 'postrider.outbox', '{start}', NULL)")


def test_list_tells_all_relays_of_the_database(place):
    unconfigured(place)
    place.emit("a", 1)
    rows = {row["relay"]: row for row in listed(place)}
    assert set(rows) == {RELAY, "old-relay"}
    mine, old = rows[RELAY], rows["old-relay"]
    assert mine["configured"] and mine["destination"] == "events" and mine["start"] == "earliest"
    assert not old["configured"] and old["destination"] is None and old["start"].endswith("Z")
    assert mine["pending"] == old["pending"] == 1 and mine["processes"] is None
    assert mine["holds_back_from"] == place.value("shop", "SELECT (now() AT TIME ZONE 'UTC')::date::text")
    text = place.run("relay", "list", check=0).stdout
    assert "not in this configuration" in text and "processes    none" in text


def test_list_tells_processes_and_dead_letters(place):
    process = place.start("--only", "relays")
    place.emit("a", 1)
    wait_until(lambda: len(published(place)) == 1, what="the event")
    wait_until(lambda: listed(place)[0]["pending"] == 0, what="its position")
    place.sql("shop", f"INSERT INTO postrider.parked (side, reader, state, event_id, class) SELECT 'relay', relay, 'dead', "
              f"'{OLD_ID.format(n=1)}', 'permanent' FROM postrider.relay")
    row = wait_until(lambda: next((row for row in listed(place) if row["processes"]), None), what="its process")
    assert ":" in row["processes"] and row["oldest_pending_ms"] is None
    assert row["dead"] == 1 and row["waiting"] == 0 and row["holds_back_from"] == "2023-06-30"
    assert "the outbox from 2023-06-30 on" in place.run("relay", "list", check=0).stdout
    place.stop(process)


def test_list_names_what_is_not_registered(place):
    place.sql("shop", "DELETE FROM postrider.relay")
    assert "not registered" in place.run("relay", "list", check=0).stdout
    assert listed(place)[0]["registered"] is False


def test_a_running_relay_is_not_dropped(place):
    process = place.start("--only", "relays")
    wait_until(lambda: "relay.running" in process.log.read_text(), what="the relay")
    wait_until(lambda: place.value("shop", "SELECT count(owner) FROM postrider.lane") == 16, what="its lanes")
    done = drop(place, "--force", check=1)
    assert "is running" in done.stderr and "owns 16 lanes" in done.stderr and "hint:" in done.stderr
    assert registered(place) == 1 and audit(place) == []
    place.stop(process)
    assert "dropped" in drop(place, check=0).stdout


def test_unpublished_events_ask_for_force(place):
    for n in range(3):
        place.emit(f"a{n}", 1)
    done = drop(place, check=1)
    assert "3 unpublished events, 0 dead letters" in done.stderr and "--force" in done.stderr
    assert registered(place) == 1 and audit(place) == []
    text = drop(place, "--force", "--dry-run", check=0).stdout
    assert "would be dropped" in text and registered(place) == 1 and audit(place) == []
    text = drop(place, "--force", "--ticket", "OPS-7", check=0).stdout
    assert "3 unpublished events" in text and "no other relay" in text and "still in the configuration" in text
    assert registered(place) == 0 and place.value("shop", "SELECT count(*) FROM postrider.lane") == 0
    assert place.value("shop", "SELECT count(*) FROM postrider.outbox") == 3
    (act, who, reason, ticket, before), = audit(place)
    assert (act, who, reason, ticket) == ("relay.drop", "ann", "OPS-7: replaced", "OPS-7")
    assert before["name"] == RELAY and before["pending"] == 3 and len(before["lanes"]) == 16


def test_dead_letters_ask_for_force_and_stay_as_discarded(place):
    place.sql("shop", f"INSERT INTO postrider.parked (side, reader, state, event_id, class) SELECT 'relay', relay, s, e::uuid, 'x' "
              f"FROM postrider.relay, (VALUES ('dead', '{OLD_ID.format(n=1)}'), ('waiting', '{OLD_ID.format(n=2)}')) v(s, e)")
    assert "1 dead letters and 1 waiting" in drop(place, check=1).stderr
    done = json.loads(drop(place, "--force", "--json", check=0).stdout)
    assert done["dropped"] and done["dead"] == 1 and done["waiting"] == 1 and done["held_back_from"] == "2023-06-30"
    assert place.sql("shop", "SELECT DISTINCT state, holds, request, request_by, request_reason FROM postrider.parked") == [
        ("discarded", False, "drop", "ann", "OPS-7: replaced")]


def test_what_it_held_back_is_released(place):
    """A relay that nobody runs any more keeps an old day; its end lets retention drop it."""
    unconfigured(place, start="earliest")
    old_day(place)
    put_old(place, 1)
    place.sql("shop", "UPDATE postrider.lane SET done_snap = pg_current_snapshot() WHERE relay = 1")
    assert "kept, relay old-relay has not published" in place.run("prune", check=0).stdout
    text = drop(place, "--force", name="old-relay", check=0).stdout
    assert "no longer held back: the outbox from 2023-06-30 on" in text and "no other relay" not in text
    assert "outbox_20230630: dropped" in place.run("prune", check=0).stdout


def test_made_anew_it_begins_anew(place):
    place.emit("a", 1)
    process = place.start("--only", "relays")
    wait_until(lambda: len(published(place)) == 1, what="the event")
    place.stop(process)
    drop(place, check=0)
    assert place.run("run", "--only", "relays").returncode == 78
    place.run("init", check=0)
    process = place.start("--only", "relays")
    wait_until(lambda: len(published(place)) == 2, what="the event again")
    place.stop(process)


@pytest.mark.parametrize("who", [(), ("--actor", "ann"), ("--reason", "x"), ("--actor", " ", "--reason", "x")])
def test_who_and_why_are_needed(place, who):
    done = drop(place, who=who, check=2)
    assert "--actor NAME and --reason TEXT" in done.stderr
    assert registered(place) == 1


def test_an_unknown_relay_or_outbox(place):
    assert "relay nobody is not registered" in drop(place, name="nobody", check=1).stderr
    assert 'no outbox "nothing"' in drop(place, "--outbox", "nothing", check=2).stderr
    assert "one NAME" in place.run("relay", "drop", *WHO, check=2).stderr
    assert registered(place) == 1


def test_a_namesake_in_another_database_asks_whose(place):
    text = place.config.read_text().replace("destinations:", f"  second: {{database: \"{place.dsns['bus']}\"}}\ndestinations:", 1)
    place.config.write_text(text)
    place.sql("bus", f"SELECT postrider.register_relay('{RELAY}', 'postrider.outbox', 'now', NULL)")
    assert [row["configured"] for row in listed(place)] == [True, False]
    assert "say whose with --outbox" in drop(place, check=2).stderr
    drop(place, "--outbox", "second", check=0)
    assert registered(place) == 1 and place.value("bus", "SELECT count(*) FROM postrider.relay") == 0


def test_an_operator_may_and_a_relay_may_not(place):
    logins = {role: f"{role}_{place.names['shop']}" for role in ("operator", "relay")}
    text = place.config.read_text()
    for role, login in logins.items():
        place.sql("shop", f"CREATE ROLE {login} LOGIN; GRANT postrider_{role} TO {login}")
    place.config.write_text(text.replace("postgres@", f"{logins['relay']}@"))
    assert drop(place).returncode == 77
    place.config.write_text(text.replace("postgres@", f"{logins['operator']}@"))
    assert len(listed(place)) == 1
    drop(place, check=0)
    assert place.value("shop", "SELECT role FROM postrider.audit") == logins["operator"]
    for login in logins.values():
        place.sql("shop", f"DROP OWNED BY {login}; DROP ROLE {login}")
