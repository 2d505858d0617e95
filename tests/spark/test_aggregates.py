"""Aggregates of every kind answer as Spark's batch does, whatever happens to slots in between."""

from __future__ import annotations

import json
import random
from pathlib import Path

import aggregate_calls
import answers
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from test_answers import differing, of_part, start, wrong

import headgate as hg
from headgate.operators.spec import AggregateSpec
from headgate.spark.read.logical import read
from headgate.spark.step.preaggregate import known_programs
from headgate_lab.testing import faults

QUERIES, AT_ONCE, QUICK = 40, 4, 1


@pytest.fixture(scope="module")
def session(spark: SparkSession) -> SparkSession:
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    spark.conf.set("spark.sql.shuffle.partitions", "2")
    spark.conf.set("spark.sql.timeType.enabled", "true")
    return spark


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data") / "in"
    answers.write_files(folder, seed=1)
    return folder


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
    queries = {f"aggregates_{n}": aggregate_calls.generate(n) for n in of_part(part, AT_ONCE)}
    found = differing(session, queries, files, tmp_path, random.Random(part))
    assert not found, "\n\n".join(found)


def way(spec: AggregateSpec) -> str:
    if spec.kept:
        return "kept"
    return "merged" if any(one.program is not None for one in spec.aggregates) else "kernel"


def test_each_aggregate_goes_the_cheapest_way_that_it_can(
    session: SparkSession, files: Path
) -> None:
    stream = answers.source(session, files, stream=True)
    wanted = {call: "kernel" for call in aggregate_calls.KERNEL}
    wanted |= {call: "merged" for call in aggregate_calls.MERGED}
    wanted |= {call: "kept" for call in aggregate_calls.KEPT}
    wrongly = {}
    for place, (call, expected) in enumerate(wanted.items()):
        made = F.expr(aggregate_calls.with_filter(call)).alias(f"v{place}")
        (operator,) = read(stream.groupBy("o").agg(made), "update").operators
        assert isinstance(operator.spec, AggregateSpec)
        if way(operator.spec) != expected:
            wrongly[call] = way(operator.spec)
    assert not wrongly


def test_spark_merges_before_the_exchange_what_it_has_an_aggregate_for(
    session: SparkSession, files: Path
) -> None:
    stream = answers.source(session, files, stream=True)
    calls = [aggregate_calls.with_filter(call) for call in aggregate_calls.MERGED]
    made = [F.expr(call).alias(f"v{i}") for i, call in enumerate(calls)]
    (operator,) = read(stream.groupBy("o").agg(*made), "update").operators
    assert isinstance(operator.spec, AggregateSpec)
    merged = [one for one in operator.spec.aggregates if one.program is not None]
    known = known_programs(session, merged)
    pairs = zip(aggregate_calls.MERGED, merged, strict=True)
    unknown = [call for call, one in pairs if one.program not in known]
    assert unknown == ["round(regr_slope(id, i), 6)", "round(regr_intercept(id, i), 6)"]


@pytest.mark.parametrize(
    ("grouping", "calls"),
    [
        ("rollup(o, i)", ["count(distinct t)", "median(l)"]),
        ("cube(o, i)", ["sort_array(collect_set(t))", "grouping_id()"]),
        ("grouping sets ((o), (i), ())", ["approx_count_distinct(t)", "round(stddev(s), 6)"]),
    ],
)
def test_grouping_sets_answer_as_spark_does(
    session: SparkSession, files: Path, tmp_path: Path, grouping: str, calls: list[str]
) -> None:
    def build(source: DataFrame) -> DataFrame:
        source.createOrReplaceTempView("given")
        made = ", ".join(f"{call} as v{i}" for i, call in enumerate(calls))
        by = grouping if "sets" not in grouping else f"o, i {grouping}"
        return session.sql(
            f"select o, i, grouping_id() as g, count(*) as n, {made} from given group by {by}"
        )

    query = answers.Generated(build, "update", ["o", "i", "g"], None, grouping)
    stream = build(answers.source(session, files, stream=True))
    running = start(query, stream, "sets", tmp_path / "sets", "off")
    answers.change_at_random(running, random.Random(grouping))
    assert not wrong(session, query, files, "sets")


TYPES = {
    "variant": "parse_json(concat('{\"a\": ', id, '}'))",
    "map": "map(coalesce(t, '?'), array(i, null))",
    "nested": "array(struct(t, o, array(d)))",
    "collated": "t collate utf8_lcase",
    "time": "cast(date_format(e, 'HH:mm:ss.SSSSSS') as time)",
    "without a zone": "cast(e as timestamp_ntz)",
    "days": "e - timestamp '2026-01-01 00:00:00'",
    "months": "make_ym_interval(i, 3)",
    "calendar": "make_interval(i, 1, 0, 2)",
    "wide decimal": "cast(h as decimal(38, 6))",
}


def test_values_of_any_type_come_back_as_they_were(
    session: SparkSession, files: Path, tmp_path: Path
) -> None:
    def build(source: DataFrame) -> DataFrame:
        typed = source.selectExpr("id", "o", *(f"{e} as `{n}`" for n, e in TYPES.items()))
        made = [F.max_by(f"`{n}`", "id").alias(f"last {n}") for n in TYPES]
        made += [F.collect_list(f"`{n}`")[0].isNotNull().alias(f"all {n}") for n in TYPES]
        made += [F.first(f"`{n}`", ignorenulls=True).isNotNull().alias(f"a {n}") for n in TYPES]
        shown = [
            F.col(f"last {n}").cast("string").alias(f"last {n}")
            if n in ("variant", "calendar", "months")
            else F.col(f"last {n}")
            for n in TYPES
        ]
        found = typed.groupBy("o").agg(F.count("*").alias("n"), *made)
        others = [F.col(c) for c in found.columns if not c.startswith("last ")]
        return found.select(*others, *shown)

    query = answers.Generated(build, "update", ["o"], None, "types")
    stream = build(answers.source(session, files, stream=True))
    running = start(query, stream, "of_any_type", tmp_path / "types", "off")
    answers.change_at_random(running, random.Random(3))
    assert not wrong(session, query, files, "of_any_type")


def of_all_kinds(source: DataFrame) -> DataFrame:
    calls = ["sort_array(collect_list(id))", "count(distinct t)", "percentile_approx(l, 0.5)"]
    calls += ["round(stddev(i), 6)", "bit_xor(l)", "approx_count_distinct(t)"]
    calls += ["max_by(array(t), id)"]
    made = [F.expr(call).alias(f"v{i}") for i, call in enumerate(calls)]
    # of all slots each has some key
    key = (F.col("id") % 40).alias("o")
    return source.groupBy(key).agg(F.count("*").alias("n"), *made)


@pytest.mark.parametrize(
    "fault",
    [pytest.param(faults.raise_in, marks=pytest.mark.thorough), faults.kill_worker],
)
def test_a_restart_and_a_slot_that_dies_change_no_answer(
    session: SparkSession, files: Path, tmp_path: Path, fault: object
) -> None:
    arrived = tmp_path / "arrived"
    arrived.mkdir()
    names = sorted(files.iterdir())
    last: dict[object, object] = {}

    def keep(frame: DataFrame, _: int) -> None:
        last.update({row.o: row for row in frame.collect()})

    retries = 0
    for life, name in enumerate(names):
        (arrived / name.name).write_bytes(name.read_bytes())
        stream = of_all_kinds(answers.source(session, arrived, stream=True))
        made = hg.writeStream(stream).slots(start=2 + life % 2).keyGroups(8).outputMode("update")
        made = made.option("checkpointLocation", str(tmp_path / "checkpoint")).foreachBatch(keep)
        # one table for all: a snapshot is read at one start, its changes at another
        made = made.option("headgate.snapshotEvery", 2).trigger(availableNow=True)
        if life == 1:
            assert callable(fault)
            faults.inject(made, *(fault(slot=0, step=step) for step in (1, 2)))
        query = made.start()
        query.awaitTermination()
        lines = map(json.loads, query.journal.read_text().splitlines())
        retries += sum(line["event"] == "retry" for line in lines)
    assert retries > 0
    expected = of_all_kinds(answers.source(session, files, stream=False)).collect()
    assert answers.differences(expected, list(last.values())) == ""
