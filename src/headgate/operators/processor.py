"""A user's own stateful logic over many keys at a time: what it declares, is given and gives back.

State is *entries*: rows of numbers, each of one key. A variable with entry columns holds any number of
entries per key, told apart by those columns (a map); one without holds one entry per key at the most (a
value). Only what a call puts or removes is written to the changelog.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headgate.core.errors import EngineError, UnsupportedQuery, nearest
from headgate.operators.spec import Kind, Leaf, OutputMode

I64 = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Keyed:
    """Rows that belong to keys.

    Attributes
    ----------
    of : int64[n], never decreasing
        Position of each row's key among the keys of the call.
    rows : pyarrow.RecordBatch of n rows
    """

    of: I64
    rows: pa.RecordBatch

    def starts(self, keys: int) -> I64:
        """Return int64[keys + 1]: where each key's rows begin, and the end."""
        return np.searchsorted(self.of, np.arange(keys + 1)).astype(np.int64)


@dataclass(frozen=True)
class Variable:
    """One state variable.

    Parameters
    ----------
    name : str
    entry : pyarrow.Schema
        Columns that tell a key's entries apart: integers, booleans, dates or timestamps. Empty for
        one entry per key.
    values : pyarrow.Schema
        What an entry holds: the types of `entry`, and floats.

    Raises
    ------
    UnsupportedQuery
        A column has another type.
    """

    name: str
    entry: pa.Schema
    values: pa.Schema

    def __post_init__(self) -> None:
        for column in [*self.entry, *self.values]:
            leaf = number_leaf(column.type)
            if leaf is None or (leaf.kind is Kind.FLOAT and column.name in self.entry.names):
                msg = (
                    f'cannot keep column "{column.name}" of type {column.type} in state '
                    f'"{self.name}"; use integers, booleans, dates, timestamps in microseconds or '
                    "(not to tell entries apart) floats."
                )
                raise UnsupportedQuery(msg)

    @property
    def schema(self) -> pa.Schema:
        """Entry columns, then values: what `State` gives and takes."""
        return pa.schema([*self.entry, *self.values])


@dataclass
class Changes:
    """What a call does to one variable.

    Attributes
    ----------
    removed, put : list of (int64[n], pyarrow.RecordBatch)
        Key positions and rows. Removals come first, later puts win over earlier ones.
    """

    removed: list[tuple[I64, pa.RecordBatch]] = field(default_factory=list)
    put: list[tuple[I64, pa.RecordBatch]] = field(default_factory=list)


class State:
    """The state of the keys of one call: `state[name]` as it was before; `put` and `remove`.

    Parameters
    ----------
    variables : tuple of Variable
    before : mapping of str to Keyed
        The entries there are, by variable.
    keys : int
        Keys of the call.
    """

    def __init__(
        self, variables: tuple[Variable, ...], before: Mapping[str, Keyed], keys: int
    ) -> None:
        self._keys = keys
        self._variables = {variable.name: variable for variable in variables}
        self._before = before
        self.changes = {name: Changes() for name in self._variables}

    def __getitem__(self, name: str) -> Keyed:
        """Return the entries of all keys of the call, of a key in no particular order."""
        self._known(name)
        return self._before[name]

    def put(self, name: str, of: I64, rows: pa.RecordBatch) -> None:
        """Write entries, new ones or in place of those with the same entry columns.

        Parameters
        ----------
        name : str
        of : int64[n]
            Key of each entry, as its position in the call.
        rows : pyarrow.RecordBatch of n rows
            Entry columns and values, by name.
        """
        chosen = fitted(rows, self._known(name).schema, f'what is put into state "{name}"')
        self.changes[name].put.append((self._positions(of, rows), chosen))

    def remove(self, name: str, of: I64, rows: pa.RecordBatch) -> None:
        """Remove entries; `rows` names them by their entry columns, other columns are ignored."""
        chosen = fitted(rows, self._known(name).entry, f'what is removed from state "{name}"')
        self.changes[name].removed.append((self._positions(of, rows), chosen))

    def _known(self, name: str) -> Variable:
        if name not in self._variables:
            hint = nearest(name, self._variables) or f"; there are {', '.join(self._variables)}."
            msg = f'the processor has no state "{name}"{hint}'
            raise EngineError(msg)
        return self._variables[name]

    def _positions(self, of: I64, rows: pa.RecordBatch) -> I64:
        of = np.ascontiguousarray(of, dtype=np.int64)
        if len(of) != rows.num_rows:
            msg = f"{rows.num_rows} rows of state came with {len(of)} key positions; give one for each."
            raise EngineError(msg)
        if len(of) and not 0 <= of.min() <= of.max() < self._keys:
            msg = (
                f"a change of state is for the key at {of.max()}, the call has {self._keys} keys; "
                "number them from 0."
            )
            raise EngineError(msg)
        return of


class Processor(Protocol):
    """What a processor declares and does; `hg.ArrowProcessor` is its form for users of Spark."""

    keys: pa.Schema
    """Columns that the stream is grouped by, in that order, as the processor wants them."""

    inputs: pa.Schema
    """Columns of the stream that it reads; the others do not reach it."""

    states: Mapping[str, tuple[pa.Schema, pa.Schema]]
    """Per state variable its entry columns and its values: see `Variable`."""

    def handleBatch(self, keys: pa.RecordBatch, batch: Keyed, state: State) -> pa.RecordBatch:
        """Take the arriving rows of many keys, change their state, and return what goes out."""


@dataclass(frozen=True)
class ProcessorSpec:
    """A keyed processor.

    Parameters
    ----------
    keys : tuple of Leaf
        One per column of the key.
    outputs : pyarrow.Schema
        What it puts out.
    processor : Processor
    mode : OutputMode
        APPEND or UPDATE; they mean the same here.
    """

    keys: tuple[Leaf, ...]
    outputs: pa.Schema
    processor: Processor
    mode: OutputMode = OutputMode.APPEND

    @property
    def time(self) -> None:
        """A processor's key has no time."""
        return

    @property
    def variables(self) -> tuple[Variable, ...]:
        """Its state variables, by name: the order in which they are declared must not matter."""
        states = self.processor.states
        return tuple(Variable(name, *states[name]) for name in sorted(states))

    def to_json(self) -> dict[str, Any]:
        """Return the part of the spec that a checkpoint's state depends on."""

        def columns(schema: pa.Schema) -> list[list[str]]:
            return [[column.name, str(column.type)] for column in schema]

        return {
            "keys": [[int(x.kind), x.scale] for x in self.keys],
            "states": {v.name: [columns(v.entry), columns(v.values)] for v in self.variables},
        }


def number_leaf(kind: pa.DataType) -> Leaf | None:
    """Return the leaf that carries a number of an Arrow type, None if it is none."""
    whole = pa.types.is_integer(kind) or pa.types.is_boolean(kind) or pa.types.is_date32(kind)
    if whole or (pa.types.is_timestamp(kind) and kind.unit == "us"):
        return Leaf(Kind.INTEGER)
    return Leaf(Kind.FLOAT) if pa.types.is_floating(kind) else None


def to_number(column: pa.Array, leaf: Leaf) -> pa.Array:
    """Return a column of numbers as int64 or float64."""
    if pa.types.is_date32(column.type):
        column = column.cast(pa.int32())
    return column.cast(pa.float64() if leaf.kind is Kind.FLOAT else pa.int64())


def from_number(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return what `to_number` took, or a key's leaf, in its own type again."""
    return column.cast(pa.int32()).cast(kind) if pa.types.is_date32(kind) else column.cast(kind)


def fitted(rows: pa.RecordBatch, schema: pa.Schema, what: str) -> pa.RecordBatch:
    """Return the columns of `schema`, in its order and types.

    Raises
    ------
    EngineError
        A column is missing, or does not fit its type.
    """
    columns = []
    for wanted in schema:
        if wanted.name not in rows.schema.names:
            msg = (
                f'{what} lacks column "{wanted.name}"; it has {", ".join(rows.schema.names)}, and '
                f"{', '.join(schema.names)} are wanted."
            )
            raise EngineError(msg)
        column = rows.column(wanted.name)
        try:
            columns.append(column if column.type == wanted.type else column.cast(wanted.type))
        except pa.ArrowException as error:
            msg = f'column "{wanted.name}" of {what} does not fit {wanted.type}: {error}'
            raise EngineError(msg) from error
    if not columns:
        # a batch without columns would forget its length
        return pa.RecordBatch.from_arrays([pa.nulls(rows.num_rows)], names=[""])
    return pa.RecordBatch.from_arrays(columns, schema=schema)
