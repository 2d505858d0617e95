"""Compares headgate's join of two streams, on a key and within a band of event time, with Spark's.

Two records match if they have the same key and their event times differ by at most `BAND_S`.
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

from headgate_lab.bench.common import ROW_GROUPS, parameters, require
from headgate_lab.bench.sides import (
    Case,
    Comparison,
    SidesParameters,
    against_spark,
    failed,
)

I64 = npt.NDArray[np.int64]

BAND_S = 5
"""Largest difference of the event times of two matching records, in seconds."""

_SIDES = ("left", "right")
_SCHEMA = "ts timestamp, k bigint, id bigint"
_SECOND_US = 1_000_000


@dataclass(frozen=True)
class JoinParameters(SidesParameters):
    """Holds the parameters of `run`."""

    join_rows: int = 100_000
    """Rows per batch of each of the two streams; >= 1."""

    join_keys: int = 50_000
    """Distinct keys, drawn evenly; at 10,000 rows a second a record has two matches; >= 1."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(min(self.join_rows, self.join_keys) >= 1, "rows and keys must be >= 1")


@dataclass(frozen=True)
class TwoStreams:
    """Writes the rows of two streams in time order, for each stream a file per batch.

    Event time begins one second after the Unix epoch, since Spark's watermark begins at the epoch and
    rows at or before it would be late.
    """

    rows: int
    batches: int
    seconds: int
    keys: int
    seed: int

    def side(self, side: int) -> tuple[I64, I64]:
        """Return times (microseconds) and keys of one stream's rows; a row's id is its position."""
        random = np.random.default_rng([self.seed, side])
        count, span_us = self.rows * self.batches, self.seconds * _SECOND_US
        place = np.arange(count, dtype=np.int64)
        times = _SECOND_US + place // self.rows * span_us + place % self.rows * span_us // self.rows
        return times, random.integers(0, self.keys, count, dtype=np.int64)

    def write(self, directory: Path) -> Path:
        """Write all files, a folder per stream, and return their parent folder."""
        for side, name in enumerate(_SIDES):
            (directory / name).mkdir(parents=True)
            times, keys = self.side(side)
            ids = np.arange(times.size, dtype=np.int64)
            table = pa.table(
                {"ts": pa.array(times, pa.timestamp("us", "UTC")), "k": keys, "id": ids}
            )
            for index in range(self.batches):
                path = directory / name / f"batch-{index:05d}.parquet"
                part = table.slice(index * self.rows, self.rows)
                pa.parquet.write_table(part, path, row_group_size=-(-self.rows // ROW_GROUPS))
        return directory

    def answer(self) -> dict[str, I64]:
        """Return the ids of all pairs, key by key."""
        (left_times, left_keys), (right_times, right_keys) = self.side(0), self.side(1)
        pairs: dict[str, list[I64]] = {"left_id": [], "right_id": []}
        for key in range(self.keys):
            (mine,), (theirs,) = np.nonzero(left_keys == key), np.nonzero(right_keys == key)
            apart_us = np.abs(left_times[mine, None] - right_times[theirs])
            at_left, at_right = np.nonzero(apart_us <= BAND_S * _SECOND_US)
            pairs["left_id"].append(mine[at_left])
            pairs["right_id"].append(theirs[at_right])
        return {name: np.concatenate(ids) for name, ids in pairs.items()}


def query(spark: SparkSession, directory: Path, case: str) -> DataFrame:
    """Return the ids of all pairs."""
    left, right = (_stream(spark, directory, side) for side in _SIDES)
    band = F.expr(f"INTERVAL {BAND_S} SECONDS")
    near = F.col("right_ts").between(F.col("left_ts") - band, F.col("left_ts") + band)
    return left.join(right, (F.col("left_k") == F.col("right_k")) & near).select(
        "left_id", "right_id"
    )


def _stream(spark: SparkSession, directory: Path, side: str) -> DataFrame:
    reader = spark.readStream.schema(_SCHEMA).option("maxFilesPerTrigger", 1)
    rows = reader.parquet(str(directory / side))
    named = rows.select(*(F.col(name).alias(f"{side}_{name}") for name in ("ts", "k", "id")))
    return named.withWatermark(f"{side}_ts", "0 seconds")


def run(**given: Any) -> dict[str, Any]:
    """Return rows/s of every engine, both streams together, and the ratios.

    Parameters
    ----------
    **given
        Fields of `JoinParameters`.

    Raises
    ------
    ConfigError    A parameter is unknown or out of range.
    WrongAnswer    An engine's answer is not the exact one.
    """
    asked = parameters(JoinParameters, given)
    small = TwoStreams(1_000, 3, 10, 100, asked.seed + 1)
    large = TwoStreams(
        asked.join_rows, asked.batches, asked.seconds_per_batch, asked.join_keys, asked.seed
    )
    with tempfile.TemporaryDirectory(prefix="headgate-bench-") as name:
        directory = Path(name)
        files = small.write(directory / "check"), large.write(directory / "timed")
        cases = [Case("join", *files, 2 * large.rows, small.answer())]
        entries = Comparison(f"{__name__}:query", cases, directory / "work", asked).run()
    return {
        "benchmark": "join",
        "parameters": asdict(asked),
        "engines": entries,
        "ratios": against_spark(entries, ["join"]),
        "failed": failed(entries),
    }
