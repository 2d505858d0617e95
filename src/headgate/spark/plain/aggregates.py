"""Entries of an aggregate in plain Spark's state as records: each is the buffer of its window and key."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from headgate.core.errors import CheckpointError, UnsupportedQuery
from headgate.operators.spec import NO_TIME_US, TimeKey
from headgate.spark.jvm.expressions import data_type
from headgate.spark.plain.asked import PlainState, check_columns, fields_of, flat, named
from headgate.spark.plain.buffers import form_of, stored, stored_types
from headgate.spark.read import types
from headgate.spark.read.plan import AggregateParts, PlannedOperator, Routed

SESSION_START = ("sessionStartTime", T.TimestampType())
"""What Spark puts behind the keys of a session; the session itself is a value."""


def parts_of(operator: PlannedOperator) -> AggregateParts:
    """Return what an aggregate consists of."""
    assert operator.aggregate is not None
    return operator.aggregate


def of_aggregate(asked: PlainState) -> DataFrame:
    """Return an aggregate's entries as records.

    Raises
    ------
    UnsupportedQuery
        Its windows overlap and are kept as slices, or a function keeps something else here.
    CheckpointError
        The state is of another aggregate.
    """
    operator, parts = asked.operator, parts_of(asked.operator)
    time = operator.spec.time
    if time is not None and time.sliced:
        msg = (
            "state of overlapping windows cannot be taken over as slices; write "
            '.option("headgate.windows", "whole"), with which headgate keeps windows as Spark does.'
        )
        raise UnsupportedQuery(msg)
    state = asked.load()
    session = time is not None and time.session
    groups = named(parts.grouping)
    there = fields_of(state, "value")
    own = there[len(groups) :] if session else there
    buffers = stored(parts.parts, own)
    if session:
        without = [one for i, one in enumerate(groups) if i != parts.time_index]
        check_columns(operator.what, fields_of(state, "key"), [*without, SESSION_START])
        check_columns(operator.what, there, [*groups, *buffers])
        rows = flat(state, "value")
    else:
        check_columns(operator.what, fields_of(state, "key"), groups)
        check_columns(operator.what, there, buffers)
        rows = flat(state, "key", "value")
    columns = [F.col(name) for name in rows.columns]
    if time is not None and time.size_us and not session:
        _check_windows(rows, columns[parts.time_index], time)
    keys, start_us = key_columns(operator, parts, columns)
    buffer = columns[len(groups) :]
    leaves = {one.name: one.leaf for one in operator.values if isinstance(one, Routed)}
    values: list[Routed] = []
    if session:
        ends_us = F.unix_micros(columns[parts.time_index].getField("end"))
        values.append(Routed("v0", leaves["v0"], ends_us))
    at = 0
    for part in parts.parts:
        kinds = stored_types(part, own[at:])
        form = form_of(part, kinds, ordered=asked.ordered)
        taken = form.taken(kinds, buffer[at : at + len(kinds)])
        at += len(kinds)
        for name, value in zip(part.values, taken, strict=True):
            values.append(Routed(name, leaves[name], value))
    return asked.routed(rows, keys, values, start_us)


def _check_windows(rows: DataFrame, window: Column, time: TimeKey) -> None:
    """Refuse state of windows of another length: Spark's schema of the state does not say it.

    Raises
    ------
    CheckpointError
    """
    size_us = F.unix_micros(window.getField("end")) - F.unix_micros(window.getField("start"))
    found = rows.where(size_us != time.size_us).select(size_us.alias("us")).first()
    if found is not None:
        msg = (
            f"the checkpoint has windows of {found['us'] / 1e6:g} s where the query has those of "
            f"{time.size_us / 1e6:g} s; give the query that wrote it."
        )
        raise CheckpointError(msg)


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
        for leaf, part in types.key_leaves(kind, value):
            keys.append(Routed(f"k{len(keys)}", leaf, part))
    assert [key.leaf for key in keys] == [key.leaf for key in operator.keys]
    return keys, start_us
