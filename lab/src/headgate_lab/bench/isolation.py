"""Tests that a slow slot with a time budget delays only its own key groups.

One slot is made ten times as slow, or slower, so that it cannot keep up. The same input runs with
`.budget(...)` and without, in turns and in one session; latencies of the slow slot's key groups are
separate from those of all others. The assignment never changes, so that a slot stands for its key groups.
Partial aggregation before the exchange is off.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from headgate.journal import histogram
from headgate.spark.cluster.session import session
from headgate.spark.job.reports import Report
from headgate.spark.step.outcome import Outcome
from headgate_demo.generators.nexmark import NexmarkConfig
from headgate_demo.spark import sources
from headgate_lab.bench.common import (
    child,
    machine,
    parameters,
    progress,
    require,
    spark_env,
)
from headgate_lab.testing import faults

SLOW = 0
"""Number of the slow slot."""

SIDES = {"with": True, "without": False}


@dataclass(frozen=True)
class IsolationParameters:
    """Holds the parameters of `run`."""

    seconds: float = 20.0
    """Time for which each side is measured; > 0."""

    count: int = 1
    """Rounds, in each of which both sides run once; >= 1. Their order swaps from round to round."""

    rate: int = 20_000
    """Events per second, 92 % of them records; > 0."""

    slots: int = 4
    """Slots, and threads for them, so that no slot waits for a thread; >= 2."""

    budget: str = "150 ms"
    """Time a slot may serve per batch, on the side with a budget."""

    slowdown: float = 10.0
    """Factor of a row's time in the slow slot; > 1. The result has the actual factor."""

    busy: float = 1.5
    """Least work that reaches the slow slot, in seconds per second. Above 1 the slot cannot keep up; if
    `slowdown` is not enough for that, its rows are made slower still."""

    warmup_s: float = 6.0
    """Time for the start of each side, which is not measured."""

    seed: int = 0
    """Seed of the input; >= 0."""

    def __post_init__(self) -> None:
        require(self.seconds > 0, f"seconds={self.seconds} of isolation must be above 0.")
        require(self.count >= 1, f"count={self.count} of isolation is out of range; use 1 or more.")
        require(self.rate > 0, f"rate={self.rate} of isolation is out of range; use 1 or more.")
        require(self.slots > 1, f"slots={self.slots} of isolation is out of range; use 2 or more.")
        require(self.slowdown > 1, f"slowdown={self.slowdown} of isolation must be above 1.")


def run(**given: Any) -> dict[str, Any]:
    """Measure both sides.

    Parameters
    ----------
    **given
        Fields of `IsolationParameters`.

    Returns
    -------
    dict
        ``latency_ms`` (per side, for ``slow_slot`` and ``other_slots``: records, mean, p50, p95, p99 of
        the records served during the measurement), ``per_side`` (batches, their mean time, rows in the
        slow slot's backlog), ``isolation`` (p50, p95 and p99 of the other key groups without a budget,
        relative to those with it), ``us_per_row`` (normal, slow), ``slowdown``, ``busy``,
        ``parameters``, ``machine``.
    """
    chosen = parameters(IsolationParameters, given)
    with tempfile.TemporaryDirectory(prefix="headgate-isolation-") as work:
        request = {"directory": work, "parameters": asdict(chosen)}
        name = "headgate_lab.bench.isolation"
        command = [sys.executable, "-m", name, "--child", json.dumps(request)]
        # without a budget the last batch may take as long as all previous ones
        limit_s = 240 + (2 * chosen.count + 1) * 4 * (chosen.seconds + chosen.warmup_s)
        found = child(command, spark_env(), limit_s)
    return found | {"parameters": asdict(chosen), "machine": machine()}


# --- in the child --------------------------------------------------------------------------------


@dataclass
class _Seen:
    """Holds the measurements of one side, or of the calibration.

    Attributes
    ----------
    histograms : dict of bool to list of histogram
        Latencies of the slow slot (True) and of all other slots (False).
    served, useful_ms : int, float
        Rows that the slow slot served, and its useful time.
    waiting : int
        Rows in the backlog of the slow slot's key groups.
    batches_ms : list of float
        Times from the end of one batch to that of the next.
    """

    histograms: dict[bool, list[histogram.Sparse]] = field(
        default_factory=lambda: {True: [], False: []}
    )
    latency_sum_ms: dict[bool, float] = field(default_factory=lambda: {True: 0.0, False: 0.0})
    served: int = 0
    useful_ms: float = 0.0
    waiting: int = 0
    batches_ms: list[float] = field(default_factory=list)

    def add(self, reports: list[Report]) -> None:
        for report in reports:
            slow = report.slot == SLOW
            self.histograms[slow].append(report.histogram)
            self.latency_sum_ms[slow] += report.latency_sum_ms
            if slow:
                self.served += report.served_rows
                self.useful_ms += report.useful_ms

    def latency_ms(self, *, slow: bool) -> dict[str, Any]:
        merged = histogram.merge(self.histograms[slow])
        records = histogram.completed(merged)
        found: dict[str, Any] = {"records": records}
        if records:
            found["mean"] = round(self.latency_sum_ms[slow] / records, 1)
        for name, share in (("p50", 0.5), ("p95", 0.95), ("p99", 0.99)):
            value = histogram.percentile_ms(merged, share)
            found[name] = None if value is None else round(value, 1)
        return found


def per_auction(spark: SparkSession, **options: str) -> DataFrame:
    """Return bids and their total price per auction."""
    columns = "event_type,bid.auction,bid.price,scheduled"
    reader = spark.readStream.format("nexmark").options(**{"columns": columns, **options})
    bids = reader.load().where("event_type = 2").select("bid.*", "scheduled")
    return bids.groupBy("auction").agg(F.count("*").alias("bids"), F.sum("price").alias("total"))


def _measure(
    spark: SparkSession,
    chosen: IsolationParameters,
    work: Path,
    *,
    us_per_row: float,
    budget: bool,
    seconds: float,
) -> _Seen:
    """Run one side and return what it measured."""
    # Late and by name: the package's front imports the engine, of which this is a part.
    hg = importlib.import_module("headgate")
    # no hot auction, so that the slots have equal load
    options = {"seed": str(chosen.seed), "rate": str(chosen.rate), "hot_auction_ratio": "1"}
    writer = (
        hg.writeStream(per_auction(spark, **options))
        .slots(start=chosen.slots)
        .outputMode("update")
        .format("noop")
        .option("checkpointLocation", str(work))
        .option("headgate.arrival", "scheduled")
        .option("headgate.preaggregate", "off")
        .trigger(processingTime="0 seconds")
    )
    if budget:
        writer = writer.budget(chosen.budget)
    if us_per_row:
        faults.inject(writer, faults.slow(SLOW, us_per_row))
    query = writer.start()
    recorder = query._work.recorder
    record = recorder.batch
    seen = _Seen()
    from_s = time.monotonic() + chosen.warmup_s
    last_s = time.monotonic()

    def batch(outcome: Outcome[Report], *rest: Any) -> None:
        nonlocal last_s
        now_s = time.monotonic()
        if now_s >= from_s:
            seen.add(outcome.reports)
            seen.batches_ms.append((now_s - last_s) * 1e3)
        last_s = now_s
        record(outcome, *rest)

    recorder.batch = batch
    if query.awaitTermination(chosen.warmup_s + seconds):
        query.awaitTermination()  # raises the query's error
    query.stop()
    for state in query._work.states.values():
        for group in state.assignment.groups_of(SLOW):
            seen.waiting += sum(segment[2] for segment in state.backlog.get(group, ()))
    return seen


def _sides(spark: SparkSession, chosen: IsolationParameters, work: Path) -> dict[str, Any]:
    progress("calibrate: nothing is slow")
    calibration_s = min(5.0, chosen.seconds)
    normal = _measure(
        spark, chosen, work / "normal", us_per_row=0.0, budget=False, seconds=calibration_s
    )
    normal_us = normal.useful_ms * 1e3 / max(1, normal.served)
    arriving_per_s = chosen.rate * _bids() / chosen.slots
    slow_us = _slow_us(chosen, normal_us, arriving_per_s)
    totals = {name: _Seen() for name in SIDES}
    for index in range(chosen.count):
        for name in list(SIDES)[:: 1 if index % 2 == 0 else -1]:
            progress(f"round {index + 1} of {chosen.count}: {name} a budget")
            seen = _measure(
                spark,
                chosen,
                work / f"{name}-{index}",
                us_per_row=slow_us - normal_us,
                budget=SIDES[name],
                seconds=chosen.seconds,
            )
            _merge(totals[name], seen)
    latency_ms = {
        name: {
            "slow_slot": total.latency_ms(slow=True),
            "other_slots": total.latency_ms(slow=False),
        }
        for name, total in totals.items()
    }
    return {
        "latency_ms": latency_ms,
        "per_side": {name: _per_side(total) for name, total in totals.items()},
        "isolation": _ratios(latency_ms),
        "us_per_row": {"normal": round(normal_us, 2), "slow": round(slow_us, 2)},
        "slowdown": round(slow_us / max(1e-9, normal_us), 1),
        "busy": round(slow_us * arriving_per_s / 1e6, 2),
    }


def _bids() -> float:
    """Return the share of events that are bids."""
    mix = NexmarkConfig()
    return mix.bid_proportion / (
        mix.person_proportion + mix.auction_proportion + mix.bid_proportion
    )


def _slow_us(chosen: IsolationParameters, normal_us: float, arriving_per_s: float) -> float:
    """Return the time of a row in the slow slot, in microseconds.

    The limit is twice the wanted load: `normal_us` may include a start-up, and ten times that could keep
    the side without a budget busy for hours.
    """
    wanted_us = chosen.busy * 1e6 / arriving_per_s
    return min(max(chosen.slowdown * normal_us, wanted_us), 2 * wanted_us)


def _merge(total: _Seen, seen: _Seen) -> None:
    for slow in (True, False):
        total.histograms[slow] += seen.histograms[slow]
        total.latency_sum_ms[slow] += seen.latency_sum_ms[slow]
    total.served += seen.served
    total.useful_ms += seen.useful_ms
    total.waiting += seen.waiting
    total.batches_ms += seen.batches_ms


def _per_side(seen: _Seen) -> dict[str, Any]:
    batches = len(seen.batches_ms)
    mean_ms = sum(seen.batches_ms) / batches if batches else None
    return {
        "batches": batches,
        "batch_ms_mean": None if mean_ms is None else round(mean_ms, 1),
        "waiting": seen.waiting,
    }


def _ratios(latency_ms: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> dict[str, float | None]:
    """Return the latencies of the other key groups without a budget, relative to those with one."""
    found: dict[str, float | None] = {}
    for name in ("p50", "p95", "p99"):
        without, with_it = (latency_ms[side]["other_slots"][name] for side in ("without", "with"))
        found[name] = round(without / with_it, 2) if without and with_it else None
    return found


def _child(request: Mapping[str, Any]) -> dict[str, Any]:
    chosen, work = IsolationParameters(**request["parameters"]), Path(request["directory"])
    settings: dict[str, str | int] = {
        "spark.local.dir": str(work / "local"),
        "spark.sql.shuffle.partitions": chosen.slots,
    }
    spark = session(master=f"local[{chosen.slots}]", name="bench-isolation", **settings)
    sources.register(spark)
    try:
        return _sides(spark, chosen, work)
    finally:
        spark.stop()


if __name__ == "__main__":
    arguments = argparse.ArgumentParser(description="Both sides, in one session.")
    arguments.add_argument("--child", required=True)
    print(json.dumps(_child(json.loads(arguments.parse_args().child))))
