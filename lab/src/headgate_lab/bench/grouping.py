"""Compares groupings on Spark where replicas differ in speed, or rows in cost.

The job is a stage with a fixed pool. A row sleeps, as in a call of a slow store, so that there may be
more replicas than cores. A replica serves for a limited time per batch, and its other rows wait. All runs
use one session and the same load, one after another.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import SparkSession

from headgate.control.pools.groupings import GROUPINGS
from headgate.journal import histogram
from headgate.spark.cluster.session import session
from headgate_demo.spark import sources
from headgate_lab.bench.common import child, machine, parameters, progress, require, spark_env

_LEAD_S = 2.0
"""Time from the start of a query to that of its load, in seconds."""

_START_S = 60.0
"""Time limit of a run beyond its load, in seconds."""

_SLOW_SHARE = 3
"""One in `_SLOW_SHARE` replicas is slow."""

_DEAR_EVERY, _DEAR = 20, 10.0
"""With unequal rows, one in `_DEAR_EVERY` rows takes `_DEAR` times as long as the others."""


@dataclass(frozen=True)
class GroupingParameters:
    """Holds the parameters of `run`."""

    seconds: float = 16.0
    """Length of each of eight runs; > 0."""

    rate: float = 350.0
    """Rows per second; > 0."""

    replicas: int = 6
    """Number of replicas; with unequal replicas the last third is slow; >= 3."""

    row_ms: float = 5.0
    """Time of a row on a fast replica, in ms; > 0."""

    slower: float = 3.0
    """Factor of a row's time on a slow replica; >= 1."""

    box_ms: float = 300.0
    """Time for which a replica may serve per batch, in ms; > 0."""

    def __post_init__(self) -> None:
        for name in ("seconds", "rate", "row_ms", "box_ms"):
            value = getattr(self, name)
            require(value > 0, f"{name}={value} of grouping must be above 0.")
        least = _SLOW_SHARE
        require(self.replicas >= least, f"replicas={self.replicas} of grouping is below {least}.")
        require(self.slower >= 1, f"slower={self.slower} of grouping is below 1.")


def run(**given: Any) -> dict[str, Any]:
    """Run every grouping on replicas of unequal speed, and on rows of unequal cost.

    Parameters
    ----------
    **given
        Fields of `GroupingParameters`.

    Returns
    -------
    dict
        ``loads``: by load and grouping ``latency_ms`` (mean, p99), ``served``, ``waiting`` (rows at the
        end), ``batches``; ``lower``: relative reduction of the mean latency against shuffle;
        ``parameters``, ``machine``.
    """
    chosen = parameters(GroupingParameters, given)
    with tempfile.TemporaryDirectory(prefix="headgate-grouping-") as work:
        request = {"directory": work, "parameters": asdict(chosen)}
        command = [sys.executable, "-m", "headgate_lab.bench.grouping"]
        command += ["--child", json.dumps(request)]
        found = child(command, spark_env(), 8 * (chosen.seconds + _START_S))
    lower = {load: below_shuffle(rows) for load, rows in found["loads"].items()}
    return found | {"lower": lower, "parameters": asdict(chosen), "machine": machine()}


def below_shuffle(rows: Mapping[str, Mapping[str, Any]]) -> dict[str, float]:
    """Return the relative reduction of each grouping's mean latency against shuffle."""
    shuffled = rows["shuffle"]["latency_ms"]["mean"]
    return {
        name: round(1.0 - row["latency_ms"]["mean"] / shuffled, 3)
        for name, row in rows.items()
        if name != "shuffle"
    }


# --- in the child --------------------------------------------------------------------------------

Stage = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


def _unequal_replicas(chosen: GroupingParameters) -> Stage:
    """Return a stage whose last third of replicas is slow; in a fixed pool each task is one replica."""
    row_s, slower = chosen.row_ms / 1e3, chosen.slower
    first_slow = chosen.replicas - chosen.replicas // _SLOW_SHARE

    def serve(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None
        each_s = row_s * (slower if context.partitionId() >= first_slow else 1.0)
        for batch in batches:
            time.sleep(batch.num_rows * each_s)
            yield batch.select(["text"])

    return serve


def _unequal_rows(chosen: GroupingParameters) -> Stage:
    """Return a stage in which few rows are expensive, with the same mean for all replicas."""
    cheap_s = chosen.row_ms / 1e3 / (1.0 + (_DEAR - 1.0) / _DEAR_EVERY)
    every, dear = _DEAR_EVERY, _DEAR

    def serve(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            texts = batch.column("text").to_pylist()
            cost = sum(dear if zlib.crc32(text.encode()) % every == 0 else 1.0 for text in texts)
            time.sleep(cost * cheap_s)
            yield batch.select(["text"])

    return serve


_LOADS: dict[str, Callable[[GroupingParameters], Stage]] = {
    "unequal replicas": _unequal_replicas,
    "unequal rows": _unequal_rows,
}


def _measure(
    spark: SparkSession, chosen: GroupingParameters, work: Path, stage: Stage, grouping: str
) -> dict[str, Any]:
    """Run one grouping and return its measures."""
    # Late and by name: the package's front imports the engine, of which this is a part.
    hg = importlib.import_module("headgate")
    base_s = time.time() + _LEAD_S
    source = spark.readStream.format("sentences").option("rate", f"{chosen.rate:g}")
    rows = source.option("seed", 1).option("base", round(base_s * 1e6)).load()
    query = (
        hg.writeStream(rows.mapInArrow(stage, "text string"))
        .policy("psps")
        .slots(min=chosen.replicas, max=chosen.replicas)
        .budget(f"{chosen.box_ms:g} ms")
        .format("noop")
        .option("checkpointLocation", str(work))
        .option("headgate.arrival", "scheduled")
        .option("headgate.grouping", grouping)
        .trigger(processingTime="0 seconds")
        .start()
    )
    query.awaitTermination(base_s + chosen.seconds - time.time())
    query.stop()
    lines = query.batches()
    served = sum(line.emitted for line in lines)
    merged = histogram.merge(line.histogram for line in lines)
    p99_ms = histogram.percentile_ms(merged, 0.99)
    return {
        "latency_ms": {
            "mean": round(sum(line.latency_sum_ms for line in lines) / max(1, served), 1),
            "p99": None if p99_ms is None else round(p99_ms, 1),
        },
        "served": served,
        "waiting": lines[-1].waiting,
        "batches": len(lines),
    }


def _child(request: dict[str, Any]) -> dict[str, Any]:
    chosen = GroupingParameters(**request["parameters"])
    # A Spark core for each replica: replicas sleep, so they need no core of the machine.
    spark = session(master=f"local[{chosen.replicas}]", name="bench-grouping")
    loads: dict[str, dict[str, Any]] = {}
    try:
        sources.register(spark)
        work = Path(request["directory"])
        for load, make in _LOADS.items():
            loads[load] = {}
            for grouping in GROUPINGS:
                progress(f"{load}, {grouping}, {chosen.seconds:g} s")
                place = work / f"{load}-{grouping}".replace(" ", "-")
                loads[load][grouping] = _measure(spark, chosen, place, make(chosen), grouping)
                progress(json.dumps(loads[load][grouping]))
    finally:
        spark.stop()
    return {"loads": loads}


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--child", required=True)
    print(json.dumps(_child(json.loads(parser.parse_args().child))))
