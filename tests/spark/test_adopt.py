"""A plain query's checkpoint goes on as headgate's, and headgate's as a plain one."""

from __future__ import annotations

from pathlib import Path

import answers
import carried_state as carry
import pytest
from carried_state import Query
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F


@pytest.fixture(scope="module")
def session(spark: SparkSession) -> SparkSession:
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    spark.conf.set("spark.sql.shuffle.partitions", "2")
    return spark


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data") / "in"
    carry.write_files(folder, seed=1)
    return folder


def timed(frame: DataFrame) -> DataFrame:
    return frame.withWatermark("ts", f"{carry.DELAY_S} seconds")


FIGURES = (
    F.count("*").alias("n"),
    F.count("x").alias("xs"),
    F.sum("x").alias("sum"),
    F.min("x").alias("least"),
    F.max("s").alias("greatest"),
    F.avg("d").alias("mean"),
    F.sum("m").alias("money"),
    F.avg("m").alias("price"),
)


def windowed(frame: DataFrame) -> DataFrame:
    return timed(frame).groupBy(F.window("ts", "10 seconds"), "k").agg(*FIGURES)


def overlapping(frame: DataFrame) -> DataFrame:
    window = F.window("ts", "10 seconds", "5 seconds")
    return timed(frame).groupBy("k", window).agg(*FIGURES)


def by_key(frame: DataFrame) -> DataFrame:
    others = (F.round(F.stddev("p"), 6).alias("spread"), F.max_by("s", "p").alias("top"))
    return frame.groupBy("s", (F.col("k") % 2).alias("odd")).agg(*FIGURES, *others)


def in_all(frame: DataFrame) -> DataFrame:
    return frame.agg(F.count("*").alias("n"), F.sum("x").alias("sum")).withColumn("one", F.lit(1))


def distinct(frame: DataFrame) -> DataFrame:
    return frame.select("k", "s").dropDuplicates()


def distinct_by_time(frame: DataFrame) -> DataFrame:
    second = frame.withColumn("ts", F.date_trunc("second", "ts"))
    return timed(second).select("ts", "k").dropDuplicates()


def within(frame: DataFrame) -> DataFrame:
    return timed(frame).dropDuplicatesWithinWatermark(["p"]).select("p")


WHOLE = (("headgate.windows", "whole"),)
QUERIES = {
    "windows, append": Query(windowed, "append", ends="window.end"),
    "windows, update": Query(windowed, "update", keys=("window", "k")),
    "windows, complete": Query(windowed, "complete", keys=("window", "k")),
    "overlapping windows": Query(overlapping, "append", ends="window.end", options=WHOLE),
    "keys": Query(by_key, "update", keys=("s", "odd")),
    "no key": Query(in_all, "complete", keys=("one",)),
    "duplicates": Query(distinct, "append"),
    "duplicates by time": Query(distinct_by_time, "append"),
    "duplicates within the watermark": Query(within, "append"),
}


@pytest.mark.parametrize("provider", [carry.HDFS, carry.ROCKSDB], ids=["hdfs", "rocksdb"])
@pytest.mark.parametrize("name", QUERIES)
def test_headgate_goes_on_where_plain_spark_stopped(
    session: SparkSession, files: Path, tmp_path: Path, name: str, provider: str
) -> None:
    query = QUERIES[name]
    session.conf.set("spark.sql.streaming.stateStore.providerClass", provider)
    got, told = carry.adopted(session, query, files, tmp_path, at=3)
    expected = carry.expected(session, query, files)
    assert expected
    assert sum(one["entries"] for one in told["operators"]) > 0
    assert answers.differences(expected, got) == ""
