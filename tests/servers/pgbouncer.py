"""A private PgBouncer in front of a test's PostgreSQL server: transaction pooling, on loopback, on a free port."""
import os
import shutil
import signal
import subprocess
import tempfile
import pathlib
import time

import psycopg2

from servers.postgres import free_port


class PgBouncer:
    def __init__(self, server, pool_mode="transaction"):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="postrider-pgbouncer-"))
        self.port = free_port()
        os.chown(self.folder, server.uid, server.gid)  # it refuses to run as root
        (self.folder / "users").write_text('"postgres" ""\n')
        config = self.folder / "pgbouncer.ini"
        config.write_text(f"""
[databases]
* = host=127.0.0.1 port={server.port}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {self.port}
unix_socket_dir =
auth_type = trust
auth_file = {self.folder}/users
pool_mode = {pool_mode}
""")

        def demote():
            os.setsid()
            if os.getuid() == 0:
                os.setgroups([])
                os.setgid(server.gid)
                os.setuid(server.uid)

        with open(self.folder / "log", "wb") as log:
            self.process = subprocess.Popen(["/usr/sbin/pgbouncer", str(config)], preexec_fn=demote, cwd=self.folder,
                                            stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        deadline = time.monotonic() + 30
        while True:
            try:
                psycopg2.connect(self.dsn("postgres")).close()
                return
            except psycopg2.OperationalError:
                if self.process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError((self.folder / "log").read_text()[-2000:]) from None
                time.sleep(0.05)

    def dsn(self, database):
        return f"postgresql://postgres@127.0.0.1:{self.port}/{database}"

    def remove(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
            self.process.wait(10)
        shutil.rmtree(self.folder, ignore_errors=True)
