"""Measures how much longer a batch of a light query takes when many jobs share one driver.

Every query counts the same generated rows and starts a batch at a fixed interval, which is long enough
that all queries together do not saturate the cores. The time of a batch is from its start inside headgate
to its end. The fleet's rounds run meanwhile, with a budget that is never exhausted.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from headgate.journal import Batch, read
from headgate.spark.api.writer import Writer, writeStream
from headgate.spark.cluster.session import session
from headgate.spark.fleet.fleet import Fleet
from headgate_lab.bench.common import machine, parameters, progress, require

_WARM_BATCHES = 2
"""First batches of each query that are excluded, since they compile and start workers."""

_WAIT_S = 300.0


@dataclass(frozen=True)
class FleetParameters:
    """Holds the parameters of `run`."""

    jobs: int = 20
    """Queries in one driver; >= 2."""

    seconds: float = 60.0
    """Length of each run, from the end of the warm-up batches of all queries; > 0."""

    trigger_s: float = 10.0
    """Time between two batches of a query; > 0."""

    rate: int = 100
    """Rows per second of each query; >= 1."""

    def __post_init__(self) -> None:
        require(self.jobs > 1, f"jobs={self.jobs} of fleet is out of range; use 20.")
        require(self.seconds > 0, f"seconds={self.seconds} of fleet must be above 0.")
        require(self.trigger_s > 0, f"trigger_s={self.trigger_s} of fleet must be above 0.")
        require(self.rate > 0, f"rate={self.rate} of fleet is out of range; use 100.")


def run(**given: Any) -> dict[str, Any]:
    """Run one job alone, then `jobs` jobs together.

    Parameters
    ----------
    **given
        Fields of `FleetParameters`.

    Returns
    -------
    dict
        ``alone`` and ``together`` (``jobs``, ``batches``, ``batch_ms`` and ``batch_ms_p95``: median
        and percentile of all batches, ``phases_ms``: median of each phase, ``round_ms``: time of the
        fleet's rounds, median), ``added_ms`` (medians' difference), ``parameters``, ``machine``.
    """
    chosen = parameters(FleetParameters, given)
    spark = session()
    try:
        with tempfile.TemporaryDirectory(prefix="headgate-fleet-") as work:
            alone = _measure(spark, chosen, 1, Path(work) / "alone")
            together = _measure(spark, chosen, chosen.jobs, Path(work) / "together")
    finally:
        spark.stop()
    return {
        "alone": alone,
        "together": together,
        "added_ms": round(together["batch_ms"] - alone["batch_ms"], 1),
        "parameters": asdict(chosen),
        "machine": machine(),
    }


def _measure(spark: SparkSession, chosen: FleetParameters, jobs: int, work: Path) -> dict[str, Any]:
    """Run `jobs` jobs in a fleet, and return the times of their batches."""
    progress(f"{jobs} jobs, {chosen.seconds:g} s")
    fleet = Fleet(spark, 2 * jobs, round_s=chosen.trigger_s)
    for number in range(jobs):
        fleet.add(_writer(spark, chosen, f"job-{number}", work), priority=10.0)
    fleet.start()
    try:
        journals = [fleet.query(f"job-{n}").journal for n in range(jobs)]
        until_s = time.monotonic() + _WAIT_S
        while time.monotonic() < until_s and any(
            len(_batches(journal)) <= _WARM_BATCHES for journal in journals
        ):
            time.sleep(1.0)
        time.sleep(chosen.seconds)
        rounds_ms = [took_s * 1e3 for took_s in fleet.rounds_took_s]
    finally:
        fleet.stop()
    batches = [batch for journal in journals for batch in _batches(journal)[_WARM_BATCHES:]]
    took_ms = sorted(batch.duration_ms for batch in batches)
    phases = {name for batch in batches for name in batch.phases_ms}
    return {
        "jobs": jobs,
        "batches": len(batches),
        "batch_ms": round(statistics.median(took_ms), 1),
        "batch_ms_p95": round(took_ms[int(0.95 * (len(took_ms) - 1))], 1),
        "phases_ms": {
            name: round(statistics.median(b.phases_ms.get(name, 0.0) for b in batches), 1)
            for name in sorted(phases)
        },
        "round_ms": round(statistics.median(rounds_ms), 2) if rounds_ms else None,
    }


def _writer(spark: SparkSession, chosen: FleetParameters, name: str, work: Path) -> Writer:
    """Return the writer of a query that counts rows by key."""
    rows = spark.readStream.format("rate").option("rowsPerSecond", chosen.rate).load()
    counts = rows.groupBy((F.col("value") % 100).alias("key")).count()
    return (
        writeStream(counts)
        .queryName(name)
        .slo(f"mean < {3 * chosen.trigger_s:g} s over {3 * chosen.trigger_s:g} s")
        .slots(max=4, start=1)
        .keyGroups(16)
        .format("noop")
        .outputMode("update")
        .trigger(processingTime=f"{chosen.trigger_s:g} seconds")
        .option("checkpointLocation", str(work / name))
    )


def _batches(journal: Path) -> list[Batch]:
    return [event for event in read(journal) if isinstance(event, Batch)]
