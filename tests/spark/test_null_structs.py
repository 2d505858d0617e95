"""Null structs with fields that are never null, a variant for one, pass all kinds of operators."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.ml.functions import array_to_vector
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

import headgate as hg

_STRUCT = "named_struct('n', 1, 'at', timestamp '2026-01-01', 'for', interval 1 day)"
TYPES: dict[str, str] = {
    "variant": "parse_json(j)",
    "struct": f"case when j is not null then {_STRUCT} end",
    "nested": f"case when j is not null then named_struct('l', array({_STRUCT}), 'v', parse_json(j)) end",
    "array": "array(parse_json(j))",
    "map": "map('a', parse_json(j))",
}
"""Columns of which some row has a null struct; each struct has a field that is never null."""


@pytest.fixture(scope="module")
def folder(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("structs") / "in"
    rows = [(1, '{"q":1}'), (2, None), (3, '{"q":[2]}'), (2, None), (4, None)]
    spark.createDataFrame(rows, "k int, j string").coalesce(1).write.parquet(str(folder))
    before = spark.conf.get("spark.sql.shuffle.partitions")
    spark.conf.set("spark.sql.shuffle.partitions", "1")
    yield folder
    spark.conf.set("spark.sql.shuffle.partitions", before)


def rows_of(spark: SparkSession, folder: Path) -> DataFrame:
    rows = spark.readStream.schema("k int, j string").parquet(str(folder))
    rows = rows.withColumns({name: F.expr(text) for name, text in TYPES.items()})
    numbers = F.when(F.col("j").isNotNull(), F.array(F.lit(1.0), F.lit(2.0)))
    vector = F.when(
        F.col("j").isNotNull(), array_to_vector(F.coalesce(numbers, F.array(F.lit(0.0))))
    )
    return rows.withColumn("vector", vector).withColumn("at", F.timestamp_seconds("k"))


def shown(name: str, at: str) -> Column:
    value = F.col(at)
    return (value.cast("string") if name == "vector" else F.to_json(F.struct(value))).alias(at)


NAMES = [*TYPES, "vector"]


def duplicates(rows: DataFrame) -> DataFrame:
    return rows.dropDuplicates(["k"]).select("k", *(shown(n, n) for n in NAMES))


def aggregates(rows: DataFrame) -> DataFrame:
    made = [F.first(n).alias(f"first_{n}") for n in NAMES]
    made += [F.max_by(n, "k").alias(f"by_{n}") for n in NAMES]
    made += [F.get(F.collect_list(n), 0).alias(f"list_{n}") for n in NAMES]
    calls = [(n, f"{way}_{n}") for n in NAMES for way in ("first", "by", "list")]
    return rows.groupBy("k").agg(*made).select("k", *(shown(n, at) for n, at in calls))


def keys(rows: DataFrame) -> DataFrame:
    counted = rows.groupBy("struct").agg(F.count("*").alias("n"), F.min("struct").alias("least"))
    return counted.select(F.to_json("struct"), "n", F.to_json("least"))


def pairs(rows: DataFrame) -> DataFrame:
    left = rows.withWatermark("at", "1 second")
    right = rows.select(F.col("k").alias("rk"), "at", *(F.col(n).alias(f"r_{n}") for n in NAMES))
    right = right.withColumnRenamed("at", "rat").withWatermark("rat", "1 second")
    # the last one has a partner, and the first none: a padded side is null, too
    met = left.join(
        right, F.expr("k + 1 = rk and rat between at and at + interval 2 seconds"), "left"
    )
    return met.select("k", *(shown(n, n) for n in NAMES), *(shown(n, f"r_{n}") for n in NAMES))


def again(rows: DataFrame) -> DataFrame:
    return (
        duplicates_of(rows)
        .groupBy("k")
        .agg(*(F.first(n).alias(n) for n in NAMES))
        .select("k", *(shown(n, n) for n in NAMES))
    )


def duplicates_of(rows: DataFrame) -> DataFrame:
    return rows.dropDuplicates(["k", "j"])


QUERIES: dict[str, tuple[Any, str]] = {
    "duplicates": (duplicates, "append"),
    "aggregates": (aggregates, "complete"),
    "keys": (keys, "complete"),
    "pairs": (pairs, "append"),
    "two operators": (again, "update"),
}


QUICK = ("duplicates", "pairs")
"""Queries of the short run: the two kinds of operators that hand on columns as they are."""


@pytest.mark.parametrize(
    "name",
    [n if n in QUICK else pytest.param(n, marks=pytest.mark.thorough) for n in QUERIES],
)
def test_null_structs_come_through_as_in_plain_spark(spark, folder: Path, name: str) -> None:
    build, mode = QUERIES[name]
    found = {}
    for engine in ("spark", "headgate"):
        frame = build(rows_of(spark, folder))
        writer: Any = frame.writeStream if engine == "spark" else hg.writeStream(frame)
        table = f"structs_{engine}"
        spark.sql(f"DROP VIEW IF EXISTS {table}")
        writer = writer.format("memory").queryName(table).outputMode(mode)
        writer.trigger(availableNow=True).start().awaitTermination()
        found[engine] = sorted(map(repr, spark.table(table).collect()))
    assert found["headgate"] == found["spark"]
    assert found["headgate"]


def test_null_structs_wait_in_a_backlog_and_outlive_a_restart(
    spark, folder: Path, tmp_path
) -> None:
    found: list[str] = []
    some = threading.Event()

    def keep(batch: DataFrame, _: int) -> None:
        found.extend(repr(row) for row in batch.collect())
        some.set()

    for life in range(2):
        made = hg.writeStream(duplicates(rows_of(spark, folder))).foreachBatch(keep).slots(start=1)
        made = made.option("checkpointLocation", str(tmp_path / "ck")).keyGroups(4)
        query = made.option("headgate.slotRate", 2).trigger(processingTime="0 seconds").start()
        assert some.wait(60), query.exception()
        if life:
            query.processAllAvailable()
        query.stop()
    batch = spark.read.parquet(str(folder))
    assert len(found) == batch.select("k").distinct().count()
