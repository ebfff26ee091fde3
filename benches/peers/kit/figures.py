"""The figures of a run."""

import math
import statistics
from dataclasses import asdict, dataclass, field


@dataclass
class Cpu:
    """Processor time in microseconds, of a run or (after `of`) of a job. `None` if it was not measured."""

    database: float | None = None
    broker: float | None = None
    worker: float | None = None
    # The process that creates the jobs. For Jobwire this is the bench, which also receives a report of each start.
    producer: float | None = None
    # All processes of the machine.
    machine: float | None = None

    def of(self, jobs):
        return Cpu(**{name: None if used is None else used / jobs for name, used in asdict(self).items()})

    def serving(self):
        """Database, broker and worker together."""
        return sum(used or 0 for used in (self.database, self.broker, self.worker))


@dataclass
class Result:
    """The figures of one contender in one workload and one round."""

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
    """Returns nearest-rank percentiles of the values, in milliseconds."""
    ordered = sorted(micros)

    def at(share):
        return ordered[max(1, math.ceil(len(ordered) * share)) - 1] / 1_000

    return {"p50": at(0.5), "p95": at(0.95), "p99": at(0.99), "p999": at(0.999), "max": ordered[-1] / 1_000}


def median(values):
    """Returns the median of the values that are not `None`; `None` if there are none."""
    values = [value for value in values if value is not None]
    return statistics.median(values) if values else None
