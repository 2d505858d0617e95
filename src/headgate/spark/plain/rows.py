"""Entries of plain Spark's state as records of headgate's operators.

Each entry becomes the record that leaves its operator as the entry has it: a window's buffer, a key that
was seen, a row that waits for its partner. So the state is made by the operator's own step, and there is
no second way of writing it (docs/design/0144).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from headgate.core.errors import CheckpointError, UnsupportedQuery
from headgate.operators.deduplicate import DeduplicateSpec
from headgate.operators.spec import NO_TIME_US, AggregateSpec, TimeKey
from headgate.spark.jvm.expressions import data_type
from headgate.spark.jvm.gateway import Jvm, class_name, each
from headgate.spark.plain.buffers import buffer_types, form_of
from headgate.spark.read import types
from headgate.spark.read.expressions import WATERMARK, sql_text
from headgate.spark.read.plan import AggregateParts, Passed, PlannedOperator, Routed
from headgate.spark.step.exchange import routed_columns

_NAMES = {
    "aggregate": ("stateStoreSave", "sessionWindowStateStoreSaveExec"),
    "deduplicate": ("dedupe", "dedupeWithinWatermark"),
}
"""What Spark calls the operators whose state is read here, by kind of ours."""

Load = Callable[..., DataFrame]
"""Reads the state of the operator, with options of Spark's source."""


@dataclass(frozen=True)
class Asked:
    """What is asked of an operator's state.

    Attributes
    ----------
    spark : SparkSession
    operator : PlannedOperator
    load : callable
    key_groups : int
    ordered : bool
        Whether records have an order of their own.
    """

    spark: SparkSession
    operator: PlannedOperator
    load: Load
    key_groups: int
    ordered: bool

    def routed(
        self,
        rows: DataFrame,
        keys: list[Routed],
        values: Sequence[Routed | Passed],
        start_us: Column | None,
    ) -> DataFrame:
        """Return records over `rows`, with their key group."""
        over = replace(self.operator, keys=keys, values=values, slice_start=start_us, arrival=None)
        columns = routed_columns(over, self.key_groups)
        return rows.select(*(value.alias(name) for name, value in columns.items()))


def flat(state: DataFrame, *structs: str) -> tuple[DataFrame, list[T.DataType]]:
    """Return the fields of `structs` as columns ``s0 ..``, and their types."""
    fields = [field for name in structs for field in _struct(state, name).fields]
    opened = state.select(*(f"{name}.*" for name in structs)).toDF(
        *(f"s{i}" for i in range(len(fields)))
    )
    return opened, [field.dataType for field in fields]


def _struct(state: DataFrame, name: str) -> T.StructType:
    found = state.schema[name].dataType
    assert isinstance(found, T.StructType)
    return found


def kind_of(operator: PlannedOperator) -> str:
    """Return the kind of an operator, as its id begins."""
    return operator.id.rpartition("-")[0]


def check_name(operator: PlannedOperator, name: str) -> None:
    """Refuse a state that is of another kind of operator than the query's.

    Raises
    ------
    CheckpointError
    UnsupportedQuery
        Such a state is not carried at all.
    """
    kind = kind_of(operator)
    if kind not in _NAMES:
        msg = (
            f"state of {operator.what.partition(';')[0]} cannot be carried between Spark and headgate "
            f"yet; aggregates and dropDuplicates can."
        )
        raise UnsupportedQuery(msg)
    if name not in _NAMES[kind]:
        msg = (
            f"the checkpoint's state is of {name} where the query has {operator.what}; give the query "
            "that wrote it."
        )
        raise CheckpointError(msg)


def check_columns(
    what: str, found: Sequence[tuple[str, T.DataType]], wanted: Sequence[tuple[str, T.DataType]]
) -> None:
    """Refuse a state whose columns are not those of the query.

    Parameters
    ----------
    what : str
        The operator, for people.
    found, wanted : sequence of (str, DataType)
        Names and types in the checkpoint, and by the query; an empty name may be any.

    Raises
    ------
    CheckpointError
    """
    if len(found) == len(wanted) and all(
        have[1].simpleString() == want[1].simpleString() and want[0] in ("", have[0])
        for have, want in zip(found, wanted, strict=True)
    ):
        return
    msg = (
        f"the checkpoint's state has {_listed(found)} where {what} keeps {_listed(wanted)}; give the "
        "query that wrote it."
    )
    raise CheckpointError(msg)


def _listed(columns: Sequence[tuple[str, T.DataType]]) -> str:
    return ", ".join(f"{name} {kind.simpleString()}".strip() for name, kind in columns) or "nothing"


def check_key(operator: PlannedOperator, state: DataFrame, keys: Sequence[Jvm]) -> None:
    """Refuse a state whose keys are not those of the query, by name and type."""
    wanted = [
        (one.name() if class_name(one) == "AttributeReference" else "", data_type(one.dataType()))
        for one in keys
    ]
    found = [(field.name, field.dataType) for field in _struct(state, "key").fields]
    check_columns(operator.what, found, wanted)


def records(asked: Asked) -> DataFrame:
    """Return the records that stand for an operator's state.

    Raises
    ------
    UnsupportedQuery
        The two keep different things.
    CheckpointError
        The state is not of this operator.
    """
    spec = asked.operator.spec
    if isinstance(spec, AggregateSpec):
        return _of_aggregate(asked)
    assert isinstance(spec, DeduplicateSpec), spec
    return _of_keys(asked, spec)


# -- aggregates ---------------------------------------------------------------------------------------


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


def _of_aggregate(asked: Asked) -> DataFrame:
    operator, parts = asked.operator, aggregate_parts(asked.operator)
    state = asked.load()
    check_key(operator, state, parts.grouping)
    kinds = [buffer_types(part) for part in parts.parts]
    wanted = [
        (attribute.name(), data_type(attribute.dataType()))
        for part in parts.parts
        for attribute in each(part.function.aggBufferAttributes())
    ]
    found = [(field.name, field.dataType) for field in _struct(state, "value").fields]
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


# -- duplicates ---------------------------------------------------------------------------------------


def _of_keys(asked: Asked, spec: DeduplicateSpec) -> DataFrame:
    operator, node = asked.operator, asked.operator.node
    assert node is not None
    attributes = list(each(node.keys()))
    state = asked.load()
    check_key(operator, state, attributes)
    rows, _ = flat(state, "key", "value")
    keys: list[Routed] = []
    time_us: Column | None = None
    for index, attribute in enumerate(attributes):
        value, kind = F.col(f"s{index}"), data_type(attribute.dataType())
        for leaf, part in types.key_leaves(kind, value, f"key {attribute.name()}"):
            keys.append(Routed(f"k{len(keys)}", leaf, part))
    if spec.time is not None:
        time_us = _seen_us(operator, spec, attributes, len(attributes))
    values = [
        Passed(routed.name, F.lit(None).cast(kind.dataType))
        for routed, kind in zip(operator.values, operator.raw_schema.fields, strict=True)
    ]
    return asked.routed(rows, keys, values, time_us)


def _seen_us(
    operator: PlannedOperator, spec: DeduplicateSpec, attributes: Sequence[Jvm], keys: int
) -> Column:
    """Return the event time by which a key is forgotten when it should be."""
    assert isinstance(spec.time, TimeKey)
    if class_name(operator.node) == "DeduplicateWithinWatermark":
        # the value is when the key ends
        return F.col(f"s{keys}") - F.lit(spec.keep_us)
    if spec.keep_us is None:
        return F.lit(NO_TIME_US)
    timed = next(i for i, a in enumerate(attributes) if a.metadata().contains(WATERMARK))
    time = F.col(f"s{timed}")
    if isinstance(data_type(attributes[timed].dataType()), T.StructType):
        time = time.getField("end")
    return F.coalesce(F.unix_micros(time), F.lit(NO_TIME_US))
