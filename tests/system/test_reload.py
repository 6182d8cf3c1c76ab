"""SIGHUP, and a schema that becomes too new while the program runs."""
import signal

from conftest import http, port_of, published, wait_until


def test_a_reload_puts_the_new_file_in_force(place):
    place.write_config(extra='http: {listen: "127.0.0.1:0"}')
    process = place.start("--only", "relays")
    port = port_of(process)
    first = place.emit("a", 1)
    wait_until(lambda: published(place) == [first], what="the first event")
    place.config.write_text(place.config.read_text().replace("lease: 1s}", "lease: 2s, owner: billing}", 1) + "log: {format: json}\n")
    process.send_signal(signal.SIGHUP)
    wait_until(lambda: '"event":"daemon.reloaded"' in process.log.read_text(), what="the reload")
    second = place.emit("a", 2)
    wait_until(lambda: published(place) == [first, second], what="the second event")
    assert http(port, "/readyz")[0] == 200
    place.sql("bus", "ALTER TABLE postrider.log ADD CONSTRAINT not_this CHECK (position('evil'::bytea IN body) = 0)")
    place.sql("shop", "SELECT postrider.emit('registration', 'b', 1, 'E', '{\"x\": \"evil\"}')")
    place.emit("a", 3)
    wait_until(lambda: place.sql("shop", "SELECT owner FROM postrider.parked") == [("billing",)], what="the new owner")
    assert place.stop(process) == 0


def test_a_reload_of_a_bad_file_changes_nothing(place):
    process = place.start("--only", "relays")
    wait_until(lambda: "relay.running" in process.log.read_text(), what="the start")
    good = place.config.read_text()
    for bad, words in ((good.replace("relays:", "relayz:"), "relayz"), (good.replace("lease: 1s", "lease: soon", 1), "soon"),
                       (good.replace("registrations-to-events:", "other-name:"), "postrider init")):
        seen = process.log.read_text().count("daemon.reload_refused")
        place.config.write_text(bad)
        process.send_signal(signal.SIGHUP)
        wait_until(lambda: process.log.read_text().count("daemon.reload_refused") == seen + 1, what="the refusal")
        assert words in process.log.read_text()
    event_id = place.emit("a", 1)
    wait_until(lambda: published(place) == [event_id], what="the event")
    assert place.stop(process) == 0


def test_many_reloads_under_load_lose_nothing(place):
    process = place.start("--only", "relays")
    wait_until(lambda: "relay.running" in process.log.read_text(), what="the start")
    ids = []
    for version in range(1, 200):
        ids.append(place.emit("a", version))
        if version % 20 == 0:
            process.send_signal(signal.SIGHUP)
    wait_until(lambda: len(set(published(place))) == len(ids), what="all events")
    assert list(dict.fromkeys(published(place))) == ids
    assert place.stop(process) == 0


def test_a_schema_that_becomes_too_new_ends_the_process(place):
    process = place.start("--only", "relays")
    event_id = place.emit("a", 1)
    wait_until(lambda: published(place) == [event_id], what="the event")
    place.sql("shop", "INSERT INTO postrider.schema_version VALUES (999, 'later', 'x', 999)")
    assert process.wait(timeout=15) == 75
    assert "schema.newer" in process.log.read_text()
    assert place.sql("shop", "SELECT count(*) FROM postrider.lane WHERE owner IS NOT NULL") == [(0,)]  # given back
    assert place.sql("shop", "SELECT publish_state FROM postrider.outbox_state") == [("PUBLISHED",)]


def test_a_consumer_ends_the_same_way(place):
    process = place.start("--only", "consumers")
    wait_until(lambda: "consumer.running" in process.log.read_text() or "consumer.claimed" in process.log.read_text(), what="the start")
    place.sql("bus", "SELECT postrider.log_create_topic('registration', 4)")
    wait_until(lambda: place.sql("rewards", "SELECT count(*) FROM postrider.consumer_partition WHERE owner IS NOT NULL") == [(4,)],
               what="the partitions")
    place.sql("rewards", "INSERT INTO postrider.schema_version VALUES (999, 'later', 'x', 999)")
    assert process.wait(timeout=15) == 75
    assert "schema.newer" in process.log.read_text()
    assert place.sql("rewards", "SELECT count(*) FROM postrider.consumer_partition WHERE owner IS NOT NULL") == [(0,)]
