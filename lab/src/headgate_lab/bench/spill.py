"""Measures rows per second with state larger than its memory, against all state in memory, and RocksDB.

The same job runs three times on the same files, each time in its own process: headgate with all state in
memory, headgate with a memory bound, and Spark with RocksDB under the same bound. The state is that of
`wide`. First every key comes once, which fills the state; then come batches of skewed keys, with few keys
in most rows. The hash spreads the keys over all key groups, so that every batch touches every key group.
Skew by key is the worst case for a bounded store.

Memory beyond the state is not bounded: the page cache (of headgate's spill directory as of RocksDB's
tables), the JVM, and the workers' memory for a batch.
"""

from __future__ import annotations

import argparse
import importlib
import json
import statistics
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from pyspark.sql import DataFrame

from headgate.core.errors import EngineError
from headgate.core.size import parse_bytes
from headgate.journal import Batch, read
from headgate.spark.cluster.session import session
from headgate_lab.bench import wide
from headgate_lab.bench.common import (
    I64,
    child,
    machine,
    parameters,
    progress,
    require,
    spark_env,
    spread,
)
from headgate_lab.bench.native import ROCKSDB
from headgate_lab.bench.wide_job import KEPT_PROGRESS, WideJob, WideParameters

MEMORY, BOUNDED, SPARK = "memory", "bounded", "spark-rocksdb"
"""headgate with all state in memory; headgate with a memory bound; Spark."""

ENGINES = (MEMORY, BOUNDED, SPARK)

_ROCKS = "spark.sql.streaming.stateStore.rocksdb."
_STRIDE = 1_000_003


@dataclass(frozen=True)
class SpillParameters(WideParameters):
    """Holds the parameters of `run`."""

    state: str = "200 MB"
    dropped_batches: int = 5
    rows: int = 50_000
    engines: str = ",".join(ENGINES)

    memory: str = "50 MB"
    """Memory for the state in the bounded runs."""

    skew: float = 1.2
    """Zipf exponent of the keys' frequencies; > 1. With a larger one, fewer keys have most rows."""

    def __post_init__(self) -> None:
        parse_bytes(self.memory)
        require(self.skew > 1.0, f"skew={self.skew:g} of spill is out of range; use more than 1.")
        self.check("spill", ENGINES)


@dataclass(frozen=True)
class SkewedInput(wide.WideInput):
    """Writes files as `WideInput` does, but with few keys in most rows of the later files.

    Attributes
    ----------
    skew : float    Exponent of the frequencies; > 1.
    """

    skew: float

    def touched(self, index: int) -> I64:
        """Return the keys of a later file; shape [rows_per_batch], not distinct."""
        random = np.random.default_rng([self.seed, index])
        ranks = random.zipf(self.skew, self.rows_per_batch) - 1
        # keys of neighbouring ranks must not be neighbours
        spread_out: I64 = (ranks % self.keys) * _STRIDE % self.keys
        return spread_out


def run(**given: Any) -> dict[str, Any]:
    """Run the same job on each engine; parameters are those of `SpillParameters`.

    Returns
    -------
    dict
        ``engines``: per engine ``rows_per_s`` (median batch), ``batch_ms`` (spread), ``fill_s``, and for
        the bounded run ``memory_bytes_max``, ``memory_bytes``, ``cold_bytes``, and means per batch of
        ``groups_back``, ``groups_away``, ``groups_cold`` and ``moving_ms``; ``over_memory`` and
        ``over_rocksdb``: rows per second of the bounded run, relative to the other runs;
        ``state_bytes``, ``entries``, ``keys_compared``, ``verified``, ``failed`` (engines and reasons, a
        wrong count or sum among them), ``parameters``, ``machine``.
    """
    asked = parameters(SpillParameters, given)
    found: dict[str, dict[str, Any]] = {}
    failed: list[str] = []
    with tempfile.TemporaryDirectory(prefix="headgate-spill-") as work:
        for engine in asked.engines.split(","):
            request = {"parameters": asdict(asked), "directory": work, "engine": engine}
            name = "headgate_lab.bench.spill"
            command = [sys.executable, "-m", name, "--request", json.dumps(request)]
            env = spark_env() | {"HEADGATE_SPILL_DIR": str(Path(work) / "spilled")}
            try:
                found[engine] = child(command, env, asked.timeout_s)
            except EngineError as error:
                progress(f"{engine}: FAILED, {error}")
                failed.append(f"{engine}: {error}")
                continue
            progress(f"{engine}: {found[engine]['rows_per_s']:,} rows/s")
    one: dict[str, Any] = next(iter(found.values()), {})
    shared = ("state_bytes", "entries", "keys_compared")
    return {
        "engines": {
            name: {k: v for k, v in said.items() if k not in shared} for name, said in found.items()
        },
        "over_memory": _over(found, MEMORY),
        "over_rocksdb": _over(found, SPARK),
        **{name: one.get(name) for name in shared},
        "verified": bool(found),
        "failed": failed,
        "parameters": asdict(asked),
        "machine": machine(),
    }


def _over(found: Mapping[str, Mapping[str, Any]], other: str) -> float | None:
    if BOUNDED not in found or other not in found:
        return None
    return round(float(found[BOUNDED]["rows_per_s"]) / float(found[other]["rows_per_s"]), 3)


# --- in the child --------------------------------------------------------------------------------


def _writer(frame: DataFrame, asked: SpillParameters, engine: str) -> Any:
    if engine == SPARK:
        return frame.writeStream
    # Late and by name: the package's front imports the engine, of which this is a part.
    writer = importlib.import_module("headgate").writeStream(frame).slots(start=asked.slots)
    return writer.option("headgate.state.memoryMax", asked.memory) if engine == BOUNDED else writer


def _memory(query: Any, batches: int) -> dict[str, Any]:
    """Return the sizes of state in memory and on disk, and the moves in the timed batches."""
    told = [e.memory for e in read(query.journal) if isinstance(e, Batch) and e.memory]
    last = told[-batches:]

    def mean(name: str) -> float:
        return round(statistics.mean(float(getattr(use, name)) for use in last), 2)

    moved = ("groups_back", "groups_away", "groups_cold", "moving_ms")
    return {
        "memory_bytes_max": max(use.memory_bytes for use in told),
        "memory_bytes": last[-1].memory_bytes,
        "cold_bytes": last[-1].cold_bytes,
        **{name: mean(name) for name in moved},
    }


def _child(request: Mapping[str, Any]) -> dict[str, Any]:
    asked, work = SpillParameters(**request["parameters"]), Path(request["directory"])
    engine = request["engine"]
    settings = {
        "spark.local.dir": str(work / engine / "local"),
        "spark.driver.memory": "3g",
        "spark.sql.shuffle.partitions": str(asked.slots),
        "spark.sql.streaming.numRecentProgressUpdates": str(KEPT_PROGRESS),
    }
    if engine == SPARK:
        settings |= ROCKSDB | {
            f"{_ROCKS}changelogCheckpointing.enabled": "true",
            f"{_ROCKS}boundedMemoryUsage": "true",
            f"{_ROCKS}maxMemoryUsageMB": str(max(1, parse_bytes(asked.memory) // 10**6)),
        }
    spark = session(f"local[{asked.slots}]", f"bench-spill-{engine}", **settings)
    place = work / engine
    side = WideJob(
        lambda frame: _writer(frame, asked, engine).option(
            "checkpointLocation", str(place / "checkpoint")
        ),
        spark=spark,
        input=place / "input",
    )
    keys = max(1, parse_bytes(asked.state) // side.entry_bytes)
    data = SkewedInput(keys, asked.rows, asked.seed, asked.skew)
    progress(f"{engine}: {keys} entries of {side.entry_bytes} B")
    served = side.serve(data, asked.dropped_batches, asked.batches)
    found = {
        "rows_per_s": round(asked.rows / statistics.median(served.batch_ms) * 1e3),
        "batch_ms": spread(served.batch_ms),
        "fill_s": served.fill_s,
    }
    if engine == BOUNDED:
        found |= _memory(served.query, asked.batches)
    compared = side.check(data, asked.dropped_batches + asked.batches, engine)
    spark.stop()
    return found | {
        "state_bytes": keys * side.entry_bytes,
        "entries": keys,
        "keys_compared": compared,
    }


def main() -> None:
    """Run one engine, as asked on the command line."""
    arguments = argparse.ArgumentParser(description="State larger than its memory, one engine.")
    arguments.add_argument("--request", required=True)
    print(json.dumps(_child(json.loads(arguments.parse_args().request))))


if __name__ == "__main__":
    main()
