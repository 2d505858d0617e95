"""What a run is compared with: the batch answer, of which only what was closed."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import headgate as hg
from headgate.core.errors import HeadgateError
from headgate.spark.api import waiting
from headgate.spark.api.comparison import compare


def test_a_session_that_is_open_is_not_taken_for_its_closed_part(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Spark's batch pushes a filter on a session's end below what makes sessions."""
    times = ["1 00:00:01", "1 00:00:10.0", "1 00:00:10.5", "1 00:00:10.9", "2 00:00:16"]
    (tmp_path / "in").mkdir()
    rows = ('{{"k": {}, "t": "2026-01-01 {}"}}\n'.format(*row.split(" ")) for row in times)
    (tmp_path / "in" / "1.json").write_text("".join(rows))

    def build(session: SparkSession) -> DataFrame:
        read = session.readStream.schema("k int, t timestamp").json(str(tmp_path / "in"))
        gap = F.session_window("t", "1 second")
        return read.withWatermark("t", "5 seconds").groupBy("k", gap).count()

    out = str(tmp_path / "out")
    checkpoint = str(tmp_path / "checkpoint")
    writer = hg.writeStream(build(spark)).slots(start=2).format("parquet").option("path", out)
    writer = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True)
    writer.start().awaitTermination()
    output = spark.read.parquet(out)
    assert [row["count"] for row in output.collect()] == [1], "the session from 10.0 on is open"
    found = hg.verify(spark, build, checkpoint=checkpoint, output=output)
    assert found["verified"], found
    assert found["rows_compared"] == 1


NOTHING = {"missing": 0, "extra": 0}


def summed(frame: DataFrame) -> DataFrame:
    """Return averages of doubles by key, exact things beside them, and the average in nested columns."""
    average = F.avg("x").alias("average")
    found = frame.groupBy("k").agg(
        average, F.max("x").alias("most"), F.count("*").alias("n"), F.sum("single").alias("s")
    )
    nested = F.struct(F.array(F.col("average")).alias("a"), F.col("k").alias("k")).alias("nested")
    return found.select("*", nested, F.create_map(F.lit("b"), "average").alias("by_name"))


def numbers(spark: SparkSession) -> DataFrame:
    """Return 4,000 records of 4 keys, whose sum depends on the order in its last bits."""
    rows = spark.range(0, 4000, 1, 1)
    x = F.rand(7) * F.pow(F.lit(10.0), F.col("id") % 5)
    single = F.col("id").cast("float").alias("single")
    return rows.select((F.col("id") % 4).alias("k"), x.alias("x"), single)


def in_another_order(spark: SparkSession) -> DataFrame:
    """Return `summed(numbers)` added up in another order, as rows that were written and read again."""
    sorted_rows = F.sort_array(F.collect_list(F.struct("x", "single"))).alias("r")
    parts = numbers(spark).groupBy("k").agg(sorted_rows)
    total = F.aggregate("r", F.lit(0.0), lambda so_far, one: so_far + one["x"])
    return summed(numbers(spark)).drop("average", "nested", "by_name").join(
        parts.select("k", (total / F.size("r")).alias("average")), "k"
    ).select(
        "k", "average", "most", "n", "s",
        F.struct(F.array(F.col("average")).alias("a"), F.col("k").alias("k")).alias("nested"),
        F.create_map(F.lit("b"), "average").alias("by_name"),
    )  # fmt: skip


def test_sums_in_another_order_are_equal_and_faults_are_not(spark: SparkSession) -> None:
    expected = summed(numbers(spark))
    output = spark.createDataFrame(in_another_order(spark).collect(), expected.schema)
    plain = expected.drop("by_name").exceptAll(output.drop("by_name")).count()
    assert plain > 0, "the order must make a difference, or this proves nothing"
    found = compare(expected, output)
    assert {k: found[k] for k in NOTHING} == NOTHING, found
    assert found["verified"] is True
    assert found["within_tolerance"] == ["average", "s", "nested", "by_name"]
    first = F.col("k") == 0
    average, nested = F.col("average"), F.struct(F.array(F.lit(1.5)).alias("a"), "k")
    not_a_number = F.create_map(F.lit("b"), F.lit(float("nan")))
    faults = {
        "a value": ("average", average * 1.00001),
        "a nested value": ("nested", nested),
        "a map's value": ("by_name", not_a_number),
        "null": ("average", F.lit(None)),
        "infinite": ("average", F.lit(float("inf"))),
        "a key": ("k", F.lit(9)),
        "a maximum's last bits": ("most", F.col("most") * (1 + 1e-12)),
        "an exact count": ("n", F.col("n") + 1),
    }
    for what, (column, value) in faults.items():
        changed = F.when(first, value).otherwise(F.col(column))
        found = compare(expected, output.withColumn(column, changed))
        counts = (found["verified"], found["missing"], found["extra"])
        assert counts == (False, 1, 1), (what, found)
        (pair,) = found["differing"]
        assert pair["want"] != pair["got"], what
        assert pair["want"]["k"] == "0", what
    twice = compare(expected, output.unionAll(output.where(first)))
    assert (twice["missing"], twice["extra"]) == (0, 1)
    assert twice["differing"][0]["want"] is None
    fewer = compare(expected, output.where(~first))
    assert (fewer["missing"], fewer["extra"]) == (1, 0)


def test_an_outlier_hides_no_fault_of_another_row(spark: SparkSession) -> None:
    events = spark.range(40).selectExpr("id % 8 AS k", "IF(id % 8 = 7, 1e18, id * 1.5) AS x")
    expected = events.groupBy("k").agg(F.avg("x").alias("x"))
    output = spark.createDataFrame(expected.collect(), expected.schema)
    assert compare(expected, output)["verified"]
    one_more = F.when(F.col("k") == 3, F.col("x") + 1).otherwise(F.col("x"))
    found = compare(expected, output.withColumn("x", one_more))
    assert (found["verified"], found["missing"], found["extra"]) == (False, 1, 1)


def test_values_that_equal_themselves_in_another_form_are_equal(spark: SparkSession) -> None:
    schema = "k int, d double, m map<string, double>, b binary, a array<double>"
    nan, inf = float("nan"), float("inf")
    one = [(1, nan, {"x": -0.0, "y": nan}, b"\xff", [inf, None]), (2, -0.0, None, None, [])]
    two = [(2, 0.0, None, None, []), (1, nan, {"y": nan, "x": 0.0}, b"\xff", [inf, None])]
    made = spark.createDataFrame(one, schema).repartition(3)
    found = compare(made, spark.createDataFrame(two, schema))
    assert found["verified"], found
    other = [two[0], (1, nan, {"y": nan, "x": 0.0}, b"\xfe", [inf, None])]
    assert not compare(made, spark.createDataFrame(other, schema))["verified"]


def test_columns_that_partitions_put_last_are_compared_by_name(
    spark: SparkSession, tmp_path: Path
) -> None:
    expected = spark.createDataFrame(
        [("a", 1.5, 2), (None, 2.5, 3)], "k string, `x.y` double, n int"
    )
    expected.write.partitionBy("k").parquet(str(tmp_path / "out"))
    output = spark.read.parquet(str(tmp_path / "out"))
    assert output.columns == ["x.y", "n", "k"]
    assert compare(expected, output)["verified"]
    assert not compare(expected, output.withColumn("n", F.lit(2)))["verified"]
    # Spark takes directories for numbers where it can
    as_numbers = output.withColumn("k", F.lit(1))
    with pytest.raises(HeadgateError, match=r"its types \(spark.read.schema"):
        compare(expected, as_numbers)


def test_nothing_is_not_equal_to_nothing(spark: SparkSession) -> None:
    none = spark.createDataFrame([], "k int, x double")
    found = compare(none, none)
    assert (found["verified"], found["rows_compared"]) == (None, 0)
    extra = compare(none, spark.createDataFrame([(1, 1.0)], "k int, x double"))
    assert (extra["verified"], extra["extra"]) == (False, 1)


def test_who_waits_for_a_comparison_is_told_how_far_it_is(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting, "_EVERY_S", 0.01)
    told: list[str] = []
    came = threading.Event()
    with waiting.report_progress(spark, "it", lambda line: (told.append(line), came.set())):
        assert came.wait(30)
    assert told[0].startswith("it: 0 s, "), told
