"""Compares policies over pools of replicas on Spark under bursts: PSPS, unified, DABS, fixed pools.

The job is a stateless stage over generated sentences. Each replica serves a fixed rate, so that there can
be more replicas than cores. All runs use one session and the same load, one after another: PSPS's load,
compressed into `seconds`, with its interval compressed alike. The time of a restart of this query is
measured first; a change costs DABS that time, and all waiting rows.
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
"""Time from the start of a query to that of its load, in seconds, so that no row waits for a first
batch."""

_START_S = 120.0
"""Time limit of a run beyond its load, in seconds: for the session, the first batch and the end."""

F64 = npt.NDArray[np.float64]

_INTERVALS = 36
"""Decisions in a run: 1,080 s of 30 s each, as in the simulator's tables."""


@dataclass(frozen=True)
class ReplicasParameters:
    """Holds the parameters of `run`."""

    seconds: float = 108.0
    """Length of each run; > 0. By default, the paper's load and interval are compressed ten times."""

    replica_rate: float = 100.0
    """Rows per second that a replica serves; > 0."""

    pool: int = 10
    """Replicas of the pool; >= 8, the peak's need. With more, waiting rows can be served."""

    seed: int = 1
    """Seed of the sentences; >= 0."""

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
        ``restart_s`` as measured, ``ahead`` (whether policies over pools beat their rivals),
        ``parameters``, ``machine``.
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
    """Return whether a policy over pools beats its rivals, by claim."""
    ours, dabs = systems[name], systems["dabs"]
    return {
        "loses nothing": ours["lost"] == 0,
        "saves more than dabs": ours["saved"] > dabs["saved"],
        "processes more than dabs": ours["processed"] > dabs["processed"],
        "saves more than 4 replicas": ours["saved"] > systems["r = 4"]["saved"],
    }


# --- in the child --------------------------------------------------------------------------------


def words(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the number of words of each sentence: the measured stage."""
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
    """Describes one run: a policy over a pool, which never changes if `least` equals `pool`."""

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
    """Return the four measures of PSPS, and further ones.

    Parameters
    ----------
    at_s : float64[lines]
        Time of each batch's commit, seconds since the load began.
    """
    edges_s = np.linspace(0.0, chosen.seconds, _INTERVALS + 1)
    rate = parse_rate(bursts.steps(chosen.seconds, chosen.replica_rate))
    arrived = np.diff(rate.count(edges_s)).astype(np.float64)
    served = np.array([float(line.emitted) for line in lines])
    left = np.histogram(at_s, edges_s, weights=served)[0]
    active = np.array([float(sum(line.active.values())) for line in lines])
    # A batch's replicas were active since the end of the previous batch.
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
    """Return the time from a stop of this query to the end of its first batch after a restart."""
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

    None without ``/proc``. A process that has ended counts through its parent's time of children.
    """
    if not Path("/proc/self/stat").exists():
        return None
    ticks = 0
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            # after the name, which may contain blanks: state, ppid, pgrp, ... utime is the 12th
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
