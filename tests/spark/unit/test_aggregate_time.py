"""Which grouping expression of an aggregate is its time, and what leaves stand for a value."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from made_plans import Made, attribute, source
from pyspark.sql import types as T
from said_columns import F, Said

from headgate.core.errors import UnsupportedQuery
from headgate.operators.spec import NO_TIME_US, Kind, Leaf, TimeKey
from headgate.spark.read import aggregate, types
from headgate.spark.read.aggregate import _AggregateReader

SPARK: Any = "the session"
LONG, TIME, TEXT = T.LongType(), T.TimestampType(), T.StringType()
WINDOW = T.StructType([T.StructField("start", TIME), T.StructField("end", TIME)])
SECOND = 1_000_000


@pytest.fixture(autouse=True)
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (aggregate, types):
        monkeypatch.setattr(module, "F", F)
    monkeypatch.setattr(aggregate, "column", lambda spark, one: Said(one.sql()))
    monkeypatch.setattr(aggregate, "data_type", lambda kind: kind)


def window(name: str = "w", *, watermark: bool = True, session: bool = False) -> Made:
    made = attribute(name, WINDOW)
    keys = {aggregate.WATERMARK: watermark, aggregate.SESSION_WINDOW: session}
    made._parts["metadata"] = SimpleNamespace(contains=keys.__getitem__)
    return made


def reader(*grouping: Made, child: Any = None, **known: Any) -> Any:
    made: Any = object.__new__(_AggregateReader)
    facts = {"feeds": (), "whole_windows": False}
    vars(made).update(
        spark=SPARK, grouping=list(grouping), output=[], child=child or source(), upstream=None,
        reading=SimpleNamespace(**facts), _keeps_start=False, _advance_us=0, _shown={},
    )  # fmt: skip
    for name, value in known.items():
        holder = made.reading if name in facts else made
        setattr(holder, name, value)
    return made


def time_of(made: Any) -> tuple[int, TimeKey | None, str]:
    index, time, start = made._time_key()
    return index, time, str(start)


def test_the_time_of_an_aggregate_is_a_timestamp_under_a_watermark() -> None:
    k, at = attribute("k", LONG, watermark=True), attribute("at", TIME, watermark=True)
    plain_at = attribute("p", TIME)
    computed = Made("Cast", at, dataType=TIME)
    start = f"coalesce(unix_micros(at), {NO_TIME_US})"
    assert time_of(reader(k, plain_at, computed, at)) == (3, TimeKey(0, 1, 0), start)
    assert time_of(reader(k, plain_at, computed)) == (-1, None, "None")


def test_a_session_has_its_gap_and_every_record_its_own_where_it_differs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for gap_us, size_us in ((3 * SECOND, 3 * SECOND), (None, 1)):
        monkeypatch.setattr(aggregate, "session_gap_us", lambda *_, gap_us=gap_us: gap_us)
        index, time, start = time_of(reader(window(session=True, watermark=False)))
        assert time == TimeKey(size_us, size_us, expires=False, session=True)
        assert (index, start) == (0, "unix_micros(w.getField(start))")


@pytest.fixture
def made_by(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Have windows of 10 s every 2 s, from 1 s on, be made by a node."""

    def make(
        node: Made | None, numbers: tuple[int, int, int] = (10 * SECOND, 2 * SECOND, SECOND)
    ) -> None:
        found = None if node is None else (node, "its expression")
        monkeypatch.setattr(aggregate, "find_window", lambda plan, attribute: found)
        monkeypatch.setattr(aggregate, "window_numbers", lambda expression: numbers)
        monkeypatch.setattr(aggregate, "time_column_of", lambda expression: "at")
        checked = lambda *given: given[-1] == numbers or pytest.fail("unchecked")  # noqa: E731
        monkeypatch.setattr(aggregate, "check_window", checked)
        sliced = lambda self, *given: f"sliced by {given[2]}"  # noqa: E731
        monkeypatch.setattr(_AggregateReader, "_cut_into_slices", sliced)

    return make


def test_windows_that_do_not_overlap_are_taken_as_they_are(made_by: Any) -> None:
    made_by(Made("Project"), (10 * SECOND, 10 * SECOND, SECOND))
    made = reader(attribute("k", LONG), window())
    assert time_of(made)[:2] == (1, TimeKey(10 * SECOND, 10 * SECOND, SECOND, True))
    assert made._advance_us == 10 * SECOND
    made = reader(window(watermark=False))
    assert time_of(made)[1] == TimeKey(10 * SECOND, 10 * SECOND, SECOND, False)


def test_overlapping_windows_are_slices_unless_somebody_looks_into_them(made_by: Any) -> None:
    wanted = window()
    expand = Made("Expand", source(), output=[wanted])
    made_by(expand)
    whole, sliced = (TimeKey(10 * SECOND, n, SECOND, True) for n in (10 * SECOND, 2 * SECOND))
    made = reader(wanted, child=Made("Project", expand, expressions=[wanted]))
    assert (time_of(made)[1], made._advance_us) == (sliced, 2 * SECOND)
    assert str(made.child).startswith("sliced by at")
    made = reader(wanted, child=expand, whole_windows=True)
    assert (time_of(made)[1], made._advance_us, made.child) == (whole, 2 * SECOND, expand)
    inside = Made("Less", wanted)
    looks = [
        reader(
            wanted,
            child=Made("Filter", Made("Project", expand, expressions=[]), expressions=[inside]),
        ),
        reader(wanted, inside, child=expand),
        reader(wanted, child=expand, output=[inside]),
    ]  # fmt: skip
    for made in looks:
        assert (time_of(made)[1], made._advance_us) == (whole, 0)
    own_filter = reader(wanted, child=Made("Filter", expand, expressions=[inside]))
    assert time_of(own_filter)[1] == sliced, "Spark filters so itself"
    made_by(Made("Expand", source(), output=[attribute("other")]))
    assert time_of(reader(wanted, child=Made("Project")))[1] == whole


def test_a_window_from_below_is_grouped_by_and_not_cut_again(made_by: Any) -> None:
    made_by(None)
    wanted = window()
    below = SimpleNamespace(
        spec=SimpleNamespace(time=TimeKey(10 * SECOND, 2 * SECOND, SECOND, True)),
        output_plan=Made("Project", output=[attribute("k"), wanted]),
    )
    made = reader(wanted, upstream=below)
    assert time_of(made)[:2] == (0, TimeKey(10 * SECOND, 10 * SECOND, SECOND, True))
    assert not made._keeps_start
    for other in (
        {"upstream": SimpleNamespace(spec=SimpleNamespace(time=None))},
        {"feeds": ("a", "b")},
    ):
        made = reader(wanted, **other)
        end = f"coalesce(unix_micros(w.getField(end)), {NO_TIME_US})"
        assert time_of(made) == (0, TimeKey(0, 1, 0), end)
        assert made._keeps_start, "windows of any length may come"


def test_a_window_that_nobody_made_is_refused_or_a_key(made_by: Any) -> None:
    made_by(None)
    with pytest.raises(UnsupportedQuery, match="cannot find how the window w was made; group by"):
        reader(window())._time_key()
    assert time_of(reader(window(watermark=False))) == (-1, None, "None")


@pytest.mark.parametrize(
    ("time", "begins", "start"),
    [
        (TimeKey(0, 1), None, None),
        (TimeKey(9, 9), None, "(t - 9)"),
        (TimeKey(9, 9, session=True), None, "v0"),
        (TimeKey(0, 1), "k0", "k0"),
    ],
)
def test_a_row_has_its_time_back_as_the_user_grouped_by_it(
    time: TimeKey, begins: str | None, start: str | None
) -> None:
    end = "call_function(timestamp_micros, t)"
    if start is None:
        value = aggregate.time_value(time, TIME)
        assert str(value) == f"when((t <> {NO_TIME_US}), {end})"
        return
    kept: Any = None if begins is None else Said(begins)
    value = aggregate.time_value(time, WINDOW, kept)
    start = f"call_function(timestamp_micros, {start})"
    assert str(value) == (
        f"when({begins or 't'}.isNotNull(), struct({start}.alias(start), {end}.alias(end)))"
    )


def test_an_aggregate_says_its_keys_time_and_functions() -> None:
    k, w, at = attribute("k", LONG), window(), attribute("at", TIME)
    made = reader(k, w, output=[Made("AggregateExpression", said="sum(v)"), k])
    assert made._what(TimeKey(10 * SECOND, 2 * SECOND, 0), 1) == (
        "Aggregate keys k; window 10 s / 2 s as slices of 2 s; sum(v)"
    )
    assert (
        made._what(TimeKey(10 * SECOND, 10 * SECOND), 1) == "Aggregate keys k; window 10 s; sum(v)"
    )
    assert made._what(TimeKey(SECOND, SECOND, session=True), 1) == (
        "Aggregate keys k; session with a gap of 1 s; sum(v)"
    )
    assert made._what(TimeKey(1, 1, session=True), 1) == (
        "Aggregate keys k; session with a gap of each record's own; sum(v)"
    )
    made = reader(at, output=[Made("AggregateExpression", said="count(1)")])
    assert made._what(TimeKey(0, 1), 0) == "Aggregate keys (none); time at; count(1)"
    assert reader(k)._what(None, -1) == "Aggregate keys k; "


# --- Leaves -------------------------------------------------------------------------------------------


def said(of: Any) -> list[tuple[Leaf, str]]:
    return [(leaf, str(value)) for leaf, value in of]


INTEGER, BYTES = Leaf(Kind.INTEGER), Leaf(Kind.BYTES)


@pytest.mark.parametrize(
    ("kind", "leaf", "value"),
    [
        (T.ByteType(), INTEGER, "v.cast(bigint)"),
        (LONG, INTEGER, "v.cast(bigint)"),
        (T.BooleanType(), INTEGER, "v.cast(int).cast(bigint)"),
        (T.DateType(), INTEGER, "unix_date(v).cast(bigint)"),
        (TIME, INTEGER, "unix_micros(v)"),
        (T.TimestampNTZType(), INTEGER, "v as LongType()"),
        (T.YearMonthIntervalType(), INTEGER, "v as IntegerType().cast(bigint)"),
        (T.FloatType(), Leaf(Kind.FLOAT), "v.cast(double)"),
        (T.DecimalType(9, 2), Leaf(Kind.DECIMAL, 2), "v.cast(DecimalType(38,2))"),
        (TEXT, BYTES, "v.cast(binary)"),
        (T.BinaryType(), BYTES, "v.cast(binary)"),
        (T.ArrayType(LONG), BYTES, "bytes of v"),
    ],
)
def test_a_value_is_carried_by_a_leaf_of_its_kind(
    monkeypatch: pytest.MonkeyPatch, kind: T.DataType, leaf: Leaf, value: str
) -> None:
    monkeypatch.setattr(types, "reinterpreted", lambda of, value, to: Said(f"{value} as {to!r}"))
    monkeypatch.setattr(types, "as_bytes", lambda of, value: Said(f"bytes of {value}"))
    column: Any = Said("v")
    assert said(types.any_leaves(kind, column)) == [(leaf, value)]
    in_order = not isinstance(kind, T.ArrayType)
    assert types.in_order(kind) is in_order
    if in_order:
        assert said(types.leaves(kind, column, "it")) == [(leaf, value)]
    else:
        with pytest.raises(
            UnsupportedQuery, match="cannot take it of type array<bigint> here; name one"
        ):
            types.leaves(kind, column, "it")


STRUCT = T.StructType(
    [
        T.StructField("a", LONG, nullable=False),
        T.StructField("b", T.StructType([T.StructField("c", TEXT)])),
    ]
)


def test_a_struct_is_whether_it_is_there_and_its_fields(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(types, "known_not_null", lambda value: Said(f"{value}!"))
    column: Any = Said("v")
    assert said(types.any_leaves(STRUCT, column)) == [
        (INTEGER, "when(v.isNotNull(), 1.cast(bigint))"), (INTEGER, "v.getField(a).cast(bigint)"),
        (INTEGER, "when(v.getField(b).isNotNull(), 1.cast(bigint))"),
        (BYTES, "v.getField(b).getField(c).cast(binary)"),
    ]  # fmt: skip
    assert types.leaf_count(STRUCT) == 4
    parts: Any = [Said(f"p{n}") for n in range(4)]
    inner = "when(p2.isNotNull(), struct(p3.cast(StringType()).alias(c)))"
    assert str(types.rebuild(STRUCT, parts)) == (
        f"when(p0.isNotNull(), struct(p1.cast(LongType())!.alias(a), {inner}.alias(b)))"
    )


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (T.BooleanType(), "p.cast(int).cast(boolean)"),
        (T.DateType(), "call_function(date_from_unix_date, p.cast(int))"),
        (TIME, "call_function(timestamp_micros, p)"),
        (T.TimestampNTZType(), "p from LongType()"),
        (T.YearMonthIntervalType(), "p.cast(int) from IntegerType()"),
        (T.ArrayType(LONG), "value of p"),
        (T.DecimalType(9, 2), "p.cast(DecimalType(9,2))"),
    ],
)
def test_a_leaf_gives_its_value_back(
    monkeypatch: pytest.MonkeyPatch, kind: T.DataType, value: str
) -> None:
    monkeypatch.setattr(types, "reinterpreted", lambda of, value, to: Said(f"{value} from {of!r}"))
    monkeypatch.setattr(types, "from_bytes", lambda of, value: Said(f"value of {value}"))
    part: Any = Said("p")
    assert str(types.rebuild(kind, [part])) == value
    assert types.leaf_count(kind) == 1


def test_keys_that_spark_takes_for_equal_have_equal_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(types, "as_bytes", lambda of, value: Said(f"bytes of {value}"))
    monkeypatch.setattr(types, "normalised_whole", lambda value: Said(f"one form of {value}"))
    column: Any = Said("v")
    ((leaf, value),) = types.key_leaves(T.DoubleType(), column)
    assert leaf == Leaf(Kind.FLOAT)
    double = "v.cast(double)"
    assert (
        str(value) == f"when(isnan({double}), nan).when(({double} = 0.0), 0.0).otherwise({double})"
    )
    assert said(types.key_leaves(LONG, column)) == [(INTEGER, "v.cast(bigint)")]
    assert said(types.key_leaves(T.ArrayType(LONG), column)) == [(BYTES, "bytes of one form of v")]
    collated = T.StringType("UTF8_LCASE")
    monkeypatch.setattr(
        types, "collation_keys", lambda value: (T.BinaryType(), Said(f"key of {value}"))
    )
    assert said(types.key_leaves(collated, column)) == [(BYTES, "key of v.cast(binary)")]
    for kind in (T.ArrayType(collated), T.StructType([T.StructField("a", collated)])):
        assert types.collated(kind)
    for kind in (TEXT, T.ArrayType(TEXT), LONG):
        assert not types.collated(kind)
    assert not types.in_order(collated)
    assert not types.in_order(
        T.StructType([T.StructField("a", LONG), T.StructField("b", collated)])
    )
    assert types.in_order(STRUCT)
