"""A keyed aggregate whose state has a wanted size: many sums per key, so that a GB is few keys.

All engines hold the same entries; an entry's size is that of headgate's own layout, and what an engine
needs on top of it (indexes, files, copies) is its own affair.
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
"""Sums per key; an entry is about 0.3 kB. Chosen, so that 1 GB is 4 million keys and not 30."""

FILL_ROWS = 250_000
"""Rows of a file that fills state."""

_SCHEMA = "k bigint, v bigint"


@dataclass(frozen=True)
class WideInput:
    """Files that first fill state with `keys` entries, then touch some of them again and again.

    Attributes
    ----------
    keys : int
        0 to ``keys - 1``; each comes once while state is filled.
    rows_per_batch : int
        Rows of each later file; each is of another key, so that as many entries change.
    """

    keys: int
    rows_per_batch: int
    seed: int

    def fill(self, directory: Path) -> int:
        """Write the files that fill state; return how many."""
        order = np.random.default_rng(self.seed).permutation(self.keys)
        parts = [order[at : at + FILL_ROWS] for at in range(0, self.keys, FILL_ROWS)]
        for index, keys in enumerate(parts):
            _write(directory, f"fill-{index:05d}", keys)
        return len(parts)

    def touched(self, index: int) -> I64:
        """Return the keys of a later file; shape [rows_per_batch], distinct."""
        random = np.random.default_rng([self.seed, index])
        # distinct without permuting millions: a random start and a stride without common divisor
        start, stride = int(random.integers(self.keys)), 7_919
        keys = (start + stride * np.arange(self.rows_per_batch, dtype=np.int64)) % self.keys
        return np.unique(keys)

    def touch(self, directory: Path, index: int) -> None:
        """Write a later file."""
        _write(directory, f"touch-{index:05d}", self.touched(index))

    def again(self, directory: Path, keys: I64) -> None:
        """Write a last file with `keys`, so that an engine in update mode shows them all."""
        _write(directory, "touch-again", keys)

    def answer(self, touches: int) -> Answer:
        """Return exact count and first sum of the keys that the first `touches` later files have."""
        if touches == 0:
            nothing = np.zeros(0, np.int64)
            return Answer(nothing, nothing, nothing)
        every = np.concatenate([self.touched(index) for index in range(touches)])
        keys, times = np.unique(every, return_counts=True)
        counts = times + 1  # filling had each key once
        return Answer(keys, counts, counts * values_of(keys))


def values_of(keys: I64) -> I64:
    """Return the value that goes with each key."""
    return keys % 1_000


def _write(directory: Path, name: str, keys: I64) -> None:
    table = pa.table({"k": keys, "v": values_of(keys)})
    # a file must be whole when Spark lists it
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
