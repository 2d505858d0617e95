"""`hg.ArrowProcessor`: a PySpark ``StatefulProcessor`` that takes many keys per call, as Arrow.

It runs in headgate's slots, and unchanged as plain Spark, where it is called with one key at a time.
Imported in Python workers: nothing of the driver may be needed here.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import Row
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from headgate.operators.processor import Keyed, State, Variable


class ArrowProcessor(StatefulProcessor):
    """The logic of ``df.groupBy(...).transformWithState(processor, schema, "append", "None")``.

    A subclass declares three class attributes and implements `handleBatch`.

    Attributes
    ----------
    keys : pyarrow.Schema
        The grouping columns, in their order.
    inputs : pyarrow.Schema
        The columns of the stream that it reads; others do not reach it.
    states : mapping of str to (pyarrow.Schema, pyarrow.Schema)
        Per state variable the columns that tell a key's entries apart, and what an entry holds. With
        columns of the first kind it is PySpark's map state, without them its value state. Columns are
        numbers, booleans, dates and timestamps.

    Notes
    -----
    Within a call the rows of a key come in the order of the stream, as far as it has one: those of one
    source partition do. Timers and time to live are not there yet, so the time mode must be "None".
    """

    keys: pa.Schema
    inputs: pa.Schema
    states: Mapping[str, tuple[pa.Schema, pa.Schema]] = {}

    @abstractmethod
    def handleBatch(self, keys: pa.RecordBatch, batch: Keyed, state: State) -> pa.RecordBatch:
        """Take the arriving rows of many keys, change their state, and return what goes out.

        Called once per slot and batch that has rows for it. A call that fails is repeated with the
        state as it was, so it must depend on its arguments only. A call without any key is made when
        a worker starts, so that what is compiled or loaded is there when a batch comes.

        Parameters
        ----------
        keys : pyarrow.RecordBatch of k rows
            Each key that has rows, once.
        batch : Keyed
            ``batch.rows`` are the arriving rows by key, ``batch.of`` (int64[n]) says whose each is, as
            a position in `keys`.
        state : State
            ``state[name]`` are the entries of these keys, in the same form; ``state.put(name, of,
            rows)`` and ``state.remove(name, of, rows)`` change them.

        Returns
        -------
        pyarrow.RecordBatch
            Columns of the output schema, by name.
        """

    # -- plain Spark ----------------------------------------------------------------------------------

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Open the state variables; called by Spark."""
        self._variables = tuple(Variable(name, *self.states[name]) for name in self.states)
        self._handles: dict[str, Any] = {}
        for variable in self._variables:
            values = from_arrow_schema(variable.values)
            if len(variable.entry):
                entry = from_arrow_schema(variable.entry)
                self._handles[variable.name] = handle.getMapState(variable.name, entry, values)
            else:
                self._handles[variable.name] = handle.getValueState(variable.name, values)

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        """Call `handleBatch` with one key; called by Spark."""
        given = [
            pa.array([value], column.type) for value, column in zip(key, self.keys, strict=True)
        ]
        arrived = pa.RecordBatch.from_pylist([row.asDict() for row in rows], schema=self.inputs)
        before = {variable.name: self._before(variable) for variable in self._variables}
        state = State(self._variables, before, 1)
        keys = pa.RecordBatch.from_arrays(given, schema=self.keys)
        output = self.handleBatch(keys, _of_one_key(arrived), state)
        for variable in self._variables:
            changes = state.changes[variable.name]
            for _, removed in changes.removed:
                self._remove(variable, _tuples(removed))
            for _, put in changes.put:
                self._put(variable, _tuples(put))
        return (Row(**row) for row in output.to_pylist())

    def close(self) -> None:
        """Close nothing; called by Spark."""

    def _before(self, variable: Variable) -> Keyed:
        handle = self._handles[variable.name]
        if len(variable.entry):
            entries = [(*entry, *values) for entry, values in handle.iterator()]
        else:
            entries = [handle.get()] if handle.exists() else []
        names = variable.schema.names
        rows = [dict(zip(names, entry, strict=True)) for entry in entries]
        return _of_one_key(pa.RecordBatch.from_pylist(rows, schema=variable.schema))

    def _remove(self, variable: Variable, entries: Iterable[tuple[Any, ...]]) -> None:
        handle = self._handles[variable.name]
        for entry in entries:
            if len(variable.entry):
                handle.removeKey(entry)
            else:
                handle.clear()

    def _put(self, variable: Variable, entries: Iterable[tuple[Any, ...]]) -> None:
        handle, width = self._handles[variable.name], len(variable.entry)
        for entry in entries:
            if width:
                handle.updateValue(entry[:width], entry[width:])
            else:
                handle.update(entry)


def _of_one_key(rows: pa.RecordBatch) -> Keyed:
    return Keyed(np.zeros(rows.num_rows, dtype=np.int64), rows)


def _tuples(rows: pa.RecordBatch) -> Iterator[tuple[Any, ...]]:
    return (tuple(row.values()) for row in rows.to_pylist())
