"""Defines a user's own stateful logic over many keys: its declaration, its input and its output.

State is *entries*: rows, each of one key. A variable with entry columns holds any number of entries per
key, keyed by those columns (a map); an ordered one a list of them; one with neither holds one entry
per key at the most (a value). Only what a call changes is written to the changelog.
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
    """The batch's time stamp; time to live is possible in this mode only."""
    EVENT = 2
    """The watermark; records that it has passed are late."""


@dataclass(frozen=True)
class Keyed:
    """Holds rows that belong to keys."""

    of: I64
    """int64[n], never decreasing: Position of each row's key among the keys of the call."""
    rows: pa.RecordBatch
    """pyarrow.RecordBatch of n rows."""

    def starts(self, keys: int) -> I64:
        """Return int64[keys + 1]: where each key's rows begin, and the end."""
        return np.searchsorted(self.of, np.arange(keys + 1)).astype(np.int64)


@dataclass(frozen=True)
class Variable:
    """Describes one state variable.

    Raises `UnsupportedQuery`: a column has a type that state cannot hold, or the time to live is
    not positive.
    """

    name: str
    entry: pa.Schema
    """pyarrow.Schema: Columns that tell a key's entries apart; no floats. Empty for a value or a
    list."""
    values: pa.Schema
    """pyarrow.Schema: What an entry holds."""
    ttl_ms: int | None = None
    """How long an entry is there after it was last put; None for ever."""
    ordered: bool = False
    """True for a list: any number of entries per key, in their order."""

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
"""A key's timers are state like any other, so they move with its key group."""


@dataclass
class VariableChanges:
    """Collects a call's changes to one variable: removals first; later puts win over earlier ones."""

    cleared: list[I64] = field(default_factory=list)
    """list of int64[n]: keys that lose all their entries."""
    removed: list[tuple[I64, pa.RecordBatch]] = field(default_factory=list)
    put: list[tuple[I64, pa.RecordBatch]] = field(default_factory=list)
    """`removed`, `put`: list of (int64[n], pyarrow.RecordBatch): Key positions and rows; what is
    put into a list is appended to it."""


class State:
    """Holds the state of the keys of one call: `state[name]` as before; `put`, `remove`, `clear`.

    `before`: the entries there are, by variable. `keys`: keys of the call.
    """

    def __init__(
        self, variables: tuple[Variable, ...], before: Mapping[str, Keyed], keys: int
    ) -> None:
        self._keys = keys
        self._variables = {variable.name: variable for variable in variables}
        self._before = before
        self.changes = {name: VariableChanges() for name in self._variables}

    def __getitem__(self, name: str) -> Keyed:
        """Return the entries of all keys of the call, a list's in order, others in no particular one."""
        self._known(name)
        return self._before[name]

    def put(self, name: str, of: I64, rows: pa.RecordBatch) -> None:
        """Write entries, new ones or in place of those with the same entry columns.

        `of` (int64[n]): key of each entry, as its position in the call. `rows` (pyarrow.RecordBatch
        of n rows): entry columns and values, by name. A list's are appended to it.
        """
        chosen = fitted(rows, self._known(name).schema, f'what is put into state "{name}"')
        self.changes[name].put.append((self._positions(of, rows.num_rows), chosen))

    def remove(self, name: str, of: I64, rows: pa.RecordBatch) -> None:
        """Remove entries; `rows` names them by their entry columns, other columns are ignored."""
        variable = self._known(name)
        if variable.ordered:
            msg = f'state "{name}" is a list, whose entries have no name; use clear.'
            raise ProcessorError(msg)
        chosen = fitted(rows, variable.entry, f'what is removed from state "{name}"')
        self.changes[name].removed.append((self._positions(of, rows.num_rows), chosen))

    def clear(self, name: str, of: I64) -> None:
        """Remove all entries of keys, before anything that this call puts."""
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
    """Holds the timers of the keys of one call, and the time.

    Parameters
    ----------
    state : State    State of the call; holds `TIMERS` unless the mode is NONE.
    timestamp_ms : int    Time stamp of the batch; -1 where the mode is NONE, as in Spark.
    watermark_ms : int64[keys]
        The watermark of each key; -1 likewise. Keys differ while records of some of them wait.
    """

    def __init__(self, state: State, mode: TimeMode, timestamp_ms: int, watermark_ms: I64) -> None:
        self._state = state
        self.mode = mode
        self.timestamp_ms = timestamp_ms
        self.watermark_ms = watermark_ms

    @property
    def registered(self) -> Keyed:
        """The timers as they were before the call: column ``at_ms``, of a key in no particular order."""
        self._require()
        return self._state[TIMERS.name]

    def register(self, of: I64, at_ms: I64) -> None:
        """Have keys called at `at_ms` (int64[n], milliseconds); again at the same time is once."""
        self._require()
        self._state.put(TIMERS.name, of, _at(at_ms))

    def delete(self, of: I64, at_ms: I64) -> None:
        """Take timers back; one that is not there is no error."""
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
    """Columns that the stream is grouped by, in that order, as the processor wants them."""
    inputs: pa.Schema
    """Columns of the stream that it reads; the others do not reach it."""
    initial: pa.Schema
    """Columns of the initial state; none where there is no initial state."""
    states: Mapping[str, tuple[Any, ...]]
    """Per state variable what `Variable` takes after its name."""

    def handleInitial(
        self, keys: pa.RecordBatch, initial: Keyed, state: State, timers: Timers
    ) -> None:
        """Take the initial state of keys, in the first step, before their first rows."""

    def handleBatch(
        self, keys: pa.RecordBatch, batch: Keyed, state: State, timers: Timers
    ) -> pa.RecordBatch:
        """Take the arriving rows of many keys, change their state, and return the output."""

    def handleExpired(
        self, keys: pa.RecordBatch, expired: Keyed, state: State, timers: Timers
    ) -> pa.RecordBatch | None:
        """Take timers that have fired, column ``at_ms`` in ascending order per key; likewise."""

    def close(self) -> None:
        """End: called after the last call of a step."""


@dataclass(frozen=True)
class ProcessorSpec(OperatorSpec):
    """Describes a keyed processor.

    Raises `UnsupportedQuery`: a state has a time to live, and the time mode is another than
    PROCESSING.
    """

    keys: tuple[Leaf, ...]
    """Leaves of the key's columns, as `from_leaves` takes them: one per column, more for a struct."""
    outputs: pa.Schema
    """pyarrow.Schema: What it puts out."""
    processor: Processor
    name: str = ""
    """What messages call it; the class of `processor` by default."""
    mode: OutputMode = OutputMode.APPEND
    """Output modes mean the same here."""
    time_mode: TimeMode = TimeMode.NONE
    filters: bool = False
    """True where records have an event time, and late ones do not reach the processor."""
    order: tuple[int, ...] = ()
    """Positions among the columns of `processor.inputs`: a key's records come in their order in
    each call. None: as they came."""

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
        """The plain event time of a record, where late ones are filtered; no part of the key."""
        return TimeKey(0, 0) if self.filters else None

    @property
    def variables(self) -> tuple[Variable, ...]:
        """Its state variables, by name: the order in which they are declared must not matter."""
        states = self.processor.states
        declared = tuple(Variable(name, *states[name]) for name in sorted(states))
        return declared if self.time_mode is TimeMode.NONE else (TIMERS, *declared)

    @property
    def by_clock(self) -> bool:
        """Return whether entries fall due by the batch's time stamp, not by the watermark."""
        return self.time_mode is TimeMode.PROCESSING

    def to_json(self) -> dict[str, Any]:
        """Return the part of the spec that a checkpoint's state depends on.

        A time to live may change from one start to the next; whether there is one may not.
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
    """Return the columns of `schema`, in its order and types.

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
            # what Arrow says of it may hold a value
            msg = (
                f'column "{wanted.name}" of {what} is {column.type} and does not fit {wanted.type}.'
            )
            raise ProcessorError(msg) from None
    if not columns:
        # a batch without columns would forget its length
        return pa.RecordBatch.from_arrays([pa.nulls(rows.num_rows)], names=[""])
    return pa.RecordBatch.from_arrays(columns, schema=schema)
