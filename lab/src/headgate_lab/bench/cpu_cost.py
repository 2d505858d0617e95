"""Policies on jobs whose records cost time of their own, and what headgate believes that they cost.

No slot has a fixed rate here. Kinds of jobs: `headgate_lab.bench.cpu_jobs`. All runs are in one session
and one after the other, each on the same orders with the same burst in their middle. Spark is given
more cores than the machine has, so that policies may have more slots than cores: where records wait for
a store that pays, where they compute it does not.

An estimate is judged against the truth, which workers wrote down: of the time of a record (a + b x
records, its b), and of the records per second that the slots together can serve, against those that
they did serve while records waited at all times.
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
"""What all runs may take beside their load: the JVM, the first batches."""

_BETWEEN_S = 15.0
"""What a run may take beside its load."""

_COLD_S = 20.0
"""Between the start of the first query and its first record."""

_LEAD, _LEAD_S = 1.2, 1.0
"""The same of the others: what the start before took times the first, and the second. A first batch that
comes late has all that came meanwhile, and no budget of a slot is known yet that could hold it up."""

_WARM_S = 4.0
"""Of each run, in which nothing is judged of the estimate: its first batches."""

_ESTIMATES = ("record", "cpu", "capacity")
"""What is judged; see `judged`."""

_TRACE = ("worldcup98.per_minute.csv.gz", "requests")
_MATCH = 77_200
"""A minute from which on two matches lie: in ten hours 2.9 times the mean at most, twice."""

_TRUTH_S = 3.0
"""The truth of a moment is what records took in so many seconds before it."""


@dataclass(frozen=True)
class CpuCostParameters:
    """Holds the parameters of `run`."""

    seconds: float = 24.0
    """Length of each run; > 0. A third of it, in the middle, is the burst."""

    only: str = "processor, udf, varied, store"
    """Which jobs."""

    policies: str = (
        "streamswitch, unified, dhalion(4), ds2(3), drs(0.2, 5), drs-lb(0.2, 5), threshold, "
        "predictive, static(1), static(2), static(4)"
    )
    """Who decides; the intervals of those that have one fit a short run."""

    slo: str = "mean < 1 s over 1 s"
    """The bound, for every key group."""

    cost: str = "2 ms"
    """What a record takes in the mean, and twice as much at the end where cost drifts."""

    slots: int = 1
    """Slots at the start, but for `static(n)`; >= 1."""

    slots_max: int = 6
    """The most slots of a policy, and the cores that Spark is given; >= `slots`."""

    stocks: int = 64
    """Keys; >= 1."""

    seed: int = 1
    """Of the orders; >= 0."""

    data: str = ""
    """Directory of the real traces. If given, orders follow ten hours of the World Cup of 1998, a minute
    of it in a second, in place of one burst; the highest minute is the burst."""

    scale: float = 1.0
    """The burst, as a multiple of the job's own; > 0."""

    keep: str = ""
    """A directory for the checkpoints, which stay; none: they go."""

    def __post_init__(self) -> None:
        require(self.seconds > _WARM_S, f"seconds={self.seconds:g} of cpu-cost must be above 4.")
        fits = 1 <= self.slots <= self.slots_max
        require(fits, f"slots={self.slots} of cpu-cost is out of range; use 1 to {self.slots_max}.")
        require(self.stocks >= 1, f"stocks={self.stocks} of cpu-cost is below 1; use 1 or more.")
        require(self.scale > 0, f"scale={self.scale:g} of cpu-cost must be above 0.")
        require(self.cost_s > 0, f"cost={self.cost} of cpu-cost must be above 0.")
        for name in self.jobs():
            known = f"there are {', '.join(JOBS)}"
            require(name in JOBS, f'the benchmark cpu-cost has no job "{name}"; {known}.')
        require(bool(self.names()), "policies of cpu-cost names none; use streamswitch, static(2).")
        for name in self.names():
            policy(name)  # a wrong one is refused before many minutes of runs

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
        ``jobs``: by name, ``policies`` (by name: ``success`` and ``success_worst`` as `slo.run` has
        them, ``slots_mean``, ``changes``, ``latency_ms``, ``records``, ``waiting`` at the end,
        ``estimate``, see `judged`, and ``predicted``, see there) and ``estimate`` (over all
        its runs); ``parameters``, ``machine``.
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
    """Records the beliefs of the control loop in one of its cycles.

    Attributes
    ----------
    at_s : float
        Since 1970.
    capacity_per_s : float
        Records per second that all slots together are believed to serve, if all have enough to do.
    record_s : float or None
        What a record is believed to take a slot; None while nothing is known.
    computing : float or None
        Share of that in which slots are believed to compute.
    """

    at_s: float
    slots: int
    capacity_per_s: float
    record_s: float | None
    computing: float | None


@dataclass
class Watched(Policy):
    """A policy, and what it was shown.

    Attributes
    ----------
    cost : callable
        Returns what a record is believed to take, and the share of it that is computing.
    """

    inner: Policy
    cost: Callable[[], tuple[float | None, float | None]] = lambda: (None, None)
    seen: list[Belief] = field(default_factory=list)

    @property
    def name(self) -> str:
        """Of the policy inside."""
        return self.inner.name

    def decide(self, observation: Observation) -> Decision:
        """Decide as the policy inside, and remember what it saw."""
        for view in observation.operators.values():
            total = float(view.service_rate.sum())
            self.seen.append(Belief(time.time(), view.slots, total, *self.cost()))
        return self.inner.decide(observation)

    def applied(self, operator: str, change: Change, took_s: float) -> None:
        """Tell the policy inside."""
        self.inner.applied(operator, change, took_s)

    def slot_failed(self, operator: str, slot_id: int) -> None:
        """Tell the policy inside."""
        self.inner.slot_failed(operator, slot_id)


def load(job: CostlyJob, chosen: CpuCostParameters) -> str:
    """Return the rate of a job's orders: calm, a burst, calm; or as a real trace has it."""
    third_s = chosen.seconds / 3
    calm, burst = (share / chosen.cost_s for share in (job.calm, chosen.scale * job.burst))
    if chosen.data:
        counts = column(Path(chosen.data), *_TRACE)[_MATCH : _MATCH + math.ceil(chosen.seconds)]
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
        .trigger(processingTime="0 seconds")
        .start()
    )
    started_s = time.time() + lead_s - base_us / 1e6
    watched.cost = query._controller.record_cost
    ends_s = base_us / 1e6 + chosen.seconds
    if query.awaitTermination(max(0.1, ends_s - time.time())):
        query.awaitTermination()  # raises what it failed with
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
    """Return the relative errors of what was believed, one per cycle that can be judged.

    Returns
    -------
    dict
        ``record``: of the time that a record takes a slot; empty where slots do not spend it. ``cpu``: of
        the part of it on a core. ``capacity``: of the
        records per second that all slots serve, in cycles within batches that had, and left, records
        waiting.
    """
    from_s = cost.base_us / 1e6 + _WARM_S
    record, computed, capacity = [], [], []
    for belief in seen:
        if belief.at_s < from_s:
            continue
        unit = truth.unit_s(belief.at_s, _TRUTH_S)
        if job.in_slots and unit is not None and belief.record_s is not None:
            # what a record of this moment takes in the mean: few are dear, and those make the mean
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
"""Batches in a row that served as fast as they could, before that is called what they can."""


def _served_per_s(batches: Sequence[Batch], belief: Belief) -> float | None:
    """Return the records per second of the last batches, if they left records waiting all the time."""
    last = [batch for batch in batches if batch.at_ms / 1e3 <= belief.at_s][-_ENOUGH - 1 :]
    full = all(b.backlog and b.slots == belief.slots for b in last)
    if len(last) <= _ENOUGH or not full:
        return None
    took_s = (last[-1].at_ms - last[0].at_ms) / 1e3
    return sum(batch.served for batch in last[1:]) / took_s if took_s > 0 else None


def error(estimates: Sequence[Mapping[str, list[float]]], of: str) -> dict[str, float] | None:
    """Return median, 90th percentile and bias of errors; None where nothing could be judged."""
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
    """Return what the simulator makes of a run, and what it would have said without having seen it.

    Returns
    -------
    dict or None
        ``model``: of the run's own journal; ``foreseen``: of another run's on the same load, where
        there is one. Each has ``success`` and ``slots_mean``. None for a run of few batches.
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
