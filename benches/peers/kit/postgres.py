"""A private PostgreSQL with the default durability, on a loopback port. It ends with the run."""

import os
import pwd
import secrets
import shutil
import subprocess

from kit import machine, processes
from kit.processes import Failure

SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "shared_preload_libraries": "pg_stat_statements",
    "shared_buffers": "512MB",
    "max_connections": "200",
    "max_wal_size": "4GB",
    # Explicit although they are the defaults: durability decides the figures.
    "fsync": "on",
    "synchronous_commit": "on",
    # In the data directory, so that it is removed with the server.
    "dynamic_shared_memory_type": "mmap",
}


class Postgres:
    """The server, the databases of the runs, and the counters of pg_stat_statements."""

    def __init__(self, directory, log):
        self.directory, self.log = directory / "postgres", log
        self.programs = machine.directory_of("initdb", "postgresql", "/usr/lib/postgresql/*/bin")
        self.port, self.password = machine.free_port(), secrets.token_hex(16)
        self.made = 0
        self.server = None

    def start(self):
        self.directory.mkdir(mode=0o700)
        options = {"cwd": self.directory}
        if os.geteuid() == 0:
            # PostgreSQL refuses to run as root.
            user = next(u for u in map(_user, ("postgres", "nobody")) if u)
            shutil.chown(self.directory, user.pw_uid, user.pw_gid)
            options |= {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
        password = self.directory / "password"
        password.write_text(self.password)
        password.chmod(0o644)  # The server's user reads it; other users cannot enter the directory.
        initdb = [self.programs / "initdb", "--pgdata=data", "--username=postgres", "--auth=scram-sha-256",
                  "--encoding=UTF8", "--locale=C", "--no-sync", "--pwfile=password"]
        processes.run(initdb, self.log, **options)
        settings = [part for setting in SETTINGS.items() for part in ("-c", "=".join(setting))]
        self.server = processes.start(
            [self.programs / "postgres", "-D", "data", "-p", str(self.port), "-k", str(self.directory), *settings],
            self.log, **options)
        processes.wait_for("PostgreSQL", 60, self._answers, every=0.2)
        self.ask("CREATE EXTENSION pg_stat_statements")
        return self

    def _answers(self):
        if self.server.poll() is not None:
            raise Failure(f"PostgreSQL ended unexpectedly{processes.tail(self.log)}")
        return subprocess.run([self.programs / "pg_isready", "-q", "-h", "127.0.0.1", "-p", str(self.port)],
                              check=False).returncode == 0

    def stop(self):
        if self.server:
            # Immediate shutdown: its data are not kept.
            processes.stop(self.server, by=processes.signal.SIGQUIT)

    def url(self, database):
        return f"postgres://postgres:{self.password}@127.0.0.1:{self.port}/{database}"

    def environment(self, database):
        """Returns the environment for libpq's programs."""
        return os.environ | {"PGHOST": "127.0.0.1", "PGPORT": str(self.port), "PGUSER": "postgres",
                             "PGPASSWORD": self.password, "PGDATABASE": database,
                             # The kit's own statements are not counted.
                             "PGOPTIONS": "-c pg_stat_statements.track=none"}

    def create_database(self, name):
        self.made += 1
        database = f"{machine.slug(name)}_{self.made}".replace("-", "_")
        self.ask(f"CREATE DATABASE {database}")
        # The next run does not pay for the writes of the previous one.
        self.ask("CHECKPOINT")
        return database

    def drop_database(self, database):
        self.ask(f"DROP DATABASE {database} WITH (FORCE)")

    def ask(self, sql, database="postgres"):
        """Runs one statement. Returns its output."""
        asked = subprocess.run([self.programs / "psql", "-XqAt", "-v", "ON_ERROR_STOP=1", "-c", sql], check=False,
                               capture_output=True, text=True, env=self.environment(database))
        if asked.returncode:
            raise Failure(f"PostgreSQL: {asked.stderr.strip()}")
        return asked.stdout.strip()

    def statements(self, database):
        """Returns the calls of all statements in this database so far."""
        return int(self.ask("SELECT coalesce(sum(calls), 0) FROM pg_stat_statements WHERE dbid = "
                            f"(SELECT oid FROM pg_database WHERE datname = '{database}')"))

    def version(self):
        return self.ask("SHOW server_version").split()[0]


def _user(name):
    try:
        return pwd.getpwnam(name)
    except KeyError:
        return None
