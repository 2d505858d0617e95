"""What readers of a plan share: arrivals, order, parents, conditions; on plans that are made up."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from made_plans import Id, Items, Made, attribute, plain_seq, source
from pyspark.sql import types as T
from said_columns import F, Said

from headgate.core.errors import ConfigError
from headgate.operators.spec import NEVER_US, AggregateSpec, Kind, Leaf, OutputMode
from headgate.spark.read import (
    arrival,
    conditions,
    expressions,
    order,
    passing,
    plan,
    reading,
)
from headgate.spark.read.reading import Given, Reading, Taken

SPARK: Any = "the session"
LONG, TIME, TEXT = T.LongType(), T.TimestampType(), T.StringType()
INTEGER = Leaf(Kind.INTEGER)


@pytest.fixture(autouse=True)
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    """Put names in place of columns, and types in place of Spark's."""
    for module in (reading, order, expressions, passing):
        monkeypatch.setattr(module, "column", lambda spark, one: Said(one.sql()), raising=False)
    for module in (reading, order, expressions, passing, conditions):
        monkeypatch.setattr(module, "data_type", lambda kind: kind, raising=False)
    for module in (expressions, passing):
        monkeypatch.setattr(module, "F", F)
    for module in (expressions, conditions, arrival):
        monkeypatch.setattr(module, "seq", plain_seq)


def asked(**given: Any) -> Reading:
    facts = {"arrival": None, "ordered": (), "number": 3, **given}
    return Reading(SPARK, None, OutputMode.APPEND, **facts)


# --- When a record arrived ---------------------------------------------------------------------------


def test_arrival_is_the_named_timestamp_of_what_reads_the_source() -> None:
    columns = [attribute("at", TIME), attribute("k", LONG)]
    found = asked(arrival="at").arrived(columns)
    assert str(found) == "at"
    above: Any = "an operator"
    assert asked(arrival="at").arrived(columns, above) is None
    assert asked(arrival="at", feeds=(above,)).arrived(columns) is None
    assert asked().arrived(columns) is None


def test_an_arrival_that_is_no_timestamp_of_the_stream_is_refused() -> None:
    columns = [attribute("at", TIME), attribute("k", LONG)]
    with pytest.raises(ConfigError, match=r'="k" is a bigint; name a timestamp column that every'):
        asked(arrival="k").arrived(columns)
    with pytest.raises(ConfigError, match=r'="at1" is no column of .* reads; did you mean "at"\?'):
        asked(arrival="at1").arrived(columns)
    with pytest.raises(ConfigError, match=r'="other" is no column .* reads; name a timestamp'):
        asked(arrival="other").arrived(columns)


def kafka(*columns: Made) -> Made:
    return source(*columns, table=Made("KafkaTable"))


def test_kafkas_timestamp_is_carried_through_what_passes_rows_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(arrival, "project", lambda spark, columns, child: (list(columns), child))
    at, value = attribute("timestamp", TIME), attribute("value", TEXT)
    leaf = kafka(value, at)
    assert arrival.kafka_arrival(SPARK, leaf) == (leaf, at)
    assert arrival.kafka_arrival(SPARK, kafka(value)) is None
    assert arrival.kafka_arrival(SPARK, source(at, table=Made("RateTable"))) is None
    assert arrival.kafka_arrival(SPARK, source(at, kind="StreamingRelation")) is None
    without = Made("Project", leaf, projectList=[value])
    assert arrival.kafka_arrival(SPARK, without) == (([value, at], leaf), at)
    with_it = Made("Project", leaf, projectList=[at, value])
    assert arrival.kafka_arrival(SPARK, with_it) == (([at, value], leaf), at)
    found = arrival.kafka_arrival(SPARK, Made("Filter", leaf, output=[value, at]))
    assert found is not None
    assert (found[0].children(), found[1]) == ([leaf], at)
    assert arrival.kafka_arrival(SPARK, Made("Generate", leaf, output=[value])) is None
    for other in (Made("Union", leaf, leaf), Made("MapInArrow", leaf, output=[value, at])):
        assert arrival.kafka_arrival(SPARK, other) is None
    table = source(value, streams=False)
    joined = arrival.kafka_arrival(SPARK, Made("Join", table, leaf, output=[value, at]))
    assert joined is not None
    assert joined[0].children() == [table, leaf]
    assert arrival.reads_kafka(Made("Filter", leaf, collectLeaves=[leaf, table]))
    assert not arrival.reads_kafka(Made("Filter", leaf, collectLeaves=[table]))


def test_kafka_is_asked_where_no_column_is_named_and_tells_of_all_streams_or_of_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    at = attribute("timestamp", TIME)
    knows, silent = source(attribute("v", LONG)), source(attribute("w", TIME))
    more = Made("more columns")
    monkeypatch.setattr(
        reading, "kafka_arrival", lambda spark, plan: (more, at) if plan is knows else None
    )

    def told(plans: list[Made], **given: Any) -> list[Any]:
        return [
            (plan, None if of is None else str(of)) for plan, of in asked(**given).arrivals(plans)
        ]

    assert told([knows, knows]) == [(more, "timestamp"), (more, "timestamp")]
    assert told([knows, silent]) == [(knows, None), (silent, None)]
    assert told([knows], asks_kafka=False) == [(knows, None)]
    assert told([knows], feeds=("an operator",)) == [(knows, None)]
    assert told([silent], arrival="w") == [(silent, "w")]


# --- The operator that a node becomes -----------------------------------------------------------------


def made(known: Reading, *, arrived: Any = None, upstream: Any = None) -> Any:
    taken = Taken("what it reads", [], [], ["k"], None, arrived)
    given = Given("what it puts out", "a placeholder", T.StructType(), 2)
    spec: Any = "a spec"
    return known.operator("join", "Join", spec, taken=taken, given=given, upstream=upstream)


def test_an_operator_is_numbered_and_stands_above_what_it_reads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reading, "kafka_arrival", lambda *_: None)
    first = made(asked(node="a node"))
    assert (first.id, first.level, first.upstream, first.feeds) == ("join-3", 0, None, ())
    assert (first.input_plan, first.output_plan, first.placeholder) == (
        "what it reads", "what it puts out", "a placeholder",
    )  # fmt: skip
    assert (first.time_output, first.node, first.key_names) == (2, "a node", ["k"])
    second = made(asked(), upstream=first)
    assert (second.level, second.upstream, second.parents) == (1, first, (first,))
    both = made(asked(feeds=(first, second)))
    assert (both.level, both.parents) == (2, (first, second))


def test_an_operators_records_arrived_when_kafka_says_unless_something_else_is_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    at = attribute("timestamp", TIME)
    monkeypatch.setattr(reading, "kafka_arrival", lambda *_: ("with Kafka's", at))
    found = made(asked())
    assert (found.input_plan, str(found.arrival)) == ("with Kafka's", "timestamp")
    above = made(asked(), upstream=found)
    others = [
        above, made(asked(feeds=(found,))), made(asked(asks_kafka=False)),
        made(asked(arrival="at")), made(asked(), arrived="known"),
    ]  # fmt: skip
    assert [other.input_plan for other in others] == ["what it reads"] * 5
    assert [other.arrival for other in others] == [None, None, None, None, "known"]


def operator(name: str, *, holds_us: int | None = 0, upstream: Any = None, feeds: Any = ()) -> Any:
    spec = SimpleNamespace(holds_us=holds_us, shared=False)
    return plan.PlannedOperator(
        name, name, 0, upstream, spec, None, [], [], None, None, None, T.StructType(), [], None,  # type: ignore[arg-type]
        None, None, tuple(feeds), None,
    )  # fmt: skip


def test_a_query_has_chains_and_the_last_ones_are_read_by_nobody() -> None:
    a = operator("a")
    b, c = operator("b", upstream=a), operator("c")
    d = operator("d", feeds=(b, c))
    query = plan.PlannedQuery([a, b, c, d], None, T.StructType(), OutputMode.APPEND)
    assert query.chains == [[a, b], [c], [d]]
    assert query.sources == [[a, b], [c]]
    assert query.last == [d]
    assert [op.parents for op in (a, b, d)] == [(), (a,), (b, c)]


def test_a_watermark_is_as_far_behind_as_operators_below_hold_records_back() -> None:
    join = operator("join", holds_us=-5_000_000)
    second = operator("second", holds_us=-2_000_000, upstream=join)
    other = operator("other", holds_us=-6_000_000)
    top = operator("top", feeds=(second, other))
    assert [op.behind_us for op in (join, second, top)] == [0, 5_000_000, 7_000_000]
    for_ever = operator("for ever", holds_us=None)
    assert operator("top", upstream=for_ever).behind_us == int(NEVER_US) // 2


@pytest.mark.parametrize(
    ("tree", "one_by_one"),
    [
        (Made("LocalRelation"), True),
        (Made("Sort"), True),
        (Made("Project", Made("Filter", Made("LocalRelation"))), True),
        (Made("Project", Made("Sort", Made("LocalRelation"))), False),
        (Made("Union", Made("LocalRelation")), False),
    ],
)
def test_rows_are_made_one_by_one_by_projections_and_filters_alone(
    tree: Made, one_by_one: bool
) -> None:
    assert plan.row_by_row(tree) is one_by_one


# --- The order of records -----------------------------------------------------------------------------


def test_columns_order_records_as_they_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    assert order.positions(["v", "ts"], ["k", "ts", "v"]) == (2, 1)
    with pytest.raises(ConfigError, match=r'names "tz", .* does not read; did you mean "ts"\?'):
        order.positions(["tz"], ["k", "ts"])
    with pytest.raises(ConfigError, match=r'names "other", .* not read; it reads k, ts\.'):
        order.positions(["other"], ["k", "ts"])

    def leaves(kind: Any, value: Any, what: str) -> list[Any]:
        return [(kind, str(value), what), (kind, "more", what)]

    monkeypatch.setattr(order.types, "leaves", leaves)
    columns = [attribute("k", TEXT), attribute("ts", TIME), attribute("v", LONG)]
    found = order.RecordOrder(asked(ordered=("v", "ts")), columns)
    assert found.given
    assert found.used == []
    assert found.leaves() == [
        (LONG, "v", "v"), (LONG, "more", "v"), (TIME, "ts", "ts"), (TIME, "more", "ts"),
    ]  # fmt: skip
    assert found.used == [columns[2], columns[1]]
    assert not order.RecordOrder(asked(), columns).given


# --- Expressions --------------------------------------------------------------------------------------


def test_event_time_is_a_time_or_the_end_of_a_window_and_never_null() -> None:
    window = T.StructType([T.StructField("start", TIME), T.StructField("end", TIME)])
    at = expressions.event_time_us(SPARK, attribute("at", TIME))
    assert str(at) == f"coalesce(unix_micros(at), {expressions.NO_TIME_US})"
    end = expressions.event_time_us(SPARK, attribute("w", window))
    assert str(end) == f"coalesce(unix_micros(w.getField(end)), {expressions.NO_TIME_US})"


def test_an_attribute_is_replaced_wherever_it_stands() -> None:
    a, b, new = attribute("a"), attribute("b"), attribute("n")
    call = Made("Add", a, Made("Abs", b), Made("Literal", said="1"))
    replaced = expressions.substitute(SPARK, call, [(Id(), b), (a.exprId(), new)])
    assert replaced.sql() == "Add(n, Abs(b), 1)"
    assert expressions.substitute(SPARK, b, [(a.exprId(), new)]) is b


def test_an_expression_computes_with_what_it_is_not() -> None:
    a, b = attribute("a"), attribute("b")
    assert expressions.mentions_inside(Made("Abs", a), a.exprId())
    assert not expressions.mentions_inside(Made("Abs", b), a.exprId())
    assert not expressions.mentions_inside(a, a.exprId())
    inside = Made("Add", b, Made("Abs", Made("AggregateExpression", a)))
    assert expressions.calls_aggregate(inside)
    assert not expressions.calls_aggregate(Made("Add", a, b))


def test_text_of_an_expression_has_neither_numbers_nor_quotes() -> None:
    assert expressions.sql_text(Made("X", said="`a`#12L + b#3")) == "a + b"
    without = Made("X", said="c#4")
    without.sql = lambda: 1 / 0  # type: ignore[method-assign, assignment, return-value]
    assert expressions.sql_text(without) == "c"
    assert expressions.seconds(1_500_000) == "1.5 s"


def test_columns_are_used_where_they_are_referred_to_put_out_or_united() -> None:
    a, b, c, d, e = (attribute(name) for name in "abcde")
    node = Made("Aggregate", source(d), output=[d, e])
    node._parts["references"] = [d]
    other = Made("LocalRelation", output=[c])
    united = Made("Union", Made("Filter", node, output=[b]), other, output=[a])
    for part in (united, other):
        part.references = Items  # type: ignore[method-assign, assignment]
    united.children()[0].references = lambda: Items([e])
    used = expressions.attributes_used(united, node)
    assert used == {one.exprId().toString() for one in (a, b, c, e)}


# --- Conditions of a join -----------------------------------------------------------------------------


class Sides:
    """A join of two streams, and expressions over them."""

    def __init__(self) -> None:
        self.left = [
            attribute(f"l{n}", kind) for n, kind in enumerate((LONG, T.IntegerType(), TEXT))
        ]
        self.right = [
            attribute(f"r{n}", kind) for n, kind in enumerate((LONG, T.IntegerType(), TEXT))
        ]

    def read(self, condition: Made | None) -> conditions.Condition:
        return self.reader(condition).read()

    def reader(self, condition: Made | None) -> conditions.ConditionReader:
        said = SimpleNamespace(isDefined=lambda: condition is not None, get=lambda: condition)
        join = Made("Join", left=source(*self.left), right=source(*self.right), condition=said)
        return conditions.ConditionReader(SPARK, join)


def call(kind: str, *children: Made) -> Made:
    return Made(kind, *children, dataType=LONG)


def texts(pairs: list[Any]) -> list[tuple[Any, ...]]:
    return [tuple(x.sql() if isinstance(x, Made) else x for x in pair) for pair in pairs]


def test_a_condition_is_taken_apart_by_the_sides_that_its_parts_look_at() -> None:
    sides = Sides()
    (l0, l1, l2), (r0, r1, r2) = sides.left, sides.right
    constant = Made("Literal", said="true")
    parts = [
        call("EqualTo", r0, l0), call("EqualNullSafe", l1, r1), call("IsNotNull", l2),
        call("IsNotNull", r2), constant, call("LessThan", r0, l0), call("GreaterThanOrEqual", l1, r1),
        call("LessThan", l2, r2), call("EqualTo", call("Add", l0, r0), r1),
    ]  # fmt: skip
    whole = parts[0]
    for part in parts[1:]:
        whole = call("And", whole, part)
    found = sides.read(whole)
    assert texts(found.keys) == [("l0", "r0", False), ("l1", "r1", True)]
    assert texts(found.comparisons) == [("l0", ">", "r0"), ("l1", ">=", "r1")]
    assert found.said == ["l0 > r0", "l1 >= r1"]
    one_sided = [[part.sql() for part in side] for side in found.sides]
    assert one_sided == [["IsNotNull(l2)", "true"], ["IsNotNull(r2)"]]
    rest = [part.sql() for part in found.rest]
    assert rest == ["LessThan(l2, r2)", "EqualTo(Add(l0, r0), r1)"], "slots compare no texts"
    assert sides.read(None) == conditions.Condition()


@pytest.mark.parametrize(
    ("kind", "turned", "width", "within"),
    [
        ("LessThanOrEqual", False, 5, 5), ("LessThan", False, 5, 4), ("GreaterThan", True, 5, 4),
        ("GreaterThanOrEqual", True, 5, 5), ("LessThan", False, 0, None),
        ("LessThanOrEqual", False, 0, 0), ("LessThanOrEqual", False, None, None),
        ("GreaterThan", False, 5, None),
    ],
)  # fmt: skip
def test_a_distance_is_two_comparisons_of_whole_numbers(
    monkeypatch: pytest.MonkeyPatch, kind: str, turned: bool, width: int | None, within: int | None
) -> None:
    monkeypatch.setattr(conditions, "plus", lambda spark, one, n: Made(f"{one.sql()} + {n}"))
    monkeypatch.setattr(conditions, "as_long", lambda spark, one: Made("long", one))
    sides = Sides()
    number = Made("Literal", said=str(width), foldable=True, eval=width, dataType=LONG)
    distance = call("Abs", call("Subtract", sides.right[1], sides.left[0]))
    distance._parts["foldable"] = False
    operands = [number, distance] if turned else [distance, number]
    found = sides.read(call(kind, *operands))
    if within is None:
        assert len(found.rest) == 1
        return
    assert found.rest == []
    assert texts(found.comparisons) == [
        ("l0", "<=", f"long(r1) + {within}()"), (f"l0 + {within}()", ">=", "long(r1)"),
    ]  # fmt: skip
    assert found.said == [f"abs(l0 - r1) <= {within}"]


def test_what_looks_at_both_sides_bounds_the_time_that_records_are_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(conditions, "both", lambda spark, a, b: call("And", a, b))
    sides = Sides()
    first = call("LessThan", sides.left[0], sides.right[0])
    second = call("Like", sides.left[2], sides.right[2])
    whole = call("And", call("And", first, call("IsNotNull", sides.left[0])), second)
    between = sides.reader(whole).between()
    assert between is not None
    assert between.sql() == "And(LessThan(l0, r0), Like(l2, r2))"
    assert sides.reader(call("IsNotNull", sides.left[0])).between() is None


def test_what_a_condition_abbreviates_is_written_out() -> None:
    a, b = attribute("a"), attribute("b")
    shared, other = Id(), Id()
    reference = Made("CommonExpressionRef", id=shared, said="ref")
    unknown = Made("CommonExpressionRef", id=other, said="unknown")
    definition = Made("Definition", b, id=shared)
    inner = Made("With", Made("Or", reference, unknown), defs=[definition])
    written = conditions.conjuncts(SPARK, Made("And", Made("Between", replacement=inner), a))
    assert [one.sql() for one in written] == ["Or(b, unknown)", "a"]


# --- Plans ----------------------------------------------------------------------------------------------


def test_rows_that_pass_are_described_by_their_columns_in_and_out() -> None:
    def schema(text: str) -> Any:
        return SimpleNamespace(schema=lambda: SimpleNamespace(catalogString=lambda: text))

    made = operator("pass")
    made.values = [plan.Passed("v0", Said("a"))]  # type: ignore[arg-type]
    made.input_plan, made.output_plan = schema("struct<a>"), schema("struct<b>")
    assert made.columns == "struct<a> -> struct<b>"
    made.node = SimpleNamespace(child=lambda: schema("struct<c>"))
    assert made.columns == "struct<c> -> struct<b>"
    made.values = [*made.values, plan.Routed("v1", INTEGER, Said("b"))]  # type: ignore[arg-type]
    assert made.columns == ""
    assert made.shared is False
    made.spec = SimpleNamespace(shared=True)
    assert made.shared is True


def test_buffers_are_merged_in_columns_of_keys_time_values_and_kept_lists() -> None:
    values: Any = [
        plan.Routed("v0", Leaf(Kind.FLOAT), Said("v")),
        plan.Routed("v2", INTEGER, Said("w")),
    ]
    kept = SimpleNamespace(leaves=(INTEGER, Leaf(Kind.BYTES)))
    spec: Any = SimpleNamespace(keys=(INTEGER, Leaf(Kind.BYTES)), time="a time", kept=(kept,))
    schema = plan.raw_schema(spec, values)
    assert schema.simpleString() == (
        "struct<k0:bigint,k1:binary,t:bigint,v0:double,v2:bigint,l0:array<struct<x0:bigint,x1:binary>>>"
    )
    spec.time, spec.kept = None, ()
    assert plan.raw_schema(spec, values).names == ["k0", "k1", "v0", "v2"]


def test_results_come_after_windows_of_aggregates_that_put_them_out_then() -> None:
    def aggregate(after_us: int | None) -> Any:
        class Spec(AggregateSpec):
            results_after_us = after_us

        return object.__new__(Spec)

    named = {"a": aggregate(5), "b": aggregate(None), "c": SimpleNamespace(results_after_us=7)}
    made: Any = [SimpleNamespace(id=name, spec=spec) for name, spec in named.items()]
    assert plan.results_after_us(made) == {"a": 5}
