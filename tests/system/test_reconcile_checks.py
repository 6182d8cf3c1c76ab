"""`checks:` of the configuration: two queries in two databases, one key."""
import json
import threading
import time

import pytest

OWED = "SELECT player_id, sum(points) FROM owed GROUP BY player_id"
GRANTED = "SELECT player_id, balance FROM reward_account WHERE balance <> 0"


def configure(place, left=OWED, right=GRANTED, settle="200ms", more=""):
    place.write_config()
    place.config.write_text(place.config.read_text() + f"""checks:
  points:
    left: {{database: "{place.dsns['shop']}", sql: {json.dumps(left)}}}
    right: {{database: "{place.dsns['rewards']}", sql: {json.dumps(right)}}}
    settle: {settle}
{more}""")


def check(place, *args, code=None):
    row, = json.loads(place.run("reconcile", "--check", "points", "--json", *args, check=code).stdout)
    return row


@pytest.fixture
def shop(place):
    place.sql("shop", "CREATE TABLE owed (player_id text, points int)")
    configure(place)
    return place


def test_points_owed_against_points_granted(shop):
    shop.sql("shop", "INSERT INTO owed VALUES ('p1', 10), ('p1', 5), ('p2', 7), ('p3', 1), ('P4', 2)")
    shop.sql("rewards", "INSERT INTO reward_account VALUES ('p1', 15), ('p2', 7), ('p3', 1), ('P4', 2), ('p0', 0)")
    row = check(shop, code=0)
    assert row == {"check": "points", "ok": True, "keys": 4, "differ": 0, "more": False, "moving": 0, "differences": []}
    shop.sql("rewards", "UPDATE reward_account SET balance = 8 WHERE player_id = 'p2'; "
             "DELETE FROM reward_account WHERE player_id = 'p3'; INSERT INTO reward_account VALUES ('p9', 3)")
    row = check(shop, code=1)
    assert (row["keys"], row["differ"]) == (5, 3)
    assert row["differences"] == [
        {"key": "p2", "left": {"found": True, "value": "7"}, "right": {"found": True, "value": "8"}},
        {"key": "p3", "left": {"found": True, "value": "1"}, "right": {"found": False, "value": None}},
        {"key": "p9", "left": {"found": False, "value": None}, "right": {"found": True, "value": "3"}}]
    text = shop.run("reconcile", "--limit", "2", check=1).stdout
    assert "rewards  agrees" in text and "check points  DIFFERS: 5 keys, 3 differ" in text
    assert "p3  left: 1  right: has no such row" in text and "and 1 more" in text
    assert "check" not in shop.run("reconcile", "rewards", check=0).stdout


def test_a_difference_must_be_seen_twice(shop):
    configure(shop, settle="3s")
    shop.sql("shop", "INSERT INTO owed VALUES ('p1', 10), ('p2', 5), ('p3', 1)")
    shop.sql("rewards", "INSERT INTO reward_account VALUES ('p2', 1), ('p3', 1)")
    rows = []
    run = threading.Thread(target=lambda: rows.append(check(shop, code=0)))
    run.start()
    time.sleep(1.5)
    # p1 arrives; p2 moves and still differs; p3 differs at the second look only.
    shop.sql("rewards", "INSERT INTO reward_account VALUES ('p1', 10); UPDATE reward_account SET balance = balance + 1 "
             "WHERE player_id IN ('p2', 'p3')")
    run.join()
    assert (rows[0]["differ"], rows[0]["moving"]) == (0, 1)
    assert check(shop, code=1)["differ"] == 2


def test_many_keys_and_null_values(shop):
    configure(shop, left="SELECT g, g * 2 FROM generate_series(1, 12000) g; ",
              right="SELECT g, CASE WHEN g = 7 THEN NULL WHEN g % 10 = 0 THEN 0 ELSE g * 2 END\nFROM generate_series(1, 12000) g -- all")
    row = check(shop, "--limit", "1000", code=1)
    assert (row["keys"], row["differ"], len(row["differences"])) == (12000, 1201, 1000)
    assert {"key": "7", "left": {"found": True, "value": "14"}, "right": {"found": True, "value": None}} in row["differences"] \
        or row["differ"] > 1000


def test_what_is_wrong_with_a_query_is_told(shop):
    for sql, told in [("SELECT 1, 2 FROM nowhere", "nowhere"), ("SELECT 1", "1 columns available but 2"),
                      ("DELETE FROM owed RETURNING 1, 2", "checks.points.left.sql"),
                      ("SELECT g % 2, g FROM generate_series(1, 3) g", "checks.points.left.sql gives the key 1 more than once"),
                      ("SELECT NULL::text, 1", "gives the key null")]:
        configure(shop, left=sql)
        done = shop.run("reconcile", "--check", "points")
        assert done.returncode not in (0, 1) and told in done.stderr, (sql, done.stderr)
    shop.sql("shop", "INSERT INTO owed VALUES ('p1', 1)")
    shop.sql("shop", "CREATE FUNCTION bad() RETURNS int LANGUAGE sql AS 'DELETE FROM owed RETURNING 1'")
    configure(shop, left="SELECT bad(), 2")
    assert "read-only transaction" in shop.run("reconcile", "--check", "points").stderr
    assert shop.value("shop", "SELECT count(*) FROM owed") == 1
    assert 'no check "nothing"' in shop.run("reconcile", "--check", "nothing", check=2).stderr
    assert "not both" in shop.run("reconcile", "rewards", "--check", "points", check=2).stderr


def test_the_configuration_of_a_check_is_checked(shop):
    good = shop.config.read_text()
    shop.config.write_text(good.replace("sql: " + json.dumps(OWED), "sqll: x"))
    told = shop.run("config", "check", check=78).stderr
    assert "checks.points.left.sqll: found an unknown option" in told and "checks.points.left.sql: found nothing, expected a query" in told
    shop.config.write_text(good)
    shown = shop.run("config", "show", check=0).stdout
    assert OWED in shown and "settle: 200ms" in shown
    shop.config.write_text(shown)
    assert "settle: 200ms" in shop.run("config", "show").stdout
