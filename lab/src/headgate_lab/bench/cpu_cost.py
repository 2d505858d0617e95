"""Compares policies on jobs whose records take real time, and judges headgate's estimates of that time.

No slot has a fixed rate. `headgate_lab.bench.cpu_jobs` defines the kinds of jobs. All runs use one
session, one after another, each on the same orders with the same burst in the middle. Spark gets more
cores than the machine has, so that policies may use more slots than cores: that helps if records wait for
a store, and not if they compute.

Two estimates are judged. The time of a record (the b of a + b x records) is compared with the time that
workers measured. The records per second that all slots can serve are compared with the records that
they served while records were waiting all the time.
"""

from __future__ import annotations

import argparse
import importlib
import json
import math
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from headgate.control.decision import Change, Decision
from headgate.control.observation import Observation
from headgate.control.policy import Policy
from headgate.control.registry import policy
from headgate.core.duration import parse_duration_s
from headgate.core.errors import ConfigError
from headgate.journal.reader import read
from headgate.journal.schema import Batch
from headgate.report.summary import summary
from headgate.spark.cluster.session import session
from headgate.whatif.replay import replay
from headgate_demo.spark import sources
from headgate_lab.bench.common import child, machine, parameters, progress, require, spark_env
from headgate_lab.bench.cpu_jobs import JOBS, Cost, CostlyJob, Truth, loops_of
from headgate_lab.bench.cpu_table import lines
from headgate_lab.bench.slo import split_policies
from headgate_lab.workloads.loads import column

__all__ = ["CpuCostParameters", "lines", "run"]

_START_S = 240.0
"""Time limit of all runs beyond their load, in seconds: for the JVM and the first batches."""

_BETWEEN_S = 15.0
"""Time limit of each run beyond its load, in seconds."""

_COLD_S = 20.0
"""Seconds from the start of the first query to its first record; the longest such time for others."""

_LEAD, _LEAD_S = 1.2, 1.0
"""For later queries this time is the previous start's time, times `_LEAD`, plus `_LEAD_S` seconds. A
first batch that comes late would have all records since then, without a slot budget, which is not known
yet."""

_WARM_S = 4.0
"""Seconds of each run, with its first batches, in which estimates are not judged."""

_ESTIMATES = ("record", "cpu", "capacity")
"""Names of the judged estimates; see `judged`."""

_TRACES = {
    "worldcup": ("worldcup98.per_minute.csv.gz", "requests", 77_200),
    "epa": ("web_logs_1995.per_minute.csv.gz", "epa_requests", 720),
}
"""Files of the traces, their columns and the first minute. In ten hours from there the World Cup has two
matches, whose peaks are 2.9 times the mean; the other begins at noon."""

_TRUTH_S = 3.0
"""Seconds before a time over which the true time of a record is measured."""


@dataclass(frozen=True)
class CpuCostParameters:
    """Holds the parameters of `run`."""

    seconds: float = 24.0
    """Length of each run; > 4. The middle third is the burst."""

    only: str = "processor, udf, varied, store"
    """Jobs that run, separated by commas."""

    policies: str = (
        "streamswitch, unified, dhalion(4), ds2(3), drs(0.2, 5), drs-lb(0.2, 5), threshold, "
        "predictive, static(1), static(2), static(4)"
    )
    """Policies; their intervals, where they have one, fit a short run."""

    slo: str = "mean < 1 s over 1 s"
    """The bound, for every key group."""

    cost: str = "2 ms"
    """Mean time of a record; twice as long at the end of a run with varied records."""

    slots: int = 1
    """Slots at the start, except for `static(n)`; >= 1."""

    slots_max: int = 6
    """The most slots of a policy, and the number of Spark's cores; >= `slots`."""

    stocks: int = 64
    """Keys; >= 1."""

    seed: int = 1
    """Seed of the orders; >= 0."""

    data: str = ""
    """Directory of the real traces. If given, orders follow one of them instead of one burst, a minute of
    the trace in a second; the highest minute has the rate of the burst."""

    trace: str = "worldcup"
    """Which trace: ``worldcup`` or ``epa``."""

    real_time: bool = False
    """Whether the jobs run in real time, and not in micro-batches."""

    scale: float = 1.0
    """Rate of the burst, as a multiple of the job's own; > 0."""

    keep: str = ""
    """Directory in which the checkpoints remain; empty: they are deleted."""

    def __post_init__(self) -> None:
        require(self.seconds > _WARM_S, f"seconds={self.seconds:g} of cpu-cost must be above 4.")
        fits = 1 <= self.slots <= self.slots_max
        require(fits, f"slots={self.slots} of cpu-cost is out of range; use 1 to {self.slots_max}.")
        require(self.stocks >= 1, f"stocks={self.stocks} of cpu-cost is below 1; use 1 or more.")
        known = ", ".join(_TRACES)
        require(
            self.trace in _TRACES, f'trace="{self.trace}" of cpu-cost is not known; use {known}.'
        )
        require(self.scale > 0, f"scale={self.scale:g} of cpu-cost must be above 0.")
        require(self.cost_s > 0, f"cost={self.cost} of cpu-cost must be above 0.")
        for name in self.jobs():
            known = f"there are {', '.join(JOBS)}"
            require(name in JOBS, f'the benchmark cpu-cost has no job "{name}"; {known}.')
        require(bool(self.names()), "policies of cpu-cost names none; use streamswitch, static(2).")
        for name in self.names():
            policy(name)  # refuse an unknown name before many minutes of runs

    @property
    def cost_s(self) -> float:
        """`cost` in seconds."""
        return parse_duration_s(self.cost)

    def jobs(self) -> list[str]:
        """Return the jobs, each once."""
        return list(dict.fromkeys(name.strip() for name in self.only.split(",") if name.strip()))

    def names(self) -> list[str]:
        """Return the policies, each once."""
        return split_policies(self.policies)


def run(**given: Any) -> dict[str, Any]:
    """Run every policy on every job.

    Parameters
    ----------
    **given
        Fields of `CpuCostParameters`.

    Returns
    -------
    dict
        ``jobs``: by name, ``policies`` (by name: ``success`` and ``success_worst`` as in `slo.run`,
        ``slots_mean``, ``changes``, ``latency_ms``, ``records``, ``waiting`` at the end, ``estimate``,
        the `error` of each estimate, and ``predicted``, the result of `predicted`) and ``estimate`` (over
        all runs of the job); ``loops``; ``parameters``, ``machine``.
    """
    chosen = parameters(CpuCostParameters, given)
    runs = len(chosen.jobs()) * len(chosen.names())
    with ExitStack() as stack:
        work = chosen.keep or stack.enter_context(
            tempfile.TemporaryDirectory(prefix="headgate-cpu-cost-")
        )
        request = {"directory": work, "parameters": asdict(chosen)}
        command = [sys.executable, "-m", "headgate_lab.bench.cpu_cost", "--child"]
        limit_s = _START_S + runs * (1.5 * chosen.seconds + _BETWEEN_S)
        found = child([*command, json.dumps(request)], spark_env(), limit_s)
    return found | {"parameters": asdict(chosen), "machine": machine()}


# --- in the child --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Belief:
    """Holds the estimates of the control loop in one of its cycles.

    Attributes
    ----------
    at_s : float
        Time of the cycle, s since 1970.
    capacity_per_s : float
        Estimated records per second that all slots together can serve.
    record_s : float or None
        Estimated time of a record in a slot; None while unknown.
    computing : float or None
        Estimated share of that time in which the slot computes.
    """

    at_s: float
    slots: int
    capacity_per_s: float
    record_s: float | None
    computing: float | None


@dataclass
class Watched(Policy):
    """Records the estimates that a policy sees.

    Attributes
    ----------
    cost : callable
        Returns the estimated time of a record, and the share of it that is computing.
    """

    inner: Policy
    cost: Callable[[], tuple[float | None, float | None]] = lambda: (None, None)
    seen: list[Belief] = field(default_factory=list)

    @property
    def name(self) -> str:
        """Name of the inner policy."""
        return self.inner.name

    def decide(self, observation: Observation) -> Decision:
        """Record the estimates, and return the inner policy's decision."""
        for view in observation.operators.values():
            total = float(view.service_rate.sum())
            self.seen.append(Belief(time.time(), view.slots, total, *self.cost()))
        return self.inner.decide(observation)

    def applied(self, operator: str, change: Change, took_s: float) -> None:
        """Tell the inner policy."""
        self.inner.applied(operator, change, took_s)

    def slot_failed(self, operator: str, slot_id: int) -> None:
        """Tell the inner policy."""
        self.inner.slot_failed(operator, slot_id)


def load(job: CostlyJob, chosen: CpuCostParameters) -> str:
    """Return the rate of a job's orders: calm, a burst, calm; or that of a real trace."""
    third_s = chosen.seconds / 3
    calm, burst = (share / chosen.cost_s for share in (job.calm, chosen.scale * job.burst))
    if chosen.data:
        file, name, begin = _TRACES[chosen.trace]
        counts = column(Path(chosen.data), file, name)[begin : begin + math.ceil(chosen.seconds)]
        first, *others = counts / counts.max() * burst
        steps = [f"{number}s={rate:.5g}" for number, rate in enumerate(others, 1)]
        return f"steps({', '.join([f'{first:.5g}', *steps])})"
    return f"steps({calm:g}, {third_s:g}s={burst:g}, {2 * third_s:g}s={calm:g})"


def _orders(spark: SparkSession, chosen: CpuCostParameters, rate: str, base_us: int) -> DataFrame:
    reader = spark.readStream.format("stock_exchange").option("rate", rate)
    reader = reader.option("seed", chosen.seed).option("stocks", chosen.stocks)
    orders = reader.option("base", base_us).option("partitions", 2).load()
    at_us = F.unix_micros("scheduled").alias("at_us")
    return orders.select("number", "stock", "price", at_us, "scheduled")


def _one(
    spark: SparkSession,
    chosen: CpuCostParameters,
    job: CostlyJob,
    name: str,
    work: Path,
    loops: int,
    lead_s: float,
) -> dict[str, Any]:
    """Run a job under a policy."""
    # Late and by name: the package's front imports the engine, of which this is a part.
    hg = importlib.import_module("headgate")
    work.mkdir(parents=True)
    base_us = round((time.time() + lead_s) * 1e6)
    truth = work / "truth"
    turns = 0 if job.sleeps else loops
    cost = Cost(chosen.cost_s, turns, job.varied, base_us, chosen.seconds, str(truth))
    watched = Watched(policy(name))
    first = int(name[len("static(") : -1]) if name.startswith("static(") else chosen.slots
    query = (
        hg.writeStream(job.build(_orders(spark, chosen, load(job, chosen), base_us), cost))
        .slots(start=first, max=max(first, chosen.slots_max))
        .slo(chosen.slo)
        .policy(watched)
        .outputMode("update")
        .format("noop")
        .option("checkpointLocation", str(work / "checkpoint"))
        .option("headgate.arrival", "scheduled")
        .trigger(**({"realTime": "5 minutes"} if chosen.real_time else {"processingTime": "0 s"}))
        .start()
    )
    started_s = time.time() + lead_s - base_us / 1e6
    watched.cost = query._controller.record_cost
    ends_s = base_us / 1e6 + chosen.seconds
    if query.awaitTermination(max(0.1, ends_s - time.time())):
        query.awaitTermination()  # raises the query's error
    query.stop()
    told = summary(query.journal)
    batches = [event for event in read(query.journal) if isinstance(event, Batch)]
    slo = told["slo"] or dict.fromkeys(("success", "success_worst", "floor_ms"))
    return {
        "success": slo["success"],
        "success_worst": slo["success_worst"],
        "slots_mean": told["slots_mean"],
        "changes": sum(told["decisions"].values()),
        "latency_ms": told["latency_ms"],
        "floor_ms": slo["floor_ms"],
        "started_s": round(started_s, 1),
        "records": told["records"],
        "waiting": batches[-1].backlog if batches else 0,
        "estimate": judged(job, cost, watched.seen, batches, Truth.read(truth)),
    }


def judged(
    job: CostlyJob, cost: Cost, seen: Sequence[Belief], batches: Sequence[Batch], truth: Truth
) -> dict[str, list[float]]:
    """Return the relative errors of estimates, one per cycle that can be judged.

    Returns
    -------
    dict
        ``record``: errors of the time of a record; empty if slots do not spend it. ``cpu``: of the
        computing part of that time. ``capacity``: of the records per second that all slots can serve, in
        cycles whose last batches left records waiting.
    """
    from_s = cost.base_us / 1e6 + _WARM_S
    record, computed, capacity = [], [], []
    for belief in seen:
        if belief.at_s < from_s:
            continue
        unit = truth.unit_s(belief.at_s, _TRUTH_S)
        if job.in_slots and unit is not None and belief.record_s is not None:
            # compare with the mean of this time: most of it is due to few expensive records
            units = cost.mean_units(belief.at_s * 1e6)
            record.append(belief.record_s / (unit[0] * units) - 1.0)
            if belief.computing and not job.sleeps:
                believed_s = belief.record_s * belief.computing
                computed.append(believed_s / (unit[1] * units) - 1.0)
        served = _served_per_s(batches, belief)
        if served is not None:
            capacity.append(belief.capacity_per_s / served - 1.0)
    return {
        "record": _rounded(record),
        "cpu": _rounded(computed),
        "capacity": _rounded(capacity),
    }


def _rounded(errors: Sequence[float]) -> list[float]:
    return [round(error, 4) for error in errors]


_ENOUGH = 3
"""Consecutive batches with waiting records over which the true capacity is measured."""


def _served_per_s(batches: Sequence[Batch], belief: Belief) -> float | None:
    """Return the records per second of the last batches, if all of them left records waiting."""
    last = [batch for batch in batches if batch.at_ms / 1e3 <= belief.at_s][-_ENOUGH - 1 :]
    full = all(b.backlog and b.slots == belief.slots for b in last)
    if len(last) <= _ENOUGH or not full:
        return None
    took_s = (last[-1].at_ms - last[0].at_ms) / 1e3
    return sum(batch.served for batch in last[1:]) / took_s if took_s > 0 else None


def error(estimates: Sequence[Mapping[str, list[float]]], of: str) -> dict[str, float] | None:
    """Return median, 90th percentile and bias of errors; None if no cycle could be judged."""
    found = np.array([one for estimate in estimates for one in estimate[of]])
    if not len(found):
        return None
    median, p90 = np.quantile(np.abs(found), [0.5, 0.9])
    figures = {"median": median, "p90": p90, "bias": np.median(found)}
    return {name: round(float(value), 3) for name, value in figures.items()} | {
        "cycles": len(found)
    }


def _all(spark: SparkSession, chosen: CpuCostParameters, work: Path) -> dict[str, Any]:
    loops = loops_of(chosen.cost_s)
    progress("warm-up")
    short = CpuCostParameters(**asdict(chosen) | {"seconds": _WARM_S + 2})
    place = work / "warm-up"
    ran = _one(spark, short, JOBS["processor"], "static(2)", place, loops, _COLD_S)
    found: dict[str, Any] = {}
    for job in chosen.jobs():
        runs: dict[str, Any] = {}
        for name in chosen.names():
            place = work / f"{job}-{len(runs)}"
            lead_s = min(_COLD_S, _LEAD * ran["started_s"] + _LEAD_S)
            runs[name] = ran = _one(spark, chosen, JOBS[job], name, place, loops, lead_s)
            progress(f"{job}, {name}: {json.dumps(_short(runs[name]))}")
        fixed = next((n for n, name in enumerate(runs) if name.startswith("static(")), None)
        for number, name in enumerate(runs):
            other = None if fixed in {None, number} else work / f"{job}-{fixed}" / "checkpoint"
            runs[name]["predicted"] = predicted(
                work / f"{job}-{number}" / "checkpoint", other, name
            )
        estimates = [one["estimate"] for one in runs.values()]
        for one in runs.values():
            one["estimate"] = {of: error([one["estimate"]], of) for of in _ESTIMATES}
        total = {of: error(estimates, of) for of in _ESTIMATES}
        found[job] = {"policies": runs, "estimate": total}
    return {"jobs": found, "loops": loops}


def predicted(run: Path, other: Path | None, name: str) -> dict[str, Any] | None:
    """Return the simulator's prediction for a run, from its own journal and from another run's.

    Returns
    -------
    dict or None
        ``model``: from the run's own journal; ``foreseen``: from the journal of another run on the same
        load, if there is one. Each has ``success``, ``success_worst`` and ``slots_mean``. None for a run
        of too few batches.
    """
    try:
        found = {"model": replay(run)["model"]}
        if other is not None:
            found["foreseen"] = replay(other, policy_text=name)["what_if"]
    except ConfigError:
        return None
    wanted = ("success", "success_worst", "slots_mean")
    return {of: {key: row[key] for key in wanted} for of, row in found.items()}


def _short(ran: Mapping[str, Any]) -> dict[str, Any]:
    errors = {of: error([ran["estimate"]], of) for of in _ESTIMATES}
    names = ("success", "success_worst", "slots_mean", "changes", "waiting")
    shown = {name: ran[name] for name in names} | {"p99_ms": ran["latency_ms"]["p99"]}
    return shown | {
        of: one and (one["median"], one["p90"], one["bias"]) for of, one in errors.items()
    }


def _child(request: Mapping[str, Any]) -> dict[str, Any]:
    chosen, work = CpuCostParameters(**request["parameters"]), Path(request["directory"])
    settings: dict[str, str | int] = {
        "spark.local.dir": str(work / "local"),
        "spark.sql.shuffle.partitions": chosen.slots_max,
        "spark.sql.execution.arrow.maxRecordsPerBatch": 65536,
    }
    spark = session(master=f"local[{chosen.slots_max}]", name="bench-cpu-cost", **settings)
    sources.register(spark)
    try:
        return _all(spark, chosen, work)
    finally:
        spark.stop()


if __name__ == "__main__":
    arguments = argparse.ArgumentParser(description="All jobs, in one session.")
    arguments.add_argument("--child", required=True)
    print(json.dumps(_child(json.loads(arguments.parse_args().child))))
