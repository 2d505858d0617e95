"""Turns entries of an aggregate in plain Spark's state, buffers by window and key, into records."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F
from pyspark.sql import types as T

from headgate.core.errors import CheckpointError, UnsupportedQuery
from headgate.operators.spec import NO_TIME_US, TimeKey
from headgate.spark.jvm.expressions import data_type
from headgate.spark.plain.buffers import form_of, stored, stored_types
from headgate.spark.plain.plain_state import PlainState, check_columns, fields_of, flat, named
from headgate.spark.read import types
from headgate.spark.read.plan import AggregateParts, PlannedOperator, Routed

SESSION_START = ("sessionStartTime", T.TimestampType())
"""Column that Spark puts after the keys of a session; the session itself is a value."""


def parts_of(operator: PlannedOperator) -> AggregateParts:
    """Return the parts of an aggregate: its functions, keys and time."""
    assert operator.aggregate is not None
    return operator.aggregate


def of_aggregate(asked: PlainState) -> DataFrame:
    """Return an aggregate's entries as records.

    Raises `UnsupportedQuery`: its windows overlap and headgate keeps slices, or headgate keeps another
    buffer for a function; `CheckpointError`: the state is of another aggregate.
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
        without = [group for i, group in enumerate(groups) if i != parts.time_index]
        check_columns(operator.what, fields_of(state, "key"), [*without, SESSION_START])
        check_columns(operator.what, there, [*groups, *buffers])
        rows = flat(state, "value")
    else:
        check_columns(operator.what, fields_of(state, "key"), groups)
        check_columns(operator.what, there, buffers)
        rows = flat(state, "key", "value")
    columns = [F.col(name) for name in rows.columns]
    if time is not None and time.size_us and not session:
        others = [
            name for i, name in enumerate(rows.columns[: len(groups)]) if i != parts.time_index
        ]
        ends = rows.select(
            F.unix_micros(columns[parts.time_index].getField("start")).alias("start"),
            F.unix_micros(columns[parts.time_index].getField("end")).alias("end"),
            *others,
        )
        _check_windows(ends, others, time, parts.advance_us, asked.watermark_us)
    keys, start_us = key_columns(operator, parts, columns)
    buffer = columns[len(groups) :]
    leaves = {group.name: group.leaf for group in operator.values if isinstance(group, Routed)}
    values: list[Routed] = []
    if session:
        ends_us = F.unix_micros(columns[parts.time_index].getField("end"))
        values.append(Routed("v0", leaves["v0"], ends_us))
    at = 0
    for part in parts.parts:
        kinds = stored_types(part, own[at:])
        form = form_of(part, kinds, ordered=asked.ordered)
        restored = form.taken(kinds, buffer[at : at + len(kinds)])
        at += len(kinds)
        for name, value in zip(part.values, restored, strict=True):
            values.append(Routed(name, leaves[name], value))
    return asked.routed(rows, keys, values, start_us)


def _check_windows(
    rows: DataFrame, keys: Sequence[str], time: TimeKey, advance_us: int, watermark_us: int
) -> None:
    """Refuse state of other windows than the query's: Spark's schema of the state does not show them.

    If a window is at least two advances long, every record is in two or more adjacent windows, unless
    the watermark has passed the earlier ones. Without this check, windows with twice the advance would
    pass.

    `rows`: ``start`` and ``end`` of each window, in microseconds, and its keys. `advance_us`: see
    `AggregateParts`.
    """
    start, end = F.col("start"), F.col("end")
    odd = end - start != time.size_us
    if advance_us:
        odd |= F.pmod(start - time.offset_us, F.lit(advance_us)) != 0
    if advance_us and time.size_us >= 2 * advance_us:
        row = Window.partitionBy(*keys).orderBy("start")
        rows = rows.withColumn("since", start - F.lag(start).over(row))
        rows = rows.withColumn("until", F.lead(start).over(row) - start)
        beside = F.col("since").eqNullSafe(advance_us) | F.col("until").eqNullSafe(advance_us)
        odd |= ~beside & (end - advance_us > watermark_us)
    at = F.timestamp_micros("start").cast("string").alias("at")
    window = rows.where(odd).select((end - start).alias("us"), at).first()
    if window is None:
        return
    if window["us"] != time.size_us:
        msg = (
            f"the checkpoint has windows of {window['us'] / 1e6:g} s where the query has those of "
            f"{time.size_us / 1e6:g} s; give the query that wrote it."
        )
        raise CheckpointError(msg)
    since_s = time.offset_us % advance_us / 1e6
    msg = (
        f"the checkpoint's windows, such as that from {window['at']} on, do not begin where those of "
        f"the query do, every {advance_us / 1e6:g} s from {since_s:g} s on; give the query that wrote "
        "it."
    )
    raise CheckpointError(msg)


def key_columns(
    operator: PlannedOperator, parts: AggregateParts, columns: Sequence[Column]
) -> tuple[list[Routed], Column | None]:
    """Return the routed keys from the columns of the grouping expressions, and the slice start."""
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
