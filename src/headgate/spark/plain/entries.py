"""The state of headgate's operators as entries of plain Spark's: read in tasks, turned by expressions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from headgate.operators.aggregate import AggregateOperator
from headgate.operators.build import Spec, operator_of
from headgate.operators.deduplicate import DeduplicateOperator, DeduplicateSpec
from headgate.operators.spec import AggregateSpec
from headgate.spark.job.job import OperatorState
from headgate.spark.jvm.expressions import data_type
from headgate.spark.jvm.gateway import class_name, each
from headgate.spark.jvm.plans import ArrowMap
from headgate.spark.plain.aggregates import aggregate_parts
from headgate.spark.plain.buffers import buffer_types, form_of
from headgate.spark.read import types
from headgate.spark.read.aggregate import time_value
from headgate.spark.read.plan import PlannedOperator
from headgate.state.checkpoint import Checkpoint
from headgate.state.heap import HeapStore


@dataclass(frozen=True)
class EntriesTask:
    """The function that `mapInArrow` runs: from numbers of key groups to their entries.

    Attributes
    ----------
    operator : str
    spec : Spec
    checkpoint : str
    tokens, steps, emitted_us : sequence
        As of `OperatorState`.
    store : mapping of str to str
        Options of the checkpoint's store.
    """

    operator: str
    spec: Spec
    checkpoint: str
    tokens: Sequence[str]
    steps: Sequence[int]
    emitted_us: Sequence[int]
    store: Mapping[str, str] = field(default_factory=dict, repr=False)

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Read the groups, one after the other."""
        operator = operator_of(self.spec)
        assert isinstance(operator, AggregateOperator | DeduplicateOperator)
        checkpoint = Checkpoint(self.checkpoint, self.store)
        for batch in batches:
            for group in batch.column(0).to_pylist():
                store = HeapStore(operator.layout.table)
                chain = checkpoint.chain(self.operator, group, self.steps[group])
                table = store.acquire(group, self.tokens[group], chain)
                yield operator.entries(table, self.emitted_us[group])


def entries_of(
    spark: SparkSession,
    operator: PlannedOperator,
    state: OperatorState,
    checkpoint: Checkpoint,
    *,
    ordered: bool,
) -> tuple[DataFrame, int]:
    """Return the entries of plain Spark's state, and how many of their columns are the key.

    Parameters
    ----------
    ordered : bool
        Whether records have an order of their own.

    Raises
    ------
    UnsupportedQuery
        The two keep different things.
    """
    spec, task = (
        operator.spec,
        EntriesTask(
            operator.id,
            operator.spec,
            checkpoint.location,
            state.tokens,
            state.steps,
            state.emitted_us,
            checkpoint.options,
        ),
    )
    groups = spark.range(0, len(state.tokens), 1, state.assignment.slots)
    if isinstance(spec, AggregateSpec):
        keys, values = _of_aggregate(operator, ordered=ordered)
        schema = operator.raw_schema
    else:
        assert isinstance(spec, DeduplicateSpec), spec
        keys, values = _of_keys(operator)
        fields = [T.StructField(k.name, types.spark_type(k.leaf)) for k in operator.keys]
        schema = T.StructType([*fields, T.StructField("t", T.LongType())])
    rows = ArrowMap(task, schema).apply(groups)
    columns = [column.alias(f"s{i}") for i, column in enumerate([*keys, *values])]
    return rows.select(*columns), len(keys)


def _of_aggregate(operator: PlannedOperator, *, ordered: bool) -> tuple[list[Column], list[Column]]:
    parts = aggregate_parts(operator)
    keys, values = [], []
    for index, (expression, span) in enumerate(zip(parts.grouping, parts.spans, strict=True)):
        kind = data_type(expression.dataType())
        if index == parts.time_index:
            keys.append(time_value(operator.spec.time, kind).cast(kind))
        else:
            keys.append(types.rebuild(kind, [F.col(f"k{i}") for i in range(*span)]))
    for part in parts.parts:
        kinds = buffer_types(part)
        given = form_of(part, ordered=ordered).given(kinds, [F.col(name) for name in part.values])
        values += [one.cast(kind) for one, kind in zip(given, kinds, strict=True)]
    return keys, values


def _of_keys(operator: PlannedOperator) -> tuple[list[Column], list[Column]]:
    assert operator.node is not None
    keys, at = [], 0
    for attribute in each(operator.node.keys()):
        kind = data_type(attribute.dataType())
        width = types.leaf_count(kind)
        keys.append(types.rebuild(kind, [F.col(f"k{i}") for i in range(at, at + width)]))
        at += width
    within = class_name(operator.node) == "DeduplicateWithinWatermark"
    # of a key that is remembered as long as its time is open, Spark keeps nothing but the key
    return keys, [F.col("t") if within else F.lit(None)]
