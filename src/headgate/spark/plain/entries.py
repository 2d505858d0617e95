"""Turns the state of headgate's operators into entries of plain Spark's state, in Spark tasks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from headgate.checkpoint.checkpoint import Checkpoint
from headgate.operators.build import Spec, operator_of
from headgate.spark.job.job import OperatorState
from headgate.spark.jvm.expressions import data_type
from headgate.spark.jvm.gateway import class_name, each
from headgate.spark.jvm.plans import ArrowMap
from headgate.spark.plain.aggregates import parts_of
from headgate.spark.plain.buffers import form_of, stored_types
from headgate.spark.plain.plain_state import fields_of
from headgate.spark.read import types
from headgate.spark.read.aggregate import time_value
from headgate.spark.read.plan import PlannedOperator
from headgate.tables.heap import HeapStore
from headgate.tables.ports import EMPTY_TOKEN

DEFAULT = "default"
"""Spark's name of the store of an operator with only one store."""


@dataclass(frozen=True)
class EntriesTask:
    """Reads the entries of key groups; a function for `mapInArrow` over the numbers of the groups."""

    operator: str
    spec: Spec
    part: int
    """See `Operator.entries`."""
    checkpoint: str
    tokens: Sequence[str]
    steps: Sequence[int]
    emitted_us: Sequence[int]
    """`tokens`, `steps`, `emitted_us`: see `OperatorState`."""
    store: Mapping[str, str] = field(repr=False)
    """Options of the checkpoint's store."""

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the entries of each key group."""
        operator = operator_of(self.spec)
        checkpoint = Checkpoint(self.checkpoint, self.store, known=True)
        for batch in batches:
            for group in batch.column(0).to_pylist():
                if self.tokens[group] == EMPTY_TOKEN:
                    continue
                store = HeapStore(operator.layout.table)
                chain = checkpoint.chain(
                    self.operator, group, self.steps[group], self.tokens[group]
                )
                table = store.acquire(group, self.tokens[group], chain)
                yield operator.entries(table, self.emitted_us[group], self.part)


@dataclass(frozen=True)
class Entries:
    """Holds the entries of one of Spark's stores."""

    rows: DataFrame
    """Key columns, then value columns."""
    keys: int
    """Number of key columns."""
    hashed: int
    """Number of key columns whose hash gives an entry's partition."""


def entries(rows: DataFrame, keys: Sequence[Column], values: Sequence[Column]) -> Entries:
    """Return entries over columns of `rows`, with partitions by the whole key."""
    columns = [column.alias(f"s{i}") for i, column in enumerate([*keys, *values])]
    return Entries(rows.select(*columns), len(keys), len(keys))


@dataclass(frozen=True)
class OurState:
    """Holds the state of one operator of headgate, and a function for the form of Spark's state."""

    spark: SparkSession
    operator: PlannedOperator
    state: OperatorState
    checkpoint: Checkpoint
    form: Callable[..., DataFrame]
    """Returns the operator's state in a plain checkpoint without rows; only the columns matter. Called as
    `PlainState.load`."""
    ordered: bool
    """Whether the user has set ``headgate.ordered``."""

    def part(self, values: Sequence[T.StructField], part: int = 0) -> DataFrame:
        """Return the rows of `Operator.entries` of all key groups: ``k0 ..``, then `values`."""
        keys = [T.StructField(k.name, types.spark_type(k.leaf)) for k in self.operator.keys]
        state, checkpoint = self.state, self.checkpoint
        task = EntriesTask(
            self.operator.id,
            self.operator.spec,
            part,
            checkpoint.location,
            state.tokens,
            state.steps,
            state.emitted_us,
            checkpoint.options,
        )
        groups = self.spark.range(0, len(state.tokens), 1, state.assignment.slots)
        return ArrowMap(task, T.StructType([*keys, *values])).apply(groups)


def key_values(kinds: Sequence[T.DataType]) -> list[Column]:
    """Return the key's values, rebuilt from their leaves in ``k0 ..``; `kinds`: types of the values."""
    values, at = [], 0
    for kind in kinds:
        width = types.leaf_count(kind)
        values.append(types.rebuild(kind, [F.col(f"k{i}") for i in range(at, at + width)]))
        at += width
    return values


def of_aggregate(ours: OurState) -> Entries:
    """Return an aggregate's windows, keys and buffers.

    Raises `UnsupportedQuery`: headgate keeps another buffer than Spark for a function.
    """
    operator = ours.operator
    keys, values, hashed = _aggregate_columns(ours)
    own = operator.raw_schema.fields[len(operator.keys) :]
    stored = entries(ours.part(own), keys, values)
    return Entries(stored.rows, stored.keys, hashed)


def _aggregate_columns(ours: OurState) -> tuple[list[Column], list[Column], int]:
    parts, time = parts_of(ours.operator), ours.operator.spec.time
    session = time is not None and time.session
    there = fields_of(ours.form(), "value")[len(parts.grouping) if session else 0 :]
    keys: list[Column] = []
    values: list[Column] = []
    for index, (expression, span) in enumerate(zip(parts.grouping, parts.spans, strict=True)):
        kind = data_type(expression.dataType())
        if index == parts.time_index:
            keys.append(time_value(time, kind).cast(kind))
        else:
            keys.append(types.rebuild(kind, [F.col(f"k{i}") for i in range(*span)]))
    for part in parts.parts:
        kinds = stored_types(part, there[len(values) :])
        form = form_of(part, kinds, ordered=ours.ordered)
        columns = form.given(kinds, [F.col(name) for name in part.values])
        values += [column.cast(kind) for column, kind in zip(columns, kinds, strict=True)]
    if not session:
        return keys, values, len(keys)
    # in Spark's store the value has all grouping columns, also the session, and the buffers; the key has
    # the other grouping columns and, last, the session's start; Spark partitions by the other columns
    own = keys[parts.time_index]
    others = [key for index, key in enumerate(keys) if index != parts.time_index]
    return [*others, own.getField("start")], [*keys, *values], len(others)


def of_keys(ours: OurState) -> Entries:
    """Return the keys of a deduplicating operator."""
    node = ours.operator.node
    assert node is not None
    keys = key_values([data_type(key.dataType()) for key in each(node.keys())])
    within = class_name(node) == "DeduplicateWithinWatermark"
    # for other deduplicating operators Spark keeps only the key
    values = [F.col("t") if within else F.lit(None)]
    return entries(ours.part([T.StructField("t", T.LongType())]), keys, values)
