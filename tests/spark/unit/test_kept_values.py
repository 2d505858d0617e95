"""Tests how kept values are read back, how maps compare, and how a window is checked."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from made_plans import Made, attribute, source
from pyspark.sql import types as T
from said_columns import F, Frame, Said

from headgate.core.errors import UnsupportedQuery
from headgate.spark.read import buffers, types, windows
from headgate.spark.read.buffers import Buffer, Collection, Folded, Sketch

SPARK: Any = "the session"
LONG, TEXT = T.LongType(), T.StringType()


@pytest.fixture(autouse=True)
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (buffers, types, windows):
        monkeypatch.setattr(module, "F", F)
    monkeypatch.setattr(buffers, "data_type", lambda kind: kind)
    monkeypatch.setattr(
        buffers, "folded", lambda spark, one, values, fields: (one, str(values), fields)
    )
    monkeypatch.setattr(
        buffers, "of_words", lambda spark, one, value, words: (one, str(value), words)
    )
    monkeypatch.setattr(windows, "column", lambda spark, one: Said(one.sql()))


def collection(*arguments: Made, ordering: int = 0, condition: Any = None) -> Collection:
    kept: Any = SimpleNamespace(keep="all")
    widths = [1] * len(arguments)
    return Collection(list(arguments), condition, kept, widths, ordering)


A, B = attribute("a", LONG), attribute("b", LONG)


def test_a_collection_is_shared_by_aggregates_of_the_same_values() -> None:
    c, d = Made("GreaterThan", A), Made("GreaterThan", B)
    held = collection(A, B)
    keep = held.kept.keep
    assert held.same([A, B], None, keep)
    for arguments, condition in (([A], None), ([A, A], None), ([B, A], None), ([A, B], c)):
        assert not held.same(arguments, condition, keep)
    other: Any = "another"
    assert not held.same([A, B], None, other)
    filtered = collection(A, condition=c)
    assert filtered.same([A], c, keep)
    assert not filtered.same([A], d, keep)
    assert not filtered.same([A], None, keep)


def test_values_are_given_to_sparks_function_in_their_order() -> None:
    function = Made("CollectList")
    held = collection(A, B, ordering=2)
    made = Folded("b0", LONG, ["l0"], True, spark=SPARK, function=function, kept=held)
    long = repr(LONG)
    parts = f"struct(item.getField(x2).cast({long}).alias(c0), item.getField(x3).cast({long}).alias(c1))"
    assert made.value() == (function, f"transform(sort_array(l0), {parts})", ["c0", "c1"])
    held = collection(A)
    for distinct in (False, True):
        made = Folded(
            "b0", LONG, ["l0"], True, spark=SPARK, function=function, kept=held, distinct=distinct
        )
        wanted = f"transform(l0, struct(item.getField(x0).cast({long}).alias(c0)))"
        assert made.value() == (function, wanted, ["c0"])


def test_equal_values_of_different_bytes_are_one_in_a_distinct_aggregate(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(types, "rebuild", lambda kind, columns: columns[0])
    folds = attribute("s", T.StringType("UNICODE_CI"))
    wanted = "transform(l0, struct(item.getField(x0).alias(c0)))"
    for distinct, text in ((True, f"array_distinct({wanted})"), (False, wanted)):
        made = Folded(
            "b0", LONG, ["l0"], True, spark=SPARK, function=None, kept=collection(folds),
            distinct=distinct,
        )  # fmt: skip
        assert made.value()[1] == text


def test_a_buffer_is_read_from_its_columns_and_a_sketch_by_spark() -> None:
    assert str(Buffer("b0", LONG, ["v0"], True).value()) == f"v0.cast({LONG!r})"
    function = Made("HyperLogLogPlusPlus")
    sketch = Sketch("b0", LONG, ["v3"], False, spark=SPARK, function=function, words=52)
    assert sketch.value() == (function, "v3", 52)
    assert (
        str(Buffer("b0", T.BooleanType(), ["v1"], False, True).value()) == "(coalesce(v1, 0) = 0)"
    )


# --- maps -------------------------------------------------------------------------------------------

SORTED = "map_from_entries(transform(array_sort(map_keys(%s)), struct(item, %s)))"


@pytest.mark.parametrize(
    ("kind", "form"),
    [
        (LONG, "x"),
        (T.MapType(TEXT, LONG), SORTED % ("x", "x.getItem(item)")),
        (
            T.ArrayType(T.MapType(TEXT, LONG)),
            f"transform(x, {SORTED % ('item', 'item.getItem(item)')})",
        ),
        (
            T.MapType(TEXT, T.MapType(TEXT, LONG)),
            SORTED % ("x", SORTED % ("x.getItem(item)", "x.getItem(item).getItem(item)")),
        ),
    ],
)
def test_a_map_is_compared_by_its_entries_in_the_order_of_their_keys(kind: Any, form: str) -> None:
    assert str(types._with_sorted_maps(kind, Said("x"))) == form  # type: ignore[arg-type]


def test_maps_in_fields_are_sorted_too() -> None:
    fields = [T.StructField("m", T.MapType(TEXT, LONG)), T.StructField("n", LONG)]
    made = str(types._with_sorted_maps(T.StructType(fields), Said("x")))  # type: ignore[arg-type]
    field = "x.getField(m)"
    assert made.startswith(
        f"when(x.isNotNull(), struct({SORTED % (field, field + '.getItem(item)')}"
    )
    assert made.endswith("x.getField(n).alias(n)))")


# --- windows that are checked -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "fits"),
    [
        ("window of at#1L, 5", True),
        ("window of at, 5", True),
        ("window of at#1L, 6", False),
        (None, False),
    ],
)
def test_a_window_must_be_the_one_that_spark_makes_of_its_numbers(
    monkeypatch: pytest.MonkeyPatch, said: str | None, fits: bool
) -> None:
    made = attribute("window")
    inner = source(made)
    asked: list[str] = []

    def analysed(frame: Any) -> Any:
        asked.append(str(frame))
        other = source(attribute("w"), attribute("window"))
        return Made("Project", other, inner, output=[attribute("window"), attribute("k")])

    expression = None if said is None else Made("made", said=said)
    monkeypatch.setattr(
        windows,
        "find_window",
        lambda plan, one: (plan, expression) if one is made and expression else None,
    )
    monkeypatch.setattr(windows, "of_rows", lambda spark, plan: Frame(plan.sql()))
    monkeypatch.setattr(windows, "analysed", analysed)
    node = Made("Expand", source(said="rows"))
    users = Made("users", said="window of at#77L, 5")
    check: Any = lambda: windows.check_window(SPARK, node, users, attribute("at"), (10, 5, 1))  # noqa: E731
    if fits:
        check()
    else:
        with pytest.raises(UnsupportedQuery, match=r"^cannot read the window window of at, 5;"):
            check()
    window = "window(at, 10 microseconds, 5 microseconds, 1 microseconds)"
    assert asked == [f"rows.select(*, {window}.alias(window))"]
