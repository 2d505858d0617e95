"""Counts words, and pairs of words, of tweets with headgate and Spark: `explode` before `groupBy`.

`flink_words` runs the same on Flink.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from headgate_lab.bench.common import ROW_GROUPS
from headgate_lab.bench.sides import Case, Comparison, SidesParameters
from headgate_lab.workloads.tweets import TWEETS, VOCABULARY, WORDS_MAX, keys, tweets

DISTANCES: Mapping[str, int] = {"words": 0, "pairs-3": 3, "pairs-10": 10, "pairs-any": WORDS_MAX}
"""For each case, the largest distance of the words of a pair; 0: count words. STRETCH 8.1."""

CHECK_ROWS, CHECK_BATCHES = 200, 2
"""Tweets per file, and number of files, of the input whose answer is checked."""

I64 = npt.NDArray[np.int64]


def write(directory: Path, batches: int, rows: int) -> Path:
    """Write files of `rows` tweets each; return their folder."""
    directory.mkdir(parents=True)
    different = tweets()
    for index in range(batches):
        words = different[np.arange(index * rows, (index + 1) * rows) % TWEETS]
        filled = words >= 0
        ends = np.concatenate([[0], np.cumsum(filled.sum(axis=1))]).astype(np.int32)
        column = pa.ListArray.from_arrays(pa.array(ends), pa.array(words[filled]))
        path = directory / f"batch-{index:05d}.parquet"
        table = pa.table({"words": column})
        pa.parquet.write_table(table, path, row_group_size=-(-rows // ROW_GROUPS))
    return directory


def answer(count: int, distance_max: int) -> dict[str, I64]:
    """Return the exact count of every key of the first `count` tweets."""
    words = tweets()[np.arange(count) % TWEETS]
    key, counts = np.unique(keys(words, distance_max), return_counts=True)
    return {"key": key, "c": counts.astype(np.int64)}


def check_answer(case: str) -> dict[str, I64]:
    """Return the exact answer of a case on the input that is checked."""
    return answer(CHECK_BATCHES * CHECK_ROWS, DISTANCES[case])


def query(spark: SparkSession, directory: Path, case: str) -> DataFrame:
    """Return the count of every key."""
    reader = spark.readStream.schema("words array<int>").option("maxFilesPerTrigger", 1)
    rows = reader.parquet(str(directory))
    keyed = rows.select(F.explode(_keys(DISTANCES[case])).alias("key"))
    return keyed.groupBy("key").agg(F.count(F.lit(1)).alias("c"))


def _keys(distance_max: int) -> Any:
    if distance_max == 0:
        return F.expr("transform(words, word -> CAST(word AS BIGINT))")
    # slice counts from 1: the words after word i begin at position i + 2
    others = f"slice(words, i + 2, {distance_max})"
    pairs = f"transform({others}, other -> word * {VOCABULARY}L + other)"
    return F.expr(f"flatten(transform(words, (word, i) -> {pairs}))")


def compare(
    cases: tuple[str, ...], directory: Path, *, rows: int, slots: int, timeout_s: float
) -> list[dict[str, Any]]:
    """Return an entry per engine and case; rates are tweets/s.

    Parameters
    ----------
    cases : tuple of str
        Keys of `DISTANCES`.
    directory : path
        For files and checkpoints.
    rows : int
        Tweets per batch.
    timeout_s : float
        Time limit of each engine.

    Raises
    ------
    WrongAnswer    An engine's answer is wrong.
    """
    asked = SidesParameters(batches=5, dropped_batches=2, slots=slots, timeout_s=timeout_s)
    check = write(directory / "check", CHECK_BATCHES, CHECK_ROWS)
    timed = write(directory / "timed", asked.batches, rows)
    found = [
        Case(
            case,
            check,
            timed,
            rows,
            check_answer(case),
            last_of="key",
        )
        for case in cases
    ]
    return Comparison(f"{__name__}:query", found, directory / "work", asked).run()
