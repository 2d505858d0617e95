"""Markers pass every part of a user's plan, and its records come out as from the plan itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any

import pandas as pd  # type: ignore[import-untyped]
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T
from pyspark.sql.functions import pandas_udf  # type: ignore[attr-defined]

from headgate.core.errors import UnsupportedQuery
from headgate.spark.jvm.gateway import class_name, each
from headgate.spark.jvm.plans import analysed, as_it_is, optimised_stream
from headgate.spark.realtime.job import SparkJob
from headgate.spark.realtime.markers import passing
from headgate.spark.realtime.router import DROPPED

COLUMNS = "timestamp timestamp, value bigint, m_to int, m_token string"
AT = [datetime(2026, 1, 1, 0, 0, second) for second in range(4)]
US = [1_767_225_600_000_000 + 1_000_000 * second for second in range(4)]
"""The same times in microseconds; the session of the tests is in UTC."""
ROWS = [(at, n, None, None) for n, at in enumerate(AT)]
MARKER = (None, None, 7, "cut")


@pytest.fixture(scope="module")
def stream(spark: SparkSession) -> DataFrame:
    return spark.readStream.format("rate").load()


def watermarks(plan: Any) -> dict[str, int]:
    """Return the numbers of the watermarks in a plan."""
    found: list[str] = []
    while True:
        if class_name(plan) == "EventTimeWatermark":
            found.append(str(plan.nodeId().toString()))
        below = [child for child in each(plan.children()) if child.isStreaming()]
        if not below:
            return {one: number for number, one in enumerate(found)}
        (plan,) = below


def passed(spark: SparkSession, frame: DataFrame) -> list[dict[str, Any]]:
    """Return the rows of a plan over four records, with a marker in their midst."""
    nobody: Any = None
    session = SparkJob(spark, nobody, nobody, set(), nobody, "")._session
    source = session.createDataFrame([*ROWS[:2], MARKER, *ROWS[2:]], COLUMNS)
    plan = optimised_stream(frame)
    made = as_it_is(session, passing(session, plan, analysed(source), watermarks(plan)))
    return [row.asDict() for row in made.collect()]


def come(spark: SparkSession, frame: DataFrame) -> list[Any]:
    """Return the records in order, as tuples of the user's columns; the markers are there, whole."""
    rows = passed(spark, frame)
    markers = [row for row in rows if row["m_token"] is not None]
    assert {(row["m_to"], row["m_token"]) for row in markers} == {(7, "cut")}
    records = [row for row in rows if row["m_to"] is None]
    ours = ("m_to", "m_token", "m_us0")
    return [tuple(v for k, v in row.items() if k not in ours) for row in records]


doubled = F.udf(lambda value: value * 2, T.LongType())
"""Fails of a null."""


def of_series(values: pd.Series) -> pd.Series:
    assert values.notna().all()
    return values * 3


tripled: Any = pandas_udf(of_series, T.LongType())


def same(values: pd.Series) -> pd.Series:
    assert str(values.dtype) == "int64", "as in Spark, where no record is null"
    return values


def negated(values: pd.Series) -> pd.Series:
    assert str(values.dtype) == "bool"
    return ~values


def of_struct(frame: pd.DataFrame) -> pd.Series:
    assert [str(kind) for kind in frame.dtypes] == ["int64", "bool"]
    return frame["n"]


def dtypes(frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
    for frame in frames:
        kinds = [str(kind) for kind in frame.dtypes]
        yield pd.DataFrame({"n": frame["n"], "kinds": [",".join(kinds)] * len(frame)})


def by_position(frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
    for frame in frames:
        yield pd.DataFrame()
        yield pd.DataFrame(frame["value"].map(lambda value: [value, value + 10]).to_list())


def of_other_names(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield pa.record_batch({"b": batch.column(0), "a": batch.column(0)})


def of_named(value: int, marker: int) -> int:
    return value * 10 + marker


LARGE = 2**60
"""No float is the number behind it."""
RAISES = "if(value IS NULL, raise_error('null'), value)"


def squares(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        assert batch.column(0).null_count == 0
        values = batch.column(0).to_pylist()
        yield pa.record_batch({"s": pa.array([v * v for v in values], pa.int64())})


def positive(frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
    for frame in frames:
        assert frame["value"].notna().all()
        yield frame[frame["value"] > 0]


def table(spark: SparkSession) -> DataFrame:
    return spark.createDataFrame(
        [(1, "one"), (3, "three"), (9, "nine")], "value bigint, name string"
    )


FORMS: dict[str, tuple[Callable[[DataFrame], DataFrame], list[Any]]] = {
    "a projection": (
        lambda f: f.selectExpr("value + 1 AS v", "nullif(value, 2) * 0.5 AS q"),
        [(1, 0), (2, 0.5), (3, None), (4, 1.5)],
    ),
    "a filter": (lambda f: f.where("value % 2 = 1").select("value"), [(1,), (3,)]),
    "what would raise of a marker": (
        lambda f: f.selectExpr("if(value IS NULL, raise_error('null'), value) AS v"),
        [(0,), (1,), (2,), (3,)],
    ),
    "explode": (
        lambda f: f.selectExpr("value", "explode(sequence(1, value - 1)) AS n").where("value > 1"),
        [(2, 1), (3, 1), (3, 2)],
    ),
    "explode of nothing": (
        lambda f: f.selectExpr("explode(if(value = 2, array(5, 6), array())) AS n"),
        [(5,), (6,)],
    ),
    "outer explode": (
        lambda f: f.selectExpr("value", "explode_outer(if(value = 2, array(5), array())) AS n"),
        [(0, None), (1, None), (2, 5), (3, None)],
    ),
    "stack": (
        lambda f: f.where("value = 2").selectExpr("stack(2, value, value + 1) AS n"),
        [(2,), (3,)],
    ),
    "json_tuple": (
        lambda f: f.selectExpr(
            """json_tuple(concat('{"a":', value, ',"b":', value + 1, '}'), 'a', 'b') AS (a, b)"""
        ),
        [("0", "1"), ("1", "2"), ("2", "3"), ("3", "4")],
    ),
    "columns to rows": (
        lambda f: (
            f.where("value > 1")
            .selectExpr("value", "value * 10 AS tens")
            .unpivot("value", ["value", "tens"], "name", "n")
        ),
        [(2, "value", 2), (2, "tens", 20), (3, "value", 3), (3, "tens", 30)],
    ),
    "an inner join with a table": (
        lambda f: f.join(F.broadcast(table(f.sparkSession)), "value").select("value", "name"),
        [(1, "one"), (3, "three")],
    ),
    "an outer join with a table": (
        lambda f: f.join(F.broadcast(table(f.sparkSession)), "value", "left").select("value", "name"),
        [(0, None), (1, "one"), (2, None), (3, "three")],
    ),
    "a table before the stream": (
        lambda f: table(f.sparkSession).join(f, "value", "right").select("value", "name"),
        [(0, None), (1, "one"), (2, None), (3, "three")],
    ),
    "a semi join": (
        lambda f: f.join(table(f.sparkSession), "value", "semi").select("value"), [(1,), (3,)]
    ),
    "an anti join": (
        lambda f: f.join(table(f.sparkSession), "value", "anti").select("value"), [(0,), (2,)]
    ),
    "a cross join": (
        lambda f: f.where("value = 1").crossJoin(table(f.sparkSession).select("name")).select("name"),
        [("one",), ("three",), ("nine",)],
    ),
    "a function of rows": (
        lambda f: f.select(doubled("value").alias("d"), doubled(doubled("value")).alias("q")),
        [(0, 0), (2, 4), (4, 8), (6, 12)],
    ),
    "a function of series": (
        lambda f: f.select(tripled(values=F.col("value")).alias("t")), [(0,), (3,), (6,), (9,)]
    ),
    "mapInArrow": (
        lambda f: f.select("value").mapInArrow(squares, "s long"), [(0,), (1,), (4,), (9,)]
    ),
    "mapInPandas": (
        lambda f: f.select("value").mapInPandas(positive, "value long"), [(1,), (2,), (3,)]
    ),
    "large numbers of series": (
        lambda f: f.select(pandas_udf(same, T.LongType())(F.col("value") + LARGE).alias("v")),
        [(LARGE + n,) for n in range(4)],
    ),
    "truth values of series": (
        lambda f: f.select(pandas_udf(negated, T.BooleanType())(F.expr("value = 2")).alias("v")),
        [(True,), (True,), (False,), (True,)],
    ),
    "a structure of series": (
        lambda f: f.select(
            pandas_udf(of_struct, T.LongType())(
                F.struct((F.col("value") + LARGE).alias("n"), F.expr("value = 2").alias("b"))
            ).alias("v")
        ),
        [(LARGE + n,) for n in range(4)],
    ),
    "types of frames": (
        lambda f: f.selectExpr(f"value + {LARGE} AS n", "value = 2 AS b", "'x' AS s").mapInPandas(
            dtypes, "n long, kinds string"
        ),
        [(LARGE + n, "int64,bool,object") for n in range(4)],
    ),
    "frames without names": (
        lambda f: f.select("value").mapInPandas(by_position, "a long, b long"),
        [(n, n + 10) for n in range(4)],
    ),
    "batches of other names": (
        lambda f: f.select("value").mapInArrow(of_other_names, "a long, b long"),
        [(n, n) for n in range(4)],
    ),
    "parameters by our names": (
        lambda f: f.select(
            F.udf(of_named, T.LongType())(value=F.col("value"), marker=F.col("value")).alias("v")
        ),
        [(0,), (11,), (22,), (33,)],
    ),
    "an argument that would raise of a marker": (
        lambda f: f.select(doubled(F.expr(RAISES)).alias("v")), [(0,), (2,), (4,), (6,)]
    ),
    "a key that would raise of a marker": (
        lambda f: f.join(
            F.broadcast(table(f.sparkSession).withColumnRenamed("value", "k")), F.expr(f"{RAISES} = k")
        ).select("name"),
        [("one",), ("three",)],
    ),
    "repartition": (lambda f: f.repartition(3).select("value"), [(0,), (1,), (2,), (3,)]),
}  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
def test_markers_pass_and_records_come_as_from_the_plan(
    form: str, spark: SparkSession, stream: DataFrame
) -> None:
    build, records = FORMS[form]
    assert sorted(come(spark, build(stream)), key=str) == sorted(records, key=str)


def dropped(spark: SparkSession, frame: DataFrame) -> tuple[list[int], list[int]]:
    """Return the times that count: of records, and of rows that the plan has dropped."""
    rows = passed(spark, frame)
    assert [row["m_us0"] for row in rows if row["m_token"] is not None] == [None]
    records = sorted(row["m_us0"] or 0 for row in rows if row["m_to"] is None)
    return records, sorted(row["m_us0"] for row in rows if row["m_to"] == DROPPED)


LATER: dict[str, Callable[[DataFrame], DataFrame]] = {
    "a filter": lambda f: f.where((F.col("value") * 1 + F.rand() * 0) % 2 == 1),
    "explode": lambda f: f.selectExpr(
        "timestamp", "explode(if(value % 2 = 1, array(1), array())) AS n"
    ),
    "a join": lambda f: f.join(F.broadcast(table(f.sparkSession)), "value"),
    "an argument that only what is kept has": lambda f: f.where("value % 2 = 1").select(
        "timestamp", doubled(F.expr("4 div (value % 2)"))
    ),
    "a key that only what is kept has": lambda f: f.where("value % 2 = 1").join(
        F.broadcast(table(f.sparkSession).selectExpr("value AS k")),
        F.expr("4 div (value % 2) = k"),
        "left",
    ),
    "a semi join": lambda f: f.join(table(f.sparkSession), "value", "semi"),
}


@pytest.mark.parametrize("form", LATER)
def test_the_time_of_a_row_that_is_dropped_behind_the_watermark_counts(
    form: str, spark: SparkSession, stream: DataFrame
) -> None:
    frame = LATER[form](stream.withWatermark("timestamp", "1 second"))
    assert dropped(spark, frame) == ([US[1], US[3]], [US[0], US[2]])


@pytest.mark.parametrize("way", ["mapInPandas", "mapInArrow"])
def test_the_newest_time_of_what_a_function_takes_counts(
    way: str, spark: SparkSession, stream: DataFrame
) -> None:
    frame = stream.withWatermark("timestamp", "1 second").select("timestamp", "value")
    made = (
        frame.mapInPandas(lambda frames: (one[["value"]] for one in frames), "value long")
        if way == "mapInPandas"
        else frame.mapInArrow(lambda batches: (one.select([1]) for one in batches), "value long")
    )
    assert dropped(spark, made)[1][-1:] == US[3:]


def test_a_row_that_is_dropped_before_the_watermark_does_not_count(
    spark: SparkSession, stream: DataFrame
) -> None:
    frame = stream.where("value > 1").withWatermark("timestamp", "1 second")
    assert dropped(spark, frame) == (US[2:], [])


@pytest.mark.parametrize(
    ("build", "refusal"),
    [
        (lambda f: f.join(table(f.sparkSession), "value", "right"), "a right outer join"),
        (lambda f: f.join(table(f.sparkSession), "value", "full"), "a full outer join"),
        (lambda f: f.limit(3), "limit"),
        (
            lambda f: f.selectExpr("value AS M_TO").mapInArrow(squares, "s long"),
            "a column called m_to in mapInArrow",
        ),
        (
            lambda f: f.select("value").mapInPandas(positive, "value long, m_token string"),
            "a column called m_token in mapInPandas",
        ),
    ],
)
def test_what_markers_cannot_pass_is_refused_by_name(
    build: Callable[[DataFrame], DataFrame], refusal: str, spark: SparkSession, stream: DataFrame
) -> None:
    with pytest.raises(UnsupportedQuery, match=refusal) as error:
        passed(spark, build(stream))
    assert "before the first stateful operator cannot run in real time" in str(error.value)
