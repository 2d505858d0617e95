"""Which types of Spark's are compared as they lie in a row, and as how many leaves; without Spark."""

from __future__ import annotations

import pytest
from pyspark.sql import types as T

from headgate.core.errors import UnsupportedQuery
from headgate.operators.spec import Kind, Leaf
from headgate.spark.read import types

LONG, TEXT, FOLDED = T.LongType(), T.StringType(), T.StringType("UNICODE_CI")


def struct(*kinds: T.DataType) -> T.StructType:
    return T.StructType([T.StructField(f"f{i}", kind) for i, kind in enumerate(kinds)])


@pytest.mark.parametrize(
    ("kind", "in_order", "leaves", "collated"),
    [
        (LONG, True, 1, False),
        (T.DecimalType(10, 2), True, 1, False),
        (T.DayTimeIntervalType(), True, 1, False),
        (T.BinaryType(), True, 1, False),
        (TEXT, True, 1, False),
        (FOLDED, False, 1, True),
        (T.ArrayType(LONG), False, 1, False),
        (T.ArrayType(FOLDED), False, 1, True),
        (T.MapType(TEXT, FOLDED), False, 1, False),
        (struct(LONG, TEXT), True, 3, False),
        (struct(LONG, struct(TEXT, LONG), LONG), True, 6, False),
        (struct(LONG, struct(FOLDED)), False, 4, True),
        (struct(LONG, T.ArrayType(LONG)), False, 3, False),
    ],
)
def test_a_type_has_its_leaves_and_an_order_or_none(
    kind: T.DataType, in_order: bool, leaves: int, collated: bool
) -> None:
    found = (types.in_order(kind), types.leaf_count(kind), types.collated(kind))
    assert found == (in_order, leaves, collated)


def test_maps_are_found_wherever_they_are_in_a_value() -> None:
    of_maps = T.MapType(LONG, TEXT)
    for kind in (of_maps, T.ArrayType(of_maps), struct(LONG, T.ArrayType(struct(of_maps)))):
        assert types._holds(kind, T.MapType)
    assert not types._holds(struct(LONG, T.ArrayType(TEXT)), T.MapType)


def test_what_has_no_order_is_no_key_of_records_that_are_compared() -> None:
    with pytest.raises(UnsupportedQuery, match="cannot take a time of type array<bigint> here"):
        types.leaves(T.ArrayType(LONG), None, "a time")  # type: ignore[arg-type]


def test_leaves_have_the_types_of_what_carries_them() -> None:
    assert types.spark_type(Leaf(Kind.INTEGER)) == LONG
    assert types.spark_type(Leaf(Kind.FLOAT)) == T.DoubleType()
    assert types.spark_type(Leaf(Kind.DECIMAL, 3)) == T.DecimalType(38, 3)
    assert types.spark_type(Leaf(Kind.BYTES)) == T.BinaryType()
    assert types.spark_type(Leaf(Kind.REGISTERS)) == T.ArrayType(LONG)
