"""What state means, as text: the same for what means the same, in each session and each Spark."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import headgate as hg
from headgate.checkpoint.identity import refuse_another
from headgate.core.errors import CheckpointError
from headgate.spark.read.logical import read
from headgate.spark.read.meaning import meaning

SCHEMA = "k int, v bigint, w bigint, s string, at timestamp, xs array<bigint>"

TEXTS = {
    "sum(v)": "sum(v)",
    "sum(v + 1)": "sum(v + 1)",
    "sum(1 + v)": "sum(v + 1)",
    "SUM(`V` + 1L)": "sum(v + 1)",
    "sum(w + v + 1)": "sum(v + w + 1)",
    "sum(v - w)": "sum(v - w)",
    "sum(w * (v + 1))": "sum((v + 1) * w)",
    "count(*)": "count(1)",
    "count(1)": "count(1)",
    "count(distinct s)": "count(DISTINCT s)",
    "sum(v) filter (where 3 < w and s = 'a')": "sum(v) FILTER (WHERE (s = 'a') AND (w > 3))",
    "first(v)": "first(v)",
    "first(v, true)": "first(v) IGNORE NULLS",
    "any_value(v)": "any_value(v)",
    "approx_count_distinct(s)": "approx_count_distinct(s) WITHIN 0.05",
    "approx_count_distinct(s, 0.02)": "approx_count_distinct(s) WITHIN 0.02",
    "count_if(v > 1)": "count_if(v > 1)",
    "max(cast(v as int))": "max(CAST(v AS INT))",
    "max(cast(v as bigint))": "max(v)",
    "sum(case when v > 1 then w else 0 end)": "sum(CASE WHEN (v > 1) THEN w ELSE 0 END)",
    "sum(cast(s in ('b', 'a') as int))": "sum(CAST((s IN ('a', 'b')) AS INT))",
    "sum(cast(v between 1 and 3 as int))": "sum(CAST(((v <= 3) AND (v >= 1)) AS INT))",
    "max(nvl(v, 0))": "max(nvl(v, 0))",
    "max(size(transform(xs, e -> e + 1)))": "max(size(transform(xs, (x0 -> (x0 + 1)))))",
    "percentile_approx(v, 0.5)": "percentile_approx(v, 0.5, 10000)",
    "max(struct(v, w).w)": "max(struct(v, w).w)",
}
"""Aggregates and their texts, in every minor release of Spark."""


@pytest.fixture(scope="module")
def rows(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> DataFrame:
    return spark.readStream.schema(SCHEMA).json(str(tmp_path_factory.mktemp("empty")))


def means(frame: DataFrame, mode: str = "append") -> dict[str, Any]:
    """Return the texts of a query by operator, without types."""
    operators: dict[str, Any] = described(frame, mode)["operators"]
    return {
        name: {k: v for k, v in part.items() if k != "types"} for name, part in operators.items()
    }


def described(frame: DataFrame, mode: str) -> dict[str, Any]:
    """Return the whole meaning of a query."""
    return meaning(frame.sparkSession, read(frame, mode).operators)


def test_an_aggregate_has_one_text_however_it_is_written(rows: DataFrame) -> None:
    made = rows.groupBy("k").agg(*(F.expr(call).alias(f"a{i}") for i, call in enumerate(TEXTS)))
    (found,) = means(made, "update").values()
    assert found["aggregates"] == list(dict.fromkeys(TEXTS.values()))


def of(build: Callable[[DataFrame], DataFrame]) -> Callable[[DataFrame], Any]:
    def one(rows: DataFrame) -> Any:
        timed = rows.withWatermark("at", "5 seconds")
        return list(means(build(timed)).values())

    return one


WINDOWS = {
    "tumbling": (F.window, ("at", "10 seconds"), "window(at, '10 s')"),
    "sliding": (F.window, ("at", "1 minute", "5 seconds"), "window(at, '60 s', '5 s')"),
    "later": (
        F.window,
        ("at", "10 seconds", "10 seconds", "1 second"),
        "window(at, '10 s', '10 s', '1 s')",
    ),
    "session": (F.session_window, ("at", "3 seconds"), "session_window(at, '3 s')"),
    "short": (F.window, ("at", "1500 milliseconds"), "window(at, '1500000 us')"),
}


@pytest.mark.parametrize("name", WINDOWS)
def test_a_window_is_said_as_it_is_called(rows: DataFrame, name: str) -> None:
    function, arguments, text = WINDOWS[name]
    build = of(lambda timed: timed.groupBy(function(*arguments), "k").count())
    (found,) = build(rows)
    assert found == {"keys": ["k"], "window": text, "aggregates": ["count(1)"]}


def test_columns_are_the_expressions_that_compute_them(rows: DataFrame) -> None:
    through = rows.withColumn("x", F.col("v") * 2).withColumnRenamed("k", "key")
    through = through.select((F.col("x") + F.col("w")).alias("x"), "key", "s").where("x > 3")
    (found,) = means(through.groupBy("key").agg(F.sum("x")), "update").values()
    assert found == {"keys": ["k"], "window": "", "aggregates": ["sum((v * 2) + w)"]}


def test_a_table_that_is_joined_is_part_of_what_its_columns_mean(
    spark: SparkSession, rows: DataFrame
) -> None:
    prices = spark.createDataFrame([(1, 2.0)], "k int, price double")
    joined = rows.join(prices, "k", "left")
    (found,) = means(joined.groupBy("k").agg(F.sum("price")), "update").values()
    assert found["aggregates"] == ["sum(static.price)"]
    assert found["lookups"] == ["left outer join on k = static.k"]
    # a table of which nothing is kept only filters
    (found,) = means(joined.groupBy("k").agg(F.sum("v")), "update").values()
    assert "lookups" not in found


def test_a_join_says_its_keys_condition_and_columns(rows: DataFrame) -> None:
    left = rows.select(F.col("k").alias("lk"), F.col("v").alias("lv"), F.col("at").alias("lat"))
    right = rows.select(F.col("k").alias("rk"), F.col("w").alias("rv"), F.col("at").alias("rat"))
    left, right = left.withWatermark("lat", "1 second"), right.withWatermark("rat", "2 seconds")
    on = "rk = lk and rat between lat and lat + interval 5 seconds and lv > 3"
    joined = left.join(right, F.expr(on)).groupBy(F.window("lat", "10 seconds"), "lk")
    first, second = means(joined.agg(F.sum("rv"))).values()
    assert first == {
        "join": "inner",
        "keys": ["left.k = right.k"],
        "condition": [
            "left.at + INTERVAL '05' SECOND >= right.at",
            "left.at <= right.at",
            "left.k = right.k",
            "left.v > 3",
        ],
        "left columns": ["k", "v", "at", "left.at + INTERVAL '05' SECOND"],
        "left event time": "at",
        "right columns": ["k", "w", "at"],
        "right event time": "at",
    }
    assert second["keys"] == ["left.k"]
    assert second["window"] == "window(left.at, '10 s')"
    assert second["aggregates"] == ["sum(right.w)"]


def test_the_time_zone_counts_where_a_value_depends_on_it(spark: SparkSession, rows: DataFrame):
    days = rows.groupBy(F.to_date("at")).count()
    (found,) = means(days, "update").values()
    assert found["time zone"] in ("UTC", spark.conf.get("spark.sql.session.timeZone"))
    (found,) = means(rows.groupBy(F.expr("cast(v as int)")).count(), "update").values()
    assert "time zone" not in found


def test_a_python_function_counts_by_its_name(rows: DataFrame) -> None:
    @F.udf("bigint")
    def twice(value: int) -> int:
        return 2 * value

    (found,) = means(rows.groupBy(twice("k")).agg(F.sum(twice("v"))), "update").values()
    assert found["keys"] == ["twice(k)"]
    assert found["aggregates"] == ["sum(twice(v))"]


def test_windows_of_an_operator_by_functions_count(rows: DataFrame) -> None:
    found = []
    for size in ("6 seconds", "8 seconds"):
        operator = hg.OperatorPlus.over("2 seconds", size, output=lambda *_: [])
        given: dict[str, Any] = {"time": "at", "schema": "n bigint", "keys": "s"}
        timed = rows.withWatermark("at", "5 seconds")
        found += means(hg.stateful(timed, operator, **given)).values()
    assert [one["window"] for one in found] == [
        "multi window of 6000000 us every 2000000 us",
        "multi window of 8000000 us every 2000000 us",
    ]


def test_a_long_text_ends_in_a_checksum_of_all_of_it(rows: DataFrame) -> None:
    texts = []
    for last in (198, 199):
        names = [f"v + {i} > 0" for i in (*range(150), last)]
        made = rows.groupBy("k").agg(F.expr(f"count_if({' and '.join(names)})"))
        (found,) = means(made, "update").values()
        texts += found["aggregates"]
    assert texts[0] != texts[1]
    assert all(len(text) < 500 for text in texts)


JSON = "from_json(s, 'v {}', map('mode', '{}')).v"
UNSAID = {
    "patterns": ("count_if(s like any ('a%', 'x%'))", "count_if(s like any ('b%', 'x%'))"),
    "all patterns": ("count_if(s not like all ('a%', 'x'))", "count_if(s not like all ('a%', 'y'))"),
    "a type": (f"sum({JSON.format('int', 'FAILFAST')})", f"sum({JSON.format('tinyint', 'FAILFAST')})"),
    "an option": (f"sum({JSON.format('int', 'FAILFAST')})", f"sum({JSON.format('int', 'PERMISSIVE')})"),
    "columns of text": ("max(from_csv(s, 'v int').v)", "max(from_csv(s, 'v int', map('sep', ';')).v)"),
    "text of columns": ("max(to_json(struct(at)))", "max(to_json(struct(at), map('lineSep', '')))"),
    "an order": (
        "percentile_cont(0.25) within group (order by v)",
        "percentile_cont(0.25) within group (order by v desc)",
    ),
    "a subquery": (
        "sum(v * (select max(x) from values (1), (5) t(x)))",
        "sum(v * (select min(x) from values (1), (5) t(x)))",
    ),
    "an order of equals": (
        "mode() within group (order by v)", "mode() within group (order by v desc)",
    ),
    "part of a variant": (
        "max(cast(variant_get(parse_json(s), '$.a', 'int') as bigint))",
        "max(cast(variant_get(parse_json(s), '$.a', 'string') as bigint))",
    ),
}  # fmt: skip
"""Pairs of aggregates that differ in an argument only, which Spark's SQL of them omits."""


@pytest.mark.parametrize("what", UNSAID)
def test_an_argument_that_the_sql_of_a_function_omits_counts(rows: DataFrame, what: str) -> None:
    calls = [rows.groupBy("k").agg(F.expr(call)) for call in UNSAID[what]]
    (one,), (other,) = (means(call, "update").values() for call in calls)
    assert one["arguments"] != other["arguments"]
    assert {key: one[key] for key in one if key != "arguments"} == {
        key: other[key] for key in other if key != "arguments"
    }


def united(rows: DataFrame, *branches: tuple[str, str]) -> dict[str, Any]:
    """Return the meaning of a sum over a union, a branch of which has a key and a value."""
    even, odd = (rows.selectExpr(f"{key} AS g", f"{value} AS x") for key, value in branches)
    (found,) = means(even.union(odd).groupBy("g").agg(F.sum("x")), "update").values()
    return found


def test_the_columns_of_a_union_go_together_branch_by_branch(rows: DataFrame) -> None:
    made = united(rows, ("k", "v"), ("k + 1", "w"))
    assert made["branches of unions"] == ["((k + 1), w) | (k, v)"]
    assert made == united(rows, ("k + 1", "w"), ("k", "v")), "the order of branches means nothing"
    crosswise = united(rows, ("k", "w"), ("k + 1", "v"))
    assert made != crosswise
    assert [made[key] for key in ("keys", "aggregates")] == [
        crosswise[key] for key in ("keys", "aggregates")
    ]
    assert "branches of unions" not in united(rows, ("k", "v"), ("k", "w"))


def test_a_column_of_a_union_has_the_name_of_each_branch(
    spark: SparkSession, tmp_path: Path
) -> None:
    schema = "k string, v long, w long, x long"

    def summed(*columns: str) -> dict[str, Any]:
        branches = []
        for at, column in enumerate(columns):
            (folder := tmp_path / f"{at}").mkdir(exist_ok=True)
            rows = spark.readStream.schema(schema).json(str(folder))
            branches.append(rows.select("k", column))
        sums = branches[0].union(branches[1]).groupBy("k").agg(F.sum("v"))
        return described(sums, "update")

    made, same = summed("v", "w"), summed("v", "v")
    assert made["operators"] == same["operators"]
    (exact,) = made["exact"].values()
    assert exact["aggregates"] == ["sum(v | w)"]
    assert same["exact"] == {}
    assert made["exact"] != summed("v", "x")["exact"]


def two_sources(
    spark: SparkSession, tmp_path: Path, *columns: str, one: bool = False
) -> tuple[DataFrame, DataFrame]:
    """Return two streams of a folder each, or both of one folder, with a key and one more column."""
    streams = []
    for folder, column in zip("aa" if one else "ab", columns, strict=True):
        (tmp_path / folder).mkdir(exist_ok=True)
        rows = spark.readStream.schema("k string, v long, w long").json(str(tmp_path / folder))
        streams.append(rows.select("k", F.col(column).alias("x")))
    return streams[0], streams[1]


@pytest.mark.parametrize("one", [True, False])
def test_branches_of_two_sources_may_not_exchange_their_columns(
    spark: SparkSession, tmp_path: Path, *, one: bool
) -> None:
    was, now = (
        {"meaning": described(left.union(right).groupBy("k").agg(F.sum("x")), "update")}
        for left, right in (
            two_sources(spark, tmp_path, "v", "w", one=one),
            two_sources(spark, tmp_path, "w", "v", one=one),
        )
    )
    if one:
        refuse_another(was, now, "here")  # the rows are the same
        return
    sentence = r"branches of unions: was `\(source 1, v\) \| \(source 2, w\)`, now `\(source 1, w\)"
    with pytest.raises(CheckpointError, match=sentence):
        refuse_another(was, now, "here")


def test_sources_may_not_change_places(spark: SparkSession, tmp_path: Path) -> None:
    left, right = two_sources(spark, tmp_path, "v", "v")
    was, now = (
        {"meaning": described(one.union(other).groupBy("k").agg(F.sum("x")), "update")}
        for one, other in ((left, right), (right, left))
    )
    assert was["meaning"]["sources"] == [f"FileSource {tmp_path / name}" for name in "ab"]
    with pytest.raises(
        CheckpointError, match=r"order of the sources: was `FileSource .*a`, `FileS"
    ):
        refuse_another(was, now, "here")
    moved = {"meaning": {**was["meaning"], "sources": ["FileSource /a", "FileSource /b"]}}
    refuse_another(was, moved, "here")
    earlier = {k: v for k, v in was["meaning"].items() if k != "sources"}
    refuse_another({"meaning": earlier}, now, "here")
    assert "sources" not in described(left.union(left).groupBy("k").agg(F.sum("x")), "update")


CHANGED = {
    "a lateral subquery": (
        "select k, sum(x) from rows, lateral (select v as x) group by k",
        "select k, sum(x) from rows, lateral (select w as x) group by k",
    ),
    "a filter of a subquery": (
        "select k, sum(v * (select max(x) from values (1), (9) t(x) where x < 5)) from rows group by k",
        "select k, sum(v * (select max(x) from values (1), (9) t(x) where x > 5)) from rows group by k",
    ),
    "the column of IN": (
        "select k, count_if(k in (select x from values (1, 7) t(x, y))) from rows group by k",
        "select k, count_if(k in (select y from values (1, 7) t(x, y))) from rows group by k",
    ),
    "the outer column of EXISTS": (
        "select k, count_if(exists(select 1 from values (1, 7) t(x, y) where x = k)) from rows"
        " group by k",
        "select k, count_if(exists(select 1 from values (1, 7) t(x, y) where y = k)) from rows"
        " group by k",
    ),
    "letters of an argument": (
        "select k, count_if(s like any ('%V%', 'q')) from rows group by k",
        "select k, count_if(s like any ('%v%', 'q')) from rows group by k",
    ),
    "how often a set of keys comes": (
        "select k, s, sum(v) from rows group by grouping sets ((k), (s), (s))",
        "select k, s, sum(v) from rows group by grouping sets ((k), (k), (s))",
    ),
    "a cast that may fail": (
        "select k, sum(cast(v as tinyint)) from rows group by k",
        "select k, sum(try_cast(v as tinyint)) from rows group by k",
    ),
    "the type of a key": (
        "select boolean(v), count(1) from rows group by boolean(v)",
        "select v, count(1) from rows group by v",
    ),
    "how often a branch comes": (
        "select sum(x) from (select v x from rows union all select v from rows"
        " union all select w from rows)",
        "select sum(x) from (select v x from rows union all select w from rows"
        " union all select w from rows)",
    ),
}
"""Pairs of queries whose state means different things, and whose first texts are, or were, the same."""


@pytest.mark.parametrize("what", CHANGED)
def test_what_the_first_texts_do_not_tell_apart_the_exact_ones_do(
    rows: DataFrame, tmp_path: Path, what: str
) -> None:
    rows.createOrReplaceTempView("rows")
    before, after = (
        {"meaning": described(rows.sparkSession.sql(text), "update")} for text in CHANGED[what]
    )
    refuse_another(before, before, str(tmp_path))
    for old, new in ((before, after), (after, before)):
        with pytest.raises(CheckpointError, match="belongs to another query"):
            refuse_another(old, new, str(tmp_path))


@pytest.mark.parametrize(("column", "refused"), [("w AS v", True), ("v, w AS more", False)])
def test_columns_that_a_function_gets_are_compared_by_name(
    rows: DataFrame, column: str, refused: bool
) -> None:
    def kept(column: str) -> dict[str, Any]:
        frame = rows.selectExpr("k", *column.split(", "))
        grouped = frame.groupBy("k").applyInPandasWithState(
            lambda key, frames, state: frames, "k int", "n bigint", "update", "NoTimeout"
        )
        return {"meaning": described(grouped, "update")}

    if not refused:
        refuse_another(kept("v"), kept(column), "CK")
        return
    with pytest.raises(CheckpointError, match=r"column v: was `v`, now `w`"):
        refuse_another(kept("v"), kept(column), "CK")


def test_columns_of_two_static_tables_are_told_apart(spark: SparkSession, rows: DataFrame) -> None:
    tables = [spark.createDataFrame([(1, 2)], "k int, p bigint").alias(name) for name in "ab"]
    joined = rows.join(tables[0], "k").join(tables[1], "k").groupBy("k")
    first, second = (described(joined.agg(F.sum(f"{name}.p")), "update") for name in "ab")
    assert first["operators"] == second["operators"]
    assert first["exact"] == {}
    (exact,) = second["exact"].values()
    assert exact["aggregates"] == ["sum(static2.p)"]


def test_a_constant_moment_counts_with_the_zone_that_it_is_written_in(
    spark: SparkSession, rows: DataFrame
) -> None:
    name = "spark.sql.session.timeZone"
    before, found = spark.conf.get(name), []
    try:
        for zone in ("UTC", "Asia/Tokyo"):
            spark.conf.set(name, zone)
            call = F.expr("count_if(at > timestamp'2024-01-01 00:00:30')")
            found += means(rows.groupBy("k").agg(call), "update").values()
    finally:
        spark.conf.set(name, before)
    assert found[0]["aggregates"] == found[1]["aggregates"]
    assert [one["time zone of constants"] for one in found] == ["UTC", "Asia/Tokyo"]
