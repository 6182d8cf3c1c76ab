#!/usr/bin/python3
"""An independent judge: reads only the databases, shares no code with the program.

    checker.py --outbox DSN --log DSN [--effects DSN]
    checker.py --outbox DSN --kafka BROKERS --topic TOPIC [--table NAME]

Prints one JSON object and exits 1 if anything is wrong.  What each word means:

  lost            committed in the outbox, neither in the log nor parked by a relay
  foreign         in the log, but never committed in the outbox
  altered         in the log with another body, type, stream or version than was committed
  order_breaks    first appearances in the log that are not in version order within a stream
  split_streams   streams that lie in more than one partition
  holes           offsets of the log that are missing
  repeated        messages in the log beyond the first of their event (a count, not a fault)
  missing         events of the log without effect, and not parked, dead or otherwise decided
  doubled         events with more than one effect
  wrong_amount    effects whose player or amount is not the event's
  early           effects in an order that is not the version order of their stream
  orphans         dedupe records that say "applied" without an effect, and effects without one
  wrong_balances  accounts that are not the sum of the amounts owed, event by event
"""
import argparse
import json
import sys
from collections import defaultdict

import psycopg2

FAULTS = ("lost", "foreign", "altered", "order_breaks", "split_streams", "holes", "missing", "doubled",
          "wrong_amount", "early", "orphans", "wrong_balances")


def rows(dsn, sql):
    conn = psycopg2.connect(dsn)
    try:
        with conn.cursor() as cursor:
            cursor.execute(sql)
            return cursor.fetchall()
    finally:
        conn.close()


def headers_of(names, values):
    return {name: bytes(value).decode("utf-8", "replace") for name, value in zip(names, values)}


BUILT_IN = """SELECT event_id::text, aggregate_type, aggregate_id, aggregate_version, event_type,
    coalesce(convert_to(payload::text, 'UTF8'), body) FROM postrider.outbox"""
TEXTBOOK = """SELECT event_id::text, 'registration', aggregate_id, aggregate_version, event_type,
    convert_to(payload::text, 'UTF8') FROM {}"""


def read_outbox(dsn, table=None):
    events = {}
    for event_id, kind, aggregate, version, event_type, body in rows(dsn, TEXTBOOK.format(table) if table else BUILT_IN):
        events[event_id] = (kind, aggregate, version, event_type, bytes(body))
    return events


def read_log(dsn):
    return [(topic, part, off, event_id, headers_of(names, values), bytes(body))
            for topic, part, off, event_id, names, values, body in rows(dsn, """
                SELECT topic, part, off, event_id::text, header_names, header_values, body
                FROM postrider.log ORDER BY topic, part, off""")]


def read_kafka(brokers, topic):
    """The same of a Kafka topic, with the client's own reader and nothing of the program's."""
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer({"bootstrap.servers": brokers, "group.id": "checker", "enable.auto.commit": False})
    messages, left = [], {}
    for part in consumer.list_topics(topic, timeout=10).topics[topic].partitions:
        low, high = consumer.get_watermark_offsets(TopicPartition(topic, part), timeout=10)
        if high > low:
            left[part] = high
    consumer.assign([TopicPartition(topic, part, 0) for part in left])
    while left:
        for m in consumer.consume(10000, timeout=10):
            if m.error():
                raise RuntimeError(m.error())
            headers = {name: value.decode("utf-8", "replace") for name, value in m.headers() or []}
            messages.append((topic, m.partition(), m.offset(), headers.get("postrider-id"), headers, m.value()))
            if m.offset() + 1 >= left.get(m.partition(), 0):
                left.pop(m.partition(), None)
    consumer.close()
    return sorted(messages, key=lambda m: m[1:3])


def check_published(events, parked, log, result):
    seen = set()
    last = {}
    place = {}
    expected = defaultdict(int)
    for topic, part, off, event_id, headers, body in log:
        if off != expected[topic, part]:
            result["holes"].append(f"{topic}/{part}@{expected[topic, part]}")
        expected[topic, part] = off + 1
        if event_id not in events:
            result["foreign"].append(event_id)
            continue
        kind, aggregate, version, event_type, payload = events[event_id]
        carried = (headers.get("postrider-aggregate-type"), headers.get("postrider-aggregate-id"),
                   headers.get("postrider-version"), headers.get("postrider-type"), body)
        if carried != (kind, aggregate, str(version), event_type, payload) or headers.get("postrider-id") != event_id:
            result["altered"].append(event_id)
        stream = (kind, aggregate)
        if place.setdefault(stream, (topic, part)) != (topic, part):
            result["split_streams"].append("/".join(stream))
        if event_id in seen:
            result["repeated"] += 1
            continue
        seen.add(event_id)
        if version <= last.get(stream, version - 1):
            result["order_breaks"].append(f"{'/'.join(stream)} v{version} after v{last[stream]}")
        last[stream] = max(version, last.get(stream, version))
    result["lost"] = sorted(set(events) - seen - parked)
    result["published"] = len(seen)


def check_effects(events, log, dsn, result):
    published = {event_id for _, _, _, event_id, _, _ in log if event_id in events}
    outcomes = dict(rows(dsn, "SELECT event_id::text, outcome::text FROM postrider.consumed"))
    entries = rows(dsn, "SELECT event_id::text, player_id, delta FROM reward_entry ORDER BY n")
    count = defaultdict(int)
    last = {}
    owed = defaultdict(int)
    for event_id, player, delta in entries:
        count[event_id] += 1
        if event_id not in events:
            result["foreign"].append(event_id)
            continue
        kind, aggregate, version, _, body = events[event_id]
        payload = json.loads(body)
        if (payload["playerId"], payload["points"]) != (player, delta):
            result["wrong_amount"].append(event_id)
        if count[event_id] == 1:
            if version <= last.get((kind, aggregate), version - 1):
                result["early"].append(f"{kind}/{aggregate} v{version}")
            last[kind, aggregate] = version
            owed[payload["playerId"]] += payload["points"]
    result["applied"] = len(count)
    result["doubled"] = sorted(event_id for event_id, n in count.items() if n > 1)
    result["missing"] = sorted(event_id for event_id in published
                               if event_id not in count and outcomes.get(event_id) in (None, "A"))
    result["orphans"] = sorted(
        [event_id for event_id, outcome in outcomes.items() if outcome == "A" and event_id not in count] +
        [event_id for event_id in count if outcomes.get(event_id) not in ("A", "H")])
    for player, balance in rows(dsn, "SELECT player_id, balance FROM reward_account"):
        if balance != owed.get(player, 0):
            result["wrong_balances"].append(f"{player}: {balance}, owed {owed.get(player, 0)}")


def check(outbox, log, effects=None, table=None, kafka=None):
    """`kafka` is (brokers, topic), then `log` is not looked at; `table` a table like the textbook's."""
    result = {name: [] for name in FAULTS}
    result["repeated"] = 0
    events = read_outbox(outbox, table)
    parked = {row[0] for row in rows(outbox, "SELECT event_id::text FROM postrider.parked WHERE side = 'relay'")}
    messages = read_kafka(*kafka) if kafka else read_log(log)
    result["events"] = len(events)
    check_published(events, parked, messages, result)
    if effects:
        check_effects(events, messages, effects, result)
    result["faults"] = sum(len(result[name]) for name in FAULTS)
    return result


def shorten(result):
    return {name: (value[:5] + [f"… {len(value)} in all"] if isinstance(value, list) and len(value) > 5 else value)
            for name, value in result.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--outbox", required=True)
    parser.add_argument("--log")
    parser.add_argument("--effects")
    parser.add_argument("--table")
    parser.add_argument("--kafka")
    parser.add_argument("--topic")
    options = parser.parse_args()
    if bool(options.log) == bool(options.kafka):
        parser.error("one of --log and --kafka")
    kafka = (options.kafka, options.topic) if options.kafka else None
    result = check(options.outbox, options.log, options.effects, options.table, kafka)
    print(json.dumps(shorten(result)))
    return 1 if result["faults"] else 0


if __name__ == "__main__":
    sys.exit(main())
