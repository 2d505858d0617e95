"""Computes the load of each host of a fleet from the measurements of its own tasks."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from pyspark.sql import SparkSession

from headgate.spark.job.reports import Report
from headgate.spark.jvm.executors import ExecutorPool

ANYWHERE = ""
"""Stands for the host of a task whose host is not known."""


@dataclass(frozen=True)
class HostTime:
    """Holds the measurements of the tasks on one host."""

    runnable_s: float
    """Time that the tasks ran or waited for a core, summed."""
    load: float | None = None
    """The machine's load average over a minute, as the last task read it."""


@dataclass(frozen=True)
class HostLoad:
    """Holds the load of one host."""

    host: str
    cores: int
    """Cores of the host's executors."""
    runnable: float
    """Mean number of runnable tasks (running, or waiting for a core) in the round."""
    load: float | None
    """See `HostTime`; shown to people only."""

    @property
    def congested(self) -> bool:
        """Return whether more tasks were runnable than the host has cores (Henge 5.2: CPU load > cores).

        The load average is no measure of this: it lacks tasks in Spark's queue, and includes programs
        other than the fleet's jobs.
        """
        return self.runnable > self.cores


class Hosts:
    """Measures the load of the hosts of a session's executors.

    `cores`: cores of a local session, which is one host.
    """

    def __init__(self, spark: SparkSession, cores: int) -> None:
        local = str(spark.sparkContext.master).startswith("local")
        self._pool = None if local else ExecutorPool(spark)
        self._local_cores = cores

    def loads(self, jobs: Iterable[Mapping[str, HostTime]], seconds: float) -> list[HostLoad]:
        """Return the load of each host, sorted by name; a host without tasks has load 0.

        `jobs`: measurements of each job's tasks within the last `seconds`, by host.
        """
        return loads_of(self._cores(), jobs, seconds)

    def _cores(self) -> dict[str, int]:
        if self._pool is None:
            return {"local": self._local_cores}
        cores: Counter[str] = Counter()
        for executor in self._pool.living():
            cores[executor.host] += executor.cores
        return dict(cores)


def loads_of(
    cores: Mapping[str, int], jobs: Iterable[Mapping[str, HostTime]], seconds: float
) -> list[HostLoad]:
    """Return the load of each host; see `Hosts.loads`.

    Divides the time on an unknown host among all hosts by their cores, since its tasks need one of
    these cores.
    """
    total_cores = sum(cores.values())
    runnable_s = dict.fromkeys(cores, 0.0)
    load: dict[str, float] = {}
    for job in jobs:
        for host, spent in job.items():
            named = host if host in cores else next(iter(cores)) if len(cores) == 1 else None
            if named is not None and spent.load is not None:
                load[named] = spent.load
            for core in cores if named is None else (named,):
                part = 1.0 if named is not None else cores[core] / total_cores
                runnable_s[core] += spent.runnable_s * part
    return [
        HostLoad(host, cores[host], runnable_s[host] / seconds, load.get(host))
        for host in sorted(cores)
    ]


def summed(parts: Iterable[Mapping[str, HostTime]]) -> dict[str, HostTime]:
    """Return the sum of measurements by host, with the newest load."""
    total: dict[str, HostTime] = {}
    for part in parts:
        for host, spent in part.items():
            before_s = total[host].runnable_s if host in total else 0.0
            total[host] = HostTime(before_s + spent.runnable_s, spent.load)
    return total


def beside_s(reports: Sequence[Report], slots_s: float) -> float:
    """Return the part of a step's time at its slots in which no task of the step ran, in seconds.

    In this time Spark does its own work, or all tasks wait for a core.
    """
    ran = [r.ran for r in reports if r.ran is not None]
    if not ran:
        return 0.0
    all_ms = max(task.ended_ms for task in ran) - min(task.began_ms for task in ran)
    return max(0.0, slots_s - all_ms / 1e3)


def times_of(
    reports: Sequence[Report], slots_s: float, usual_s: float = 0.0
) -> dict[str, HostTime]:
    """Return by host how long the slot tasks of a step ran or waited for a core.

    A task's wait begins when the first task of its operator begins, since all tasks could then run. All
    tasks also wait in the step's time at its slots in which no task runs. Waits count whichever program
    has the core. If tasks do not report when they ran, all wait while the slowest task does not run.

    Parameters
    ----------
    reports : sequence of Report    Reports of all operators of the step.
    slots_s : float    The step's time at its slots, in seconds.
    usual_s : float
        The least `beside_s` of any step of the query: Spark's own work if no task waits for a core.
    """
    if not reports:
        return {}
    known = [r.ran for r in reports if r.ran is not None]
    if len(known) < len(reports):
        slowest_s = max(r.useful_ms for r in reports) / 1e3
        waited_s = max(0.0, slots_s - slowest_s)
        return {ANYWHERE: HostTime(sum(r.useful_ms / 1e3 + waited_s for r in reports))}
    none_ran_s = max(0.0, beside_s(reports, slots_s) - usual_s)
    first_ms: dict[str, float] = {}
    for report, where in zip(reports, known, strict=True):
        earliest = first_ms.get(report.operator, where.began_ms)
        first_ms[report.operator] = min(earliest, where.began_ms)
    spent_s: defaultdict[str, float] = defaultdict(float)
    for report, where in zip(reports, known, strict=True):
        waited_s = min(slots_s, (where.began_ms - first_ms[report.operator]) / 1e3)
        spent_s[where.host] += report.useful_ms / 1e3 + waited_s + none_ran_s
    load = {where.host: where.load for where in known}
    return {host: HostTime(runnable_s, load[host]) for host, runnable_s in spent_s.items()}
