"""The relay to a Kafka that asks who it is and what it may do."""
import os
import time

import pytest

from conftest import http, needs_kafka, port_of, wait_until
from servers.kafka import Kafka
from system.test_kafka import at_rest, emit_many, judge

pytestmark = needs_kafka
NOBODY = "User:ANONYMOUS;User:CN=relay"
RELAY = NOBODY + ";User:relay"


@pytest.fixture(scope="module")
def kafka():
    cluster = Kafka(secure=True)
    yield cluster
    cluster.remove()


@pytest.fixture
def topic(place):
    return f"t{os.getpid()}-{place.names['shop']}"


def to_kafka(place, port, topic, **settings):
    given = ", ".join(f'{name}: "{value}"' for name, value in settings.items())
    place.config.write_text(f"""
outboxes:
  registrations: {{database: "{place.dsns['shop']}"}}
destinations:
  events: {{transport: kafka, bootstrap: "127.0.0.1:{port}", topic: "{topic}", settings: {{{given}}}}}
relays:
  to-kafka: {{outbox: registrations, destination: events, lease: 2s}}
http: {{listen: "127.0.0.1:0"}}
""")
    place.run("init", check=0)


def with_password(place, kafka, topic, password="secret"):
    to_kafka(place, kafka.brokers[0].sasl_port, topic, **{
        "security.protocol": "sasl_plaintext", "sasl.mechanism": "PLAIN", "sasl.username": "relay", "sasl.password": password})


def with_certificate(place, kafka, topic, ca="ca", own=True):
    files = {"ssl.certificate.location": kafka.folder / "relay.pem", "ssl.key.location": kafka.folder / "relay.key"} if own else {}
    to_kafka(place, kafka.brokers[0].tls_port, topic, **{
        "security.protocol": "ssl", "ssl.ca.location": kafka.folder / f"{ca}.pem", **files})


def nobody_is_charged(place):
    return place.sql("shop", "SELECT count(*) FROM postrider.parked") == [(0,)]


def test_a_wrong_password_is_named(place, kafka, topic):
    with_password(place, kafka, topic, password="guess")
    done = place.run("run", "--only", "relays")
    assert done.returncode == 69 and "Authentication failed" in done.stderr and "check sasl.*" in done.stderr
    assert "guess" not in done.stderr


def test_a_right_that_is_missing_given_and_taken_away(place, kafka, topic):
    kafka.create(topic, 3)
    broker = kafka.brokers[0]
    broker.restart_with(super_users=NOBODY)
    kafka.wait_topic(topic, 3)
    with_password(place, kafka, topic)
    emit_many(place, 20, 5)
    process = place.start("--only", "relays")
    port = port_of(process)
    wait_until(lambda: "grant Write and Describe" in http(port, "/readyz")[1], what="the remedy in /readyz")
    assert nobody_is_charged(place)
    broker.restart_with(super_users=RELAY)
    wait_until(lambda: at_rest(place), timeout=60, what="rest with the right")
    broker.restart_with(super_users=NOBODY)
    emit_many(place, 20, 5, first=6)
    wait_until(lambda: "grant Write and Describe" in http(port, "/readyz")[1], timeout=60, what="the remedy again")
    emit_many(place, 20, 5, first=11)
    time.sleep(2)
    assert nobody_is_charged(place)
    broker.restart_with(super_users=RELAY)
    wait_until(lambda: at_rest(place), timeout=60, what="rest with the right again")
    judge(place, kafka.read(topic), repeated=0)
    assert place.stop(process) == 0


def test_by_certificate(place, kafka, topic):
    kafka.create(topic, 3)
    with_certificate(place, kafka, topic)
    emit_many(place, 50, 10)
    process = place.start("--only", "relays")
    wait_until(lambda: at_rest(place), what="rest")
    judge(place, kafka.read(topic), repeated=0)
    assert place.stop(process) == 0


@pytest.mark.parametrize("ca, own, words, remedy", [
    ("other-ca", True, "certificate verify failed", "check ssl.*"), ("ca", False, "ssl", "security.protocol")])
def test_a_certificate_that_does_not_fit_is_named(place, kafka, topic, ca, own, words, remedy):
    with_certificate(place, kafka, topic, ca=ca, own=own)
    done = place.run("run", "--only", "relays")
    assert done.returncode == 69 and words in done.stderr.lower() and remedy in done.stderr
