"""What a run showed."""

import math
import statistics
from dataclasses import asdict, dataclass, field


@dataclass
class Cpu:
    """Processor time in microseconds; of a job, once it is divided. `None` where nothing was measured."""

    database: float | None = None
    broker: float | None = None
    worker: float | None = None
    # Whoever creates the jobs. Of Jobwire it is the bench, which is also told of each start.
    producer: float | None = None
    # All of the machine, whoever it worked for.
    machine: float | None = None

    def of(self, jobs):
        return Cpu(**{name: None if used is None else used / jobs for name, used in asdict(self).items()})

    def serving(self):
        """Database, broker and worker together."""
        return sum(used or 0 for used in (self.database, self.broker, self.worker))


@dataclass
class Result:
    """Of one contender, in one workload, in one round."""

    contender: str
    workload: str
    jobs: int = 0
    seconds: float | None = None
    jobs_per_second: float | None = None
    statements_per_job: float | None = None
    statements_per_job_after_creation: float | None = None
    cpu: Cpu = field(default_factory=Cpu)
    # Milliseconds by percentile.
    commit_to_start: dict | None = None
    arrival_to_start: dict | None = None
    round: int = 1


def percentiles(micros):
    """Of all values, in milliseconds: the smallest one that so many are not larger than."""
    ordered = sorted(micros)

    def at(share):
        return ordered[max(1, math.ceil(len(ordered) * share)) - 1] / 1_000

    return {"p50": at(0.5), "p95": at(0.95), "p99": at(0.99), "p999": at(0.999), "max": ordered[-1] / 1_000}


def median(values):
    """Of what was measured; nothing of nothing."""
    values = [value for value in values if value is not None]
    return statistics.median(values) if values else None
