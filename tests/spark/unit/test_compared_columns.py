"""Tests how two outputs are compared: forms of values, tolerances and rows for people, without Spark."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql import types as T
from said_columns import F, Said

from headgate.core.errors import HeadgateError
from headgate.core.near import RELATIVE, RELATIVE_SINGLE, floor_of
from headgate.spark.api import comparison

LONG, TEXT, DOUBLE, SINGLE = T.LongType(), T.StringType(), T.DoubleType(), T.FloatType()
EMPTY = T.StructType([])


def struct(**kinds: T.DataType) -> T.StructType:
    return T.StructType([T.StructField(name, kind) for name, kind in kinds.items()])


@pytest.fixture(autouse=True)
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comparison, "F", F)
    monkeypatch.setattr(
        Said, "__mul__", lambda one, other: Said(f"({one} * {other})"), raising=False
    )
    monkeypatch.setattr(Said, "__neg__", lambda one: Said(f"-{one}"), raising=False)
    monkeypatch.setattr(
        Said, "__lt__", lambda one, other: Said(f"({one} < {other})"), raising=False
    )


X = Said("x")


@pytest.mark.parametrize(
    ("kind", "form"),
    [
        (LONG, "x"),
        (EMPTY, "x"),
        (DOUBLE, f"when(isnan(x), nan.cast({DOUBLE!r})).otherwise((x + 0.0).cast({DOUBLE!r}))"),
        (T.VariantType(), "to_json(x)"),
        (T.ArrayType(LONG), "transform(x, item)"),
        (T.ArrayType(T.VariantType()), "transform(x, to_json(item))"),
        (
            T.MapType(T.VariantType(), LONG),
            "array_sort(transform(map_entries(x), struct(to_json(item[key]).alias(key), "
            "item[value].alias(value))))",
        ),
    ],
)
def test_a_value_has_a_form_by_which_rows_are_grouped(kind: T.DataType, form: str) -> None:
    assert str(comparison._canonical(X, kind)) == form  # type: ignore[arg-type]


def test_fields_of_a_struct_are_known_by_their_places() -> None:
    made = comparison._canonical(X, struct(a=LONG, b=T.VariantType()))  # type: ignore[arg-type]
    cast = f"x.cast({struct(f0=LONG, f1=T.VariantType())!r})"
    assert str(made) == (
        f"when({cast}.isNotNull(), struct({cast}.getField(f0).alias(f0), "
        f"to_json({cast}.getField(f1)).alias(f1)))"
    )


def exact(value: str) -> str:
    which = f"when(isnan({value}), 1).when(({value} = inf), 2).when(({value} = -inf), 3)"
    return f"when({value}.isNotNull(), {which}.otherwise(0))"


FIELD, ENTRY = exact("x.getField(f1)"), exact("item[value]")


@pytest.mark.parametrize(
    ("kind", "form"),
    [
        (LONG, "x"),
        (DOUBLE, exact("x")),
        (T.ArrayType(LONG), "x"),
        (T.ArrayType(SINGLE), f"transform(x, {exact('item')})"),
        (
            struct(a=LONG, b=DOUBLE),
            f"when(x.isNotNull(), struct(x.getField(f0).alias(f0), {FIELD}.alias(f1)))",
        ),
        (
            T.MapType(LONG, DOUBLE),
            f"transform(x, struct(item[key].alias(key), {ENTRY}.alias(value)))",
        ),
    ],
)
def test_of_numbers_within_a_tolerance_only_what_is_not_finite_is_exact(
    kind: T.DataType, form: str
) -> None:
    assert str(comparison._exact(X, kind)) == form  # type: ignore[arg-type]


NONE = "array().cast(array<double>)"


def numbers_of(value: str) -> str:
    finite = f"(({value}.isNotNull() and not isnan({value})) and (abs({value}) <> inf))"
    return f"array(when({finite}, {value}.cast(double)).otherwise(0.0))"


@pytest.mark.parametrize(
    ("kind", "form"),
    [
        (LONG, NONE),
        (DOUBLE, numbers_of("x")),
        (struct(a=LONG, b=SINGLE), f"concat({NONE}, {numbers_of('x.getField(f1)')})"),
        (T.ArrayType(DOUBLE), f"coalesce(flatten(transform(x, {numbers_of('item')})), {NONE})"),
        (
            T.MapType(DOUBLE, DOUBLE),
            f"coalesce(flatten(transform(x, {numbers_of('item[value]')})), {NONE})",
        ),
        (T.MapType(DOUBLE, LONG), NONE),
    ],
)
def test_numbers_of_a_value_are_in_one_list(kind: T.DataType, form: str) -> None:
    assert str(comparison._numbers(X, kind)) == form  # type: ignore[arg-type]


def test_a_column_has_a_tolerance_if_it_may_be_a_sum_of_floating_point_numbers() -> None:
    schema = struct(
        a=DOUBLE, b=DOUBLE, c=LONG, d=T.MapType(DOUBLE, LONG), e=T.ArrayType(struct(x=SINGLE))
    )
    columns = comparison._columns(schema, [True, False, True, True, True])
    assert [(c.number, c.name, c.near) for c in columns] == [
        (0, "a", True), (1, "b", False), (2, "c", False), (3, "d", False), (4, "e", True),
    ]  # fmt: skip
    assert [c.relative for c in columns] == [RELATIVE] * 4 + [RELATIVE_SINGLE]
    assert str(columns[0].value) == "headgate_row[c0]"
    row = "headgate_row[c0]"
    assert str(columns[0].size()) == f"array_max(transform({numbers_of(row)}, abs(item)))"


def test_rows_are_counted_by_their_columns_in_their_order() -> None:
    frame = Said("frame")
    made = comparison._row_of(frame, struct(a=LONG, b=TEXT), -1)  # type: ignore[arg-type]
    assert str(made) == (
        "frame.toDF(c0, c1).select(struct(c0.alias(c0), c1.alias(c1)).alias(headgate_row), "
        "-1.alias(sign))"
    )
    cells = comparison._cells(struct(a=LONG, b=T.BinaryType()))
    assert str(cells) == (
        "array(coalesce(headgate_row[c0].cast(string), null), coalesce(hex(headgate_row[c1]), null))"
        ".cast(array<string>)"
    )


def test_columns_are_put_in_order_where_only_that_differs() -> None:
    frame: Any = Said("out", columns=["b", "a.c"])
    assert str(comparison._in_order(frame, ["a.c", "b"])) == (
        "out.toDF(c0, c1).select(c1.alias(a.c), c0.alias(b))"
    )
    twice: Any = Said("out", columns=["b", "b", "a"])
    for given, names in ((frame, ["b", "a.c"]), (frame, ["b", "d"]), (twice, ["a", "b", "b"])):
        assert comparison._in_order(given, names) is given


COLUMNS = "^the output has columns struct<%s>, the batch answer struct<a:bigint>; it was written by"


@pytest.mark.parametrize(
    ("wanted_class", "there", "message"),
    [
        (
            False,
            struct(a=LONG),
            "^the output has a user-defined type, whose code is not loaded; the",
        ),
        (True, struct(a=TEXT), COLUMNS % "a:string"),
        (True, struct(b=LONG), COLUMNS % "b:bigint"),
        (True, struct(a=LONG, b=LONG, c=TEXT), r'; leave out .*: output\.drop\("b", "c"\)\.$'),
        (True, struct(a=TEXT, b=LONG), COLUMNS % "a:string,b:bigint"),
    ],
)
def test_outputs_of_other_shapes_are_not_compared(
    monkeypatch: pytest.MonkeyPatch, wanted_class: bool, there: T.StructType, message: str
) -> None:
    expected: Any = SimpleNamespace(schema=struct(a=LONG), columns=["a"], named=wanted_class)
    output: Any = SimpleNamespace(schema=there, columns=there.names, named=True)
    monkeypatch.setattr(comparison, "names_a_class", lambda frame: frame.named)
    with pytest.raises(HeadgateError, match=message):
        comparison.compare(expected, output)


class Rest:
    """The rows that differ: by their number, net, and their cells."""

    def __init__(self, wanted: list[list[str]], there: list[list[str]]) -> None:
        self.rows, self.asked = {"net > 0": wanted, "net < 0": there}, dict[str, Any]()

    def where(self, condition: str) -> Any:
        rows = [SimpleNamespace(cells=cells) for cells in self.rows[condition]]

        def limit(most: int) -> Any:
            self.asked[condition] = most
            return SimpleNamespace(collect=lambda: rows[:most])

        return SimpleNamespace(orderBy=lambda name: SimpleNamespace(limit=limit))


def test_each_row_that_is_missing_stands_beside_the_one_most_like_it() -> None:
    rest: Any = Rest(
        [["1", "a", "x"], ["2", "b", "y"]], [["9", "9", "9"], ["2", "b", "z"], ["1", "a", "z"]]
    )
    found = comparison._beside(rest, ["k", "v", "v"])
    assert [(one["want"], one["got"]) for one in found] == [
        ({"k": "1", "v": "a", "v (3)": "x"}, {"k": "1", "v": "a", "v (3)": "z"}),
        ({"k": "2", "v": "b", "v (3)": "y"}, {"k": "2", "v": "b", "v (3)": "z"}),
        (None, {"k": "9", "v": "9", "v (3)": "9"}),
    ]
    assert rest.asked == {"net > 0": 3, "net < 0": 500}
    rest = Rest([["1"], ["2"], ["3"], ["4"]], [["5"], ["6"]])
    found = comparison._beside(rest, ["k"])
    assert found == [{"want": {"k": n}, "got": None} for n in "123"]


def test_sums_of_counts_are_whole_numbers_and_nothing_is_none() -> None:
    for counts, found in (
        ({"missing": 2, "extra": None}, (2, 0)),
        ({"missing": None, "extra": 5}, (0, 5)),
    ):
        rest: Any = SimpleNamespace(
            agg=lambda *asked, c=counts: SimpleNamespace(collect=lambda: [c])
        )
        assert comparison._counts(rest) == found


def test_a_columns_tolerance_follows_its_numbers() -> None:
    near: Any = [comparison._Compared(n, "x", DOUBLE, True) for n in (0, 2)]
    known = {"s0_largest": 100.0, "s0_median": 2.0, "s2_largest": None, "s2_median": None}
    sizes: Any = SimpleNamespace(
        columns=["s0", "s2"], agg=lambda *asked: SimpleNamespace(collect=lambda: [known])
    )
    rows: Any = SimpleNamespace(select=lambda *columns: sizes)
    assert comparison._floors(rows, near) == [floor_of(100.0, 2.0), floor_of(0.0, 0.0)]
