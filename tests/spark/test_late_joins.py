"""Records that come late to a join of two streams: what plain Spark's stream puts out comes out.

Of a batch Spark drops what is behind the watermark of the batch before, and forgets in the end what is
behind its own: a record in between meets what is there, and is forgotten at once.
"""

from __future__ import annotations

import datetime as dt
import os
import random
from pathlib import Path
from typing import Any

import answers
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F

import headgate as hg

BATCHES, ROWS, BATCH_S, BEHIND_S, DELAY_S = 5, 40, 10, 25, 5
SCHEMA = "id bigint, ts timestamp, t string"


def write_late(folder: Path, seed: int) -> None:
    """Write batches whose times reach back as far as the one before the last: a third is too late."""
    rng = random.Random(seed)
    folder.mkdir()
    for number in range(BATCHES):
        first_s = number * BATCH_S - BEHIND_S
        times_s = [first_s + rng.random() * (BATCH_S + BEHIND_S) for _ in range(ROWS)]
        columns = {
            "id": pa.array(range(number * ROWS, (number + 1) * ROWS)),
            "ts": pa.array(
                [answers.START + dt.timedelta(seconds=s) for s in times_s],
                pa.timestamp("us", tz="UTC"),
            ),
            "t": pa.array([rng.choice("abc") for _ in range(ROWS)]),
        }
        pq.write_table(pa.table(columns), folder / f"{number}.parquet")
        os.utime(folder / f"{number}.parquet", (1_000_000_000 + number,) * 2)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    place = tmp_path_factory.mktemp("data")
    for seed in range(2):
        write_late(place / f"in{seed}", seed)
    return [place / f"in{seed}" for seed in range(2)]


def in_time(spark: SparkSession, folders: list[Path], how: str) -> DataFrame:
    left, right = (watermarked(spark, folder) for folder in folders)
    right = right.select(*[F.col(c).alias(f"{c}2") for c in right.columns])
    near = "ts2 >= ts - interval 3 seconds and ts2 <= ts + interval 4 seconds"
    return left.join(right, F.expr(f"t = t2 and {near}"), how)


def in_one_window(spark: SparkSession, folders: list[Path], how: str) -> DataFrame:
    left, right = (watermarked(spark, folder) for folder in folders)
    left = left.select("id", "t", F.window("ts", "4 seconds").alias("w"))
    right = right.select(
        F.col("id").alias("id2"), F.col("t").alias("t2"), F.window("ts", "4 seconds").alias("w2")
    )
    return left.join(right, F.expr("t = t2 and w = w2"), how)


def watermarked(spark: SparkSession, folder: Path) -> DataFrame:
    reader = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1)
    return reader.parquet(str(folder)).withWatermark("ts", f"{DELAY_S} seconds")


def put_out(frame: DataFrame, writer: Any, place: Path) -> list[Row]:
    writer = writer.format("parquet").option("path", str(place / "out"))
    writer = writer.option("checkpointLocation", str(place / "checkpoint"))
    writer.trigger(availableNow=True).start().awaitTermination()
    return frame.sparkSession.read.schema(frame.schema).parquet(str(place / "out")).collect()


@pytest.mark.parametrize(
    "build", [pytest.param(one, marks=pytest.mark.thorough) for one in (in_time, in_one_window)]
)
def test_what_comes_late_meets_whom_it_meets_on_plain_spark(
    spark: SparkSession, folders: list[Path], tmp_path: Path, build: Any
) -> None:
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    spark.conf.set("spark.sql.shuffle.partitions", "2")
    both = build(spark, folders, "full_outer")
    expected = put_out(both, both.writeStream, tmp_path / "spark")
    got = put_out(both, hg.writeStream(both).keyGroups(16).slots(start=2), tmp_path / "headgate")
    met = {row.id for row in expected if row.id is not None and row.id2 is not None}
    assert len(met) > 20
    assert {row.id for row in expected} < set(range(BATCHES * ROWS)) | {None}, "none is late"
    assert answers.differences(expected, got) == ""
    semi = build(spark, folders, "left_semi")
    found = put_out(semi, hg.writeStream(semi).keyGroups(16).slots(start=2), tmp_path / "semi")
    assert sorted(row.id for row in found) == sorted(met)


def test_an_aggregate_in_a_job_of_its_own_waits_for_pairs_that_come_out_late(
    spark: SparkSession, folders: list[Path], tmp_path: Path
) -> None:
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    spark.conf.set("spark.sql.shuffle.partitions", "2")
    names = spark.createDataFrame([(letter,) for letter in "abc"], "t string")
    pairs = in_time(spark, folders, "inner").join(names, "t")
    counted = pairs.groupBy(F.window("ts", "1 second"), "t").count()
    expected = put_out(counted, counted.writeStream, tmp_path / "spark")
    got = put_out(counted, hg.writeStream(counted).keyGroups(16).slots(start=2), tmp_path / "own")
    assert len(expected) > 20
    assert answers.differences(expected, got) == ""
