"""Checks when an operator aggregates before the exchange, and the plans that do so; without Spark."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from made_plans import Made, attribute
from pyspark.sql import types as T
from said_columns import F, Frame, Said

from headgate.operators.spec import Aggregate, Kind, Leaf, Op, Program
from headgate.spark.step import preaggregate
from headgate.spark.step.preaggregate import Preaggregation

ONE = Leaf(Kind.INTEGER)
TWO = (ONE, ONE)
PROGRAM = Program((("left", 0),), (0,), any_order=True)
LONG = T.LongType()


@pytest.fixture(autouse=True)
def said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preaggregate, "F", F)
    monkeypatch.setattr(preaggregate, "data_type", lambda kind: kind)
    monkeypatch.setattr(preaggregate, "column", lambda _, value: Said(f"constant {value.sql()}"))
    monkeypatch.setattr(
        preaggregate, "of_rows", lambda _, plan: Frame(f"rows of {plan}", g=0, k0=0)
    )
    monkeypatch.setattr(
        preaggregate, "hole_of", lambda _, schema: f"hole({','.join(schema.names)})"
    )


def merged(aggregate: Aggregate, **known: Any) -> list[tuple[str, dict[str, str]]]:
    """Return Spark's aggregates, and the leaves that each gives from the buffers b0 and b1."""
    names = [f"v{n}" for n in range(len(aggregate.all_leaves))]
    width = len(names) if aggregate.program is not None else 2
    buffers: list[Any] = [Said(f"b{n}") for n in range(width)]
    found = preaggregate.merged_leaves(aggregate, names, known.get("known", {}))
    return [
        (str(one.aggregate), {name: str(value) for name, value in one.unpack(buffers)})
        for one in found
    ]


@pytest.mark.parametrize("op", [Op.COUNT, Op.SUM_INTEGER, Op.SUM_FLOAT])
def test_counts_and_sums_are_added(op: Op) -> None:
    assert merged(Aggregate(op, (ONE,))) == [("sum(v0)", {"v0": "b0"})]


def test_the_sum_of_decimals_has_their_scale_and_adds_their_count() -> None:
    aggregate = Aggregate(Op.SUM_DECIMAL, (Leaf(Kind.DECIMAL, 4), ONE))
    assert merged(aggregate) == [
        ("sum(v0)", {"v0": "b0.cast(DecimalType(38,4))"}),
        ("sum(v1)", {"v1": "b0"}),
    ]


@pytest.mark.parametrize(("op", "best"), [(Op.MIN, "min"), (Op.MAX, "max")])
def test_the_least_and_the_largest_of_several_leaves_are_compared_together(
    op: Op, best: str
) -> None:
    assert merged(Aggregate(op, (ONE,))) == [(f"{best}(v0)", {"v0": "b0"})]
    assert merged(Aggregate(op, TWO)) == [
        (
            f"{best}(when(v0.isNotNull(), struct(v0, v1)))",
            {"v0": "b0.getField(v0)", "v1": "b0.getField(v1)"},
        )
    ]


@pytest.mark.parametrize(("op", "edge"), [(Op.FIRST, "first"), (Op.LAST, "last")])
def test_the_first_and_the_last_value_skip_rows_without_records(op: Op, edge: str) -> None:
    assert merged(Aggregate(op, (ONE, ONE, ONE))) == [
        ("sum(v0)", {"v0": "b0"}),
        (
            f"{edge}(when((v0 > 0), struct(v1, v2)), ignorenulls=True)",
            {"v1": "b0.getField(v1)", "v2": "b0.getField(v2)"},
        ),
    ]


@pytest.mark.parametrize(("op", "by"), [(Op.MIN_BY, "min_by"), (Op.MAX_BY, "max_by")])
def test_a_value_by_an_ordering_is_ordered_by_the_first_leaves_only(op: Op, by: str) -> None:
    assert merged(Aggregate(op, (ONE,), TWO)) == [
        (
            f"{by}(when(v0.isNotNull(), struct(v0, v1, v2)), when(v0.isNotNull(), struct(v0)))",
            {name: f"b0.getField({name})" for name in ("v0", "v1", "v2")},
        )
    ]


def test_a_program_is_merged_by_the_function_of_spark_that_has_it() -> None:
    aggregate = Aggregate(Op.MERGED, TWO, program=PROGRAM)
    known = {PROGRAM: lambda names: F.stddev(*names)}
    assert merged(aggregate, known=known) == [("stddev(v0, v1)", {"v0": "b0", "v1": "b1"})]


def test_values_count_only_with_records() -> None:
    stddev, corr = (getattr(F, name) for name in ("stddev", "corr"))
    one: Any = preaggregate._of_one(stddev)
    two: Any = preaggregate._of_two(corr)
    assert str(one(["n", "x", "y"])) == "stddev(when((n > 0), x))"
    assert str(two(["n", "x", "y", "z"])) == "corr(when((n > 0), x), when((n > 0), y))"


def test_leaves_are_numbered_through_all_aggregates(monkeypatch: pytest.MonkeyPatch) -> None:
    aggregates = [Aggregate(Op.MIN_BY, (ONE,), (ONE,)), Aggregate(Op.COUNT, (ONE,))]
    session: Any = None
    found = preaggregate.all_merged(session, aggregates)
    assert found is not None
    assert [str(one.aggregate) for one in found] == [
        "min_by(when(v0.isNotNull(), struct(v0, v1)), when(v0.isNotNull(), struct(v0)))",
        "sum(v2)",
    ]
    monkeypatch.setattr(preaggregate, "known_programs", lambda *_: {})
    unknown = Aggregate(Op.MERGED, (ONE,), program=PROGRAM)
    assert preaggregate.all_merged(session, [*aggregates, unknown]) is None
    known: Any = {PROGRAM: lambda names: F.bit_or(names[0])}
    monkeypatch.setattr(preaggregate, "known_programs", lambda *_: known)
    found = preaggregate.all_merged(session, [*aggregates, unknown])
    assert found is not None
    assert str(found[-1].aggregate) == "bit_or(v3)"


def test_only_functions_with_a_buffer_of_a_wanted_size_are_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sizes = {"two": 2, "other two": 2, "three": 3}
    read: list[str] = []

    def program_of(_: Any, function: Any) -> Any:
        read.append(function.name)
        return wanted if function.name == "other two" else PROGRAM

    def function(name: str) -> Any:
        buffer = SimpleNamespace(size=lambda: sizes[name])
        return SimpleNamespace(name=name, aggBufferAttributes=lambda: buffer)

    outputs = [
        Made("Alias", Made("AggregateExpression", aggregateFunction=function(name)))
        for name in sizes
    ]
    of_known: list[Any] = [lambda names, n=name: Said(f"{n} of {names}") for name in sizes]
    asked: list[str] = []

    def analysed(frame: Any) -> Made:
        asked.append(str(frame))
        return Made("Aggregate", aggregateExpressions=outputs)

    monkeypatch.setattr(preaggregate, "_KNOWN", tuple(of_known))
    monkeypatch.setattr(preaggregate, "program_of", program_of)
    monkeypatch.setattr(preaggregate, "analysed", analysed)
    wanted = Program((("left", 0), ("left", 1)), (0, 0), any_order=True)
    aggregates = [Aggregate(Op.MERGED, TWO, program=wanted), Aggregate(Op.COUNT, (ONE,))]
    spark: Any = Said("spark")
    assert preaggregate.known_programs(spark, aggregates) == {wanted: of_known[1]}
    assert read == ["two", "other two"]
    assert asked[0].startswith(
        "spark.range(0).select(id.alias(n), id.alias(x), id.alias(y)).agg(two"
    )
    asked.clear()
    assert preaggregate.known_programs(spark, aggregates[1:]) == {}
    assert asked == []


# --- When it pays ---------------------------------------------------------------------------------------


def planned(*merges: Aggregate, keys: int = 1) -> Any:
    own = [SimpleNamespace(name=f"k{n}") for n in range(keys)]
    return SimpleNamespace(spec=SimpleNamespace(merges=merges or None), keys=own)


COUNTED = planned(Aggregate(Op.COUNT, (ONE,)))


def slots(*facts: tuple[int, int, int]) -> Any:
    """Return reports: records that arrived, rows that were served, rows that were touched."""
    return [
        SimpleNamespace(arrived=arrived, served_rows=rows, touched_rows=touched)
        for arrived, rows, touched in facts
    ]


@pytest.mark.parametrize(("wanted", "active"), [("on", True), ("auto", False), ("off", False)])
def test_the_first_batch_aggregates_only_if_the_user_asks(wanted: str, active: bool) -> None:
    made = Preaggregation(COUNTED, wanted, None)
    assert (made.active, made.wanted) == (active, wanted)
    made.learn(slots((100_000, 100_000, 1)), 1)
    assert made.active is (wanted != "off")


def test_rows_of_a_processor_are_never_aggregated() -> None:
    made = Preaggregation(planned(), "on", None)
    assert (made.active, made.wanted) == (False, "off")
    made.learn(slots((100_000, 100_000, 1)), 1)
    assert not made.active


@pytest.mark.parametrize(
    ("records", "touched", "partitions", "active"),
    [
        (20_000, 4_999, 2, True),
        (20_000, 5_000, 2, False),
        (19_999, 1, 1, False),
        (20_001, 5_000, 2, True),
        (20_001, 5_000, 3, False),
    ],
)
def test_it_begins_where_a_partition_has_more_than_two_records_of_an_entry(
    records: int, touched: int, partitions: int, active: bool
) -> None:
    made = Preaggregation(COUNTED, "auto", None)
    half = touched // 2
    made.learn(slots((1, 0, half), (records - 1, 0, touched - half)), partitions)
    assert made.active is active


def test_it_ends_where_rows_stand_for_less_than_two_records_and_then_rests() -> None:
    made = Preaggregation(COUNTED, "auto", None)
    pays, exact = slots((40_000, 0, 1)), slots((15_000, 9_000, 0), (25_000, 11_000, 0))
    made.learn(pays, 1)
    states = [made.active]
    made.learn(exact, 1)
    states.append(made.active)
    made.learn(slots((40_000, 20_001, 0)), 1)
    for _ in range(51):
        states.append(made.active)
        made.learn(pays, 1)
    assert (states, made.active) == ([True, True, *[False] * 51], True)


def test_a_small_batch_ends_it_without_a_rest() -> None:
    made = Preaggregation(COUNTED, "auto", None)
    pays = slots((40_000, 0, 1))
    made.learn(pays, 1)
    made.learn(slots((10, 10, 10)), 1)
    assert not made.active
    made.learn(pays, 1)
    assert made.active


# --- The plans ------------------------------------------------------------------------------------------


def call(buffers: int) -> Made:
    size = SimpleNamespace(size=lambda: buffers)
    return Made(
        "AggregateExpression", aggregateFunction=SimpleNamespace(aggBufferAttributes=lambda: size)
    )


class Halves:
    """A physical plan with a partial and a final aggregation."""

    def __init__(self, keys: int, *sizes: int) -> None:
        self.keys = [attribute(f"key{n}", foldable=False) for n in range(keys)]
        self.results = [attribute(f"result{n}", foldable=False) for n in range(len(sizes))]
        width = keys + sum(sizes)
        self.partial = Made(
            "HashAggregateExec", output=[attribute(f"o{n}", LONG) for n in range(width)]
        )
        aliases = [Made("Alias", result) for result in self.results]
        self.final = Made(
            "HashAggregateExec",
            Made("AQEShuffleReadExec", Made("ShuffleExchangeExec", self.partial)),
            groupingExpressions=self.keys,
            aggregateExpressions=[call(size) for size in sizes],
            aggregateAttributes=self.results,
            resultExpressions=[*self.keys, *aliases],
        )  # fmt: skip
        self.plan = Made("ProjectExec", self.final)


def test_a_physical_plan_is_cut_at_its_exchange() -> None:
    made = Halves(1, 1)
    upper = Made("SortAggregateExec", made.final)
    assert preaggregate._halves(made.plan) == (made.final, made.partial)
    assert preaggregate._halves(Made("ProjectExec", upper)) == (upper, made.partial)


def test_an_output_column_has_all_buffers_of_its_aggregate_or_a_constant() -> None:
    made = Halves(2, 1, 3)
    constant = Made("Literal", said="7", foldable=True)
    made.final._parts["resultExpressions"] = [
        made.keys[1], Made("Alias", made.results[1]), made.results[0], Made("Alias", constant),
    ]  # fmt: skip
    spark: Any = None
    found = preaggregate._sources(spark, made.final)
    assert [[str(one) for one in sources] for sources in found or ()] == [
        ["p1"], ["p3", "p4", "p5"], ["p2"], ["constant 7"],
    ]  # fmt: skip
    computed = Made("Alias", Made("Add", foldable=False))
    made.final._parts["resultExpressions"] = [made.keys[0], computed]
    assert preaggregate._sources(spark, made.final) is None


class AskedPlans:
    """Preaggregation whose physical plan is made up."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, halves: Halves, **kinds: Any) -> None:
        self.grouped: list[str] = []
        self.frame: Any = Frame("batch", **kinds)
        self.frame.known["sparkSession"] = "spark"
        self.copied: Any = SimpleNamespace(rows="stage below")
        monkeypatch.setattr(preaggregate, "physical", self._physical)
        self.plan = halves.plan
        monkeypatch.setattr(
            preaggregate, "copy_of", lambda _, plan: self.copied if plan is halves.partial else None
        )

    def _physical(self, frame: Any) -> Made:
        self.grouped.append(str(frame))
        return self.plan


def test_rows_are_aggregated_by_key_group_slice_and_key(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = AskedPlans(monkeypatch, Halves(4, 1, 1), g=0, t=0, k0=0, k1=0, v0=0, n=0)
    made = Preaggregation(planned(*COUNTED.spec.merges, keys=2), "on", None)
    hole: Any = "hole of the batch"
    stages, rows, leaf = made.stages(asked.frame, hole)
    assert asked.grouped == ["batch.groupBy(g, t, k0, k1).agg(sum(v0), sum(n))"]
    assert [str(stage) for stage in stages] == ["stage below"]
    assert leaf == "hole(p0,p1,p2,p3,p4,p5)"
    assert str(rows) == (
        f"rows of {leaf}.select(p0.alias(g), p1.alias(t), p2.alias(k0), p3.alias(k1), "
        "p4.alias(v0), p5.alias(n))"
    )


def test_arrivals_are_those_of_the_first_and_the_last_record(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = AskedPlans(monkeypatch, Halves(2, 1, 1, 1, 1), a1=0, a0=0, n=0, v0=0, k0=0, g=0)
    made = Preaggregation(COUNTED, "on", None)
    hole: Any = "hole of the batch"
    _, rows, leaf = made.stages(asked.frame, hole)
    assert asked.grouped == ["batch.groupBy(g, k0).agg(sum(v0), sum(n), min(a0), max(a1))"]
    assert str(rows) == (
        f"rows of {leaf}.select(p5.alias(a1), p4.alias(a0), p3.alias(n), p2.alias(v0), "
        "p1.alias(k0), p0.alias(g))"
    )


def test_a_batch_that_is_not_aggregated_goes_on_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, hole = AskedPlans(monkeypatch, Halves(2, 1, 1), g=0, k0=0, v0=0, n=0), Said("hole")
    made = Preaggregation(COUNTED, "auto", None)
    stages, rows, leaf = made.stages(asked.frame, hole)
    assert stages == []
    assert rows is asked.frame
    assert leaf is hole
    unfolding: Any = SimpleNamespace(plan="exploded", hole="hole of exploded")
    unfolded = Preaggregation(COUNTED, "off", unfolding)
    stages, rows, leaf = unfolded.stages(asked.frame, hole)
    assert (stages, str(rows), str(leaf)) == ([], "rows of exploded", "hole of exploded")
    assert asked.grouped == []


@pytest.mark.parametrize("why", ["no aggregate", "no source", "no copy"])
def test_aggregates_that_cannot_be_unpacked_are_not_tried_again(
    monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    halves = Halves(2, 1, 1)
    asked, hole = AskedPlans(monkeypatch, halves, g=0, k0=0, v0=0, n=0), Said("hole")
    if why == "no aggregate":
        monkeypatch.setattr(preaggregate, "all_merged", lambda *_: None)
    elif why == "no source":
        halves.final._parts["resultExpressions"] = [Made("Add", foldable=False)]
    else:
        asked.copied = None
    made = Preaggregation(COUNTED, "on", None)
    stages, rows, leaf = made.stages(asked.frame, hole)
    assert stages == []
    assert rows is asked.frame
    assert leaf is hole
    assert (made.wanted, made.active) == ("off", False)
    tried = len(asked.grouped)
    made.stages(asked.frame, hole)
    assert len(asked.grouped) == tried


def test_spark_is_asked_for_the_aggregates_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, hole = AskedPlans(monkeypatch, Halves(2, 1, 1), g=0, k0=0, v0=0, n=0), Said("hole")
    of_leaves, count = preaggregate.all_merged, []

    def all_merged(spark: Any, aggregates: Any) -> Any:
        count.append(aggregates)
        return of_leaves(spark, aggregates)

    monkeypatch.setattr(preaggregate, "all_merged", all_merged)
    made = Preaggregation(COUNTED, "on", None)
    for _ in range(2):
        made.stages(asked.frame, hole)
    assert count == [COUNTED.spec.merges]
