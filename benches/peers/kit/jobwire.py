"""Jobwire as a contender: `jobwire bench`, which checks each run and measures by the same rules.

Settings have their defaults, except those that are given here. The environment's settings are ignored.
"""

import json
import os

from kit import processes
from kit.figures import Cpu, Result
from kit.processes import Failure


class Jobwire:
    """Jobwire over RabbitMQ, in-process, or woken by PostgreSQL; `broker` is None for RabbitMQ."""

    def __init__(self, name, command, kit, workloads, broker=None, **settings):
        self.name, self.command, self.kit, self.broker, self.settings = name, command, kit, broker, settings
        self.workloads = {workload: getattr(self, workload) for workload in workloads}

    def drain(self, load):
        return self._bench("drain", "--jobs", load.jobs)

    def continuous(self, load):
        return self._bench("continuous", "--seconds", load.seconds, "--clients", load.clients,
                           "--per-transaction", load.batch, "--ahead", load.ahead)

    def latency(self, load, rate):
        return self._bench("steady", "--rate", rate, "--seconds", load.seconds)

    def _bench(self, workload, *options):
        postgres, rabbitmq = self.kit.postgres, self.kit.rabbitmq
        database = postgres.create_database(self.name)
        # The bench reads the counters in this database.
        postgres.ask("CREATE EXTENSION pg_stat_statements", database)
        vhost = None if self.broker else rabbitmq.create_vhost()
        environment = {name: value for name, value in os.environ.items() if not name.startswith("JOBWIRE_")} | {
            "JOBWIRE_DATABASE_URL": postgres.url(database),
            "JOBWIRE_BROKER_URL": self.broker or rabbitmq.url(vhost),
            "JOBWIRE_CONFIG": os.devnull,
        } | {f"JOBWIRE_{name.upper()}": value for name, value in self.settings.items()}
        command = [*self.command, "bench", workload, *map(str, options), "--json"]
        with self.kit.open_log(f"{self.name}-{workload}") as log:
            printed, _ = processes.run(command, log, env=environment)
        postgres.drop_database(database)
        if vhost:
            rabbitmq.delete_vhost(vhost)
        try:
            return self._result(json.loads(printed), workload)
        except (ValueError, KeyError) as error:
            raise Failure(f"jobwire bench {workload} printed an unreadable report: {error}") from None

    def _result(self, report, workload):
        cost = report["cost"]
        return Result(
            self.name, workload, report["jobs"], report["seconds"], report["jobs_per_second"],
            cost["statements_per_job"], cost["statements_per_job_after_creation"],
            Cpu(**{name: cost[f"{theirs}_cpu_micros_per_job"] for name, theirs in (
                ("database", "database"), ("broker", "broker"), ("worker", "nodes"),
                ("producer", "bench"), ("machine", "machine"))}),
            report["commit_to_start"], report["arrival_to_start"])
