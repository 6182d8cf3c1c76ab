"""`postrider status`: is it all right, and if not, what do I do; told from the databases alone."""
import json
import signal

import pytest

from conftest import http, port_of, wait_until
from system.test_consume import Topic, balance, consumed_up_to, event, start


@pytest.fixture
def topic(place):
    place.sql("rewards", "INSERT INTO reward_account VALUES ('p1'), ('p2')")
    place.write_config(extra='http: {listen: "127.0.0.1:0"}')
    return Topic(place)


def status(place, kind="consumer"):
    """Exit code and the finding of the only one of its kind."""
    done = place.run("status", "--json")
    return done.returncode, next(f for f in json.loads(done.stdout) if kind in f)


def in_state(place, state, kind="consumer"):
    def find():
        _, finding = status(place, kind)
        return finding if finding["state"] == state else None
    return wait_until(find, what=f"{kind} is {state}")


def test_nobody_runs(place, topic):
    code, finding = status(place)
    assert (code, finding["ok"], finding["state"]) == (1, False, None)
    assert finding["todo"] == "no process runs this consumer: start `postrider run`"
    assert status(place, "relay")[1]["todo"] == "no process runs this relay: start `postrider run`"


def test_all_right(place, topic):
    place.start()
    topic.put(event(1))
    consumed_up_to(place, 1)
    in_state(place, "running")
    in_state(place, "running", "relay")
    code, finding = wait_until(lambda: (lambda s: s if s[0] == 0 else None)(status(place)))
    assert finding["facts"].startswith("4 of 4 partitions owned by ") and ", 0 behind, parked: 0 waiting" in finding["facts"]
    text = place.run("status", check=0).stdout
    assert text.count(" ok ") == 2 and text.endswith("all right\n") and "→" not in text


def test_a_halted_consumer_says_so_and_why_and_stays_known(place, topic):
    process = start(place)
    topic.put(event(1))
    consumed_up_to(place, 1)
    place.stop(process)
    place.sql("bus", "DELETE FROM postrider.log; UPDATE postrider.log_head SET next_off = 0")
    process = start(place)
    finding = in_state(place, "halted")
    assert "the log is not the one that was read" in finding["why"] and finding["why"].startswith("halted on ")
    assert "restored" in finding["todo"] and not finding["ok"]
    # Kept alive beyond the lease (1 s), while it looks again only every 30 s.
    assert place.value("rewards", "SELECT until > now() + '25 s' FROM postrider.instance")
    assert "no process runs this consumer" not in place.run("status").stdout
    code, body = http(port_of(process), "/readyz")
    worker = next(w for w in json.loads(body)["workers"] if "consumer" in w)
    assert (code, worker["state"]) == (503, "halted") and "restored" in worker["hint"]


def test_a_handler_that_is_missing_at_the_start_is_halted_or_paused_before_any_partition(place, topic):
    process = start(place)
    topic.put(event(1))
    consumed_up_to(place, 1)
    place.sql("rewards", "ALTER FUNCTION apply_reward_event RENAME TO gone")
    place.sql("rewards", "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE 'postrider consumer%'")
    finding = in_state(place, "paused")
    assert "42883" in finding["why"] or "apply_reward_event" in finding["why"]
    place.sql("rewards", "ALTER FUNCTION gone RENAME TO apply_reward_event")
    in_state(place, "running")
    assert place.stop(process) == 0
    assert status(place)[1]["state"] is None


def test_a_paused_handler(place, topic):
    place.sql("rewards", "ALTER TABLE reward_entry RENAME TO gone")
    process = start(place)
    topic.put(event(1), event(1, stream="r2"))
    finding = in_state(place, "paused")
    assert "the handler of RegistrationConfirmed fails for every event (42P01)" in finding["why"]
    assert finding["todo"]
    text = place.run("status").stdout
    assert " NOT " in text and "paused on " in text and "→ " in text
    place.sql("rewards", "ALTER TABLE gone RENAME TO reward_entry")
    wait_until(lambda: balance(place) == 20)
    in_state(place, "running")
    assert process.poll() is None


def test_dead_letters_leave_it_ready_and_status_tells_the_command(place, topic):
    process = start(place)
    topic.put(event(1, points=-1), event(1, stream="r2"))
    consumed_up_to(place, 2)
    code, finding = status(place)
    assert (code, finding["todo"], finding["state"]) == (1, "postrider dlq list --consumer rewards", "running")
    assert "1 dead (" in finding["facts"]
    wait_until(lambda: http(port_of(process), "/readyz")[0] == 200)


def test_a_killed_process_is_gone_when_its_lease_ends(place, topic):
    process = start(place)
    in_state(place, "running")
    process.send_signal(signal.SIGKILL)
    finding = in_state(place, None)
    assert finding["todo"].startswith("no process runs this consumer")


def test_the_source_is_away(place, topic):
    start(place)
    in_state(place, "running")
    bus = place.names["bus"]
    place.sql("shop", f"ALTER DATABASE {bus} ALLOW_CONNECTIONS false")
    place.sql("shop", f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{bus}'")
    wait_until(lambda: place.value("rewards", "SELECT state FROM postrider.instance WHERE side = 'consumer'") == "paused")
    assert bus in place.value("rewards", "SELECT reason FROM postrider.instance WHERE side = 'consumer'")
    place.sql("shop", f"ALTER DATABASE {bus} ALLOW_CONNECTIONS true")
    in_state(place, "running")


def test_a_relay_whose_destination_is_away(place, topic):
    place.start("--only", "relays")
    in_state(place, "running", "relay")
    bus = place.names["bus"]
    place.sql("shop", f"ALTER DATABASE {bus} ALLOW_CONNECTIONS false")
    place.sql("shop", f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{bus}'")
    place.emit("r1", 1)
    finding = in_state(place, "paused", "relay")
    assert bus in finding["why"] and "16 of 16 lanes owned by " in finding["facts"] and finding["todo"]
    place.sql("shop", f"ALTER DATABASE {bus} ALLOW_CONNECTIONS true")
    in_state(place, "running", "relay")


def test_a_relay_that_halts(place, topic):
    process = place.start("--only", "relays")
    in_state(place, "running", "relay")
    place.sql("shop", "UPDATE postrider.relay SET outbox = 'public.other'")
    place.sql("shop", "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE 'postrider relay%'")
    finding = in_state(place, "halted", "relay")
    assert "is registered for table public.other" in finding["why"] and "give the relay of another table" in finding["todo"]
    assert process.poll() is None


def test_rejections_are_shown(place, topic):
    text = place.config.read_text().replace("    handlers:", '    errors: [{sqlstate: "22023", class: rejected}]\n    handlers:')
    place.config.write_text(text)
    start(place)
    topic.put(event(1, points=-1), event(2))
    consumed_up_to(place, 2)
    facts = status(place)[1]["facts"]
    assert 'rejected: 1 in 24 h (22023 "delta must be positive, not -1")' in facts


def test_an_operator_may_ask(place, topic):
    start(place)
    topic.put(event(1, points=-1))
    consumed_up_to(place, 1)
    login = "op_" + place.names["shop"]
    place.sql("shop", f"CREATE ROLE {login} LOGIN; GRANT postrider_operator TO {login}")
    try:
        text = place.config.read_text().replace("postgres@", f"{login}@")
        place.config.write_text(text)
        code, finding = status(place)
        assert (code, finding["state"]) == (1, "running")
    finally:
        place.sql("shop", f"DROP ROLE {login}")
