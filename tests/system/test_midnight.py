"""One version of a stream written twice, on either side of midnight, where no index can see it."""
import datetime
import uuid

from conftest import http, port_of, published, wait_until


def id_of(day, n):
    at = datetime.datetime.combine(day, datetime.time(12), datetime.timezone.utc)
    return str(uuid.UUID(int=(int(at.timestamp() * 1000) << 80) | (7 << 76) | (2 << 62) | n))


def test_the_relay_counts_it_and_the_consumer_calls_it_a_conflict(place):
    place.write_config(extra='http: {listen: "127.0.0.1:0"}')
    place.sql("rewards", "INSERT INTO reward_account VALUES ('p1', 0)")
    today = datetime.datetime.now(datetime.timezone.utc).date()
    ids = [id_of(today, 1), id_of(today + datetime.timedelta(days=1), 2)]
    process = place.start()
    port = port_of(process)
    for n, event_id in enumerate(ids):
        place.sql("shop", "INSERT INTO postrider.outbox (event_id, aggregate_type, aggregate_id, aggregate_version, event_type, "
                  "payload) VALUES (%s, 'registration', 'a', 1, 'RegistrationConfirmed', %s)",
                  (event_id, f'{{"playerId": "p1", "points": {10 + n}}}'))
    wait_until(lambda: published(place) == ids, what="both events")
    wait_until(lambda: place.sql("rewards", "SELECT event_id::text, class, state FROM postrider.parked") ==
               [(ids[1], "conflict", "dead")], what="the conflict")
    assert place.sql("rewards", "SELECT balance FROM reward_account WHERE player_id = 'p1'") == [(10,)]
    metrics = http(port, "/metrics")[1]
    assert 'postrider_relay_order_violations_total{relay="registrations-to-events"} 1' in metrics
    assert "relay.order_violation" in process.log.read_text()
    assert place.stop(process) == 0
