"""The answer equals Spark's own batch answer, whatever happened to slots in between."""

from __future__ import annotations

import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import answers
import pandas as pd  # type: ignore[import-untyped]
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T
from pyspark.sql.functions import pandas_udf  # type: ignore[attr-defined]

import headgate as hg

QUERIES, AT_ONCE = 51, 3
QUICK = 1
"""So many lots of them without ``--thorough``."""


@pytest.fixture(scope="module")
def session(spark: SparkSession) -> SparkSession:
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    spark.conf.set("spark.sql.shuffle.partitions", "2")
    return spark


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data") / "in"
    answers.write_files(folder, seed=1)
    return folder


def start(
    query: answers.Generated, frame: DataFrame, name: str, checkpoint: Path, preaggregate: str
) -> Any:
    return (
        hg.writeStream(frame)
        .format("memory")
        .queryName(name)
        .outputMode(query.mode)
        .option("checkpointLocation", str(checkpoint))
        .option("headgate.preaggregate", preaggregate)
        .slots(start=2)
        .trigger(availableNow=True)
        .start()
    )


def wrong(spark: SparkSession, query: answers.Generated, files: Path, name: str) -> list[str]:
    """Return what is wrong with the answer in table `name`."""
    batch = query.build(answers.source(spark, files, stream=False))
    expected, table = batch.collect(), spark.table(name)
    got = table.collect()
    if query.mode == "append":
        until = answers.final_watermark(files).replace(tzinfo=None)
        expected = [row for row in expected if _utc(row[query.window].end) <= until]
    if query.mode == "update":
        got = answers.last_per_key(got, query.keys)
    found = []
    difference = answers.differences(expected, got)
    if difference:
        found.append(f"{query.text}\n{difference}")
    # a stream's columns may be null where the batch query's may not, as plain Spark has it
    schemas = [answers.shape(frame.schema, nullable=False) for frame in (batch, table)]
    if schemas[0] != schemas[1]:
        found.append(f"{query.text}\nschema {schemas[0]}, got {schemas[1]}")
    return found if expected else [*found, f"{query.text}\nhas no rows to compare"]


def of_part(part: int, at_once: int) -> range:
    """Return the seeds of one test among several."""
    return range(part * at_once, (part + 1) * at_once)


def differing(
    spark: SparkSession,
    queries: Mapping[str, answers.Generated],
    files: Path,
    folder: Path,
    rng: random.Random,
) -> list[str]:
    """Run queries while slots change, and return what is wrong with their answers."""
    found = []
    for name, query in queries.items():
        stream = query.build(answers.source(spark, files, stream=True))
        running = start(query, stream, name, folder / name, rng.choice(["on", "off"]))
        assert answers.change_at_random(running, rng) > 0
        found += wrong(spark, query, files, name)
        spark.catalog.dropTempView(name)
    return found


def _utc(time: Any) -> Any:
    return time.astimezone(answers.START.tzinfo).replace(tzinfo=None)


@pytest.mark.parametrize(
    "part",
    [
        pytest.param(part, marks=[pytest.mark.thorough] if part >= QUICK else [])
        for part in range(QUERIES // AT_ONCE)
    ],
)
def test_generated_queries_answer_as_spark_does(
    session: SparkSession, files: Path, tmp_path: Path, part: int
) -> None:
    queries = {f"answer_{n}": answers.generate(n) for n in of_part(part, AT_ONCE)}
    found = differing(session, queries, files, tmp_path, random.Random(part))
    assert not found, "\n\n".join(found)


doubled = F.udf(lambda n: n * 2, T.LongType())
"""Fails of a null."""


@pandas_udf(T.LongType())
def same(values: pd.Series) -> pd.Series:
    assert str(values.dtype) == "int64", "as in Spark, where no row has a null"
    return values


@pandas_udf(T.BooleanType())
def negated(values: pd.Series) -> pd.Series:
    assert str(values.dtype) == "bool"
    return ~values


LARGE = 2**60
"""No float is the number behind it."""

CHAINED = {
    "top per window": lambda s: (
        s.groupBy(F.window("ts", "6 seconds", "2 seconds"), "t")
        .agg(F.count("*").alias("n"), F.sum("l").alias("total"))
        .where("n > 1")
        .groupBy("window")
        .agg(F.max(F.struct("n", "t")).alias("top"), F.sum("total").alias("all"))
    ),
    "averages of sums": lambda s: (
        s.groupBy(F.window("ts", "4 seconds"), "i", "o")
        .agg(F.sum("m").alias("x"), F.max("d").alias("y"))
        .withColumn("even", F.col("i") % 2)
        .groupBy("window", "even")
        .agg(F.avg("x"), F.max("y"), F.count("*"))
    ),
    "functions between": lambda s: (
        s.groupBy(F.window("ts", "4 seconds"), "i")
        .agg(F.count("*").alias("n"))
        .select(
            "window",
            doubled("n").alias("n"),
            same(F.col("n") + LARGE).alias("large"),
            negated(F.col("n") > 5).alias("few"),
        )
        .groupBy("window")
        .agg(F.sum("n"), F.max("large"), F.sum(F.col("few").cast("int")))
    ),
    "a quotient of counts": lambda s: (
        s.groupBy(F.window("ts", "4 seconds"), "i")
        .agg(F.count("*").alias("n"))
        .withColumn("share", 100 / F.col("n"))
        .groupBy("window")
        .agg(F.max("share"), F.max(100 / F.col("n")), F.count("*"))
    ),
}


@pytest.mark.parametrize("name", CHAINED)
def test_chains_answer_as_spark_does(
    session: SparkSession, files: Path, tmp_path: Path, name: str
) -> None:
    def build(frame: DataFrame) -> DataFrame:
        return CHAINED[name](frame.withWatermark("ts", f"{answers.DELAY_S} seconds"))

    query = answers.Generated(build, "append", ["window"], "window", name)
    stream = build(answers.source(session, files, stream=True))
    running = start(query, stream, "chained", tmp_path / "checkpoint", "off")
    answers.change_at_random(running, random.Random(name))
    assert wrong(session, query, files, "chained") == []


def test_a_null_event_time_as_a_key_is_a_key_of_its_own(
    session: SparkSession, files: Path, tmp_path: Path
) -> None:
    def build(frame: DataFrame) -> DataFrame:
        return (
            frame.withWatermark("ts", "5 seconds").groupBy("ts", "o").agg(F.count("*").alias("n"))
        )

    query = answers.Generated(build, "update", ["ts", "o"], None, "null event time")
    stream = build(answers.source(session, files, stream=True))
    running = start(query, stream, "null_time", tmp_path / "checkpoint", "off")
    answers.change_at_random(running, random.Random(0))
    assert wrong(session, query, files, "null_time") == []
