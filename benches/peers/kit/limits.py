"""The limits of the servers: pgbench with the minimal statements of a job, and RabbitMQ without a job executor."""

import json
import re

from kit import processes
from kit.figures import Cpu, Result, percentiles
from kit.machine import REPOSITORY
from kit.processes import Failure

HERE = REPOSITORY / "benches/peers"
CLIENTS = (1, 4, 8)
SIZES = (1, 256)
# Most transactions of one row per client. Each flushes the disk, so this many suffice.
SINGLE = 1_000

# Each client processes its own batches one after the other.
NEXT = "\\set n :n + 1\n\\set batch :client_id * :each + :n - 1\n"
IDS = "(SELECT ids FROM batch WHERE n = :batch)"
STATEMENTS = {
    "insert": "INSERT INTO job (id, type, payload, correlation_id) SELECT id, 'noop', "
              "'{{\"filler\": \"{filler}\"}}', id FROM unnest({ids}) AS given(id);\n",
    "lock": "UPDATE job SET lock_owner = '00000000-0000-4000-8000-000000000001', lock_expires_at = clock_timestamp() "
            "+ interval '30 seconds', fence = fence + 1 WHERE id = ANY({ids}::uuid[]) "
            "AND (lock_owner IS NULL OR lock_expires_at < clock_timestamp()) RETURNING *;\n",
    "delete": "DELETE FROM job WHERE id = ANY({ids}::uuid[]) AND fence = 1 RETURNING id;\n",
}
# In this order, each script leaves the table as the next one needs it.
SCRIPTS = (("insert",), ("lock",), ("delete",), ("insert",), ("lock", "delete"), ("insert", "lock", "delete"))


class Pgbench:
    """Rows a second of minimal statements. Each statement is a transaction."""

    name = "pgbench"

    def __init__(self, kit):
        self.kit = kit

    def measure(self, load):
        return [self._measure(load, size, clients) for size in SIZES for clients in CLIENTS]

    def _measure(self, load, size, clients):
        postgres = self.kit.postgres
        jobs = min(load.jobs, SINGLE * clients) if size == 1 else load.jobs
        each = max(1, jobs // size // clients)
        jobs = each * size * clients
        database = postgres.create_database(self.name)
        with self.kit.open_log(f"pgbench-{size}-{clients}") as log:
            psql = [postgres.programs / "psql", "-Xq", "-v", "ON_ERROR_STOP=1", "-v", f"jobs={jobs}",
                    "-v", f"size={size}", "-f", HERE / "limits.sql"]
            processes.run(psql, log, env=postgres.environment(database))
            figures = {"rows": size, "clients": clients}
            for statements in SCRIPTS:
                figures[", ".join(statements)] = size * self._run(database, statements, clients, each, log)
                left = int(postgres.ask("SELECT count(*) FROM job", database))
                if left != (jobs if statements[-1] in ("insert", "lock") else 0):
                    raise Failure(f"{statements} of {jobs} rows left {left}")
        postgres.drop_database(database)
        return figures

    def _run(self, database, statements, clients, each, log):
        """Runs all statements with pgbench. Returns transactions a second."""
        postgres = self.kit.postgres
        script = self.kit.directory / "pgbench.sql"
        script.write_text(NEXT + "".join(STATEMENTS[one].format(ids=IDS, filler="x" * 180) for one in statements))
        postgres.ask("VACUUM ANALYZE job", database)
        printed, _ = processes.run(
            [postgres.programs / "pgbench", "--no-vacuum", "--protocol=prepared", f"--client={clients}",
             f"--jobs={min(2, clients)}", f"--transactions={each}", "--define=n=0", f"--define=each={each}",
             f"--file={script}"], log, env=postgres.environment(database))
        if not (tps := re.search(r"^tps = ([\d.]+) \(without", printed, re.MULTILINE)):
            raise Failure(f"pgbench printed unreadable output: {printed[-200:]}")
        return float(tps[1])


def message(packed):
    """Returns a message in Jobwire's format."""
    return json.dumps({"v": 1, "at": 1_763_740_000_000_000, "hints": [
        {"id": "019a9e7c-1f0b-7c43-9c3e-5a5f3f6f2d11", "c": 1_763_740_000_000_000}] * packed},
        separators=(",", ":"))


def amqp_limit(kit, command, log, *arguments):
    """Runs the program in its own virtual host. Returns its output."""
    vhost = kit.rabbitmq.create_vhost()
    with kit.open_log(log) as said:
        printed, _ = processes.run([*command, kit.rabbitmq.url(vhost), *map(str, arguments)], said)
    kit.rabbitmq.delete_vhost(vhost)
    return printed


class Amqp:
    """Hints a second through RabbitMQ, by the number of hints in a message."""

    name = "rabbitmq"
    # One; Jobwire's default; the maximum.
    PACKED = (1, 16, 256)

    def __init__(self, kit, command):
        self.kit, self.command = kit, command

    def measure(self, load):
        return [self._measure(load, packed) for packed in self.PACKED]

    def _measure(self, load, packed):
        body = message(packed)
        messages = max(100, load.jobs // packed)
        printed = amqp_limit(self.kit, self.command, f"rabbitmq-{packed}", messages, len(body))
        said = dict(line.split() for line in printed.splitlines())
        return {"hints": packed, "bytes": len(body)} | {name: packed * float(rate) for name, rate in said.items()}


class AmqpLatency:
    """The latency of a message with one hint between two processes. No hint can be faster."""

    name = "RabbitMQ by itself, publish to receive"

    def __init__(self, kit, command):
        self.kit, self.command = kit, command
        self.workloads = {"latency": self.latency}

    def latency(self, load, rate):
        messages = rate * load.seconds
        printed = amqp_limit(self.kit, self.command, f"rabbitmq-latency-{rate}", messages, len(message(1)), rate)
        took = [[int(micros) for micros in line.split()] for line in printed.splitlines()]
        if len(took) != messages:
            raise Failure(f"{len(took)} of {messages} messages were received")
        from_sent, from_due = map(percentiles, zip(*took))
        return Result(self.name, "latency", messages, load.seconds, messages / load.seconds, None, None, Cpu(), from_sent, from_due)
