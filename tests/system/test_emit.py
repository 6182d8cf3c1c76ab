"""The producer's side: emit, its limits, the textbook's statement, and the command."""
import json
import os

import psycopg2
import pytest

REFUSED = [
    ("PR100", "postrider.emit('', 'a', 1, 'E', '{}')", "aggregate_type"),
    ("PR100", "postrider.emit(repeat('x', 256), 'a', 1, 'E', '{}')", "256"),
    ("PR100", "postrider.emit('t', repeat('é', 128), 1, 'E', '{}')", "aggregate_id"),
    ("PR100", "postrider.emit('t', E'a\\nb', 1, 'E', '{}')", "aggregate_id"),
    ("PR100", "postrider.emit('t', 'a', 1, NULL, '{}')", "event_type"),
    ("PR101", "postrider.emit('t', 'a', 0, 'E', '{}')", "not 0"),
    ("PR101", "postrider.emit('t', 'a', NULL, 'E', '{}')", "null"),
    ("PR102", "postrider.emit('t', 'a', 1, 'E', '{}', event_id => gen_random_uuid())", "no UUIDv7"),
    ("PR102", "postrider.emit('t', 'a', 1, 'E', '{}', event_id => NULL)", "no UUIDv7"),
    ("PR103", "postrider.emit('t', 'a', 1, 'E', to_jsonb(repeat('x', 1000000)))", "1000002 bytes"),
    ("PR103", "postrider.emit('t', 'a', 1, 'E', NULL)", "null"),
    ("PR103", "postrider.emit_bytes('t', 'a', 1, 'E', repeat('x', 1000001)::bytea)", "1000001"),
    ("PR104", "postrider.emit('t', 'a', 1, 'E', '{}', headers => '[]')", "object"),
    ("PR104", "postrider.emit('t', 'a', 1, 'E', '{}', headers => '{\"a\": \"x\\r\\ny\"}')", "control characters"),
    ("PR104", "postrider.emit('t', 'a', 1, 'E', '{}', headers => '{\"a b\": \"x\"}')", "a b"),
    ("PR104", "postrider.emit('t', 'a', 1, 'E', '{}', headers => '{\"postrider-id\": \"x\"}')", "postrider-id"),
    ("PR104", "postrider.emit('t', 'a', 1, 'E', '{}', headers => '{\"a\": 5}')", "string"),
    ("PR104", "postrider.emit_bytes('t', 'a', 1, 'E', 'x', content_type => E'a\\nb')", "content_type"),
]


INSERT = ("INSERT INTO postrider.outbox (aggregate_type, aggregate_id, aggregate_version, event_type, payload, headers,"
          " content_type) VALUES (%(t)s, %(a)s, %(v)s, %(e)s, %(p)s, %(h)s, %(c)s)")
FINE = {"t": "registration", "a": "r1", "v": 1, "e": "E", "p": "{}", "h": '{"traceparent": "00-ab"}', "c": "application/json"}


@pytest.mark.parametrize("broken, code", [
    ({"t": ""}, "PR100"), ({"a": "x" * 256}, "PR100"), ({"e": "a\nb"}, "PR100"), ({"c": "a\r\nX: y"}, "PR104"),
    ({"v": 0}, "PR101"), ({"v": -1}, "PR101"), ({"p": json.dumps("x" * 1000000)}, "PR103"),
    ({"h": '{"postrider-prev": "0"}'}, "PR104"), ({"h": '{"Postrider-Id": "0"}'}, "PR104"),
    ({"h": '{"content-type": "x"}'}, "PR104"), ({"h": '{"a": "x\\r\\ny"}'}, "PR104"), ({"h": '{"a": 5}'}, "PR104"),
    ({"h": '{"a": {"b": "c"}}'}, "PR104"), ({"h": "[]"}, "PR104"), ({"h": '{"a b": "c"}'}, "PR104"),
    ({"h": '{"": "c"}'}, "PR104"), ({"h": json.dumps({f"h{n}": "x" * 90 for n in range(200)})}, "PR104"),
])
def test_F115_a_plain_insert_has_the_limits_of_emit(place, broken, code):
    with psycopg2.connect(place.dsns["shop"]) as db, db.cursor() as cur:
        cur.execute("CREATE ROLE shop_app; GRANT postrider_producer TO shop_app; SET ROLE shop_app")
        cur.execute("SAVEPOINT before")
        with pytest.raises(psycopg2.Error) as refused:
            cur.execute(INSERT, FINE | broken)
        assert refused.value.pgcode == code and refused.value.diag.message_hint
        cur.execute("ROLLBACK TO before")
        cur.execute(INSERT, FINE)
        db.rollback()
    db.close()


def test_F113_every_limit_is_told_inside_the_business_transaction(place):
    for code, call, word in REFUSED:
        conn = psycopg2.connect(place.dsns["shop"])
        with pytest.raises(psycopg2.Error) as caught:
            conn.cursor().execute("INSERT INTO tournament VALUES ('t', 1); SELECT " + call)
        assert caught.value.pgcode == code, (call, caught.value)
        assert word in str(caught.value), (call, caught.value)
        assert caught.value.diag.message_hint
        conn.rollback()
        conn.close()
    assert place.value("shop", "SELECT count(*) FROM postrider.outbox") == 0
    assert place.value("shop", "SELECT count(*) FROM tournament") == 0


def test_a_version_or_an_id_is_written_once(place):
    event_id = place.emit("a", 1)
    for call in ("postrider.emit('registration', 'a', 1, 'E', '{}')",
                 f"postrider.emit('registration', 'b', 1, 'E', '{{}}', event_id => '{event_id}')"):
        with pytest.raises(psycopg2.errors.UniqueViolation):
            place.sql("shop", "SELECT " + call)


def test_the_textbooks_statement(place):
    place.sql("shop", "INSERT INTO tournament VALUES ('t', 1); INSERT INTO registration (id, player_id, tournament_id) "
              "VALUES ('r1', 'p1', 't')")
    statement = """
        WITH confirmed AS (
            UPDATE registration SET status = 'CONFIRMED', version = version + 1
            WHERE id = 'r1' AND status = 'PENDING_PAYMENT' AND version = 0 RETURNING id, version)
        INSERT INTO postrider.outbox (event_id, aggregate_type, aggregate_id, aggregate_version, event_type, payload, occurred_at)
        SELECT postrider.uuidv7(), 'registration', id, version, 'RegistrationConfirmed', '{"points": 10}'::jsonb, now()
        FROM confirmed RETURNING event_id, aggregate_version"""
    assert place.sql("shop", statement)[0][1] == 1
    assert place.sql("shop", statement) == []
    assert place.value("shop", "SELECT count(*) FROM postrider.outbox") == 1
    assert place.sql("shop", "SELECT aggregate_version, publish_state FROM postrider.outbox_state") == [(1, "PENDING")]


def test_an_id_of_another_kind_is_refused_by_name(place):
    with pytest.raises(psycopg2.Error) as caught:
        place.sql("shop", "INSERT INTO postrider.outbox (event_id, aggregate_type, aggregate_id, aggregate_version, "
                  "event_type, payload) VALUES (gen_random_uuid(), 't', 'a', 1, 'E', '{}')")
    assert caught.value.pgcode == "PR102" and "postrider.uuidv7()" in caught.value.diag.message_hint


def test_ids_made_by_the_server_are_uuidv7_of_now(place):
    assert place.value("shop", """
        SELECT bool_and(substr(id::text, 15, 1) = '7' AND substr(id::text, 20, 1) IN ('8', '9', 'a', 'b')
                        AND postrider.event_day(id) = (now() AT TIME ZONE 'UTC')::date)
        FROM (SELECT postrider.uuidv7() AS id FROM generate_series(1, 200)) ids""")


def test_the_digest_agrees_with_the_programs(place):
    """tests/unit/digest_test.c holds event_digest() to the same value."""
    assert place.value("shop", "SELECT encode(postrider.event_digest('a', 'b', 1, 't', 'xyz'), 'hex')") == \
        "b1fad4daf65282ca4f95153876fe07c7"


def test_the_day_comes_from_the_id(place):
    assert place.sql("shop", """SELECT postrider.event_day('0190a0b0-0000-7000-8000-000000000000')::text,
        postrider.event_day('0190a0b0-0000-4000-8000-000000000000')::text""") == [("2024-07-11", "-infinity")]


def stored(place):
    return place.sql("shop", "SELECT aggregate_type, aggregate_id, aggregate_version, event_type, payload::text, "
                     "headers::text, body FROM postrider.outbox ORDER BY id")


def test_the_command_emits_one_event(place):
    done = place.run("emit", "--aggregate", "registration:a:b", "--aggregate-version", "3", "--type", "E", "--payload",
                     '{"n": 12345678901234567890.10}', "--header", "traceparent=00-a", "--header", "x=y=z", check=0)
    assert len(done.stdout.strip()) == 36
    assert stored(place) == [("registration", "a:b", 3, "E", '{"n": 12345678901234567890.10}',
                              '{"x": "y=z", "traceparent": "00-a"}', None)]


def test_the_command_emits_lines_or_none(place):
    good = json.dumps({"aggregate_type": "t", "aggregate_id": "a", "aggregate_version": 1, "event_type": "E", "payload": [1]})
    raw = json.dumps({"aggregate_type": "t", "aggregate_id": "a", "aggregate_version": 2, "event_type": "E",
                      "body_base64": "AAEC", "content_type": "application/x-raw"})
    done = place.run("emit", "-", stdin=f"{good}\n\n{raw}\n", check=0)
    assert len(done.stdout.split()) == 2
    assert bytes(stored(place)[1][6]) == b"\0\1\2"
    for bad, word in [("{", "line 2"), ('{"aggregate_type": "t"}', "line 2"), (good.replace("payload", "paylod"), "paylod"),
                      (good.replace("[1]", '"a\\u0000b"'), "NUL"), (good.replace(": 1,", ": 0,"), "PR101|not 0"),
                      (good.replace("[1]", json.dumps("x" * 1000001)), "limit is 1000000"), (good, "duplicate")]:
        first = good.replace('"a"', f'"{os.urandom(4).hex()}"')
        done = place.run("emit", "-", stdin=f"{first}\n{bad}\n")
        assert done.returncode == 65, (bad, done.stderr)
        assert any(part in done.stderr for part in word.split("|")), (bad, done.stderr)
        assert "nothing was written" in done.stderr and done.stdout == ""
    assert len(stored(place)) == 2


@pytest.mark.parametrize("args,word", [
    (("--payload", "{"), "no JSON"),
    (("--payload", '"a\\u0000"'), "NUL"), (("--payload", "1", "--header", "a=b\r\nc"), "control characters"),
    (("--payload", "1", "--id", "6ba7b810-9dad-41d1-80b4-00c04fd430c8"), "no UUIDv7"),
    (("--payload", "1", "--id", "x"), "uuid"), (("--payload", "1", "--aggregate-version", "0"), "1 or more")])
def test_refused_input_is_told_and_nothing_is_written(place, args, word):
    done = place.run("emit", "--aggregate", "t:a", "--aggregate-version", "1", "--type", "E", *args)
    assert done.returncode == 65, done.stderr
    assert word in done.stderr and stored(place) == []


@pytest.mark.parametrize("payload, stored_as", [
    ('{"a": "x\\u0000y"}', None), ('{"\\u0000k": 1}', None), ('{"a": "\\ud800"}', None), ('{"a": "\\\\u0000"}', '{"a": "\\\\u0000"}'),
    ('{"a": "\ufffe\U0001f600e\u0301"}', '{"a": "\ufffe\U0001f600e\u0301"}')])
def test_F55_text_that_jsonb_cannot_hold_is_refused_and_the_rest_unchanged(place, payload, stored_as):
    done = place.run("emit", "--aggregate", "t:a", "--aggregate-version", "1", "--type", "E", "--payload", payload)
    assert done.returncode == (0 if stored_as else 65), done.stderr
    assert place.sql("shop", "SELECT payload::text FROM postrider.outbox") == ([(stored_as,)] if stored_as else [])
    assert stored_as or "nothing was written" in done.stderr


def test_emit_as_json_error(place):
    done = place.run("emit", "--json", "--aggregate", "t:a", "--aggregate-version", "0", "--type", "E", "--payload", "1")
    error = json.loads(done.stderr)
    assert done.returncode == 65 and "PR101" in json.dumps(error)
