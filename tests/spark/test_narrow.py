"""A narrow plan computed in place gives the rows that a job gives, and what is no such plan is told."""

from __future__ import annotations

import datetime
import decimal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from headgate.spark.jvm.gateway import java_class
from headgate.spark.jvm.narrow import NarrowPlan
from headgate.spark.jvm.plans import (
    analysed,
    internal_rows,
    leaf,
    no_rows,
    of_rows,
    replace_leaf,
)
from headgate.spark.jvm.sessions import created

SCHEMA = T.StructType([
    T.StructField("k", T.StringType()),
    T.StructField("n", T.LongType()),
    T.StructField("at", T.TimestampType()),
    T.StructField("local", T.TimestampNTZType()),
    T.StructField("price", T.DecimalType(20, 3)),
    T.StructField("day", T.DateType()),
    T.StructField("raw", T.BinaryType()),
    T.StructField("list", T.ArrayType(T.StructType([T.StructField("x", T.DoubleType())]))),
])  # fmt: skip
AT = datetime.datetime(2026, 3, 29, 1, 30, 0, 123456)


def rows(count: int) -> pa.Table:
    """Rows with nulls; the keys are bytes, as slots put them out."""
    numbers = range(count)
    columns: dict[str, Any] = {
        "k": pa.array([None if i % 5 == 4 else f"ü{i}".encode() for i in numbers], pa.binary()),
        "n": pa.array([None if i % 7 == 6 else i for i in numbers], pa.int64()),
        "at": pa.array(
            [AT + datetime.timedelta(hours=i) for i in numbers], pa.timestamp("us", "UTC")
        ),
        "local": pa.array(
            [None if i % 3 else AT - datetime.timedelta(days=i) for i in numbers],
            pa.timestamp("us"),
        ),
        "price": pa.array([decimal.Decimal(i) / 8 for i in numbers], pa.decimal128(20, 3)),
        "day": pa.array([datetime.date(2026, 1, 1 + i % 28) for i in numbers]),
        "raw": pa.array([bytes([i % 256]) for i in numbers], pa.binary()),
        "list": pa.array(
            [[{"x": i / 2}] * (i % 3) if i % 4 else None for i in numbers],
            pa.list_(pa.struct([("x", pa.float64())])),
        ),
    }
    return pa.table(columns)


NARROW: dict[str, Callable[[DataFrame], DataFrame]] = {
    "as it is": lambda f: f,
    "columns": lambda f: f.select("n", F.upper("k").alias("K"), (F.col("price") * 3).alias("p")),
    "for Kafka": lambda f: f.select(
        F.col("k").cast("binary").alias("key"),
        F.to_json(F.struct("k", "n", "at", "day", "list")).cast("binary").alias("value"),
        F.array(F.struct(F.lit("h").alias("key"), F.col("raw").alias("value"))).alias("headers"),
    ),
    "filter": lambda f: f.where("n % 2 = 0").select("k", "at", "local"),
    "filter alone": lambda f: f.where("k is not null and price > 1"),
    "filter above what it computes": lambda f: f.withColumn("m", F.col("n") % 3).where("m = 1"),
    "what would raise of a dropped row": lambda f: f.where("n > 0").select(F.expr("10 / n")),
    "windows": lambda f: (
        f.where("n > 1").select(F.window("at", "10 minutes"), "n").select("window.*", "n")
    ),
    "windows of windows": lambda f: (
        f.select(F.window("at", "10 minutes").alias("w"), "n")
        .select(F.window("w", "1 hour").alias("hour"), (F.col("n") + 1).alias("m"))
        .where("m % 2 = 0")
        .select("hour.start", "m")
    ),
    "nobody left": lambda f: f.where("n < 0"),
}
WIDE: dict[str, Callable[[DataFrame], DataFrame]] = {
    "sort": lambda f: f.orderBy("n"),
    "group": lambda f: f.groupBy("k").count(),
    "explode": lambda f: f.select(F.explode("list")),
    "random": lambda f: f.select(F.rand()),
    "clock": lambda f: f.select("k", F.current_timestamp()),
    "python": lambda f: f.select(F.udf(str)("k")),
    "limit": lambda f: f.limit(3),
    "union": lambda f: f.union(f),
}


def hole(spark: SparkSession) -> Any:
    empty = no_rows(spark, SCHEMA)
    return leaf(spark, analysed(empty).output(), internal_rows(empty))


@pytest.mark.parametrize("case", NARROW)
def test_rows_are_those_of_a_job(spark: SparkSession, tmp_path: Path, case: str) -> None:
    below = hole(spark)
    frame = NARROW[case](of_rows(spark, below))
    plan = NarrowPlan.of(frame, below, SCHEMA, tmp_path / "rows")
    assert plan is not None
    for count in (1, 40, 3000):
        table = rows(count)
        given = leaf(spark, below.output(), internal_rows(created(spark, table, SCHEMA)))
        job = of_rows(spark, replace_leaf(spark, analysed(frame), below, given))
        expected = job.toArrow()
        found = plan.rows(table)
        assert found.schema.names == expected.schema.names
        same = found.cast(pa.schema(zip(found.schema.names, expected.schema.types, strict=True)))
        assert same.to_pylist() == expected.to_pylist()


@pytest.mark.parametrize("case", WIDE)
def test_what_is_no_narrow_plan_is_told(spark: SparkSession, tmp_path: Path, case: str) -> None:
    below = hole(spark)
    assert (
        NarrowPlan.of(WIDE[case](of_rows(spark, below)), below, SCHEMA, tmp_path / "rows") is None
    )


def test_a_value_that_raises_raises_as_in_a_job_and_the_plan_goes_on(
    spark: SparkSession, tmp_path: Path
) -> None:
    below = hole(spark)
    plan = NarrowPlan.of(
        of_rows(spark, below).select(F.expr("10 / n")), below, SCHEMA, tmp_path / "rows"
    )
    assert plan is not None
    arrow = java_class(spark, "org.apache.spark.sql.util.ArrowUtils").rootAllocator()
    before = arrow.getAllocatedMemory()
    with pytest.raises(Exception, match="DIVIDE_BY_ZERO"):
        plan.rows(rows(3))
    assert plan.rows(rows(3).slice(1)).num_rows == 2
    assert arrow.getAllocatedMemory() == before
