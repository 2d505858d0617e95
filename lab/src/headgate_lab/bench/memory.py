"""Measures the memory of a million int or string keys in headgate's arena and in Spark's state stores.

The query computes count and sum per key. Each engine and kind of key runs in its own process, ``python -m
headgate_lab.bench.memory --engine X --request JSON``: first over as many rows of few keys, so that code
is loaded and compiled, then over rows of which each has another key. The result is the growth between
both of four figures of the operating system and the JVM:

========  =====================================================================================
arena     blocks of the files in shared memory: headgate's state
heap      used Java heap after a collection: Spark's in-memory store
native    resident pages of the JVM, whose heap has all its pages from the start: RocksDB
python    private pages of Python workers
========  =====================================================================================

Most of Python's pages are working memory of a batch that allocators keep; it grows with the rows of a
batch, not with the state. Data on disk only (RocksDB's files, changelogs, checkpoints) do not count,
though the operating system may cache them in memory.
"""

from __future__ import annotations

import importlib
import json
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
from pyspark.sql import SparkSession

from headgate.core.errors import EngineError
from headgate.spark.cluster.session import session
from headgate_lab.bench.common import (
    child,
    descendants,
    parameters,
    progress,
    require,
    spark_env,
)
from headgate_lab.bench.native import HEADGATE, counts_and_sums
from headgate_lab.bench.sides import ENGINES, failed, in_child

KINDS: Mapping[str, str] = {"int": "bigint", "string": "string"}
"""SQL type of each kind of key; a string has 20 bytes."""

_ARENA = "HEADGATE_ARENA_DIR"
_FEW_KEYS = 1_000
_POLL_S = 0.2
_MILLION = 1_000_000


@dataclass(frozen=True)
class MemoryParameters:
    """Holds the parameters of `run`."""

    memory_keys: int = 400_000
    """Keys in the state; >= 1. Results are per million."""

    memory_batches: int = 8
    """Files and batches of the input; >= 1. Workers keep the memory of their largest batch."""

    heap: str = "2g"
    """Size of Java's heap, whose pages are all in memory from the start."""

    slots: int = 2
    """Slots of headgate, shuffle partitions of Spark, cores of both."""

    timeout_s: float = 600.0
    """Time limit; an engine's process that takes longer is stopped and counts as failed."""

    def __post_init__(self) -> None:
        sizes = (self.memory_keys, self.memory_batches, self.slots)
        require(min(sizes) >= 1, "memory_keys, memory_batches and slots must be >= 1")


def run(**given: Any) -> dict[str, Any]:
    """Return bytes per million keys by engine and kind of key, and Spark's relative to headgate's.

    Parameters
    ----------
    **given
        Fields of `MemoryParameters`.

    Raises
    ------
    ConfigError    A parameter is unknown or out of range.
    """
    asked = parameters(MemoryParameters, given)
    if not Path("/proc/self/smaps_rollup").exists():
        return {"benchmark": "memory", "skipped": "needs Linux's /proc to see what is resident"}
    with tempfile.TemporaryDirectory(prefix="headgate-bench-") as name:
        directory = Path(name)
        entries = []
        for kind in KINDS:
            _write(directory / kind / "few", kind, asked, _FEW_KEYS)
            _write(directory / kind / "all", kind, asked, asked.memory_keys)
            entries += [_entry(engine, kind, directory / kind, asked) for engine in ENGINES]
    return {
        "benchmark": "memory",
        "parameters": asdict(asked),
        "engines": entries,
        "ratios": ratios(entries),
        "failed": failed(entries),
    }


def ratios(entries: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the memory of Spark's stores relative to headgate's, per kind of key."""
    need = {
        (e["engine"], e["case"]): e["bytes_per_million_keys"] for e in entries if "failed" not in e
    }
    return [
        {"theirs": engine, "keys": kind, "ratio": bytes_ / need[HEADGATE, kind]}
        for (engine, kind), bytes_ in need.items()
        if engine != HEADGATE and (HEADGATE, kind) in need
    ]


def _write(directory: Path, kind: str, asked: MemoryParameters, distinct: int) -> None:
    """Write `memory_keys` rows, of `distinct` keys in turn."""
    directory.mkdir(parents=True)
    numbers = np.arange(asked.memory_keys, dtype=np.int64)
    for index, part in enumerate(np.array_split(numbers, asked.memory_batches)):
        ids = part % distinct
        keys = ids if kind == "int" else pa.array([f"customer-{one:011d}" for one in ids.tolist()])
        table = pa.table({"k": keys, "v": part % 1_000})
        pa.parquet.write_table(table, directory / f"batch-{index:05d}.parquet")


def _entry(engine: str, kind: str, files: Path, asked: MemoryParameters) -> dict[str, Any]:
    entry = {"engine": engine, "case": kind}
    with tempfile.TemporaryDirectory(dir=_shared_memory(), prefix="headgate-arena-") as arena:
        request = {
            "kind": kind,
            "files": str(files),
            "directory": str(files / engine),
            "heap": asked.heap,
            "slots": asked.slots,
            "arena": arena,
            "rows": asked.memory_keys,
        }
        command = [sys.executable, "-m", __name__, "--engine", engine]
        env = spark_env() | {_ARENA: arena}
        try:
            said = child([*command, "--request", json.dumps(request)], env, asked.timeout_s)
        except EngineError as error:
            progress(f"{engine}, {kind} keys: FAILED, {error}")
            return entry | {"failed": str(error)}
    if said["state_rows"] != asked.memory_keys:
        msg = f"has {said['state_rows']} entries of state, not {asked.memory_keys}"
        return entry | {"failed": msg}
    per_million = _MILLION / asked.memory_keys
    grown = {
        name: round((bytes_ - said["few"][name]) * per_million)
        for name, bytes_ in said["all"].items()
    }
    total = sum(grown.values())
    progress(f"{engine}, {kind} keys: {total / 1e6:.0f} MB per million")
    return entry | {"bytes_per_million_keys": total, "of_which": grown}


def _shared_memory() -> str | None:
    """Return the file system in memory, if there is one."""
    return "/dev/shm" if Path("/dev/shm").is_dir() else None


# ---- below: one engine, in its own process -------------------------------------------------------


def measure(engine: str, request: Mapping[str, Any]) -> dict[str, Any]:
    """Return the four figures with few keys and with all keys, and the entries of state at the end."""
    work, slots, heap = Path(request["directory"]), int(request["slots"]), request["heap"]
    shared: dict[str, str | int] = {
        "spark.sql.shuffle.partitions": slots,
        "spark.driver.memory": heap,
        "spark.driver.extraJavaOptions": f"-Xms{heap} -XX:+AlwaysPreTouch",
        "spark.local.dir": str(work / "local"),
    }
    settings = dict(ENGINES[engine])
    spark = session(master=f"local[{slots}]", name=f"memory-{engine}", **shared, **settings)
    schema = f"k {KINDS[request['kind']]}, v bigint"
    arena = Path(request["arena"])
    found: dict[str, Any] = {}
    for name in ("few", "all"):
        files = Path(request["files"]) / name
        with _running(spark, engine, schema, files, work, request) as query:
            found[name] = _resident(spark, arena)
            found["state_rows"] = _state_rows(query)
    spark.stop()
    return found


@contextmanager
def _running(
    spark: SparkSession,
    engine: str,
    schema: str,
    files: Path,
    work: Path,
    request: Mapping[str, Any],
) -> Iterator[Any]:
    """Run the query until it has read all files, and yield it; state exists only while it runs."""
    reader = spark.readStream.schema(schema).option("maxFilesPerTrigger", 1)
    frame = counts_and_sums(reader.parquet(str(files)))
    writer: Any = frame.writeStream
    if engine == HEADGATE:
        # Late and by name, as in `sides`.
        writer = importlib.import_module("headgate").writeStream(frame)
        writer = writer.slots(start=int(request["slots"]))
    checkpoint = str(work / f"checkpoint-{files.name}")
    writer = writer.outputMode("update").option("checkpointLocation", checkpoint)
    query = writer.format("noop").start()
    try:
        while sum(int(p["numInputRows"]) for p in query.recentProgress) < int(request["rows"]):
            if not query.isActive:
                query.awaitTermination()  # raises the query's error
            time.sleep(_POLL_S)
        yield query
    finally:
        query.stop()


def _state_rows(query: Any) -> int:
    """Return the entries of state, which only grow; headgate reports them in its newest progress only."""
    return max(
        sum(int(operator["numRowsTotal"]) for operator in progress["stateOperators"])
        for progress in query.recentProgress
    )


def _resident(spark: SparkSession, arena: Path) -> dict[str, int]:
    """Return the four figures of this process's session, in bytes."""
    jvm: Any = spark._jvm
    runtime = jvm.java.lang.Runtime.getRuntime()
    for _ in range(3):
        jvm.java.lang.System.gc()
        time.sleep(_POLL_S)
    java = int(jvm.java.lang.ProcessHandle.current().pid())
    return {
        "arena": sum(f.stat().st_blocks * 512 for f in arena.rglob("*") if f.is_file()),
        "heap": int(runtime.totalMemory()) - int(runtime.freeMemory()),
        "native": _rollup(java)["Rss"],
        "python": sum(_rollup(process)["Anonymous"] for process in descendants(java)),
    }


def _rollup(process: int) -> dict[str, int]:
    """Return the kernel's sums over a process's memory, in bytes; zeros if the process has ended."""
    try:
        lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()[1:]
    except OSError:
        return {"Rss": 0, "Anonymous": 0}
    pairs = (line.split(":") for line in lines)
    return {name: int(size.split()[0]) * 1024 for name, size in pairs}


if __name__ == "__main__":
    in_child(measure, tuple(ENGINES))
