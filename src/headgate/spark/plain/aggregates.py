"""Entries of an aggregate in plain Spark's state as records: each is the buffer of its window and key."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from headgate.core.errors import UnsupportedQuery
from headgate.operators.spec import NO_TIME_US
from headgate.spark.jvm.expressions import data_type
from headgate.spark.jvm.gateway import each
from headgate.spark.plain.asked import PlainState, check_columns, check_key, flat, struct_of
from headgate.spark.plain.buffers import buffer_types, form_of
from headgate.spark.read import types
from headgate.spark.read.expressions import sql_text
from headgate.spark.read.plan import AggregateParts, PlannedOperator, Routed


def aggregate_parts(operator: PlannedOperator) -> AggregateParts:
    """Return what an aggregate consists of, if its state can be carried.

    Raises
    ------
    UnsupportedQuery
    """
    parts, time = operator.aggregate, operator.spec.time
    assert parts is not None
    if time is not None and time.sliced:
        msg = (
            "state of overlapping windows cannot be carried as slices; write "
            '.option("headgate.windows", "whole"), with which headgate keeps windows as Spark does.'
        )
        raise UnsupportedQuery(msg)
    if time is not None and time.session:
        msg = "state of session windows cannot be carried between Spark and headgate yet."
        raise UnsupportedQuery(msg)
    return parts


def of_aggregate(asked: PlainState) -> DataFrame:
    """Return an aggregate's entries as records."""
    operator, parts = asked.operator, aggregate_parts(asked.operator)
    state = asked.load()
    check_key(operator, state, parts.grouping)
    kinds = [buffer_types(part) for part in parts.parts]
    wanted = [
        (attribute.name(), data_type(attribute.dataType()))
        for part in parts.parts
        for attribute in each(part.function.aggBufferAttributes())
    ]
    found = [(field.name, field.dataType) for field in struct_of(state, "value").fields]
    check_columns(operator.what, found, wanted)
    rows, _ = flat(state, "key", "value")
    keys, start_us = key_columns(
        operator, parts, [F.col(f"s{i}") for i in range(len(rows.columns))]
    )
    buffer = [F.col(f"s{i}") for i in range(len(parts.grouping), len(rows.columns))]
    values: list[Routed] = []
    at = 0
    for part, own in zip(parts.parts, kinds, strict=True):
        form = form_of(part, ordered=asked.ordered)
        taken = form.taken(own, buffer[at : at + len(own)])
        at += len(own)
        for name, value in zip(part.values, taken, strict=True):
            leaf = next(one.leaf for one in operator.values if one.name == name)
            values.append(Routed(name, leaf, value))
    return asked.routed(rows, keys, values, start_us)


def key_columns(
    operator: PlannedOperator, parts: AggregateParts, columns: Sequence[Column]
) -> tuple[list[Routed], Column | None]:
    """Return the routed keys over columns of the grouping expressions, and the slice start."""
    keys: list[Routed] = []
    start_us = None
    for index, expression in enumerate(parts.grouping):
        kind, value = data_type(expression.dataType()), columns[index]
        if index == parts.time_index:
            window = isinstance(kind, T.StructType)
            time_us = F.unix_micros(value.getField("start") if window else value)
            start_us = time_us if window else F.coalesce(time_us, F.lit(NO_TIME_US))
            continue
        what = f"key {sql_text(expression)}"
        for leaf, part in types.key_leaves(kind, value, what):
            keys.append(Routed(f"k{len(keys)}", leaf, part))
    assert [key.leaf for key in keys] == [key.leaf for key in operator.keys]
    return keys, start_us
