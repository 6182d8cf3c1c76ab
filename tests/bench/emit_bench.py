"""What writing an event costs a business transaction."""
import re
import subprocess

from harness import Bench, RUNS, figure, say

TPCB = r"""\set aid random(1, 100000 * :scale)
\set bid random(1, 1 * :scale)
\set tid random(1, 10 * :scale)
\set delta random(-5000, 5000)
\set version random(1, 9000000000000000)
BEGIN;
UPDATE pgbench_accounts SET abalance = abalance + :delta WHERE aid = :aid;
SELECT abalance FROM pgbench_accounts WHERE aid = :aid;
UPDATE pgbench_tellers SET tbalance = tbalance + :delta WHERE tid = :tid;
UPDATE pgbench_branches SET bbalance = bbalance + :delta WHERE bid = :bid;
INSERT INTO pgbench_history (tid, bid, aid, delta, mtime) VALUES (:tid, :bid, :aid, :delta, CURRENT_TIMESTAMP);
"""
PAYLOAD = "jsonb_build_object('account', :aid::int, 'delta', :delta::int, 'text', repeat('x', 200))"
EMIT = f"SELECT postrider.emit('account', 'a' || :aid, :version, 'AccountMoved', {PAYLOAD});\nCOMMIT;\n"
INSERT = ("INSERT INTO bare (aggregate_type, aggregate_id, aggregate_version, event_type, payload) "
          f"VALUES ('account', 'a' || :aid, :version, 'AccountMoved', {PAYLOAD});\nCOMMIT;\n")


def pgbench(bench, last, clients, seconds):
    script = bench.folder / "tpcb.sql"
    script.write_text(TPCB + last)
    out = subprocess.run(["pgbench", "-n", "-M", "prepared", "-c", str(clients), "-j", "2", "-T", str(seconds), "-f",
                          script, bench.dsn], capture_output=True, text=True, check=True).stdout
    return float(re.search(r"tps = ([\d.]+)", out).group(1))


def emit_overhead(seconds=20, clients=8):
    with Bench() as bench:
        bench.init(f'outboxes: {{o: {{database: "{bench.dsn}"}}}}\ndestinations: {{d: {{transport: "null"}}}}\n'
                   'relays: {r: {outbox: o, destination: d}}\n')
        bench.sql("CREATE TABLE bare (LIKE postrider.outbox INCLUDING DEFAULTS INCLUDING IDENTITY, PRIMARY KEY (event_id))")
        subprocess.run(["pgbench", "-i", "-q", "-s", "20", bench.dsn], check=True, capture_output=True)
        rates, ratios = [], []
        for run in range(RUNS):
            tps = {}
            for last in (EMIT, INSERT) if run % 2 else (INSERT, EMIT):
                bench.sql("CHECKPOINT")
                tps[last] = pgbench(bench, last, clients, seconds)
            with_emit, bare = tps[EMIT], tps[INSERT]
            rates.append(with_emit)
            ratios.append(with_emit / bare)
            say(f"emit.overhead run {run + 1}: {with_emit:,.0f} commits/s, bare insert {bare:,.0f}")
        figure("emit.overhead", rates, "commits/s",
               f"pgbench tpcb-like, {clients} clients, insert into a table of the same columns and primary key", ratios)
