"""Splits, merges, and stages of every kind on pools of replicas: Spark's own answer."""

from __future__ import annotations

import datetime as dt
import decimal
from collections import Counter
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pool_runs import ROWS, doubled, pooled, source
from pyspark.sql import functions as F
from pyspark.sql import types as T

import headgate as hg
from headgate.control.pools.psps import edge_shares
from headgate.core.errors import UnsupportedQuery
from headgate.journal.reader import read
from headgate.journal.schema import Start

pytestmark = pytest.mark.timeout(300)


# Made inside a function, so that they are pickled whole: workers do not find the tests' modules.
def _functions():
    import pandas as pd

    def added(n):
        def add(batches):
            for batch in batches:
                yield pa.record_batch({"w": pc.add(batch.column("w"), n)})

        return add

    def halves(frames):
        for frame in frames:
            kept = frame[frame.v % 2 == 0]
            yield pd.DataFrame({"w": kept.v // 2, "name": kept.v.astype(str)})

    def long_text(value: pd.Series) -> pd.Series:
        return value.astype(str) + "!"

    def running(parts):
        for value in parts:
            yield value * 3

    long_text.__annotations__ = {"value": pd.Series, "return": pd.Series}
    parts = Iterator[pd.Series]
    running.__annotations__ = {"parts": parts, "return": parts}
    return added, halves, long_text, running


added, halves, long_text, running = _functions()


def answers(spark, build, directory, **more):
    """Return the query, what it put out, and what Spark's batch answer is."""
    writer = pooled(build(source(spark, directory)), directory)
    for key, value in more.items():
        writer = writer.option(f"headgate.{key}", value)
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    out, given = (str(directory / name) for name in ("out", "in"))
    found = Counter(map(str, spark.read.parquet(out).collect()))
    return query, found, Counter(map(str, build(spark.read.parquet(given)).collect()))


def diamond(rows):
    """Split what one stage puts out, a third and two thirds, into two stages, and merge these."""
    first = rows.mapInArrow(doubled, "w long")
    left = first.where("w % 3 = 0").mapInArrow(added(1), "w long")
    right = first.where("w % 3 <> 0").mapInArrow(added(2), "w long")
    return left.union(right).mapInArrow(added(10), "w long")


def test_a_diamond_of_stages_puts_out_what_spark_does(spark, tmp_path):
    query, found, wanted = answers(spark, diamond, tmp_path)
    assert found == wanted
    assert list(query.replicas()) == ["map-0", "map-1", "map-2", "map-3"]


@pytest.mark.thorough
def test_the_shares_of_a_diamonds_edges_are_measured(spark, tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr(
        "headgate.spark.pools.pool_loop.run_interval",
        lambda policy, engine: seen.append(engine.monitor()),
    )
    answers(spark, diamond, tmp_path, **{"replicas.interval": "1 ms"})
    shares = edge_shares(seen[-1], {})
    assert shares == {
        ("", "map-0"): 1.0,
        ("map-0", "map-1"): pytest.approx(1 / 3, abs=0.01),
        ("map-0", "map-2"): pytest.approx(2 / 3, abs=0.01),
        ("map-1", "map-3"): 1.0,
        ("map-2", "map-3"): 1.0,
    }


@pytest.mark.thorough
def test_a_merge_may_be_the_top_and_the_source_may_split(spark, tmp_path):
    def build(rows):
        one = rows.where("v < 500").mapInArrow(doubled, "w long")
        two = rows.where("v >= 300").selectExpr("v * 7 as v").mapInArrow(doubled, "w long")
        return one.union(two.mapInArrow(added(5), "w long")).selectExpr("w - 1 as w")

    query, found, wanted = answers(spark, build, tmp_path)
    assert found == wanted
    assert len(query.replicas()) == 3
    start = next(event for event in read(query.journal) if isinstance(event, Start))
    assert [each.id for each in start.operators] == ["map-0", "map-1", "map-2"]


@pytest.mark.thorough
def test_rows_that_wait_in_a_diamond_are_served_once(spark, tmp_path):
    df = diamond(source(spark, tmp_path))
    query = pooled(df, tmp_path).option("headgate.slotRate", 80).start()
    query.drain(120)
    query.stop()
    found = Counter(row.w for row in spark.read.parquet(str(tmp_path / "out")).collect())
    batch = diamond(spark.read.parquet(str(tmp_path / "in"))).collect()
    assert found == Counter(row.w for row in batch)
    assert any(line.waiting for line in query.batches())


def test_how_old_a_row_is_goes_with_it_from_stage_to_stage(spark, tmp_path):
    """All arrived a minute ago: the first stage is told, the third one drops by it."""
    rows = source(spark, tmp_path).withColumn(
        "at", F.current_timestamp() - F.expr("interval 1 minute")
    )
    first = rows.where("v % 2 = 0").mapInArrow(doubled, "w long")
    second = first.where("w >= 0").mapInArrow(added(1), "w long")
    writer = pooled(second.mapInArrow(added(1), "w long"), tmp_path)
    query = writer.option("headgate.arrival", "at").trigger(availableNow=True).start()
    query.awaitTermination()
    lines = query.batches()
    assert sum(line.latency_sum_ms for line in lines) / (ROWS / 2) > 60_000


KINDS = {
    "mapInPandas": lambda rows: rows.mapInPandas(halves, "w long, name string").where("w > 4"),
    "a UDF": lambda rows: rows.withColumn("x", F.udf(lambda v: v + 1, "long")("v")),
    "a pickled UDF": lambda rows: rows.withColumn(
        "x", F.udf(lambda v: v + 1, "long", useArrow=False)("v")
    ),
    "a UDF as a condition": lambda rows: rows.where(
        F.udf(lambda v: v % 7 == 0, "boolean")("v") & (F.col("v") > 9)
    ),
    "a UDF of a UDF": lambda rows: rows.select(
        "v",
        (F.udf(lambda v: v * 2, "long")(F.udf(lambda v: v + 1, "long")("v") + 1) - 1).alias("x"),
    ),
    "a pandas UDF": lambda rows: rows.withColumn("x", F.pandas_udf(long_text, "string")("v")),
    "kinds side by side": lambda rows: rows.select(
        F.udf(lambda v, w=1, u=2: v + 7 * w - u, "long")("v", u=F.col("v") % 3, w=F.col("v")).alias(
            "x"
        ),
        F.pandas_udf(long_text, "string")("v").alias("y"),
        F.udf(lambda: 5, "int")().alias("z"),
        F.pandas_udf(running, "long")("v").alias("iterated"),
    ),
    "values of all types": lambda rows: rows.select(
        F.udf(lambda v: dt.date(2024, 1, 1) + dt.timedelta(days=v), "date")("v").alias("a"),
        F.udf(lambda v: [v, None], "array<long>")("v").alias("b"),
        F.udf(lambda v: {"k": v}, "map<string, long>")("v").alias("c").cast("string"),
        F.udf(lambda v: (v, str(v)), "struct<p: long, q: string>")("v").alias("d"),
        F.udf(lambda v: decimal.Decimal(v) / 4, "decimal(12, 2)")("v").alias("e"),
        F.udf(lambda at: at + dt.timedelta(hours=1), "timestamp")(F.timestamp_seconds("v")).alias(
            "f"
        ),
        F.udf(lambda v: bytes([v % 256]), "binary")("v").alias("g"),
    ),
    "stages of all kinds in a row": lambda rows: (
        rows.withColumn("v", F.udf(lambda v: v + 1, "long")("v"))
        .mapInArrow(doubled, "w long")
        .selectExpr("w as v")
        .mapInPandas(halves, "w long, name string")
        .withColumn("x", F.pandas_udf(long_text, "string")("w"))
    ),
}


MORE = {"mapInPandas", "a UDF", "a UDF of a UDF", "a pandas UDF"}
"""What other cases have, too."""


@pytest.mark.parametrize(
    "kind",
    [pytest.param(kind, marks=[pytest.mark.thorough] if kind in MORE else []) for kind in KINDS],
)
def test_a_stage_of_any_kind_puts_out_what_spark_does(spark, tmp_path, kind):
    query, found, wanted = answers(spark, KINDS[kind], tmp_path)
    assert found == wanted
    assert sum(found.values()) > 0
    assert query.replicas()


ODD = [
    True,
    7,
    2**40,
    2.5,
    1e-5,
    1e9,
    "text",
    b"raw",
    None,
    dt.date(2024, 1, 1),
    decimal.Decimal("1.5"),
]


def _odd(values):
    def odd(v):
        return values[v % len(values)]

    return odd


@pytest.mark.parametrize(
    "kind",
    [
        "tinyint",
        *(
            pytest.param(kind, marks=pytest.mark.thorough)
            for kind in ("boolean", "int", "bigint", "float", "double", "decimal(10, 2)")
        ),
    ],
)
def test_a_pickled_udf_that_returns_another_type_is_null_where_spark_has_null(
    spark, tmp_path, kind
):
    odd = F.udf(_odd(ODD), kind, useArrow=False)
    _, found, wanted = answers(spark, lambda rows: rows.select(odd("v").alias("x")), tmp_path)
    assert found == wanted


def test_a_pickled_udf_that_returns_no_text_is_text_as_spark_has_it(spark, tmp_path):
    odd = F.udf(
        _odd([True, 7, 2.5, 1e-5, 123456789.0, 0.1, -3e-7, 1e22, None]), "string", useArrow=False
    )
    _, found, wanted = answers(spark, lambda rows: rows.select(odd("v").alias("x")), tmp_path)
    assert found == wanted


def test_explain_says_what_becomes_a_stage(spark, tmp_path):
    rows = source(spark, tmp_path)
    said = hg.explain(KINDS["stages of all kinds in a row"](rows))
    for words in (
        "udf-0       <lambda> (a Python UDF)",
        "map-1       doubled (mapInArrow)",
        "map-2       halves (mapInPandas)",
        "udf-3       long_text (a pandas UDF)",
    ):
        assert words in said


def test_what_cannot_be_a_stage_is_refused_in_one_sentence(spark, tmp_path):
    rows = source(spark, tmp_path)
    udf = F.udf(lambda v: [v], "array<long>")
    for df, words in (
        (rows.select(F.explode(udf("v"))), "a Python UDF in Generate"),
        (rows.mapInArrow(doubled, "w long").union(rows), "one side has no Python stage"),
        (rows.mapInArrow(doubled, "w long").select(F.explode(F.array("w"))), "keep Generate above"),
        (rows.groupBy(udf("v")).count(), 'operator "Aggregate", which keeps state'),
    ):
        with pytest.raises(UnsupportedQuery, match=words) as raised:
            pooled(df, tmp_path).start()
        assert str(raised.value).count(". ") <= 1
    assert "no pools      psps cannot run a Python UDF in Generate" in hg.explain(
        rows.select(F.explode(udf("v")))
    )


def test_a_type_of_rows_is_kept(spark, tmp_path):
    kept = T.StructType([T.StructField("w", T.LongType())])
    df = source(spark, tmp_path).mapInArrow(doubled, kept).withColumn("x", F.udf(str)("w"))
    assert [f.name for f in df.schema] == ["w", "x"]
