"""Checks which slot aggregates, input values and buffers the functions of an Aggregate node become."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from made_plans import Made, attribute, plain_seq
from pyspark.sql import types as T
from said_columns import F, Said

from headgate.core.errors import UnsupportedQuery
from headgate.operators.spec import Aggregate, Keep, Kept, Kind, Leaf, Op, Program
from headgate.spark.read import buffers, expressions, functions, types
from headgate.spark.read.functions import AggregateFunctions

SPARK: Any = "the session"
LONG, TEXT, DOUBLE, FLAG = T.LongType(), T.StringType(), T.DoubleType(), T.BooleanType()
MONEY, LONGS = T.DecimalType(17, 2), T.ArrayType(T.LongType())
INTEGER, FLOAT, BYTES = Leaf(Kind.INTEGER), Leaf(Kind.FLOAT), Leaf(Kind.BYTES)
CENTS = Leaf(Kind.DECIMAL, 2)
ONE, ZERO = "1.cast(bigint)", "0.cast(bigint)"


@pytest.fixture(autouse=True)
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    """Put texts in place of columns, and types in place of Spark's."""
    for module in (functions, types, buffers):
        monkeypatch.setattr(module, "F", F)
    for name, stub in {
        "column": lambda spark, one: Said(one.sql()),
        "data_type": lambda kind: kind,
        "text_of": lambda value: str(value).replace("when(", "CASE WHEN "),
        "runs_as": lambda spark, function: function,
        "can_fold": lambda spark, function: function._kind != "PythonUDAF",
        "is_declarative": lambda spark, function: "mergeExpressions" in function._parts,
        "seq": plain_seq,
    }.items():
        monkeypatch.setattr(functions, name, stub)
    monkeypatch.setattr(expressions, "seq", plain_seq)
    monkeypatch.setattr(types, "as_bytes", lambda kind, value: Said(f"bytes({value})"))


def value_of(name: str, kind: Any, *, nullable: bool = True, foldable: bool = False) -> Made:
    return attribute(name, kind, nullable=nullable, foldable=foldable)


def option(value: Any) -> Any:
    return SimpleNamespace(isDefined=lambda: value is not None, get=lambda: value)


def function_of(kind: str, *children: Made, result: Any = LONG, **parts: Any) -> Made:
    mode = SimpleNamespace(evalMode=lambda: parts.get("evalMode", "LEGACY"))
    known = {"evalContext": mode, "evalMode": "LEGACY", "nullable": True, "dataType": result}
    return Made(kind, *children, **{**known, **parts})


def call(function: Made, *, distinct: bool = False, where: Made | None = None) -> Made:
    key = (function.sql(), distinct, where)
    canonical = SimpleNamespace(key=key, equals=lambda other: other.key == key)
    return Made(
        "AggregateExpression", function,
        aggregateFunction=function, isDistinct=distinct, filter=option(where),
        canonicalized=canonical, said=function.sql(),
    )  # fmt: skip


def order_of(*columns: str) -> Any:
    leaves = [(INTEGER, Said(name)) for name in columns]
    return SimpleNamespace(given=bool(columns), leaves=lambda: leaves)


def collected(*calls: Made, order: Any = None, grouping: Any = ()) -> AggregateFunctions:
    found = AggregateFunctions(SPARK, grouping, order or order_of())
    for one in calls:
        found.collect(one)
    return found


def routed(values: Any) -> list[tuple[str, Leaf, str]]:
    return [(value.name, value.leaf, str(value.value)) for value in values]


def columns(found: AggregateFunctions) -> list[tuple[str, Any, list[str], bool, bool]]:
    return [(b.name, b.type, b.columns, b.nullable, b.is_empty) for b in found.buffers]


V, W, K = value_of("v", LONG), value_of("w", LONG), value_of("k", LONG, nullable=False)
C = Made("GreaterThan", said="c", foldable=False)


@pytest.mark.parametrize(
    ("counted", "where", "text"),
    [
        ((K,), None, ONE),
        ((V, K), None, f"when(v.isNotNull(), {ONE}).otherwise({ZERO})"),
        ((V, W), None, f"when((v.isNotNull() and w.isNotNull()), {ONE}).otherwise({ZERO})"),
        ((K,), C, f"when(when(c, k).isNotNull(), {ONE}).otherwise({ZERO})"),
    ],
)
def test_a_count_counts_records_in_which_no_argument_is_null(
    counted: Any, where: Any, text: str
) -> None:
    found = collected(call(function_of("Count", *counted), where=where))
    assert found.aggregates == [Aggregate(Op.COUNT, (INTEGER,))]
    assert routed(found.values) == [("v0", INTEGER, text)]
    assert columns(found) == [("b0", LONG, ["v0"], False, False)]
    assert found.evaluated == []


@pytest.mark.parametrize(("mode", "checked"), [("ANSI", True), ("LEGACY", False)])
def test_a_sum_of_longs_is_checked_for_overflow_in_ansi_mode_alone(
    mode: str, checked: bool
) -> None:
    found = collected(call(function_of("Sum", V, evalMode=mode)))
    assert found.aggregates == [Aggregate(Op.SUM_INTEGER, (INTEGER,), checked=checked)]
    assert routed(found.values) == [("v0", INTEGER, "v.cast(bigint)")]
    assert columns(found) == [("b0", LONG, ["v0"], True, False)]
    assert found.evaluated == ["b0"]


def test_a_sum_of_doubles_has_one_value_and_of_decimals_a_count_beside_it() -> None:
    found = collected(call(function_of("Sum", value_of("d", DOUBLE), result=DOUBLE)))
    assert found.aggregates == [Aggregate(Op.SUM_FLOAT, (FLOAT,))]
    assert routed(found.values) == [("v0", FLOAT, "d.cast(double)")]
    assert columns(found) == [("b0", DOUBLE, ["v0"], True, False)]
    found = collected(call(function_of("Sum", value_of("m", MONEY), result=MONEY)))
    assert found.aggregates == [Aggregate(Op.SUM_DECIMAL, (CENTS, INTEGER))]
    assert routed(found.values) == [
        ("v0", CENTS, "m.cast(DecimalType(38,2))"),
        ("v1", INTEGER, f"when(m.isNotNull(), {ONE}).otherwise({ZERO})"),
    ]
    assert columns(found) == [
        ("b0", FLAG, ["v1"], False, True),
        ("b1", MONEY, ["v0"], True, False),
    ]
    assert found.evaluated == ["b1"], "the sum is Spark's first buffer"


def test_a_mean_has_a_sum_and_a_count_of_what_is_not_null() -> None:
    total = attribute("sum", DOUBLE)
    mean = function_of("Average", V, result=DOUBLE, aggBufferAttributes=[total])
    found = collected(call(mean))
    assert found.aggregates == [Aggregate(Op.SUM_FLOAT, (FLOAT,)), Aggregate(Op.COUNT, (INTEGER,))]
    assert routed(found.values) == [
        ("v0", FLOAT, "v.cast(double)"),
        ("v1", INTEGER, f"when(v.isNotNull(), {ONE}).otherwise({ZERO})"),
    ]
    assert columns(found) == [
        ("b0", DOUBLE, ["v0"], True, False),
        ("b1", LONG, ["v1"], False, False),
    ]
    assert found.evaluated == ["b0"]
    of_money = function_of("Average", V, aggBufferAttributes=[attribute("sum", MONEY)])
    found = collected(call(of_money))
    assert found.aggregates == [Aggregate(Op.SUM_DECIMAL, (CENTS, INTEGER))]
    assert columns(found) == [
        ("b0", MONEY, ["v0"], True, False),
        ("b1", LONG, ["v1"], False, False),
    ]


@pytest.mark.parametrize(
    ("function", "keep"),
    [
        (function_of("Sum", V, evalMode="TRY"), Keep.BAG),
        (function_of("Sum", V, result=T.DayTimeIntervalType()), Keep.BAG),
        (function_of("Average", V, evalMode="TRY"), Keep.BAG),
        (function_of("Average", V, aggBufferAttributes=[attribute("sum", LONG)]), Keep.BAG),
        (function_of("Min", value_of("xs", LONGS), result=LONGS), Keep.SET),
        (function_of("MaxBy", V, value_of("xs", LONGS)), Keep.LIST),
        (function_of("CollectList", V), Keep.LIST),
        (function_of("CollectSet", V), Keep.SET),
        (function_of("Percentile", V), Keep.BAG),
    ],
)
def test_a_function_without_a_kernel_leaves_kept_values_and_nothing_else(
    function: Made, keep: Keep
) -> None:
    found = collected(call(function))
    assert (found.aggregates, found.values, found.evaluated) == ([], [], [])
    assert [collection.kept.keep for collection in found.kept] == [keep]
    assert [(b.name, b.columns, b.nullable) for b in found.buffers] == [("b0", ["l0"], True)]
    assert [part.values for part in found.parts] == [()]
    way = f"{function.sql()}: its values are kept, Spark's own function runs above"
    assert found.how() == f"; {way}"


@pytest.mark.parametrize(("kind", "op"), [("Min", Op.MIN), ("Max", Op.MAX)])
def test_an_extreme_compares_all_leaves_of_its_value(kind: str, op: Op) -> None:
    pair = T.StructType([T.StructField("a", LONG), T.StructField("b", TEXT)])
    whole = call(function_of("Count", K))
    found = collected(whole, call(function_of(kind, value_of("p", pair), result=pair)))
    assert found.aggregates[1] == Aggregate(op, (INTEGER, INTEGER, BYTES))
    assert columns(found)[1] == ("b1", pair, ["v1", "v2", "v3"], True, False)
    assert found.parts[1].values == ("v1", "v2", "v3")


@pytest.mark.parametrize(("kind", "op"), [("First", Op.FIRST), ("Last", Op.LAST)])
@pytest.mark.parametrize(
    ("skips", "where", "counted"),
    [
        (False, None, ONE),
        (True, None, f"when(v.isNotNull(), {ONE}).otherwise({ZERO})"),
        (False, C, f"when(c, {ONE}).otherwise({ZERO})"),
        (True, C, f"when((c and when(c, v).isNotNull()), {ONE}).otherwise({ZERO})"),
    ],
)
def test_the_first_record_is_the_first_that_qualifies(
    kind: str, op: Op, skips: bool, where: Any, counted: str
) -> None:
    found = collected(call(function_of(kind, V, ignoreNulls=skips), where=where))
    assert found.aggregates == [Aggregate(op, (INTEGER, INTEGER))]
    value = "v" if where is None else "when(c, v)"
    assert routed(found.values) == [
        ("v0", INTEGER, counted),
        ("v1", INTEGER, f"{value}.cast(bigint)"),
    ]
    assert columns(found) == [("b0", LONG, ["v1"], True, False)]


def test_a_first_value_needs_no_order_of_its_type_and_no_other_aggregates_values() -> None:
    first = call(function_of("First", value_of("xs", LONGS), ignoreNulls=False, result=LONGS))
    found = collected(call(function_of("Count", K)), first)
    assert found.aggregates[1] == Aggregate(Op.FIRST, (INTEGER, BYTES))
    assert columns(found)[1] == ("b1", LONGS, ["v2"], True, False)
    assert found.kept == []


@pytest.mark.parametrize(("kind", "op"), [("First", Op.MIN), ("Last", Op.MAX)])
@pytest.mark.parametrize(
    ("skips", "where", "counted"),
    [
        (False, None, ONE),
        (True, None, f"when(v.isNotNull(), {ONE})"),
        (False, C, f"when(c, {ONE})"),
    ],
)
def test_the_first_record_in_an_order_of_the_users_is_the_least(
    kind: str, op: Op, skips: bool, where: Any, counted: str
) -> None:
    one = call(function_of(kind, V, ignoreNulls=skips), where=where)
    found = collected(one, order=order_of("at"))
    assert found.aggregates == [Aggregate(op, (INTEGER, INTEGER, INTEGER))]
    value = "v" if where is None else "when(c, v)"
    assert routed(found.values) == [
        ("v0", INTEGER, counted),
        ("v1", INTEGER, "at"),
        ("v2", INTEGER, f"{value}.cast(bigint)"),
    ]
    assert columns(found) == [("b0", LONG, ["v2"], True, False)]


@pytest.mark.parametrize(
    ("kind", "op", "ordered"), [("MinBy", Op.MIN_BY, Op.MIN), ("MaxBy", Op.MAX_BY, Op.MAX)]
)
def test_a_value_by_another_has_the_leaves_of_both(kind: str, op: Op, ordered: Op) -> None:
    name = value_of("name", TEXT)
    by = call(function_of(kind, name, V, result=TEXT))
    found = collected(by)
    assert found.aggregates == [Aggregate(op, (INTEGER,), (BYTES,))]
    assert [text for *_, text in routed(found.values)] == ["v.cast(bigint)", "name.cast(binary)"]
    assert columns(found) == [("b0", TEXT, ["v1"], True, False)]
    found = collected(by, order=order_of("at"))
    assert found.aggregates == [Aggregate(ordered, (INTEGER, INTEGER, BYTES))]
    assert [text for *_, text in routed(found.values)] == [
        "v.cast(bigint)", "at", "name.cast(binary)",
    ]  # fmt: skip
    assert columns(found) == [("b0", TEXT, ["v2"], True, False)]


def test_a_sketch_takes_hashes_of_what_is_not_null_and_no_collated_text() -> None:
    words = SimpleNamespace(size=lambda: 3)
    sketch = call(function_of("HyperLogLogPlusPlus", V, aggBufferAttributes=words))
    found = collected(sketch)
    assert found.aggregates == [Aggregate(Op.REGISTERS, (Leaf(Kind.REGISTERS, 3),))]
    assert [text for *_, text in routed(found.values)] == ["when(v.isNotNull(), xxhash64(v))"]
    assert columns(found) == [("b0", LONG, ["v0"], False, False)]
    b0 = attribute("b0")
    assert found.results(sketch, [], {"b0": b0}) is b0
    folded = value_of("t", T.StringType("UNICODE_CI"))
    found = collected(call(function_of("HyperLogLogPlusPlus", folded)))
    assert (found.aggregates, [one.kept.keep for one in found.kept]) == ([], [Keep.SET])


def test_functions_of_the_same_values_share_a_collection() -> None:
    listed, sorted_ = function_of("CollectList", V), function_of("ListAgg", V)
    found = collected(call(listed), call(sorted_), call(function_of("CollectSet", V)))
    assert [(b.name, b.columns) for b in found.buffers] == [
        ("b0", ["l0"]), ("b1", ["l0"]), ("b2", ["l1"]),
    ]  # fmt: skip
    assert routed(found.kept_values) == [
        ("h0", INTEGER, ONE),
        ("h0_0", INTEGER, "v.cast(bigint)"),
        ("h1", INTEGER, ONE),
        ("h1_0", INTEGER, "v.cast(bigint)"),
    ]
    found = collected(call(listed), call(listed, where=C))
    assert [b.columns for b in found.buffers] == [["l0"], ["l1"]]
    assert routed(found.kept_values)[2] == ("h1", INTEGER, f"when(c, {ONE})")


def test_distinct_values_are_a_set_whatever_the_function() -> None:
    found = collected(call(function_of("Sum", V), distinct=True))
    assert [one.kept for one in found.kept] == [Kept((INTEGER,), Keep.SET)]
    assert found.how().startswith("; distinct Sum(v): ")


def test_equal_floating_point_values_of_a_set_have_one_form() -> None:
    number = value_of("d", DOUBLE)
    found = collected(call(function_of("CollectSet", number)), call(function_of("Mode", number)))
    in_set, in_bag = (text for name, _, text in routed(found.kept_values) if "_" in name)
    assert in_set.startswith("when(isnan(d.cast(double))")
    assert in_bag == "d.cast(double)"


def test_a_list_in_an_order_of_the_users_begins_with_the_leaves_of_the_order() -> None:
    listed, most = call(function_of("CollectList", V)), call(function_of("Mode", V))
    found = collected(listed, most, order=order_of("at"))
    assert [(one.kept, one.widths, one.ordering) for one in found.kept] == [
        (Kept((INTEGER, INTEGER), Keep.BAG), [1], 1),
        (Kept((INTEGER,), Keep.BAG), [1], 0),
    ]
    assert routed(found.kept_values)[1:3] == [
        ("h0_0", INTEGER, "at"),
        ("h0_1", INTEGER, "v.cast(bigint)"),
    ]


@pytest.mark.parametrize(("grouping", "keys"), [((K, W), "k, w"), ((), "(none)")])
def test_a_pandas_function_over_a_group_is_refused_with_the_keys(grouping: Any, keys: str) -> None:
    function = function_of("PythonUDAF", V, said="mine(v)")
    with pytest.raises(UnsupportedQuery) as raised:
        collected(call(function), grouping=grouping)
    assert str(raised.value).startswith(f"cannot run mine(v) in the aggregate keyed by {keys}: ")


def test_a_function_is_added_once_however_often_it_stands_in_the_output() -> None:
    twice = Made("Add", call(function_of("Sum", V)), call(function_of("Sum", V)))
    found = collected(Made("Alias", twice), call(function_of("Sum", W)))
    assert [text for *_, text in routed(found.values)] == ["v.cast(bigint)", "w.cast(bigint)"]
    assert [(part.name, part.values) for part in found.parts] == [
        ("Sum(v)", ("v0",)), ("Sum(w)", ("v1",)),
    ]  # fmt: skip


def test_results_are_computed_over_buffers_and_keys() -> None:
    own = attribute("own", LONG)
    result = Made("Cast", own)
    total = function_of("Sum", V, aggBufferAttributes=[own], evaluateExpression=result)
    plain_count, sum_ = call(function_of("Count", K)), call(total)
    found = collected(plain_count, sum_)
    b0, b1, g0 = attribute("b0"), attribute("b1"), attribute("g0")
    literal = Made("Literal", said="5")
    output = Made("Add", plain_count, sum_, K, literal)
    made = found.results(output, [(K, g0)], {"b0": b0, "b1": b1})
    count, evaluated, key, five = made.children()
    assert (count, key, five) == (b0, g0, literal)
    assert evaluated.sql() == "Cast(b1)"


def program() -> Program:
    return Program((("add", ("left", 0), ("right", 0)),), (0.0,), True)


@pytest.mark.parametrize("where", [None, C])
def test_a_function_of_expressions_is_merged_by_a_program(
    monkeypatch: pytest.MonkeyPatch, where: Any
) -> None:
    monkeypatch.setattr(functions, "program_of", lambda spark, function: program())
    buffer = attribute("m", DOUBLE, nullable=False)
    update = Made("Plus", buffer, value_of("d", DOUBLE))
    moment = function_of(
        "Moment", V, mergeExpressions=[], aggBufferAttributes=[buffer],
        initialValues=[Made("Literal", said="0.0")], updateExpressions=[update],
    )  # fmt: skip
    found = collected(call(moment, where=where))
    assert found.aggregates == [Aggregate(Op.MERGED, (FLOAT,), program=program())]
    text = "Plus(0.0, d)" if where is None else "when(c, Plus(0.0, d)).otherwise(0.0)"
    assert routed(found.values) == [("v0", FLOAT, f"{text}.cast(double)")]
    assert columns(found) == [("b0", DOUBLE, ["v0"], False, False)]
    assert found.evaluated == ["b0"]
    assert found.how() == "; Moment(v): merged as Spark's own expressions say"
    monkeypatch.setattr(functions, "program_of", lambda spark, function: None)
    found = collected(call(moment, where=where))
    assert [one.kept.keep for one in found.kept] == [Keep.LIST]


def test_the_end_of_a_session_and_a_first_value_stand_before_the_aggregates() -> None:
    found: Any = collected()
    found.add_end(Said("end"))
    first = found.add_first(TEXT, Said("k"))
    assert found.aggregates == [
        Aggregate(Op.MAX, (INTEGER,)),
        Aggregate(Op.FIRST, (INTEGER, BYTES)),
    ]
    assert routed(found.values) == [
        ("v0", INTEGER, "end"),
        ("v1", INTEGER, ONE),
        ("v2", BYTES, "k.cast(binary)"),
    ]
    assert (first.name, first.type, first.columns, first.nullable) == ("first", TEXT, ["v2"], True)
    assert found.buffers == []
