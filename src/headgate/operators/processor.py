"""Defines a user's own stateful logic over many keys: its declaration, its input and its output.

State consists of *entries*: rows, each of one key. A variable with entry columns is a map: these columns
tell a key's entries apart. An ordered variable is a list. Any other variable is a value: a key has at
most one entry. The changelog receives only the entries that a call changes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headgate.core.errors import ProcessorError, UnsupportedQuery, nearest
from headgate.operators.hidden import of_type
from headgate.operators.leaves import leaf_of
from headgate.operators.spec import Kind, Leaf, OperatorSpec, OutputMode, TimeKey

I64 = npt.NDArray[np.int64]


class TimeMode(IntEnum):
    """Names the time that a processor's timers wait for, as in Spark."""

    NONE = 0
    PROCESSING = 1
    """Time stamp of the batch; only this mode allows a time to live."""
    EVENT = 2
    """The watermark; records whose time it has reached are late."""


@dataclass(frozen=True)
class Keyed:
    """Holds rows that belong to keys."""

    of: I64
    """int64[n], never decreasing: position of each row's key among the keys of the call."""
    rows: pa.RecordBatch
    """pyarrow.RecordBatch of n rows."""

    def starts(self, keys: int) -> I64:
        """Return int64[keys + 1]: the index of each key's first row, then the number of rows."""
        return np.searchsorted(self.of, np.arange(keys + 1)).astype(np.int64)


@dataclass(frozen=True)
class Variable:
    """Describes one state variable.

    Raises `UnsupportedQuery` if a column has a type that state cannot hold, or if the time to live
    is not positive.
    """

    name: str
    entry: pa.Schema
    """pyarrow.Schema: columns that tell a key's entries apart; no floats. Empty for a value or a
    list."""
    values: pa.Schema
    """pyarrow.Schema: the other columns of an entry."""
    ttl_ms: int | None = None
    """Milliseconds from an entry's last write to its end; None for entries that never end."""
    ordered: bool = False
    """True for a list: any number of entries per key, in the sequence of their appends."""

    def __post_init__(self) -> None:
        for column in [*self.entry, *self.values]:
            leaf = leaf_of(column.type)
            if leaf is None or (leaf.kind is Kind.FLOAT and column.name in self.entry.names):
                msg = (
                    f'cannot keep column "{column.name}" of type {column.type} in state '
                    f'"{self.name}"; use numbers, booleans, dates, timestamps in microseconds, text, '
                    "or lists, maps and structs of those (floats do not tell entries apart)."
                )
                raise UnsupportedQuery(msg)
        if self.ttl_ms is not None and self.ttl_ms <= 0:
            msg = f'state "{self.name}" has a time to live of {self.ttl_ms} ms; it must be above 0.'
            raise UnsupportedQuery(msg)

    @property
    def single(self) -> bool:
        """Return whether a key has at most one entry."""
        return not self.ordered and len(self.entry) == 0

    @property
    def schema(self) -> pa.Schema:
        """Return the entry columns, then the values: the schema of `State`'s rows."""
        return pa.schema([*self.entry, *self.values])


TIMERS = Variable("", pa.schema([("at_ms", pa.int64())]), pa.schema([]))
"""Timers of a key: a variable like any other, so timers move with their key group."""


@dataclass
class VariableChanges:
    """Collects a call's changes to one variable: removals come first; later puts replace earlier ones."""

    cleared: list[I64] = field(default_factory=list)
    """list of int64[n]: positions of keys that lose all their entries."""
    removed: list[tuple[I64, pa.RecordBatch]] = field(default_factory=list)
    put: list[tuple[I64, pa.RecordBatch]] = field(default_factory=list)
    """`removed`, `put`: list of (int64[n], pyarrow.RecordBatch): key positions and rows; a put into
    a list appends."""


class State:
    """Gives a call the state of its keys: ``state[name]`` reads; `put`, `remove` and `clear` change.

    `before`: entries before the call, by variable. `keys`: number of keys of the call.
    """

    def __init__(
        self, variables: tuple[Variable, ...], before: Mapping[str, Keyed], keys: int
    ) -> None:
        self._keys = keys
        self._variables = {variable.name: variable for variable in variables}
        self._before = before
        self.changes = {name: VariableChanges() for name in self._variables}

    def __getitem__(self, name: str) -> Keyed:
        """Return the entries of all keys before the call; only a list's entries have a fixed sequence."""
        self._known(name)
        return self._before[name]

    def put(self, name: str, of: I64, rows: pa.RecordBatch) -> None:
        """Write entries: replace those with equal entry columns; append a list's entries.

        `of` (int64[n]): position of each entry's key in the call. `rows` (pyarrow.RecordBatch of n
        rows): entry columns and values, by name.
        """
        chosen = fitted(rows, self._known(name).schema, f'what is put into state "{name}"')
        self.changes[name].put.append((self._positions(of, rows.num_rows), chosen))

    def remove(self, name: str, of: I64, rows: pa.RecordBatch) -> None:
        """Remove the entries that the entry columns of `rows` name; other columns are ignored."""
        variable = self._known(name)
        if variable.ordered:
            msg = f'state "{name}" is a list, whose entries have no name; use clear.'
            raise ProcessorError(msg)
        chosen = fitted(rows, variable.entry, f'what is removed from state "{name}"')
        self.changes[name].removed.append((self._positions(of, rows.num_rows), chosen))

    def clear(self, name: str, of: I64) -> None:
        """Remove all entries of keys; puts of this call apply afterwards."""
        self._known(name)
        self.changes[name].cleared.append(self._positions(of, len(of)))

    def _known(self, name: str) -> Variable:
        if name not in self._variables:
            declared = [known for known in self._variables if known]
            hint = nearest(name, declared) or f"; there are {', '.join(declared)}."
            msg = f'the processor has no state "{name}"{hint}'
            raise ProcessorError(msg)
        return self._variables[name]

    def _positions(self, of: I64, rows: int) -> I64:
        of = np.ascontiguousarray(of, dtype=np.int64)
        if len(of) != rows:
            msg = f"{rows} rows of state came with {len(of)} key positions; give one for each."
            raise ProcessorError(msg)
        if len(of) and not 0 <= of.min() <= of.max() < self._keys:
            msg = (
                f"a change of state is for the key at {of.max()}, the call has {self._keys} keys; "
                "number them from 0."
            )
            raise ProcessorError(msg)
        return of


class Timers:
    """Gives a call the timers of its keys, and the time.

    Parameters
    ----------
    state : State    State of the call; holds `TIMERS` unless the mode is NONE.
    timestamp_ms : int    Time stamp of the batch; -1 if the mode is NONE, as in Spark.
    watermark_ms : int64[keys]
        Watermark of each key; -1 if the mode is NONE. It stays behind while records of the key wait.
    """

    def __init__(self, state: State, mode: TimeMode, timestamp_ms: int, watermark_ms: I64) -> None:
        self._state = state
        self.mode = mode
        self.timestamp_ms = timestamp_ms
        self.watermark_ms = watermark_ms

    @property
    def registered(self) -> Keyed:
        """Timers before the call: column ``at_ms``, unsorted within a key."""
        self._require()
        return self._state[TIMERS.name]

    def register(self, of: I64, at_ms: I64) -> None:
        """Register timers at `at_ms` (int64[n], milliseconds); a key has at most one timer per time."""
        self._require()
        self._state.put(TIMERS.name, of, _at(at_ms))

    def delete(self, of: I64, at_ms: I64) -> None:
        """Delete timers; a missing timer is no error."""
        self._require()
        self._state.remove(TIMERS.name, of, _at(at_ms))

    def _require(self) -> None:
        if self.mode is TimeMode.NONE:
            msg = 'there are no timers in time mode "None"; use "ProcessingTime" or "EventTime".'
            raise ProcessorError(msg)


def _at(at_ms: I64) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array(at_ms, pa.int64())], schema=TIMERS.schema)


class Processor(Protocol):
    """Declares and runs a user's logic; `hg.ArrowProcessor` is its form for users of Spark."""

    keys: pa.Schema
    """Grouping columns of the stream, in their sequence, with the types that the processor needs."""
    inputs: pa.Schema
    """Columns of the stream that the processor reads; it does not get the others."""
    initial: pa.Schema
    """Columns of the initial state; empty without an initial state."""
    states: Mapping[str, tuple[Any, ...]]
    """Arguments of `Variable` after the name, by state variable."""

    def handleInitial(
        self, keys: pa.RecordBatch, initial: Keyed, state: State, timers: Timers
    ) -> None:
        """Store the initial state of keys; called in the first step, before their first rows."""

    def handleBatch(
        self, keys: pa.RecordBatch, batch: Keyed, state: State, timers: Timers
    ) -> pa.RecordBatch:
        """Serve the arriving rows of many keys: change their state, and return the output."""

    def handleExpired(
        self, keys: pa.RecordBatch, expired: Keyed, state: State, timers: Timers
    ) -> pa.RecordBatch | None:
        """Serve fired timers, column ``at_ms``, ascending per key: change state, return the output."""

    def close(self) -> None:
        """Release resources; called after the last call of a step."""


@dataclass(frozen=True)
class ProcessorSpec(OperatorSpec):
    """Describes a keyed processor.

    Raises `UnsupportedQuery` if a state has a time to live and the time mode is not
    PROCESSING.
    """

    keys: tuple[Leaf, ...]
    """Leaves of the key's columns, as in `from_leaves`: one leaf per column, more for a struct."""
    outputs: pa.Schema
    """pyarrow.Schema: columns of the output."""
    processor: Processor
    name: str = ""
    """Name in messages; by default the class of `processor`."""
    mode: OutputMode = OutputMode.APPEND
    """All output modes have the same effect here."""
    time_mode: TimeMode = TimeMode.NONE
    filters: bool = False
    """True if records have an event time and late records do not reach the processor."""
    order: tuple[int, ...] = ()
    """Positions in `processor.inputs` of the columns that sort a key's records in each call. Empty:
    records are in the sequence of arrival."""

    def __post_init__(self) -> None:
        for variable in self.variables:
            if variable.ttl_ms is not None and not self.by_clock:
                msg = (
                    f'state "{variable.name}" of {self.label} has a time to live, which needs time '
                    'mode "ProcessingTime"; change one of the two.'
                )
                raise UnsupportedQuery(msg)

    @property
    def label(self) -> str:
        """Return the name of the processor in messages."""
        return self.name or type(self.processor).__name__

    @property
    def time(self) -> TimeKey | None:
        """Plain event time of a record, not a part of the key; None unless late records are filtered."""
        return TimeKey(0, 0) if self.filters else None

    @property
    def variables(self) -> tuple[Variable, ...]:
        """State variables, sorted by name, so that the sequence of their declarations has no effect."""
        states = self.processor.states
        declared = tuple(Variable(name, *states[name]) for name in sorted(states))
        return declared if self.time_mode is TimeMode.NONE else (TIMERS, *declared)

    @property
    def by_clock(self) -> bool:
        """Return whether the batch's time stamp, not the watermark, makes entries due."""
        return self.time_mode is TimeMode.PROCESSING

    def to_json(self) -> dict[str, Any]:
        """Return the part of the spec that a checkpoint's state depends on.

        A restart may change a time to live, but may neither add nor remove one.
        """

        def columns(schema: pa.Schema) -> list[list[str]]:
            return [[column.name, str(column.type)] for column in schema]

        return {
            "keys": [[int(x.kind), x.scale] for x in self.keys],
            "time_mode": self.time_mode.name,
            "states": {
                v.name: [
                    columns(v.entry), columns(v.values), v.ordered, v.ttl_ms is not None,
                ]
                for v in self.variables
            },
        }  # fmt: skip


def fitted(rows: pa.RecordBatch, schema: pa.Schema, what: str) -> pa.RecordBatch:
    """Return the columns of `schema`, in its sequence, cast to its types.

    Raises `ProcessorError`: a column is missing, or does not fit its type.
    """
    columns = []
    for wanted in schema:
        if wanted.name not in rows.schema.names:
            msg = (
                f'{what} lacks column "{wanted.name}"; it has {", ".join(rows.schema.names)}, and '
                f"{', '.join(schema.names)} are wanted."
            )
            raise ProcessorError(msg)
        column = rows.column(wanted.name)
        try:
            columns.append(of_type(column, wanted.type))
        except pa.ArrowException:
            # Arrow's message may quote a value
            msg = (
                f'column "{wanted.name}" of {what} is {column.type} and does not fit {wanted.type}.'
            )
            raise ProcessorError(msg) from None
    if not columns:
        # a batch without columns has no number of rows
        return pa.RecordBatch.from_arrays([pa.nulls(rows.num_rows)], names=[""])
    return pa.RecordBatch.from_arrays(columns, schema=schema)
