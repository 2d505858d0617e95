"""Spark's aggregation buffers as the values that records come with, and back.

Both are the same numbers: a record comes as the buffer of itself alone (note 0002). What differs is how
some are written down, such as "no value yet" as a flag or as a count.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

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
    """How one kind of function writes its buffer down.

    Attributes
    ----------
    taken : callable
        From the types and columns of Spark's buffer to the values.
    given : callable
        From the types of Spark's buffer and the values' columns to the buffer.
    """

    taken: Callable[[Kinds, Columns], list[Column]]
    given: Callable[[Kinds, Columns], list[Column]]


def _leaves(kind: T.DataType, value: Column) -> list[Column]:
    return [part for _, part in types.any_leaves(kind, value)]


def _each_taken(kinds: Kinds, buffer: Columns) -> list[Column]:
    return [part for kind, one in zip(kinds, buffer, strict=True) for part in _leaves(kind, one)]


def _each_given(kinds: Kinds, values: Columns) -> list[Column]:
    given, at = [], 0
    for kind in kinds:
        width = types.leaf_count(kind)
        given.append(types.rebuild(kind, values[at : at + width]))
        at += width
    return given


def _sum_taken(kinds: Kinds, buffer: Columns) -> list[Column]:
    if len(buffer) == 1:
        return _each_taken(kinds, buffer)
    total, empty = buffer
    return [*_leaves(kinds[0], total), F.when(empty, 0).otherwise(1).cast("bigint")]


def _sum_given(kinds: Kinds, values: Columns) -> list[Column]:
    if len(kinds) == 1:
        return _each_given(kinds, values)
    total, count = values
    # Spark begins with zero and a flag, ours with null and no records
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


_EACH = Form(_each_taken, _each_given)
_FORMS = {
    "Sum": Form(_sum_taken, _sum_given),
    "Average": Form(_each_taken, _mean_given),
    "First": Form(_edge_taken, _edge_given),
    "Last": Form(_edge_taken, _edge_given),
    "MaxBy": Form(_by_taken, _by_given),
    "MinBy": Form(_by_taken, _by_given),
}
"""By class of function; what is not here has its buffer as it is."""


def buffer_types(part: AggregatePart) -> list[T.DataType]:
    """Return the types of a function's buffer."""
    return [data_type(one.dataType()) for one in each(part.function.aggBufferAttributes())]


def form_of(part: AggregatePart, *, ordered: bool) -> Form:
    """Return how a function's buffer is written down.

    Parameters
    ----------
    ordered : bool
        Whether records have an order of their own, by which ours finds the first of them.

    Raises
    ------
    UnsupportedQuery
        Ours keeps something else than Spark.
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
    return _FORMS.get(name, _EACH)
