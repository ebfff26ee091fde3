"""A contender whose program follows the kit's contract (../README.md): setup, fill, work, flow, arrive."""

import math
import re
import struct
from dataclasses import dataclass
from pathlib import Path

from kit import machine, processes
from kit.figures import Cpu, Result, percentiles
from kit.processes import Failure, micros

# Seconds without progress after which a run fails.
SILENCE = 60
# Seconds at the same rate before latency is measured.
WARM_UP = 2
# Seconds at the same rate for which the statements of creation alone are counted.
ALONE = 0.2
START = struct.Struct("<Iq")
COMMIT = struct.Struct("<Iqq")


@dataclass
class Peer:
    """One contender, with a profile of settings for each of its workloads."""

    name: str
    command: list
    kit: object
    profiles: dict
    # The query that counts the remaining jobs. None if the broker holds the jobs.
    left: str | None

    @property
    def workloads(self):
        return {workload: getattr(self, workload) for workload in self.profiles}

    def drain(self, load):
        with Run(self, "drain") as run:
            run.call("fill", load.jobs)
            run.settle()
            before = run.mark()
            run.work()
            ended = run.until_done(load.jobs)
            after = run.mark()
            starts = run.check(load.jobs)
            seconds = (ended - min(starts)) / 1e6
            return run.result(load.jobs, seconds, before, after, created=0)

    def continuous(self, load):
        with Run(self, "continuous") as run:
            run.work()
            before = run.mark()
            said, producer = run.call("flow", load.seconds, load.clients, load.batch, load.ahead, run.starts,
                                      run.profile)
            began, created = said["began"], said["created"]
            run.until_done(created)
            after = run.mark()
            starts = run.check(created)
            return run.result(created, (max(starts) - began) / 1e6, before, after, producer=producer)

    def own(self, load):
        """Creator and worker in one process, as in the contender's own benchmark. Starts within the window count."""
        with Run(self, "own") as run:
            run.work("own", load.seconds)
            before, began = run.mark(), micros()
            processes.wait_for(f"{self.name}'s own benchmark", load.seconds + SILENCE,
                               lambda: "created" in run.said() or False)
            after, said = run.mark(), run.said()
            run.until_done(said["created"])
            starts = run.check(said["created"])
            within = sum(began <= start <= said["ended"] for start in starts)
            return run.result(within, (said["ended"] - began) / 1e6, before, after)

    def latency(self, load, rate):
        with Run(self, f"latency-{rate}") as run:
            jobs, commits = rate * (load.seconds + WARM_UP), run.directory / "commits"
            run.work()
            before = run.mark()
            _, producer = run.call("arrive", rate, jobs, commits, run.profile)
            run.until_done(jobs)
            after = run.mark()
            starts = run.check(jobs)
            measured = [(starts[n], due, committed) for n, due, committed in COMMIT.iter_unpack(commits.read_bytes())
                        if n >= rate * WARM_UP]
            result = run.result(jobs, load.seconds + WARM_UP, before, after, producer, run.creation(rate))
            result.commit_to_start = percentiles(start - committed for start, _, committed in measured)
            result.arrival_to_start = percentiles(start - due for start, due, _ in measured)
            return result


class Run:
    """One run in a fresh database or virtual host. The end removes it and stops the worker."""

    def __init__(self, peer, workload):
        self.peer, self.kit, self.workload = peer, peer.kit, workload
        self.profile = peer.profiles[workload.split("-")[0]]
        self.database = self.vhost = self.worker = None
        self.directory = Path(self.kit.directory) / machine.slug(f"{peer.name}-{workload}")
        self.starts, self.printed = self.directory / "starts", self.directory / "printed"

    def __enter__(self):
        self.directory.mkdir(exist_ok=True)
        self.starts.unlink(missing_ok=True)
        self.log = self.kit.open_log(f"{self.peer.name}-{self.workload}")
        if self.peer.left:
            self.database = self.kit.postgres.create_database(self.peer.name)
            self.environment = {"DATABASE_URL": self.kit.postgres.url(self.database)}
        else:
            self.vhost = self.kit.rabbitmq.create_vhost()
            self.environment = {"AMQP_URL": self.kit.rabbitmq.url(self.vhost)}
        self.call("setup")
        return self

    def __exit__(self, *failed):
        if self.worker:
            processes.stop(self.worker)
        self.log.close()
        if self.database:
            self.kit.postgres.drop_database(self.database)
        if self.vhost:
            self.kit.rabbitmq.delete_vhost(self.vhost)

    def call(self, *arguments):
        """Runs a command of the program. Returns the numbers that it printed, by name, and its processor time."""
        printed, spent = processes.run([*self.peer.command, *map(str, arguments)], self.log,
                                       env=self.kit.environment | self.environment)
        return numbers(printed), spent

    def work(self, command="work", *arguments):
        """Starts the worker and waits until it takes jobs."""
        with self.printed.open("w", encoding="utf-8") as printed:
            self.worker = processes.start(
                [*self.peer.command, command, *map(str, arguments), self.starts, self.profile], self.log,
                stdout=printed, env=self.kit.environment | self.environment)
        processes.wait_for(f"{self.peer.name} to start", SILENCE, lambda: self._runs() and "ready" in self.said())

    def _runs(self):
        if self.worker.poll() is not None:
            raise Failure(f"the worker ended unexpectedly{processes.tail(self.log)}")
        return True

    def said(self):
        return numbers(self.printed.read_text(encoding="utf-8"))

    def settle(self):
        """Updates the planner's statistics, as autovacuum would do later."""
        if self.database:
            self.kit.postgres.ask("VACUUM ANALYZE", self.database)

    def mark(self):
        """Returns the counters now: statements, then processor time."""
        statements = self.kit.postgres.statements(self.database) if self.database else None
        roots = [self.kit.postgres.server.pid, self.kit.rabbitmq.server.pid]
        used = processes.tree_micros(*roots, *([self.worker.pid] if self.worker else []))
        database, broker, worker = (*used, 0)[:3]
        return statements, Cpu(database if self.database else None, broker if self.vhost else None, worker,
                               machine=processes.machine_micros())

    def until_done(self, jobs):
        """Waits until `jobs` jobs have started and none is left. Returns the time of the end."""
        def started():
            self._runs()
            count = self.starts.stat().st_size // START.size if self.starts.exists() else 0
            return count >= jobs or count

        def none_left():
            left = (int(self.kit.postgres.ask(self.peer.left, self.database)) if self.database
                    else self.kit.rabbitmq.waiting(self.vhost))
            return left == 0 or left

        processes.wait_for(f"starts of {jobs} jobs", SILENCE, started)
        last = micros()
        # A query of RabbitMQ takes a second, so for Celery a job that has started counts as done.
        processes.wait_for("completion of the last jobs", SILENCE, none_left, every=0.02)
        return micros() if self.database else last

    def check(self, jobs):
        """Stops the worker and checks that each job, and no other, started exactly once. Returns starts by number."""
        processes.stop(self.worker)
        seen = [None] * jobs
        again = strange = 0
        for n, at in START.iter_unpack(self.starts.read_bytes()):
            if n >= jobs:
                strange += 1
            elif seen[n] is not None:
                again += 1
            else:
                seen[n] = at
        if again or strange or None in seen:
            raise Failure(f"wrong starts: {again} of {jobs} jobs started again, {seen.count(None)} never, "
                          f"{strange} that were not created")
        return seen

    def creation(self, rate):
        """Returns the statements that create one job in a transaction, measured while no worker runs."""
        if not self.database:
            return None

        def counted(jobs):
            before = self.kit.postgres.statements(self.database)
            self.call("arrive", rate, jobs, self.directory / "alone", self.profile)
            return self.kit.postgres.statements(self.database) - before

        # The difference excludes the statements of the program's start.
        jobs = math.ceil(rate * ALONE)
        return (counted(2 * jobs) - counted(jobs)) / jobs

    def result(self, jobs, seconds, before, after, producer=None, created=None):
        """Returns the differences of the marks per job. `created`: the statements that create one job."""
        spent = Cpu(**{name: None if then is None else now - then for (name, then), now in zip(
            vars(before[1]).items(), vars(after[1]).values(), strict=True) if name != "producer"}, producer=producer)
        statements = (after[0] - before[0]) / jobs if self.database else None
        later = None if statements is None or created is None else max(0.0, statements - created)
        return Result(self.peer.name, self.workload, jobs, seconds, jobs / seconds, statements, later, spent.of(jobs))


def numbers(printed):
    """Returns the `name number` lines of an output. A name alone gets the value True; other lines are ignored."""
    found = re.findall(r"^(\w+)(?: (\d+))?$", printed, re.MULTILINE)
    return {name: int(number) if number else True for name, number in found}
