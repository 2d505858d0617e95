"""Buffers of aggregate functions, as Spark stores them and as records come with them; without Spark."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql import types as T

from headgate.core.errors import UnsupportedQuery
from headgate.spark.plain import buffers

LONG = T.LongType()


@pytest.fixture
def part(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a made-up part of an aggregate, by the class of its function and types of its buffer."""
    monkeypatch.setattr(buffers, "data_type", lambda kind: kind)
    monkeypatch.setattr(buffers, "class_name", lambda function: function.kind)
    monkeypatch.setattr(buffers, "each", iter)

    def make(kind: str, *declared: T.DataType, values: Any = ("a value",)) -> Any:
        attributes = [
            SimpleNamespace(name=lambda i=i: f"{kind}-{i}", dataType=lambda of=of: of)
            for i, of in enumerate(declared)
        ]
        function = SimpleNamespace(kind=kind, aggBufferAttributes=lambda: attributes)
        return SimpleNamespace(function=function, values=values, name=kind.lower())

    return make


MONEY = T.DecimalType(17, 2)


def test_small_decimals_are_summed_as_whole_numbers_where_the_state_says_so(part: Any) -> None:
    flag = T.BooleanType()
    whole, decimal = [("sum", LONG)], [("sum", MONEY)]
    assert buffers.stored_types(part("Sum", MONEY, flag), whole) == [LONG]
    assert buffers.stored_types(part("Sum", MONEY, flag), decimal) == [MONEY, flag]
    assert buffers.stored_types(part("Sum", MONEY, flag), []) == [MONEY, flag]
    assert buffers.stored_types(part("Sum", LONG), whole) == [LONG]
    of_mean = [("sum", T.DoubleType())]
    assert buffers.stored_types(part("Average", MONEY, LONG), of_mean) == [T.DoubleType(), LONG]
    assert buffers.stored_types(part("Average", MONEY, LONG), whole) == [MONEY, LONG]
    assert buffers.stored_types(part("Max", MONEY), whole) == [MONEY]


def test_each_function_has_its_columns_of_the_state_behind_those_before_it(part: Any) -> None:
    parts = [part("Sum", MONEY, T.BooleanType()), part("Max", LONG), part("Sum", MONEY, LONG)]
    present = [("s", LONG), ("m", LONG), ("t", MONEY), ("u", LONG)]
    assert buffers.stored(parts, present) == [
        ("Sum-0", LONG), ("Max-0", LONG), ("Sum-0", MONEY), ("Sum-1", LONG),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "values", "ordered", "why"),
    [
        ("Sum", (), False, "keeps the values of its records where Spark keeps a buffer"),
        ("HyperLogLogPlusPlus", ("v",), False, "takes records into a sketch and not sketches"),
        ("First", ("v",), True, "keeps the order of the record"),
        ("MinBy", ("v",), True, "keeps the order of the record"),
    ],
)
def test_a_buffer_that_is_kept_otherwise_is_not_carried(
    part: Any, kind: str, values: Any, ordered: bool, why: str
) -> None:
    with pytest.raises(UnsupportedQuery, match=f"state of {kind.lower()} cannot be .*{why}"):
        buffers.form_of(part(kind, LONG, values=values), [LONG], ordered=ordered)


def test_a_function_has_the_form_of_its_kind_and_of_its_decimals(part: Any) -> None:
    def form(kind: str, declared: T.DataType, there: T.DataType, ordered: bool = False) -> Any:
        return buffers.form_of(part(kind, declared), [there], ordered=ordered)

    assert form("First", LONG, LONG) == form("Last", LONG, LONG)
    assert form("MaxBy", LONG, LONG) != form("First", LONG, LONG)
    assert form("Max", LONG, LONG, ordered=True) == form("Count", LONG, LONG)
    assert form("Sum", MONEY, MONEY) == form("Sum", LONG, LONG)
    assert form("Sum", MONEY, LONG) != form("Sum", MONEY, MONEY), "without its point"
