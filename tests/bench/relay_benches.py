"""Figures of the relay: reading a backlog, keeping up, and doing nothing."""
import contextlib
import json
import subprocess
import time

from harness import Bench, RUNS, compile_reference, cpu_seconds, figure, say, spelled, stamp

PARTITIONS = 16


def outbox_to(bench, transport):
    where = f', database: "{bench.dsn}", partitions: {PARTITIONS}' if transport == "postgres" else ""
    bench.init(f'outboxes: {{o: {{database: "{bench.dsn}"}}}}\n'
               f'destinations: {{d: {{transport: "{transport}"{where}}}}}\n'
               'relays: {r: {outbox: o, destination: d}}\n')


def load(bench, count):
    """Rows of 300 bytes payload, 1,000 in a transaction."""
    say(f"loading {count:,} rows")
    for first in range(0, count, 50000):
        rows = min(50000, count - first)
        bench.sql(f"""DO $$ BEGIN FOR t IN 0..{(rows - 1) // 1000} LOOP
            INSERT INTO postrider.outbox (aggregate_type, aggregate_id, aggregate_version, event_type, body)
            SELECT 'registration', 'a' || n % 5000, {first} + t * 1000 + n, 'RegistrationConfirmed',
                   convert_to(repeat(md5(n::text), 10), 'UTF8')::bytea
            FROM generate_series(1, least(1000, {rows} - t * 1000)) n; COMMIT; END LOOP; END $$""")
    bench.sql("CREATE TABLE reference_cursor AS SELECT 0::bigint AS at")
    bench.sql("VACUUM ANALYZE postrider.outbox")
    bench.sql("CHECKPOINT")


def rewind(bench):
    bench.sql("UPDATE postrider.lane SET done_snap = '1:1:', open_snap = NULL, open_pos = 0, owner = NULL")
    bench.sql("TRUNCATE postrider.log, postrider.log_writer")
    bench.sql("UPDATE postrider.log_head SET next_off = 0")
    bench.sql("CHECKPOINT")


def caught_up(log):
    return stamp(log, "relay.caught_up")


def poll_null(count=1000000):
    with Bench() as bench:
        outbox_to(bench, "null")
        load(bench, count)
        bench.measure("relay.poll.null", count, lambda: rewind(bench), lambda: bench.product("relays", caught_up),
                      [compile_reference("poll"), bench.dsn])


def poll_postgres(count=1000000):
    with Bench() as bench:
        outbox_to(bench, "postgres")
        load(bench, count)
        bench.sql(f"SELECT postrider.log_create_topic('registration', {PARTITIONS})")
        bench.measure("relay.poll.postgres", count, lambda: rewind(bench), lambda: bench.product("relays", caught_up),
                      [compile_reference("poll_postgres"), bench.dsn, bench.dsn, "registration", PARTITIONS])


def poll_kafka(count=1000000):
    """To one real broker, which has a core's worth of work of its own."""
    from servers.kafka import Kafka  # only here: the other benches need no Kafka client
    kafka = Kafka(heap="768m")
    try:
        with Bench() as bench:
            bench.init(f'outboxes: {{o: {{database: "{bench.dsn}"}}}}\n'
                       f'destinations: {{d: {{transport: kafka, bootstrap: "{kafka.bootstrap}", topic: registration}}}}\n'
                       'relays: {r: {outbox: o, destination: d}}\n')
            load(bench, count)
            kafka.create("registration", PARTITIONS)
            bench.measure("relay.poll.kafka", count, lambda: rewind(bench), lambda: bench.product("relays", caught_up),
                          [compile_reference("poll_kafka", "-lrdkafka"), bench.dsn, kafka.bootstrap, "registration",
                           PARTITIONS])
    finally:
        kafka.remove()


def mark_null(count=300000):
    """A table of the user's own, marked row by row; 5,000 aggregates."""
    with Bench() as bench:
        bench.sql("""CREATE TABLE events (event_id uuid PRIMARY KEY, aggregate_id text NOT NULL,
            aggregate_version bigint NOT NULL, event_type text NOT NULL, payload jsonb NOT NULL,
            occurred_at timestamptz NOT NULL DEFAULT now(), publish_state text NOT NULL DEFAULT 'PENDING',
            UNIQUE (aggregate_id, aggregate_version));
            CREATE INDEX events_pending ON events (aggregate_id, aggregate_version) WHERE publish_state = 'PENDING'""")
        say(f"loading {count:,} rows")
        bench.sql(f"""CREATE UNLOGGED TABLE kept AS SELECT gen_random_uuid() AS event_id, 'a' || n % 5000 AS aggregate_id,
            n / 5000 + 1 AS version, jsonb_build_object('text', repeat(md5(n::text), 9)) AS payload
            FROM generate_series(1, {count}) n""")
        bench.init(f'outboxes: {{o: {{database: "{bench.dsn}", table: public.events, aggregate_type: registration}}}}\n'
                   'destinations: {d: {transport: "null"}}\nrelays: {r: {outbox: o, destination: d}}\n')

        def reset():
            bench.sql("TRUNCATE events")
            bench.sql("INSERT INTO events SELECT event_id, aggregate_id, version, 'RegistrationConfirmed', payload FROM kept")
            bench.sql("UPDATE postrider.lane SET owner = NULL")
            bench.sql("VACUUM ANALYZE events")
            bench.sql("CHECKPOINT")

        def all_marked(_log):
            pending = bench.sql("SELECT EXISTS (SELECT FROM events WHERE publish_state = 'PENDING')")[0][0]
            return None if pending else time.time()
        bench.measure("relay.mark.null", count, reset, lambda: bench.product("relays", all_marked),
                      [compile_reference("mark"), bench.dsn, "events"])


def catchup(count=10000000):
    """Whether a backlog is read at the end as fast as at the beginning; the reference is its own first tenth."""
    with Bench() as bench:
        outbox_to(bench, "null")
        load(bench, count)
        lasts, ratios = [], []
        for run in range(RUNS):
            rewind(bench)
            marks = []

            def finished(log):
                at = bench.sql("SELECT min(open_pos) FROM postrider.lane")[0][0]
                marks.append((time.time(), at))
                return caught_up(log)
            process = bench.start("relays")
            end = bench.wait(process, finished)
            bench.stop(process)
            began = stamp((bench.folder / "log").read_text(), "relay.claimed")
            first = next(((t, at) for t, at in marks if at >= count / 10), None)
            last = next(((t, at) for t, at in marks if at >= count * 0.9), None)
            lasts.append((count - last[1]) / (end - last[0]))
            ratios.append(lasts[-1] / (first[1] / (first[0] - began)))
            say(f"relay.catchup run {run + 1}: {lasts[-1]:,.0f}/s at the end, {ratios[-1]:.2f} of the beginning")
        figure("relay.catchup", lasts, "events/s in the last tenth", f"the first tenth of {count:,}", ratios)


# ------------------------------------------------------------------ beside other work

@contextlib.contextmanager
def unrelated_commits(bench, rate):
    """So many commits a second that have nothing to do with the outbox."""
    if not rate:
        yield
        return
    bench.sql("CREATE TABLE IF NOT EXISTS noise (n bigint, at timestamptz DEFAULT now())")
    script = bench.folder / "noise.sql"
    script.write_text("INSERT INTO noise VALUES (:client_id);\n")
    with open(bench.folder / "noise.log", "w", encoding="utf-8") as log:
        noise = subprocess.Popen(["pgbench", "-n", "-M", "prepared", "-c", "4", "-R", str(rate), "-T", "3600", "-f",
                                  script, bench.dsn], stdout=log, stderr=log)
    try:
        time.sleep(1)
        yield
    finally:
        noise.kill()
        noise.wait()


def own_pids(bench, process):
    """The program and the server processes that work for it."""
    return [process.pid] + [row[0] for row in bench.sql(
        "SELECT pid FROM pg_stat_activity WHERE application_name LIKE 'postrider%'")]


def idle(seconds=10):
    with Bench() as bench:
        outbox_to(bench, "postgres")
        bench.sql("SELECT postrider.make_partitions(17)")
        load(bench, 100000)
        process = bench.start("relays")
        bench.wait(process, caught_up)
        for name, rate in (("relay.idle.quiet", 0), ("relay.idle.busy", 1000)):
            shares = []
            with unrelated_commits(bench, rate):
                time.sleep(2)
                for run in range(RUNS):
                    pids = own_pids(bench, process)
                    before, began = {pid: cpu_seconds(pid) for pid in pids}, time.monotonic()
                    time.sleep(seconds)
                    parts = [100 * (cpu_seconds(pid) - before[pid]) / (time.monotonic() - began) for pid in pids]
                    shares.append(sum(parts))
                    say(f"{name} run {run + 1}: " + " + ".join(f"{part:.1f}" for part in parts) + " % of a core")
            figure(name, shares, "% of a core, program and its server processes",
                   f"none; {rate:,} unrelated commits/s")
        bench.stop(process)


def latency(seconds=10, rate=1000):
    with Bench() as bench:
        bench.init(f'outboxes: {{o: {{database: "{bench.dsn}"}}}}\n'
                   f'destinations: {{d: {{transport: postgres, database: "{bench.dsn}", partitions: 1}}}}\n'
                   'relays: {r: {outbox: o, destination: d}}\n')
        bench.sql("SELECT postrider.make_partitions(17), postrider.log_create_topic('registration', 1)")
        command = [compile_reference("latency"), bench.dsn, bench.dsn, str(rate), str(seconds)]
        halves, tails = [], []
        process = bench.start("relays")
        with unrelated_commits(bench, 1000):
            for run in range(RUNS):
                seen = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
                if seen["seconds"] > 1.1 * seconds:
                    say(f"latency.poll: {rate * seconds} events took {seen['seconds']} s to write: the machine is too busy")
                halves.append(seen["p50_ms"])
                tails.append(seen["p99_ms"])
                say(f"latency.poll run {run + 1}: {seen}")
        bench.stop(process)
        figure("latency.poll.p50", halves, "ms", spelled(command))
        figure("latency.poll.p99", tails, "ms", spelled(command))
