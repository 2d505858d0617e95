"""Queries that begin on plain Spark and end on headgate, or the other way round."""

from __future__ import annotations

import datetime as dt
import os
import random
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, Row, SparkSession

import headgate as hg

FILES, ROWS, FILE_S, DELAY_S, PER_BATCH = 6, 40, 3, 5, 1
START = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
HDFS = "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider"


@dataclass(frozen=True)
class Query:
    """A query, and how its answers are told apart.

    Attributes
    ----------
    build : callable
        From the source.
    mode : str
    keys : tuple of str
        Columns that tell results apart, of which the last one counts; none where every row counts.
    ends : str
        Condition under which a row of the batch answer is due by the watermark ``{due}``.
    options : tuple of (str, str)
        headgate's, for its writer.
    batch : bool
        Whether there is a batch answer; else plain Spark's own over the same batches is.
    """

    build: Callable[[DataFrame], DataFrame]
    mode: str
    keys: tuple[str, ...] = ()
    ends: str = ""
    options: tuple[tuple[str, str], ...] = ()
    batch: bool = True


def write_files(folder: Path, seed: int) -> None:
    """Write a file per batch; no record is ever late, and every window spans several files.

    The newest record of each file has an id and a key with which it is on both sides of every join, so
    that both have the same watermark.
    """
    rng = random.Random(seed)
    folder.mkdir(parents=True)
    for number in range(FILES):
        ids = range(number * ROWS, (number + 1) * ROWS)
        times = [
            START + dt.timedelta(milliseconds=rng.randrange(-2000, 1000 * FILE_S)) for _ in ids
        ]
        newest = next(n for n, id in enumerate(ids) if id % 18 == 0)
        times[newest] = START + dt.timedelta(seconds=FILE_S)
        shift = dt.timedelta(seconds=FILE_S * number)
        table = {
            "id": pa.array(ids, pa.int64()),
            "ts": pa.array([t + shift for t in times], pa.timestamp("us", tz="UTC")),
            "k": pa.array(
                [rng.choice([None, 1, 2, 3, 4, 5]) if n != newest else 1 for n in range(ROWS)],
                pa.int32(),
            ),
            "s": pa.array([rng.choice([None, "", "a", "ab", "z\u00e9"]) for _ in ids]),
            "x": pa.array([rng.choice([None, 0, 7, -3, 10**12]) for _ in ids], pa.int64()),
            "d": pa.array([rng.choice([None, 0.25, -0.0, 2.5, 1e6]) for _ in ids], pa.float64()),
            "m": pa.array(
                [rng.choice([None, Decimal("0.01"), Decimal("-12345678901.50")]) for _ in ids],
                pa.decimal128(20, 2),
            ),
            "p": pa.array([rng.randrange(100_000) for _ in ids], pa.int64()),
        }
        file = folder / f"{number}.parquet"
        pq.write_table(pa.table(table), file)
        os.utime(file, (1_000_000_000 + number,) * 2)  # the order in which Spark takes them


def come(folder: Path, arrived: Path, until: int) -> None:
    """Have the first files come."""
    arrived.mkdir(parents=True, exist_ok=True)
    for file in sorted(folder.iterdir())[:until]:
        if not (arrived / file.name).exists():
            shutil.copy2(file, arrived / file.name)


def source(spark: SparkSession, folder: Path, schema_of: Path) -> DataFrame:
    """Return the files as a stream, one per batch."""
    schema = spark.read.parquet(str(schema_of)).schema
    return (
        spark.readStream.schema(schema).option("maxFilesPerTrigger", PER_BATCH).parquet(str(folder))
    )


def due(folder: Path) -> dt.datetime:
    """Return the watermark after the last file."""
    times = pq.read_table(folder, columns=["ts"]).column("ts").to_pylist()
    latest = max(times) - dt.timedelta(seconds=DELAY_S)
    made: dt.datetime = latest.replace(microsecond=latest.microsecond // 1000 * 1000)
    return made


def expected(spark: SparkSession, query: Query, folder: Path, place: Path, at: int) -> list[Row]:
    """Return Spark's batch answer, of it what is due; or plain Spark's own, stopped after `at` files."""
    if not query.batch:
        out: list[Row] = []
        arrived = place / "all"
        for until in (at, FILES):
            come(folder, arrived, until)
            frame = query.build(source(spark, arrived, folder))
            run_plain(frame, query, place / "by-itself", out)
        return latest(out, query)
    rows = query.build(spark.read.parquet(str(folder)))
    if query.ends:
        until = due(folder).isoformat(sep=" ")
        # of rows that are there: Spark moves a filter on a session's end below what makes sessions
        found = spark.createDataFrame(rows.collect(), rows.schema)
        rows = found.where(query.ends.format(due=f"timestamp '{until}'"))
    return rows.collect()


def run_plain(frame: DataFrame, query: Query, checkpoint: Path, out: list[Row]) -> None:
    """Run a query on plain Spark over all that has come."""
    writer = frame.writeStream.outputMode(query.mode).trigger(availableNow=True)
    writer = writer.foreachBatch(lambda rows, _: out.extend(rows.collect()))
    writer.option("checkpointLocation", str(checkpoint)).start().awaitTermination()


def writer(frame: DataFrame, query: Query, checkpoint: Path, out: list[Row]) -> Any:
    """Return headgate's writer of a query."""
    made = hg.writeStream(frame).outputMode(query.mode).trigger(availableNow=True)
    made = made.foreachBatch(lambda rows, _: out.extend(rows.collect()))
    made = made.option("checkpointLocation", str(checkpoint)).keyGroups(8).slots(start=2)
    return made.options(**dict(query.options))


def latest(rows: list[Row], query: Query) -> list[Row]:
    """Return the results that count: the last one per key, or all of them."""
    if not query.keys:
        return rows
    found: dict[Any, Row] = {}
    for row in rows:
        found[tuple(str(row[key]) for key in query.keys)] = row
    return list(found.values())


def adopted(
    spark: SparkSession, query: Query, folder: Path, place: Path, at: int
) -> tuple[list[Row], dict[str, Any]]:
    """Return what comes out if headgate takes over after `at` files, and what `adopt` said."""
    out: list[Row] = []
    arrived = place / "in"
    come(folder, arrived, at)
    frame = query.build(source(spark, arrived, folder))
    run_plain(frame, query, place / "plain", out)
    told = hg.adopt(writer(frame, query, place / "ours", out), str(place / "plain"))
    come(folder, arrived, FILES)
    writer(frame, query, place / "ours", out).start().awaitTermination()
    return latest(out, query), told


def exported(
    spark: SparkSession, query: Query, folder: Path, place: Path, at: int
) -> tuple[list[Row], dict[str, Any]]:
    """Return what comes out if plain Spark takes over after `at` files, and what `export` said."""
    out: list[Row] = []
    arrived = place / "in"
    come(folder, arrived, at)
    frame = query.build(source(spark, arrived, folder))
    writer(frame, query, place / "ours", out).start().awaitTermination()
    told = hg.export(writer(frame, query, place / "ours", out), str(place / "plain"))
    come(folder, arrived, FILES)
    run_plain(frame, query, place / "plain", out)
    return latest(out, query), told
