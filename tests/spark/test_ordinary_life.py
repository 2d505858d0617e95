"""Settings that people's sessions have: the answer is Spark's under them, too."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import headgate as hg

BIG = 2**62
ROWS = [
    {"k": k, "v": v, "text": text, "t": f"2026-03-08 0{hour}:30:00"}
    for hour in range(1, 6)
    for k, v, text in ((0, BIG, "7"), (0, BIG, "x"), (1, 3, "0"))
]
SCHEMA = "k int, v bigint, text string, t timestamp"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "in"
    path.mkdir()
    for number in range(2):
        lines = ROWS[number::2]
        (path / f"{number}.json").write_text("".join(json.dumps(row) + "\n" for row in lines))
    return path


@pytest.fixture
def session(spark: SparkSession) -> Iterator[SparkSession]:
    yield spark.newSession()
    spark.catalog.dropTempView("lived")


def streamed(spark: SparkSession, build: Any, folder: Path, checkpoint: Path) -> list[Any]:
    reader = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1)
    writer = hg.writeStream(build(reader.json(str(folder)))).slots(start=2).outputMode("complete")
    writer = writer.format("memory").queryName("lived").trigger(availableNow=True)
    writer.option("checkpointLocation", str(checkpoint)).start().awaitTermination()
    return sorted(map(tuple, spark.table("lived").collect()), key=str)


def batch(spark: SparkSession, build: Any, folder: Path) -> list[Any]:
    rows = spark.read.schema(SCHEMA).json(str(folder))
    return sorted(map(tuple, build(rows).collect()), key=str)


def sums(rows: DataFrame) -> DataFrame:
    number = F.col("text").cast("int")
    return rows.groupBy("k").agg(
        F.sum("v").alias("s"),
        F.sum(number).alias("numbers"),
        F.max(F.lit(8) / number).alias("most"),
        F.sum(F.col("v").cast("int")).alias("cut"),
    )


def test_without_ansi_sums_wrap_and_what_cannot_be_cast_is_null(
    session: SparkSession, folder: Path, tmp_path: Path
) -> None:
    session.conf.set("spark.sql.ansi.enabled", "false")
    expected = batch(session, sums, folder)
    assert expected[0][1] != 10 * BIG  # it has wrapped
    assert expected[0][2] == 35
    assert streamed(session, sums, folder, tmp_path / "ck") == expected


def test_with_ansi_a_sum_that_overflows_is_one_sentence(
    session: SparkSession, folder: Path, tmp_path: Path
) -> None:
    session.conf.set("spark.sql.ansi.enabled", "true")
    with pytest.raises(StreamingQueryException, match="left the range of bigint") as failed:
        streamed(session, lambda r: r.groupBy("k").agg(F.sum("v")), folder, tmp_path / "ck")
    assert "\n" not in str(failed.value)


def local_hours(rows: DataFrame) -> DataFrame:
    day = rows.groupBy(
        F.window("t", "1 day").alias("w"), F.to_date("t").alias("d"), F.hour("t").alias("h")
    )
    return day.agg(F.count("*").alias("n"), F.max("t").alias("last")).selectExpr(
        "string(w.start)", "d", "h", "n", "string(last)"
    )


@pytest.mark.parametrize("zone", ["America/New_York", "Asia/Kolkata"])
def test_times_are_those_of_the_sessions_zone(
    session: SparkSession, folder: Path, tmp_path: Path, zone: str
) -> None:
    session.conf.set("spark.sql.session.timeZone", zone)
    expected = batch(session, local_hours, folder)
    assert streamed(session, local_hours, folder, tmp_path / "ck") == expected
