"""Checks the columns that Spark's buffers become, and that become Spark's buffers; without Spark."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql import types as T
from said_columns import F, Said

from headgate.operators.spec import Kind, Leaf
from headgate.spark.plain import buffers
from headgate.spark.read import types

LONG, FLAG, TEXT = T.LongType(), T.BooleanType(), T.StringType()
PAIR = T.StructType([T.StructField("a", LONG), T.StructField("b", LONG)])


class Number(Said):
    """A column that can be multiplied, too."""

    def cast(self, kind: Any) -> Number:
        return Number(f"{self.text}.cast({kind})")

    def __mul__(self, other: object) -> Number:
        return Number(f"({self.text} * {other})")

    def isNull(self) -> Said:
        return Said(f"{self.text} is null")


@pytest.fixture(autouse=True)
def said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buffers, "F", F)
    leaf = Leaf(Kind.INTEGER)
    monkeypatch.setattr(
        types,
        "any_leaves",
        lambda kind, value: [
            (leaf, f"{value}/{n}" if kind == PAIR else value) for n in range(types.leaf_count(kind))
        ],
    )
    monkeypatch.setattr(
        types,
        "rebuild",
        lambda kind, parts: Said(f"{kind.simpleString()}[{','.join(map(str, parts))}]"),
    )


def columns(*names: str) -> Any:
    return [Number(name) for name in names]


def taken(form: str, kinds: list[T.DataType], *names: str) -> list[str]:
    found: Any = buffers._FORMS.get(form, buffers._EACH).taken(kinds, columns(*names))
    return [str(one) for one in found]


def given(form: str, kinds: list[T.DataType], *names: str) -> list[str]:
    found: Any = buffers._FORMS.get(form, buffers._EACH).given(kinds, columns(*names))
    return [str(one) for one in found]


def test_most_buffers_are_the_leaves_of_their_columns() -> None:
    assert taken("Max", [PAIR, LONG], "x", "y") == ["x/0", "x/1", "x/2", "y"]
    assert given("Max", [PAIR, LONG], "a", "b", "c", "d") == [
        "struct<a:bigint,b:bigint>[a,b,c]", "bigint[d]",
    ]  # fmt: skip


def test_a_sum_with_a_flag_for_nothing_has_a_count_in_its_place() -> None:
    assert taken("Sum", [LONG], "x") == ["x"]
    assert given("Sum", [LONG], "x") == ["bigint[x]"]
    assert taken("Sum", [LONG, FLAG], "x", "empty") == [
        "x", "when(empty, 0).otherwise(1).cast(bigint)",
    ]  # fmt: skip
    assert given("Sum", [LONG, FLAG], "x", "n") == [
        "when((n = 0), 0).otherwise(x).cast(LongType())", "(n = 0)",
    ]  # fmt: skip


def test_an_average_begins_with_zero_of_zero() -> None:
    assert taken("Average", [LONG, LONG], "x", "n") == ["x", "n"]
    assert given("Average", [LONG, LONG], "x", "n") == [
        "when((n = 0), 0).otherwise(x).cast(LongType())", "coalesce(n, 0).cast(bigint)",
    ]  # fmt: skip


@pytest.mark.parametrize("form", ["First", "Last"])
def test_the_first_and_the_last_value_have_a_count_before_them(form: str) -> None:
    assert taken(form, [PAIR, FLAG], "x", "known") == [
        "when(known, 1).otherwise(0).cast(bigint)", "x/0", "x/1", "x/2",
    ]  # fmt: skip
    assert given(form, [PAIR, FLAG], "n", "a", "b", "c") == [
        "struct<a:bigint,b:bigint>[a,b,c]", "(n > 0)",
    ]  # fmt: skip


@pytest.mark.parametrize("form", ["MaxBy", "MinBy"])
def test_the_ordering_of_a_value_comes_before_the_value(form: str) -> None:
    assert taken(form, [LONG, PAIR], "x", "by") == ["by/0", "by/1", "by/2", "x"]
    assert given(form, [LONG, PAIR], "a", "b", "c", "x") == [
        "bigint[x]", "struct<a:bigint,b:bigint>[a,b,c]",
    ]  # fmt: skip


def test_the_sum_of_small_decimals_is_a_whole_number_in_spark() -> None:
    form = buffers._without_point(2)
    both: Any = form.taken([LONG, LONG], columns("x", "n"))
    total = "(x.cast(DecimalType(20,0)) * Decimal('0.01')).cast(DecimalType(38,2))"
    assert [str(one) for one in both] == [total, "n"]
    alone: Any = form.taken([LONG], columns("x"))
    assert [str(one) for one in alone] == [total, "when(x is null, 0).otherwise(1).cast(bigint)"]
    whole = "(x.cast(DecimalType(28,2)) * Decimal('100')).cast(LongType())"
    back: Any = form.given([LONG], columns("x", "n"))
    assert [str(one) for one in back] == [f"when((n > 0), {whole})"]
    back = form.given([LONG, LONG], columns("x", "n"))
    assert [str(one) for one in back] == [
        f"when((n > 0), {whole}).otherwise(0).cast(LongType())", "coalesce(n, 0).cast(bigint)",
    ]  # fmt: skip
