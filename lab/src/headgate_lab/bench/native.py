"""Runs one job, count and sum per key in update mode, on engines that use a Spark session.

`BASELINES` has Spark's own engines; headgate's side is `headgate_writer`.
"""

from __future__ import annotations

import gc
import importlib
import importlib.util
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.state import GroupStateTimeout
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from headgate.operators.processor import Keyed, State, Timers
from headgate.spark.cluster.session import session
from headgate.spark.worker.arrow_processor import ArrowProcessor
from headgate_lab.bench.common import Answer

HEADGATE = "headgate"

OUTPUT = "k bigint, c bigint, s bigint"
STATE = "c bigint, s bigint"

_PROVIDER = "spark.sql.streaming.stateStore.providerClass"
_STORES = "org.apache.spark.sql.execution.streaming.state."
MEMORY = {_PROVIDER: _STORES + "HDFSBackedStateStoreProvider"}
ROCKSDB = {
    _PROVIDER: _STORES + "RocksDBStateStoreProvider",
    # Spark's RocksDB store casts the local file system to this class; headgate's session sets
    # another one, with which every commit fails
    "spark.hadoop.fs.file.impl": "org.apache.hadoop.fs.LocalFileSystem",
}

REPORTED = (
    _PROVIDER,
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled",
    "spark.hadoop.fs.file.impl",
    "spark.sql.shuffle.partitions",
    "spark.sql.streaming.checkpointFileManagerClass",
)
"""Settings that a result shows, since the speed of Spark's engines depends on them."""

_frozen = False


@dataclass(frozen=True)
class Baseline:
    """Describes one of Spark's engines.

    Attributes
    ----------
    query : callable    From rows (k, v) to one row (k, c, s) per changed key.
    settings : mapping    Spark settings in addition to those of all engines.
    slow : bool    True if Spark calls Python per key; then the engine gets fewer rows and few keys.
    needs : str or None    A module that Spark needs for this engine.
    """

    query: Callable[[DataFrame], DataFrame]
    settings: Mapping[str, str] = field(default_factory=dict)
    slow: bool = False
    needs: str | None = None

    def missing(self) -> str | None:
        """Return the reason why this engine cannot run here, or None."""
        if self.needs is None or _installed(self.needs):
            return None
        return f"{self.needs} is not installed"


def _installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # the parent package of a dotted name is missing
        return False


FUNCTIONS: Mapping[str, tuple[str, str]] = {
    "": ("", ""),
    "collect_list": ("collect_list(v)", "collect_list(v)"),
    "approx_count_distinct": ("approx_count_distinct(v)", "approx_count_distinct(v)"),
    "percentile_approx": ("percentile_approx(v, 0.5)", "percentile_approx(v, 0.5)"),
    "stddev": ("stddev(v)", "stddev(v)"),
    # Spark has no distinct count on a stream; this is the usual replacement
    "count_distinct": ("count(distinct v)", "size(collect_set(v))"),
}
"""A further aggregate of the job, as SQL: in headgate's query, and in Spark's."""


def counts_and_sums(rows: DataFrame, further: str = "") -> DataFrame:
    """Return the job as DataFrame calls, for Spark and, unchanged, for headgate.

    Parameters
    ----------
    rows : DataFrame
        Has the columns k and v.
    further : str
        SQL of a further aggregate; none if empty.
    """
    more = [F.expr(further).alias("x")] if further else []
    return rows.groupBy("k").agg(F.count(F.lit(1)).alias("c"), F.sum("v").alias("s"), *more)


def _in_pandas(rows: DataFrame) -> DataFrame:
    grouped = rows.groupBy("k")
    return grouped.applyInPandasWithState(
        count_frames, OUTPUT, STATE, "update", GroupStateTimeout.NoTimeout
    )


def count_frames(key: tuple[Any, ...], frames: Iterator[Any], state: Any) -> Iterator[Any]:
    """Add one key's frames to its state; the function for `applyInPandasWithState`."""
    count, total = state.get if state.exists else (0, 0)
    for frame in frames:
        count += len(frame)
        total += int(frame["v"].sum())
    state.update((count, total))
    # `type(frame)` is pandas.DataFrame; headgate does not import pandas
    yield type(frame)({"k": [key[0]], "c": [count], "s": [total]})


class _Counting(StatefulProcessor):
    """Holds (count, sum) of a key in one value state."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._state = handle.getValueState("totals", STATE)

    def _before(self) -> tuple[int, int]:
        before: Any = self._state.get()
        return (0, 0) if before is None else (before[0], before[1])

    def close(self) -> None:
        return None


class CountRows(_Counting):
    """Does the job as a `StatefulProcessor` over rows."""

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        """Add one key's rows to its state."""
        count, total = self._before()
        for row in rows:
            count += 1
            total += row.v
        self._state.update((count, total))
        yield Row(k=key[0], c=count, s=total)


class CountFrames(_Counting):
    """Does the job as a `StatefulProcessor` over pandas frames."""

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        """Add one key's frames to its state."""
        count, total = self._before()
        frame: Any = None
        for frame in rows:
            count += len(frame)
            total += int(frame["v"].sum())
        self._state.update((count, total))
        yield type(frame)({"k": [key[0]], "c": [count], "s": [total]})


_TOTALS = {"totals": (pa.schema([]), pa.schema([("c", pa.int64()), ("s", pa.int64())]))}


class CountBatches(ArrowProcessor):
    """Does the job as an `ArrowProcessor`."""

    keys = pa.schema([("k", pa.int64())])
    inputs = pa.schema([("v", pa.int64())])
    states = _TOTALS

    def handleBatch(
        self, keys: pa.RecordBatch, batch: Keyed, state: State, timers: Timers
    ) -> pa.RecordBatch:
        """Add all keys' rows to their state."""
        starts = batch.starts(keys.num_rows)
        counts, sums = np.diff(starts), np.zeros(keys.num_rows, dtype=np.int64)
        if keys.num_rows:
            sums = np.add.reduceat(batch.rows.column("v").to_numpy(), starts[:-1])
        before = state["totals"]
        counts[before.of] += before.rows.column("c").to_numpy()
        sums[before.of] += before.rows.column("s").to_numpy()
        totals = pa.RecordBatch.from_arrays([pa.array(counts), pa.array(sums)], names=["c", "s"])
        state.put("totals", np.arange(keys.num_rows), totals)
        columns = [keys.column("k"), *totals.columns]
        return pa.RecordBatch.from_arrays(columns, names=["k", "c", "s"])


def _with_batches(rows: DataFrame) -> DataFrame:
    return rows.groupBy("k").transformWithState(CountBatches(), OUTPUT, "Update", "None")


def _with_rows(rows: DataFrame) -> DataFrame:
    return rows.groupBy("k").transformWithState(CountRows(), OUTPUT, "Update", "None")


def _with_frames(rows: DataFrame) -> DataFrame:
    return rows.groupBy("k").transformWithStateInPandas(CountFrames(), OUTPUT, "Update", "None")


BASELINES: Mapping[str, Baseline] = {
    "spark-rocksdb": Baseline(counts_and_sums, ROCKSDB),
    "spark-memory": Baseline(counts_and_sums, MEMORY),
    "applyInPandasWithState": Baseline(_in_pandas, ROCKSDB, slow=True, needs="pandas"),
    "transformWithState": Baseline(_with_rows, ROCKSDB, slow=True, needs="google.protobuf"),
    "transformWithStateInPandas": Baseline(
        _with_frames, ROCKSDB, slow=True, needs="google.protobuf"
    ),
}


PROCESSORS: Mapping[str, Callable[[DataFrame], DataFrame]] = {
    "headgate-arrow": _with_batches,
    "headgate-rows": _with_rows,
    "headgate-pandas": _with_frames,
    "headgate-function": _in_pandas,
}
"""The job as a processor in headgate's slots: vectorised, and Spark's own three forms unchanged."""


def source(spark: SparkSession, directory: Path) -> DataFrame:
    """Return the stream of `common.Input.write`'s files, one file per batch."""
    reader = spark.readStream.schema("k bigint, v bigint").option("maxFilesPerTrigger", 1)
    return reader.parquet(str(directory))


def native_writer(name: str, rows: DataFrame, checkpoint: Path, function: str = "") -> Any:
    """Return the writer of a baseline's query, without a sink; the query stops after the last file."""
    frame = BASELINES[name].query(rows)
    if function:
        frame = counts_and_sums(rows, FUNCTIONS[function][1])
    writer = frame.writeStream.outputMode("update").option("checkpointLocation", str(checkpoint))
    return writer.trigger(availableNow=True)


def answer_of(writer: Any) -> Answer:
    """Run a query that stops by itself, and return its last update of every key."""
    updates = []

    def collect(frame: DataFrame, batch_id: int) -> None:
        table: pa.Table = frame.toArrow()
        columns = (table.column(name).to_numpy() for name in ("k", "c", "s"))
        updates.append(tuple(columns))

    writer.foreachBatch(collect).start().awaitTermination()
    return Answer.of_updates(updates)


def triggers(query: Any) -> list[dict[str, Any]]:
    """Return rows and durations (ms) of every batch of a query that has ended.

    They come from `StreamingQueryProgress`, for headgate as for Spark. Batches without rows are excluded
    (headgate's tick source makes some).
    """
    return [
        {"rows": int(p["numInputRows"]), "durations_ms": dict(p["durationMs"])}
        for p in query.recentProgress
        if int(p["numInputRows"]) > 0
    ]


def consume(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the number of a slot's rows: the minimal work of a slot task."""
    global _frozen  # noqa: PLW0603 -- once per worker process
    yield pa.RecordBatch.from_pydict({"rows": [sum(batch.num_rows for batch in batches)]})
    if not _frozen:
        # headgate's slots do this too; without it garbage collection takes 100 ms per batch
        gc.collect()
        gc.freeze()
        _frozen = True


def headgate_writer(
    rows: Any, checkpoint: Path, slots: int, engine: str = HEADGATE, function: str = ""
) -> Any:
    """Return the writer of headgate's query, as `native_writer` does for Spark's."""
    # Late and by name: the package's front imports the engine, of which this is a part.
    hg = importlib.import_module("headgate")
    query = PROCESSORS.get(engine, partial(counts_and_sums, further=FUNCTIONS[function][0]))
    writer = hg.writeStream(query(rows)).slots(start=slots).outputMode("update")
    return writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True)


def headgate_phases(journal: Path) -> list[dict[str, float]]:
    """Return the phases (ms) of every batch with records, from headgate's journal."""
    lines = [json.loads(line) for line in journal.read_text().splitlines()]
    batches = [line for line in lines if line.get("event") == "batch" and line.get("arrived")]
    return [batch["phases_ms"] for batch in batches]


def measure(engine: str, request: Mapping[str, Any]) -> dict[str, Any]:
    """Write the engine's answer to ``answer.npz``, then time the engine, in this process."""
    settings = dict(BASELINES[engine].settings) if engine in BASELINES else {}
    ours = engine == HEADGATE or engine in PROCESSORS
    slots, work = int(request["slots"]), Path(request["directory"])
    function = str(request.get("function", ""))
    shared: dict[str, str | int] = {
        "spark.sql.shuffle.partitions": slots,
        "spark.driver.memory": "4g",  # Spark's in-memory store of 1,000,000 keys does not fit in 1g
        "spark.sql.streaming.numRecentProgressUpdates": 2 * int(request["batches"]) + 100,
        "spark.local.dir": str(work / "local"),
    }
    spark = session(master=f"local[{slots}]", name=f"bench-{engine}", **shared, **settings)

    def writer(directory: str, name: str) -> Any:
        rows = source(spark, Path(directory))
        if ours:
            return headgate_writer(rows, work / name, slots, engine, function)
        return native_writer(engine, rows, work / name, function)

    answer_of(writer(request["check"], "check")).save(work / "answer.npz")
    query = writer(request["timed"], "timed").format("noop").start()
    query.awaitTermination()
    said = {
        "batches": triggers(query),
        "phases_ms": headgate_phases(Path(query.journal)) if ours else [],
        "settings": {name: spark.conf.get(name, None) for name in REPORTED},
    }
    spark.stop()
    return said
