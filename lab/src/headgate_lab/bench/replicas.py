"""Pools of replicas on a bursty load: PSPS and ours beside DABS and fixed numbers of replicas, on Spark.

A stateless stage over generated sentences, whose replicas each serve a fixed rate, so that more of
them than cores are meaningful. All runs are made in one session, one after the other, under the same
load: PSPS's own, squeezed into `seconds`, with its interval squeezed alike. What a restart of this very
query takes is measured first, and is what a change costs DABS, beside all rows that wait.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession

from headgate.journal import histogram, reader
from headgate.journal.schema import Batch
from headgate.spark.cluster.session import session
from headgate.spark.pools.pools import BatchLine
from headgate.workloads.rates import parse_rate
from headgate_demo.spark import sources
from headgate_lab import replica_metrics
from headgate_lab.bench.common import (
    child,
    machine,
    parameters,
    progress,
    require,
    spark_env,
)
from headgate_lab.workloads import bursts

_LEAD_S = 3.0
"""How long after its query the load starts, so that no row waits for a first batch."""

_START_S = 120.0
"""What a run may take beside its load: the session, the first batch, the end."""

F64 = npt.NDArray[np.float64]

_INTERVALS = 36
"""Decisions in a run: 1,080 s of 30 s each, as in the simulator's tables."""


@dataclass(frozen=True)
class ReplicasParameters:
    """Holds the parameters of `run`."""

    seconds: float = 108.0
    """Length of each run; > 0. The paper's load and interval are squeezed into it: ten times."""

    replica_rate: float = 100.0
    """Rows per second that a replica serves; > 0."""

    pool: int = 10
    """Replicas of the pool; more than the peak's 8, to drain what waits; >= 8."""

    seed: int = 1
    """Of the sentences; >= 0."""

    def __post_init__(self) -> None:
        require(self.seconds > 0, f"seconds={self.seconds} of replicas must be above 0.")
        require(self.replica_rate > 0, f"replica_rate={self.replica_rate} must be above 0.")
        require(self.pool >= _OVER, f"pool={self.pool} of replicas is below the peak's {_OVER}.")


_OVER = 8
"""r_over: replicas that the peak needs."""


def run(**given: Any) -> dict[str, Any]:
    """Run PSPS, the unified policy, DABS, and 1, 4 and 8 replicas.

    Parameters
    ----------
    **given
        Fields of `ReplicasParameters`.

    Returns
    -------
    dict
        ``systems`` (by name: ``saved``, ``degradation``, ``processed``, ``latency_ms`` (mean, p50,
        p99), ``lost``, ``waiting``, ``changes``, ``batches``, ``batch_ms``, ``cpu_s``),
        ``restart_s`` as measured, ``ahead`` (what policies over pools must show), ``parameters``,
        ``machine``.
    """
    chosen = parameters(ReplicasParameters, given)
    with tempfile.TemporaryDirectory(prefix="headgate-replicas-") as work:
        request = {"directory": work, "parameters": asdict(chosen)}
        name = "headgate_lab.bench.replicas"
        command = [sys.executable, "-m", name, "--child", json.dumps(request)]
        found = child(command, spark_env(), 6 * (chosen.seconds + _START_S))
    systems = found["systems"]
    ahead = {name: _ahead(systems, name) for name in ("psps", "unified-pools")}
    return found | {"ahead": ahead, "parameters": asdict(chosen), "machine": machine()}


def _ahead(systems: Mapping[str, Mapping[str, Any]], name: str) -> dict[str, bool]:
    """Return what a policy over pools must show beside its rivals."""
    ours, dabs = systems[name], systems["dabs"]
    return {
        "loses nothing": ours["lost"] == 0,
        "saves more than dabs": ours["saved"] > dabs["saved"],
        "processes more than dabs": ours["processed"] > dabs["processed"],
        "saves more than 4 replicas": ours["saved"] > systems["r = 4"]["saved"],
    }


# --- in the child --------------------------------------------------------------------------------


def words(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Put out how many words each sentence has: the stage that is measured."""
    for batch in batches:
        counted = pc.list_value_length(pc.utf8_split_whitespace(batch.column("text")))
        yield pa.record_batch({"words": counted})


def _start(
    spark: SparkSession,
    chosen: ReplicasParameters,
    work: Path,
    case: _Case,
    restart_s: float,
    base_s: float,
) -> Any:
    # Late and by name: the package's front imports the engine, of which this is a part.
    hg = importlib.import_module("headgate")
    rate = bursts.steps(chosen.seconds, chosen.replica_rate)
    rows = spark.readStream.format("sentences").option("rate", rate).option("seed", chosen.seed)
    rows = rows.option("base", round(base_s * 1e6))
    stage = rows.load().mapInArrow(words, "words int")
    return (
        hg.writeStream(stage)
        .policy(case.policy)
        .slots(min=case.least, max=case.pool, start=case.least)
        .format("noop")
        .option("checkpointLocation", str(work))
        .option("headgate.arrival", "scheduled")
        .option("headgate.slotRate", chosen.replica_rate)
        .option("headgate.replicas.interval", f"{chosen.seconds / _INTERVALS} s")
        .option("headgate.replicas.restart", f"{restart_s} s")
        .trigger(processingTime="0 seconds")
        .start()
    )


@dataclass(frozen=True)
class _Case:
    """One run: a policy over a pool; a pool of one size never changes."""

    name: str
    policy: str
    least: int
    pool: int


def _measure(
    spark: SparkSession, chosen: ReplicasParameters, work: Path, case: _Case, restart_s: float
) -> dict[str, Any]:
    """Run one system and return its measures."""
    cpu_s = _group_cpu_s()
    base_s = time.time() + _LEAD_S
    query = _start(spark, chosen, work, case, restart_s, base_s)
    query.awaitTermination(base_s + chosen.seconds - time.time())
    changes = len(query.decisions())
    query.stop()
    used_s = None if cpu_s is None else round((_group_cpu_s() or 0.0) - cpu_s, 1)
    committed = [e for e in reader.read(query.journal) if isinstance(e, Batch)]
    at_s = np.array([batch.at_ms / 1e3 - base_s for batch in committed])
    found = _measures(chosen, query.batches(), at_s)
    return found | {"changes": changes, "cpu_s": used_s}


def _measures(chosen: ReplicasParameters, lines: Sequence[BatchLine], at_s: F64) -> dict[str, Any]:
    """Return the four measures of PSPS, and what else is of interest.

    Parameters
    ----------
    at_s : float64[lines]
        When each was committed, seconds since the load began.
    """
    edges_s = np.linspace(0.0, chosen.seconds, _INTERVALS + 1)
    rate = parse_rate(bursts.steps(chosen.seconds, chosen.replica_rate))
    arrived = np.diff(rate.count(edges_s)).astype(np.float64)
    served = np.array([float(line.emitted) for line in lines])
    left = np.histogram(at_s, edges_s, weights=served)[0]
    active = np.array([float(sum(line.active.values())) for line in lines])
    # A batch's replicas were active since the batch before it ended.
    weights = np.diff(np.concatenate([[0.0], np.clip(at_s, 0.0, chosen.seconds)]))
    merged = histogram.merge(line.histogram for line in lines)
    latency_sum_ms = sum(line.latency_sum_ms for line in lines)
    took_ms = np.array([line.took_ms for line in lines])
    mean = np.array([float(np.average(active, weights=weights))])
    return {
        "saved": round(replica_metrics.saved_resources(mean, _OVER), 4),
        "degradation": round(replica_metrics.throughput_degradation(arrived, left), 4),
        "processed": round(replica_metrics.processed_share(arrived.sum(), left.sum()), 4),
        "latency_ms": {
            "mean": round(latency_sum_ms / max(served.sum(), 1.0), 1),
            "p50": _rounded(histogram.percentile_ms(merged, 0.5)),
            "p99": _rounded(histogram.percentile_ms(merged, 0.99)),
        },
        "lost": lines[-1].lost,
        "waiting": lines[-1].waiting,
        "replicas_most": int(active.max()),
        "batches": len(lines),
        "batch_ms": round(float(np.median(took_ms)), 1),
    }


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 1)


def _restart_s(spark: SparkSession, chosen: ReplicasParameters, work: Path) -> float:
    """Return how long this query takes from its stop until its first batch is done again."""
    case = _Case("warm-up", "psps", 1, chosen.pool)
    base_s = time.time()
    query = _start(spark, chosen, work, case, 1.0, base_s)
    _await_batches(query, 6)
    began_s = time.monotonic()
    query.stop()
    query = _start(spark, chosen, work, case, 1.0, base_s)
    _await_batches(query, 1)
    took_s = time.monotonic() - began_s
    query.stop()
    return took_s


def _await_batches(query: Any, count: int) -> None:
    deadline = time.monotonic() + _START_S
    while len(query.batches()) < count and time.monotonic() < deadline:
        query.awaitTermination(0.05)


def _group_cpu_s() -> float | None:
    """Return the CPU time of this process group, JVM and Python workers, in seconds.

    None where there is no ``/proc``. Processes that have ended count only as their parents' children.
    """
    if not Path("/proc/self/stat").exists():
        return None
    ticks = 0
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            # after the name, which may hold anything: state, ppid, pgrp, ... utime is the 12th
            found = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(found[2]) == os.getpgrp():
            ticks += sum(int(value) for value in found[11:15])
    return ticks / os.sysconf("SC_CLK_TCK")


def _child(request: dict[str, Any]) -> dict[str, Any]:
    chosen = ReplicasParameters(**request["parameters"])
    spark = session(master="local[2]", name="bench-replicas")
    try:
        sources.register(spark)
        work = Path(request["directory"])
        restart_s = _restart_s(spark, chosen, work / "warm-up")
        cases = [
            _Case("psps", "psps", 1, chosen.pool),
            _Case("unified-pools", "unified-pools", 1, chosen.pool),
            _Case("dabs", "dabs", 1, chosen.pool),
            *(_Case(f"r = {n}", "psps", n, n) for n in (1, 4, _OVER)),
        ]
        systems = {}
        for number, case in enumerate(cases):
            progress(f"{case.name}, {chosen.seconds:g} s")
            systems[case.name] = _measure(spark, chosen, work / str(number), case, restart_s)
            progress(json.dumps(systems[case.name]))
    finally:
        spark.stop()
    return {"systems": systems, "restart_s": round(restart_s, 2)}


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--child", required=True)
    print(json.dumps(_child(json.loads(parser.parse_args().child))))
