"""Defines a keyed aggregate with many sums per key, so that state of a given size has few keys.

All engines hold the same entries. The size of an entry is that in headgate's layout; further memory of
an engine (indexes, files, copies) does not count.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from headgate.operators.build import row_bytes
from headgate.spark.read.logical import read
from headgate_lab.bench.common import Answer

I64 = npt.NDArray[np.int64]

SUMS = 30
"""Sums per key; an entry has about 0.3 kB. Chosen so that 1 GB has 4 million keys instead of 30."""

FILL_ROWS = 250_000
"""Rows per file that fills the state."""

_SCHEMA = "k bigint, v bigint"


@dataclass(frozen=True)
class WideInput:
    """Writes files that first fill state with `keys` entries, then update some entries per file.

    Attributes
    ----------
    keys : int
        Keys are 0 to ``keys - 1``; the filling files have each key once.
    rows_per_batch : int
        Rows per later file; all of different keys, so that as many entries change.
    """

    keys: int
    rows_per_batch: int
    seed: int

    def fill(self, directory: Path) -> int:
        """Write the files that fill the state, and return their number."""
        order = np.random.default_rng(self.seed).permutation(self.keys)
        parts = [order[at : at + FILL_ROWS] for at in range(0, self.keys, FILL_ROWS)]
        for index, keys in enumerate(parts):
            _write(directory, f"fill-{index:05d}", keys)
        return len(parts)

    def touched(self, index: int) -> I64:
        """Return the keys of a later file; shape [rows_per_batch], distinct."""
        random = np.random.default_rng([self.seed, index])
        # A random start and a stride: distinct keys without a permutation of millions.
        start, stride = int(random.integers(self.keys)), 7_919
        keys = (start + stride * np.arange(self.rows_per_batch, dtype=np.int64)) % self.keys
        return np.unique(keys)

    def touch(self, directory: Path, index: int) -> None:
        """Write a later file."""
        _write(directory, f"touch-{index:05d}", self.touched(index))

    def again(self, directory: Path, keys: I64) -> None:
        """Write a last file with `keys`, so that an engine in update mode emits all of them."""
        _write(directory, "touch-again", keys)

    def answer(self, touches: int) -> Answer:
        """Return the exact count and first sum of all keys in the first `touches` later files."""
        if touches == 0:
            nothing = np.zeros(0, np.int64)
            return Answer(nothing, nothing, nothing)
        every = np.concatenate([self.touched(index) for index in range(touches)])
        keys, times = np.unique(every, return_counts=True)
        counts = times + 1  # the filling files have each key once
        return Answer(keys, counts, counts * values_of(keys))


def values_of(keys: I64) -> I64:
    """Return the value of each key's rows."""
    return keys % 1_000


def _write(directory: Path, name: str, keys: I64) -> None:
    table = pa.table({"k": keys, "v": values_of(keys)})
    # a file must be complete when Spark lists it
    hidden = directory / f".{name}"
    pa.parquet.write_table(table, hidden)
    hidden.rename(directory / f"{name}.parquet")


def source(spark: SparkSession, directory: Path, files_per_batch: int = 1) -> DataFrame:
    """Return the stream of the files of `directory`, oldest first."""
    reader = spark.readStream.schema(_SCHEMA).option("maxFilesPerTrigger", files_per_batch)
    return reader.parquet(str(directory))


def totals(rows: DataFrame, *more: Column) -> DataFrame:
    """Return count and `SUMS` sums per key, and `more` aggregates."""
    sums = [F.sum(F.col("v") + F.lit(i)).alias(f"s{i}") for i in range(SUMS)]
    return rows.groupBy("k").agg(F.count(F.lit(1)).alias("c"), *sums, *more)


def entry_bytes(spark: SparkSession, directory: Path) -> int:
    """Return the size of an entry in headgate's layout."""
    (operator,) = read(totals(source(spark, directory)), "update", None).operators
    return row_bytes(operator.spec)
