"""Relays that are known to be wrong, each as it is often written.  The checker has to see what they do.

They publish by writing the log's tables themselves, one message a time, in the form the checker reads."""
import psycopg2

COLUMNS = "event_id::text, aggregate_type, aggregate_id, aggregate_version, event_type, payload::text"


class WrongRelay:
    """Reads the outbox in `shop` and writes the log in `bus`."""

    def __init__(self, place):
        self.place = place
        self.shop = self.connect("shop")
        self.bus = self.connect("bus")

    def connect(self, name):
        conn = psycopg2.connect(self.place.dsns[name])
        conn.autocommit = True
        return conn

    def close(self):
        self.shop.close()
        self.bus.close()

    def query(self, sql, args=()):
        with self.shop.cursor() as cursor:
            cursor.execute(sql, args)
            return cursor.fetchall()

    def publish(self, row):
        event_id, kind, aggregate, version, event_type, body = row[:6]
        headers = {"postrider-id": event_id, "postrider-type": event_type, "postrider-aggregate-type": kind,
                   "postrider-aggregate-id": aggregate, "postrider-version": str(version)}
        with self.bus.cursor() as cursor:
            cursor.execute("UPDATE postrider.log_head SET next_off = next_off + 1 WHERE topic = %s AND part = 0 "
                           "RETURNING next_off - 1", (kind,))
            cursor.execute("INSERT INTO postrider.log (topic, part, off, at, event_id, key, header_names, header_values, body) "
                           "VALUES (%s, 0, %s, clock_timestamp(), %s, %s, %s, %s, %s)",
                           (kind, cursor.fetchone()[0], event_id, aggregate.encode(), list(headers),
                            [value.encode() for value in headers.values()], body.encode()))


class HighWater(WrongRelay):
    """`WHERE id > last ORDER BY id`: what commits late with a lower id is never read."""

    last = 0

    def step(self):
        for row in self.query(f"SELECT {COLUMNS}, id FROM postrider.outbox WHERE id > %s ORDER BY id", (self.last,)):
            self.publish(row)
            self.last = row[6]


class XidHorizon(WrongRelay):
    """`(xid, id) > last AND xid < xmin ORDER BY xid, id`: a transaction that took its number early and waited for
    the aggregate comes before the one it waited for."""

    last = (0, 0)

    def step(self):
        for row in self.query(f"""SELECT {COLUMNS}, xid::text::bigint, id FROM postrider.outbox
                WHERE (xid::text::bigint, id) > (%s, %s) AND xid < pg_snapshot_xmin(pg_current_snapshot())
                ORDER BY xid, id""", self.last):
            self.publish(row)
            self.last = row[6:8]


class SkipLocked(WrongRelay):
    """`FOR UPDATE SKIP LOCKED`, a worker per row: two workers hold two versions of one stream at a time."""

    def __init__(self, place):
        super().__init__(place)
        self.shop.autocommit = False
        self.claimed = None

    def claim(self):
        self.claimed = self.query(f"SELECT {COLUMNS} FROM postrider.outbox o WHERE event_id NOT IN (SELECT event_id FROM done) "
                                  "ORDER BY id LIMIT 1 FOR UPDATE OF o SKIP LOCKED")[0]

    def finish(self):
        self.publish(self.claimed)
        with self.shop.cursor() as cursor:
            cursor.execute("INSERT INTO done VALUES (%s)", (self.claimed[0],))
        self.shop.commit()


class KeptPosition(WrongRelay):
    """Snapshot windows, but the position in memory outlives its connection: a server crash gives the numbers of
    transactions that were not flushed to others, which the position already calls done."""

    done = None

    def step(self):
        try:
            now = self.query("SELECT pg_current_snapshot()::text")[0][0]
        except psycopg2.Error:
            self.shop = self.connect("shop")
            now = self.query("SELECT pg_current_snapshot()::text")[0][0]
        self.done = self.done or "1:1:"
        for row in self.query(f"""SELECT {COLUMNS} FROM postrider.outbox WHERE pg_visible_in_snapshot(xid, %s::pg_snapshot)
                AND NOT pg_visible_in_snapshot(xid, %s::pg_snapshot) ORDER BY id""", (now, self.done)):
            self.publish(row)
        self.done = now


class CheckThenLock(WrongRelay):
    """Retention that looks first and locks after: what a writer commits in between is dropped unpublished."""

    def look(self, partition):
        return self.query(f"SELECT count(*) FROM {partition}")[0][0]

    def drop(self, partition):
        self.query(f"DROP TABLE {partition}; SELECT 1")
