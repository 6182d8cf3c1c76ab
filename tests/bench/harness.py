"""What every bench needs: a private server, the program and a reference in turns, one JSON line per figure."""
import datetime
import json
import pathlib
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from servers.postgres import PostgresServer, with_autocommit as sql  # noqa: E402

BIN = ROOT / "build" / "src" / "postrider"
RUNS = 3


def compile_reference(name, *libraries):
    out = ROOT / "build" / "bench" / name
    out.parent.mkdir(parents=True, exist_ok=True)
    include = subprocess.run(["pg_config", "--includedir"], capture_output=True, text=True, check=True).stdout.strip()
    subprocess.run(["cc", "-O2", "-std=gnu17", "-I", include, str(ROOT / "tests/bench/reference" / f"{name}.c"), "-o",
                    str(out), "-lpq", *libraries], check=True)
    return out


def say(text):
    print(text, file=sys.stderr, flush=True)


def figure(name, values, unit, reference, ratios=None, **more):
    """Prints the line of one figure: the median of its runs, and of the ratios to the reference."""
    print(json.dumps({
        "name": name, "value": round(statistics.median(values), 2), "unit": unit, "reference": reference,
        "ratio": round(statistics.median(ratios), 3) if ratios else None, "runs": len(values), **more,
        "command": f"make bench BENCH={name}"}), flush=True)


def spelled(command):
    """A reference's command line without what is different in each run."""
    def word(part):
        if "@" in part:
            return "DSN"
        if part.startswith("127.0.0.1"):
            return "BROKERS"
        return pathlib.Path(part).name if "/" in part else part
    return " ".join(word(str(part)) for part in command)


def cpu_seconds(pid):
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / 100


def peak_megabytes(pid):
    return int(re.search(r"VmHWM:\s+(\d+) kB", pathlib.Path(f"/proc/{pid}/status").read_text()).group(1)) / 1024


def stamp(log, event):
    found = re.search(r"ts=(\S+) level=info event=" + re.escape(event), log)
    return datetime.datetime.fromisoformat(found.group(1).replace("Z", "+00:00")).timestamp() if found else None


class Bench:
    def __init__(self):
        # Zeroing new WAL files would be charged to whoever happens to need one.
        self.server = PostgresServer("15", {"fsync": "on", "shared_buffers": "1GB", "max_wal_size": "8GB", "wal_init_zero": "off"},
                                     on_disk=True)
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="postrider-bench-"))
        self.dsn = self.server.create("bench")
        self.config = self.folder / "postrider.yaml"
        self.processes = []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in self.processes:
            process.kill()
            process.wait()
        self.server.remove()
        for path in self.folder.iterdir():
            path.unlink()
        self.folder.rmdir()

    def init(self, text):
        self.config.write_text(text)
        subprocess.run([BIN, "init", "--config", self.config], check=True, stdout=subprocess.DEVNULL)

    def sql(self, statement):
        return sql(self.dsn, statement)

    def start(self, part):
        with open(self.folder / "log", "w", encoding="utf-8") as log:
            self.processes.append(subprocess.Popen([BIN, "run", "--only", part, "--config", self.config], stderr=log))
        return self.processes[-1]

    def wait(self, process, finished, every=0.02):
        """Waits until finished(log of the program) tells when."""
        while True:
            time.sleep(every)
            text = (self.folder / "log").read_text()
            if process.poll() is not None:
                sys.exit(f"the program ended: {text[-1000:]}")
            end = finished(text)
            if end is not None:
                return end

    @staticmethod
    def stop(process):
        process.send_signal(signal.SIGTERM)
        process.wait()

    def product(self, part, finished):
        """Seconds from the program's first claim to what finished(log) tells, its CPU seconds and peak memory."""
        process = self.start(part)
        end = self.wait(process, finished)
        cpu, peak = cpu_seconds(process.pid), peak_megabytes(process.pid)
        self.stop(process)
        began = stamp((self.folder / "log").read_text(), "relay.claimed" if part == "relays" else "consumer.claimed")
        return end - began, cpu, peak

    @staticmethod
    def reference(name, count, command):
        bare = json.loads(subprocess.run([str(part) for part in command], capture_output=True, text=True,
                                         check=True).stdout)
        if bare["count"] != count:
            sys.exit(f"{name}: the reference saw {bare['count']} of {count}")
        return bare["seconds"], bare["cpu"]

    def measure(self, name, count, reset, product, reference):
        """The rate as figure `name`; CPU and memory of the same runs as figures beside it."""
        rates, ratios, cpus, cpu_ratios, peaks = [], [], [], [], []
        for run in range(RUNS):
            reset()
            seconds, cpu, peak = product()
            reset()
            bare_seconds, bare_cpu = self.reference(name, count, reference)
            rates.append(count / seconds)
            ratios.append(bare_seconds / seconds)
            cpus.append(cpu / count * 1e6)
            cpu_ratios.append(bare_cpu / cpu)
            peaks.append(peak)
            say(f"{name} run {run + 1}: {count / seconds:,.0f}/s, reference {count / bare_seconds:,.0f}/s")
        side, kind, end = name.split(".")
        if kind == "mark":
            end = "mark"
        figure(name, rates, "events/s", spelled(reference), ratios)
        figure(f"{side}.cpu.{end}", cpus, "CPU seconds per million", spelled(reference), cpu_ratios)
        figure(f"{side}.rss.{end}", peaks, "MB at most", "none")
