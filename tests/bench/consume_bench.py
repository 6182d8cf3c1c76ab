"""Figures of the consumer."""
import time

from harness import Bench, compile_reference, stamp


def consume_stream_sql(count=200000, streams=1000, partitions=16):
    with Bench() as bench:
        bench.init(f"""outboxes: {{o: {{database: "{bench.dsn}"}}}}
destinations: {{d: {{transport: postgres, database: "{bench.dsn}"}}}}
relays: {{r: {{outbox: o, destination: d}}}}
consumers:
  c:
    database: "{bench.dsn}"
    from: {{destination: d, topic: registration}}
    handlers:
      E: {{sql: "UPDATE reward_account SET balance = balance + :payload.points WHERE player_id = :payload.playerId"}}
""")
        say(f"loading {count} messages")
        bench.sql("CREATE TABLE reward_account (player_id text PRIMARY KEY, balance int NOT NULL DEFAULT 0) WITH (fillfactor = 50);"
                  "INSERT INTO reward_account SELECT 'p' || n FROM generate_series(0, 999) n;"
                  "CREATE TABLE reference_position (part int PRIMARY KEY, next_off bigint) WITH (fillfactor = 50);"
                  "CREATE TABLE reference_dedupe (event_id uuid PRIMARY KEY);"
                  "CREATE TABLE reference_stream (aggregate_id text PRIMARY KEY, version bigint) WITH (fillfactor = 70)")
        bench.sql(f"""SELECT postrider.emit('registration', 's' || n % {streams}, n / {streams} + 1, 'E',
            jsonb_build_object('playerId', 'p' || n % 1000, 'points', n % 7 + 1)) FROM generate_series(0, {count - 1}) n""")
        bench.product("relays", lambda log: stamp(log, "relay.caught_up"))
        bench.sql("VACUUM ANALYZE")
        reference = compile_reference("consume")

        def reset():
            bench.sql("TRUNCATE postrider.consumed, postrider.stream, postrider.consumer_partition, reference_position, "
                      "reference_dedupe, reference_stream; UPDATE reward_account SET balance = 0;"
                      f"INSERT INTO reference_position SELECT n, 0 FROM generate_series(0, {partitions - 1}) n")
            bench.sql("VACUUM reward_account")
            bench.sql("CHECKPOINT")

        def decided(_log):
            done = bench.sql("SELECT coalesce(sum(next_off), 0)::bigint FROM postrider.consumer_partition")[0][0]
            return time.time() if done == count else None
        bench.measure("consume.stream.sql", count, reset, lambda: bench.product("consumers", decided),
                      [reference, bench.dsn, bench.dsn, "registration", str(partitions)])
