"""Compares the cost of a record in windows that overlap 60 times and in windows that do not.

The query computes count and sum per key and window of a minute, every minute (*tumbling*) or every second
(*sliding*), on the same records, by headgate and by Spark's operator, which copies a record into each of
its windows. A window is emitted once, when it is closed.
"""

from __future__ import annotations

import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from headgate_lab.bench.common import ROW_GROUPS, VALUES, parameters, require
from headgate_lab.bench.native import HEADGATE
from headgate_lab.bench.sides import (
    Case,
    Comparison,
    SidesParameters,
    against_spark,
    failed,
    ratio,
)

I64 = npt.NDArray[np.int64]

OVERLAP = 60
"""Windows per record in the sliding case: 60 s by 1 s; design, figures to reach."""

TARGET = 1.3
"""Largest ratio of the rows/s of tumbling to sliding windows; design, figures to reach."""

TUMBLING, SLIDING = "tumbling", "sliding"
_ADVANCE_S = {TUMBLING: OVERLAP, SLIDING: 1}
_SECOND_US = 1_000_000
_SCHEMA = "ts timestamp, k bigint, v bigint"


@dataclass(frozen=True)
class WindowsParameters(SidesParameters):
    """Holds the parameters of `run`; the first batch fills all windows, so at least one is not timed."""

    rows_per_batch: int = 400_000
    """Rows per batch, which is one file; >= 1."""

    window_keys: int = 1_000
    """Distinct keys, drawn evenly; >= 1."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(min(self.rows_per_batch, self.window_keys) >= 1, "rows and keys must be >= 1")


@dataclass(frozen=True)
class TimedInput:
    """Writes rows in time order from second 0 on, a file per batch; the first file spans a window."""

    rows: int
    batches: int
    seconds: int
    keys: int
    seed: int

    def batch(self, index: int) -> tuple[I64, I64, I64]:
        """Return times (microseconds), keys and values of one file."""
        random = np.random.default_rng([self.seed, index])
        first_s = 0 if index == 0 else OVERLAP + (index - 1) * self.seconds
        span_us = (OVERLAP if index == 0 else self.seconds) * _SECOND_US
        times = first_s * _SECOND_US + np.arange(self.rows) * span_us // self.rows
        keys = random.integers(0, self.keys, self.rows, dtype=np.int64)
        return times, keys, random.integers(0, VALUES, self.rows, dtype=np.int64)

    def write(self, directory: Path) -> Path:
        """Write all files; return their folder."""
        directory.mkdir(parents=True)
        for index in range(self.batches):
            times, keys, values = self.batch(index)
            table = pa.table(
                {"ts": pa.array(times, pa.timestamp("us", "UTC")), "k": keys, "v": values}
            )
            path = directory / f"batch-{index:05d}.parquet"
            pa.parquet.write_table(table, path, row_group_size=-(-self.rows // ROW_GROUPS))
        return directory

    def answer(self, advance_s: int) -> dict[str, I64]:
        """Return count and sum of every key in every window that the last watermark closes.

        A window is closed if its end is at or before the latest event time.
        """
        times, keys, values = (
            np.concatenate(column)
            for column in zip(*(self.batch(i) for i in range(self.batches)), strict=True)
        )
        last_us = int(times.max())
        found: dict[str, list[I64]] = {"start": [], "k": [], "c": [], "s": []}
        first_s = -(OVERLAP // advance_s) * advance_s
        for start_s in range(first_s, last_us // _SECOND_US - OVERLAP + 1, advance_s):
            start_us = start_s * _SECOND_US
            inside = (times >= start_us) & (times < start_us + OVERLAP * _SECOND_US)
            counts = np.bincount(keys[inside], minlength=self.keys)
            sums = np.bincount(keys[inside], values[inside], self.keys).astype(np.int64)
            (seen,) = np.nonzero(counts)
            found["start"].append(np.full(seen.size, start_us))
            found["k"].append(seen)
            found["c"].append(counts[seen])
            found["s"].append(sums[seen])
        return {name: np.concatenate(columns) for name, columns in found.items()}


def query(spark: SparkSession, directory: Path, case: str) -> DataFrame:
    """Return count and sum per key and window."""
    reader = spark.readStream.schema(_SCHEMA).option("maxFilesPerTrigger", 1)
    rows = reader.parquet(str(directory)).withWatermark("ts", "0 seconds")
    window = F.window("ts", f"{OVERLAP} seconds", f"{_ADVANCE_S[case]} seconds")
    totals = rows.groupBy(window, "k").agg(F.count(F.lit(1)).alias("c"), F.sum("v").alias("s"))
    return totals.select(F.unix_micros("window.start").alias("start"), "k", "c", "s")


def run(**given: Any) -> dict[str, Any]:
    """Return rows/s of every engine for both kinds of windows, and the ratios.

    Parameters
    ----------
    **given
        Fields of `WindowsParameters`.

    Raises
    ------
    ConfigError    A parameter is unknown or out of range.
    WrongAnswer    An engine's answer is not the exact one.
    """
    asked = parameters(WindowsParameters, given)
    small = TimedInput(2_000, 4, 35, 50, asked.seed + 1)
    large = TimedInput(
        asked.rows_per_batch, asked.batches, asked.seconds_per_batch, asked.window_keys, asked.seed
    )
    with tempfile.TemporaryDirectory(prefix="headgate-bench-") as name:
        directory = Path(name)
        files = small.write(directory / "check"), large.write(directory / "timed")
        cases = [
            Case(kind, *files, large.rows, small.answer(advance_s))
            for kind, advance_s in _ADVANCE_S.items()
        ]
        entries = Comparison(f"{__name__}:query", cases, directory / "work", asked).run()
    return {
        "benchmark": "windows",
        "parameters": asdict(asked),
        "engines": entries,
        "overlap": overlap(entries),
        "ratios": against_spark(entries, list(_ADVANCE_S)),
        "failed": failed(entries),
    }


def overlap(entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return per engine the ratio of rows/s, tumbling to sliding windows; headgate's with the target."""
    found = []
    for engine in dict.fromkeys(entry["engine"] for entry in entries):
        pair = ratio(entries, (engine, TUMBLING), (engine, SLIDING))
        if pair is not None:
            slower, is_ours = pair["ratio"], engine == HEADGATE
            at_most = TARGET if is_ours else None
            met = slower <= TARGET if is_ours else None
            found.append({"engine": engine, "ratio": slower, "at_most": at_most, "met": met})
    return found
