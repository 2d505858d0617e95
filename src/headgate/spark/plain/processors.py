"""Turns state variables of plain Spark's processors into records, and stores the records as state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from headgate.core.errors import UnsupportedQuery
from headgate.operators.processor import TIMERS, Keyed, ProcessorSpec, State, Timers, Variable
from headgate.spark.jvm.gateway import class_name, each
from headgate.spark.plain.plain_state import PlainState, check_columns, check_key, struct_of
from headgate.spark.read import types
from headgate.spark.read.plan import Passed, Routed

_WHICH = "which"
_NO_TIMEOUT_MS = -1
"""Spark's value for no timeout."""


@dataclass
class Placing:
    """Stores records as entries of the state variables of another processor."""

    keys: pa.Schema
    inputs: pa.Schema
    initial: pa.Schema
    """`keys`, `inputs`, `initial`: see `Processor`; a record has the number of its variable, and
    the columns of all variables."""
    states: Mapping[str, tuple[Any, ...]]
    names: tuple[str, ...]
    """Names of the variables, in the order of their numbers; empty for timers."""

    def handleInitial(
        self, keys: pa.RecordBatch, initial: Keyed, state: State, timers: Timers
    ) -> None:
        """Do nothing, because there is no initial state."""

    def handleBatch(
        self, keys: pa.RecordBatch, batch: Keyed, state: State, timers: Timers
    ) -> pa.RecordBatch | None:
        """Put every record into its state variable."""
        which = batch.rows.column(_WHICH).to_numpy()
        for number, name in enumerate(self.names):
            places = np.flatnonzero(which == number)
            if len(places) == 0:
                continue
            rows = batch.rows.take(pa.array(places))
            prefix = f"{number}:"
            own = [column for column in rows.schema.names if column.startswith(prefix)]
            columns = [rows.column(column) for column in own]
            named = [column.removeprefix(prefix) for column in own]
            state.put(name, batch.of[places], pa.RecordBatch.from_arrays(columns, names=named))
        return None

    def handleExpired(
        self, keys: pa.RecordBatch, expired: Keyed, state: State, timers: Timers
    ) -> pa.RecordBatch | None:
        """Register an expired timer again, so that the user's processor gets it later."""
        timers.register(expired.of, expired.rows.column(0).to_numpy())
        return None

    def close(self) -> None:
        """Do nothing."""


def of_variables(asked: PlainState, spec: ProcessorSpec) -> tuple[DataFrame, ProcessorSpec]:
    """Return the entries of all state variables as records, and the spec of a `Placing` for them.

    Raises `UnsupportedQuery`: an entry has a time to live.
    """
    node = asked.operator.node
    assert node is not None
    limited = [variable.name for variable in spec.variables if variable.ttl_ms is not None]
    if limited:
        msg = (
            f"state {', '.join(limited)} of {spec.label} has a time to live, which cannot be carried "
            "between Spark and headgate."
        )
        raise UnsupportedQuery(msg)
    if class_name(node) == "FlatMapGroupsInPandasWithState":
        tables = _group_state(asked, spec)
    else:
        tables = {variable: _variable(asked, variable) for variable in spec.variables}
    inputs = [pa.field(_WHICH, pa.int64())]
    for number, variable in enumerate(spec.variables):
        inputs += [pa.field(f"{number}:{field.name}", field.type) for field in variable.schema]
    placing = Placing(
        spec.processor.keys,
        pa.schema(inputs),
        pa.schema([]),
        spec.processor.states,
        tuple(variable.name for variable in spec.variables),
    )
    frames = [
        _numbered(asked, tables[variable], number, inputs)
        for number, variable in enumerate(spec.variables)
    ]
    served = replace(
        spec, processor=placing, outputs=pa.schema([]), name=spec.label, filters=False, order=()
    )
    return reduce(DataFrame.unionByName, frames), served


def _numbered(
    asked: PlainState, rows: DataFrame, number: int, inputs: Sequence[pa.Field]
) -> DataFrame:
    """Return entries of a variable (a struct ``key``, then its columns) as records."""
    keys: list[Routed] = []
    for field in struct_of(rows, "key").fields:
        value = F.col("key").getField(field.name)
        for leaf, part in types.leaves(field.dataType, value, f"key {field.name}"):
            keys.append(Routed(f"k{len(keys)}", leaf, types.normalised(leaf, part)))
    values = [Passed("v0", F.lit(number).cast("bigint"))]
    own = {f"{number}:{name}": name for name in rows.columns[1:]}
    for place, wanted in enumerate(inputs[1:], start=1):
        there = F.col(f"`{own[wanted.name]}`") if wanted.name in own else F.lit(None)
        values.append(Passed(f"v{place}", there))
    return asked.routed(rows, keys, values, None)


# -- transformWithState ---------------------------------------------------------------------------------


def _variable(asked: PlainState, variable: Variable) -> DataFrame:
    """Return a variable's entries: a struct ``key``, then the columns of entry and values."""
    node = asked.operator.node
    assert node is not None
    attributes = list(each(node.leftAttributes()))
    if variable is TIMERS or variable.name == TIMERS.name:
        state = asked.load(readRegisteredTimers="true")
        return state.select("key", F.col("expiration_timestamp_ms").alias("at_ms"))
    state = asked.load(stateVarName=variable.name, flattenCollectionTypes="true")
    check_key(asked.operator, state, attributes)
    names = {"value": variable.values}
    if variable.ordered:
        names = {"list_element": variable.values}
    elif len(variable.entry):
        names = {"user_map_key": variable.entry, "user_map_value": variable.values}
    columns: list[Column] = []
    for name, schema in names.items():
        fields = struct_of(state, name).fields
        _check_names(f"state {variable.name}", fields, schema)
        columns += [F.col(name).getField(field.name).alias(field.name) for field in schema]
    return state.select("key", *columns)


def _check_names(what: str, fields: Sequence[T.StructField], schema: pa.Schema) -> None:
    """Refuse a variable whose columns have other names than the query declares."""
    kinds = {field.name: field.dataType for field in fields}
    columns = [(field.name, field.dataType) for field in fields]
    check_columns(what, columns, [(name, kinds.get(name, T.NullType())) for name in schema.names])


# -- applyInPandasWithState -----------------------------------------------------------------------------


def _group_state(asked: PlainState, spec: ProcessorSpec) -> dict[Variable, DataFrame]:
    """Return the state and the timer of each key, by variable."""
    node = asked.operator.node
    assert node is not None
    attributes = list(each(node.groupingAttributes()))
    state = asked.load()
    check_key(asked.operator, state, attributes)
    fields = {field.name: field.dataType for field in struct_of(state, "value").fields}
    tables: dict[Variable, DataFrame] = {}
    group_state = F.col("value.groupState")
    for variable in spec.variables:
        if variable.name == TIMERS.name:
            timeout_ms = (
                F.col("value.timeoutTimestamp").cast("bigint")
                if "timeoutTimestamp" in fields
                else F.lit(_NO_TIMEOUT_MS).cast("bigint")
            )
            # a timeout expires after its time, a timer at its time
            rows = state.select("key", (timeout_ms + 1).alias("at_ms"))
            tables[variable] = rows.where(F.col("at_ms") != _NO_TIMEOUT_MS + 1)
            continue
        kind = fields["groupState"]
        assert isinstance(kind, T.StructType)
        _check_names(f"state of {spec.label}", kind.fields, variable.schema)
        columns = [group_state.getField(part.name).alias(part.name) for part in variable.schema]
        tables[variable] = state.where(group_state.isNotNull()).select("key", *columns)
    return tables
