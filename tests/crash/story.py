"""A load in which every event has its own amount, and what must hold when all has come to rest."""
import json
import random
import threading
import time

import psycopg2

from checker import checker

PLAYERS = [f"p{n}" for n in range(10)]


def open_accounts(place):
    place.sql("rewards", "INSERT INTO reward_account SELECT p, 0 FROM unnest(%s) p", (PLAYERS,))


class Producer(threading.Thread):
    """Writes events under the aggregate's row lock, with everything that makes polling hard: transactions that
    took their number early, savepoints, rollbacks, prepared transactions, and some that sit for a while."""

    amount = 0
    lock = threading.Lock()

    def __init__(self, dsn, streams=12, seconds=5, seed=0, pause=0.0):
        super().__init__(daemon=True)
        self.dsn, self.streams, self.seconds, self.pause = dsn, streams, seconds, pause
        self.random = random.Random(seed)
        self.committed = 0
        self.enough = threading.Event()

    def run(self):
        deadline = time.monotonic() + self.seconds
        conn = None
        while time.monotonic() < deadline and not self.enough.is_set():
            try:
                conn = conn or psycopg2.connect(self.dsn)
                self.transaction(conn)
            except psycopg2.Error:
                if conn:
                    conn.close()
                conn = None
                time.sleep(0.05)
            if self.pause:
                time.sleep(self.pause)
        if conn:
            conn.close()

    def finish(self):
        self.enough.set()
        self.join()

    @classmethod
    def next_amount(cls):
        with cls.lock:
            cls.amount += 1
            return cls.amount

    table = None  # like the textbook's, instead of the built-in one

    def write(self, cursor, aggregate):
        cursor.execute("UPDATE aggregate SET version = version + 1 WHERE id = %s RETURNING version", (aggregate,))
        payload = {"playerId": self.random.choice(PLAYERS), "points": self.next_amount()}
        if self.table:
            cursor.execute(f"INSERT INTO {self.table} VALUES (gen_random_uuid(), %s, %s, 'RegistrationConfirmed', %s::jsonb, "
                           "now(), 'PENDING')", (aggregate, cursor.fetchone()[0], json.dumps(payload)))
            return
        cursor.execute("SELECT postrider.emit('registration', %s, %s, 'RegistrationConfirmed', %s::jsonb)",
                       (aggregate, cursor.fetchone()[0], json.dumps(payload)))

    def transaction(self, conn):
        chance = self.random.random
        aggregate = f"a{int(self.streams * chance() ** 2)}"
        with conn.cursor() as cursor:
            if chance() < 0.3:
                cursor.execute("SELECT pg_current_xact_id()")
            if chance() < 0.01:
                time.sleep(0.3 * chance())
            if chance() < 0.1:
                cursor.execute("SAVEPOINT s")
                self.write(cursor, aggregate)
                cursor.execute("ROLLBACK TO SAVEPOINT s")
            for _ in range(self.random.randint(1, 3)):
                self.write(cursor, aggregate)
            if chance() < 0.02:
                time.sleep(0.5 * chance())
            if chance() < 0.1:
                conn.rollback()
            elif chance() < 0.03:
                gid = f"g{self.random.random()}"
                cursor.execute("PREPARE TRANSACTION %s", (gid,))
                conn.rollback()
                conn.autocommit = True
                cursor.execute("COMMIT PREPARED %s", (gid,))
                conn.autocommit = False
            else:
                conn.commit()
        self.committed += 1


def prepare(place, streams=12):
    place.sql("shop", "CREATE TABLE aggregate (id text PRIMARY KEY, version bigint NOT NULL DEFAULT 0);"
              f"INSERT INTO aggregate SELECT 'a' || n FROM generate_series(0, {streams}) n")
    open_accounts(place)


def at_rest(place):
    """Everything committed is in the log, and everything in the log is decided."""
    try:
        if place.value("shop", "SELECT count(*) FROM pg_prepared_xacts WHERE database = current_database()"):
            for (gid,) in place.sql("shop", "SELECT gid FROM pg_prepared_xacts WHERE database = current_database()"):
                place.sql("shop", "COMMIT PREPARED %s", (gid,))
        pending = place.value("shop", """
            SELECT count(*) FROM postrider.lane l JOIN postrider.outbox o ON o.lane = l.lane
            WHERE NOT pg_visible_in_snapshot(o.xid, l.done_snap)""")
        log = place.value("bus", "SELECT coalesce(sum(next_off), 0)::bigint FROM postrider.log_head")
        decided = place.value("rewards",
                              "SELECT coalesce(sum(next_off), 0)::bigint FROM postrider.consumer_partition")
        due = place.value("rewards", "SELECT count(*) FROM postrider.parked WHERE state <> 'dead'")
        return pending == 0 and log == decided and due == 0
    except psycopg2.Error:
        return False


def judge(place):
    result = checker.check(place.dsns["shop"], place.dsns["bus"], place.dsns["rewards"])
    assert result["faults"] == 0, checker.shorten(result)
    assert place.value("rewards", "SELECT count(*) FROM postrider.parked") == 0
    assert result["events"] == result["published"] == result["applied"]
    return result
