"""Converts Spark's aggregation buffers to the routed values of records, and back.

Both have the same numbers: the routed values of a record are the buffer of this one record (note 0134).
Some have another form, such as "no value yet" as a flag or as a count.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql import types as T

from headgate.core.errors import UnsupportedQuery
from headgate.spark.jvm.expressions import data_type
from headgate.spark.jvm.gateway import class_name, each
from headgate.spark.read import types
from headgate.spark.read.plan import AggregatePart

Kinds = Sequence[T.DataType]
Columns = Sequence[Column]


@dataclass(frozen=True)
class Form:
    """Holds the conversions of the buffer of one kind of aggregate function."""

    taken: Callable[[Kinds, Columns], list[Column]]
    """Takes the types and columns of Spark's buffer; returns the routed values."""
    given: Callable[[Kinds, Columns], list[Column]]
    """Takes the types of Spark's buffer and the routed values; returns the columns of the buffer."""


def _leaves(kind: T.DataType, value: Column) -> list[Column]:
    return [part for _, part in types.any_leaves(kind, value)]


def _each_taken(kinds: Kinds, buffer: Columns) -> list[Column]:
    return [
        part for kind, value in zip(kinds, buffer, strict=True) for part in _leaves(kind, value)
    ]


def _each_given(kinds: Kinds, values: Columns) -> list[Column]:
    columns, at = [], 0
    for kind in kinds:
        width = types.leaf_count(kind)
        columns.append(types.rebuild(kind, values[at : at + width]))
        at += width
    return columns


def _sum_taken(kinds: Kinds, buffer: Columns) -> list[Column]:
    if len(buffer) == 1:
        return _each_taken(kinds, buffer)
    total, empty = buffer
    return [*_leaves(kinds[0], total), F.when(empty, 0).otherwise(1).cast("bigint")]


def _sum_given(kinds: Kinds, values: Columns) -> list[Column]:
    if len(kinds) == 1:
        return _each_given(kinds, values)
    total, count = values
    # an empty buffer is zero and a flag in Spark, null and a count of 0 in headgate
    begun = F.when(count == 0, F.lit(0)).otherwise(total).cast(kinds[0])
    return [begun, count == 0]


def _mean_given(kinds: Kinds, values: Columns) -> list[Column]:
    total, count = values
    begun = F.when(count == 0, F.lit(0)).otherwise(total).cast(kinds[0])
    return [begun, F.coalesce(count, F.lit(0)).cast("bigint")]


def _edge_taken(kinds: Kinds, buffer: Columns) -> list[Column]:
    value, known = buffer
    return [F.when(known, 1).otherwise(0).cast("bigint"), *_leaves(kinds[0], value)]


def _edge_given(kinds: Kinds, values: Columns) -> list[Column]:
    count, *value = values
    return [types.rebuild(kinds[0], value), count > 0]


def _by_taken(kinds: Kinds, buffer: Columns) -> list[Column]:
    value, order = buffer
    return [*_leaves(kinds[1], order), *_leaves(kinds[0], value)]


def _by_given(kinds: Kinds, values: Columns) -> list[Column]:
    width = types.leaf_count(kinds[1])
    return [types.rebuild(kinds[0], values[width:]), types.rebuild(kinds[1], values[:width])]


def _without_point(scale: int) -> Form:
    """Return the form of a decimal's sum that Spark stores as a whole number, alone or with a count."""
    whole, least = Decimal(10**scale), Decimal(1).scaleb(-scale)

    def taken(_: Kinds, buffer: Columns) -> list[Column]:
        total = (buffer[0].cast(T.DecimalType(20, 0)) * F.lit(least)).cast(T.DecimalType(38, scale))
        known = F.when(buffer[0].isNull(), 0).otherwise(1).cast("bigint")
        return [total, *(buffer[1:] or [known])]

    def given(kinds: Kinds, values: Columns) -> list[Column]:
        total = (values[0].cast(T.DecimalType(28, scale)) * F.lit(whole)).cast(kinds[0])
        if len(kinds) == 1:
            return [F.when(values[1] > 0, total)]
        begun = F.when(values[1] > 0, total).otherwise(F.lit(0)).cast(kinds[0])
        return [begun, F.coalesce(values[1], F.lit(0)).cast("bigint")]

    return Form(taken, given)


_EACH = Form(_each_taken, _each_given)
_FORMS = {
    "Sum": Form(_sum_taken, _sum_given),
    "Average": Form(_each_taken, _mean_given),
    "First": Form(_edge_taken, _edge_given),
    "Last": Form(_edge_taken, _edge_given),
    "MaxBy": Form(_by_taken, _by_given),
    "MinBy": Form(_by_taken, _by_given),
}
"""Forms by class of function; other functions have `_EACH`."""


def stored_types(
    part: AggregatePart, columns: Sequence[tuple[str, T.DataType]]
) -> list[T.DataType]:
    """Return the types of a function's buffer as Spark stores it.

    Spark stores sums and averages of decimals with few digits as whole numbers without decimal point.

    `columns`: columns of the state from this buffer on.
    """
    declared = [
        data_type(attribute.dataType()) for attribute in each(part.function.aggBufferAttributes())
    ]
    if isinstance(declared[0], T.DecimalType) and columns:
        name, there = class_name(part.function), columns[0][1]
        if name == "Sum" and isinstance(there, T.LongType):
            return [T.LongType()]
        if name == "Average" and isinstance(there, T.DoubleType):
            return [T.DoubleType(), T.LongType()]
    return declared


def stored(
    parts: Sequence[AggregatePart], present: Sequence[tuple[str, T.DataType]]
) -> list[tuple[str, T.DataType]]:
    """Return the columns that functions need in Spark's state, which has the columns `present`."""
    columns: list[tuple[str, T.DataType]] = []
    for part in parts:
        names = [attribute.name() for attribute in each(part.function.aggBufferAttributes())]
        columns += zip(names, stored_types(part, present[len(columns) :]), strict=False)
    return columns


def form_of(part: AggregatePart, kinds: Kinds, *, ordered: bool) -> Form:
    """Return the form of a function's buffer.

    `kinds` (sequence of DataType): the buffer's `stored_types`. `ordered`: whether the user has set
    ``headgate.ordered``, which changes ``first`` and the like. Raises `UnsupportedQuery`: headgate
    keeps another buffer than Spark.
    """
    name = class_name(part.function)
    other = ""
    if not part.values:
        other = "headgate keeps the values of its records where Spark keeps a buffer"
    elif name == "HyperLogLogPlusPlus":
        other = "headgate takes records into a sketch and not sketches"
    elif ordered and name in ("First", "Last", "MaxBy", "MinBy"):
        other = "headgate.ordered keeps the order of the record where Spark keeps the value only"
    if other:
        msg = f"state of {part.name} cannot be carried between Spark and headgate: {other}."
        raise UnsupportedQuery(msg)
    declared = data_type(next(each(part.function.aggBufferAttributes())).dataType())
    if isinstance(declared, T.DecimalType) and not isinstance(kinds[0], T.DecimalType):
        return _without_point(declared.scale)
    return _FORMS.get(name, _EACH)
