"""Defines `hg.ArrowProcessor`: a PySpark ``StatefulProcessor`` that takes many keys per call, as Arrow.

It runs in headgate's slots, and unchanged in plain Spark and ``TwsTester``, which call it with one key
at a time. Imported in Python workers, so this module must not import modules of the driver.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import (
    ExpiredTimerInfo,
    StatefulProcessor,
    StatefulProcessorHandle,
    TimerValues,
)

from headgate.operators.processor import TIMERS, Keyed, State, TimeMode, Timers, Variable
from headgate.spark.jvm.arrow import from_arrow_schema
from headgate.spark.worker.state_handle import column_of, values_of

Call = Callable[[pa.RecordBatch, Keyed, State, Timers], pa.RecordBatch | None]


class ArrowProcessor(StatefulProcessor):
    """Changes keys in ``df.groupBy(...).transformWithState(processor, schema, output mode, time mode)``.

    A subclass declares class attributes and implements `handleBatch`. If it registers timers, it
    implements `handleExpired`; if the query has an initial state, `handleInitial`.

    Attributes
    ----------
    keys : pyarrow.Schema
        The grouping columns, in their order.
    inputs : pyarrow.Schema
        The columns of the stream that the processor reads.
    initial : pyarrow.Schema
        The columns of the initial state that the processor reads.
    states : mapping of str to (pyarrow.Schema, pyarrow.Schema) or (..., int)
        By name of a state variable: the columns that tell a key's entries apart, the columns of an
        entry's value, and, in time mode "ProcessingTime", an entry's time to live after its last put,
        in ms. With columns of the first kind it is PySpark's map state, without them value state.

    Notes
    -----
    Within a call, a key's rows from one source partition come in the order of that partition.
    """

    keys: pa.Schema
    inputs: pa.Schema
    initial: pa.Schema = pa.schema([])
    states: Mapping[str, tuple[Any, ...]] = {}

    @abstractmethod
    def handleBatch(
        self, keys: pa.RecordBatch, batch: Keyed, state: State, timers: Timers
    ) -> pa.RecordBatch:
        """Process the arriving rows of many keys, change the keys' state, and return the output.

        headgate calls it once per batch and slot with rows. headgate repeats a failed call with the
        old state, so the result must depend on the arguments only. When a worker starts, headgate
        calls it once without keys, so that code is loaded and compiled before the first batch.

        Parameters
        ----------
        keys : pyarrow.RecordBatch of k rows
            Each key that has rows, once.
        batch : Keyed
            ``batch.rows`` are the arriving rows by key; ``batch.of`` (int64[n]) has the position in
            `keys` of each row's key.
        state : State
            ``state[name]`` are the entries of these keys, in the same form; ``state.put(name, of,
            rows)``, ``state.remove(name, of, rows)`` and ``state.clear(name, of)`` change them.
        timers : Timers
            ``timers.register(of, at_ms)`` and ``timers.delete(of, at_ms)``; also the present time.

        Returns
        -------
        pyarrow.RecordBatch
            Columns of the output schema, by name.
        """

    def handleExpired(
        self, keys: pa.RecordBatch, expired: Keyed, state: State, timers: Timers
    ) -> pa.RecordBatch | None:
        """Process timers that have fired, after the rows of the batch; called as `handleBatch`.

        Parameters
        ----------
        expired : Keyed
            Column ``at_ms``: the times of the timers, per key in ascending order. They are still in
            ``timers.registered``; a timer that has fired cannot be registered at its time again.
        """

    def handleInitial(
        self, keys: pa.RecordBatch, initial: Keyed, state: State, timers: Timers
    ) -> None:
        """Process the initial state, in the first batch, before any row; called as `handleBatch`."""

    # -- plain Spark ----------------------------------------------------------------------------------

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Open the state variables; called by Spark."""
        self._handle = handle
        self._variables = tuple(Variable(name, *self.states[name]) for name in self.states)
        self._handles: dict[str, Any] = {}
        for variable in self._variables:
            values = from_arrow_schema(variable.values)
            if len(variable.entry):
                entry = from_arrow_schema(variable.entry)
                handle_of: Any = handle.getMapState(variable.name, entry, values, variable.ttl_ms)
            else:
                handle_of = handle.getValueState(variable.name, values, variable.ttl_ms)
            self._handles[variable.name] = handle_of

    def handleInputRows(self, key: Any, rows: Any, timerValues: TimerValues) -> Iterator[Row]:
        """Call `handleBatch` with one key; called by Spark."""
        return self._called(self.handleBatch, key, rows, self.inputs, timerValues)

    def handleExpiredTimer(
        self, key: Any, timerValues: TimerValues, expiredTimerInfo: ExpiredTimerInfo
    ) -> Iterator[Row]:
        """Call `handleExpired` with one key and timer; called by Spark."""
        at = Row(at_ms=expiredTimerInfo.getExpiryTimeInMs())
        return self._called(self.handleExpired, key, [at], TIMERS.entry, timerValues)

    def handleInitialState(self, key: Any, initialState: Any, timerValues: TimerValues) -> None:
        """Call `handleInitial` with one key and row; called by Spark."""
        self._called(self.handleInitial, key, [initialState], self.initial, timerValues)

    def close(self) -> None:
        """Close nothing; called by Spark, and by headgate after the last call of a batch."""

    def _called(
        self, method: Call, key: Any, rows: Any, schema: pa.Schema, now: TimerValues
    ) -> Iterator[Row]:
        columns = [
            column_of([value], column, "the key")
            for value, column in zip(key, self.keys, strict=True)
        ]
        keys = pa.RecordBatch.from_arrays(columns, schema=self.keys)
        arrived = pa.RecordBatch.from_pylist([row.asDict() for row in rows], schema=schema)
        timed = now.getCurrentProcessingTimeInMs() >= 0
        variables = (TIMERS, *self._variables) if timed else self._variables
        before = {variable.name: self._before(variable) for variable in variables}
        state = State(variables, before, 1)
        watermark_ms = np.array([now.getCurrentWatermarkInMs()], dtype=np.int64)
        # Spark knows whether time is processing time or event time; a processor need not know
        mode = TimeMode.PROCESSING if timed else TimeMode.NONE
        timers = Timers(state, mode, now.getCurrentProcessingTimeInMs(), watermark_ms)
        output = method(keys, _of_one_key(arrived), state, timers)
        for variable in variables:
            self._apply(variable, state)
        return iter([]) if output is None else (Row(**row) for row in output.to_pylist())

    def _before(self, variable: Variable) -> Keyed:
        if variable is TIMERS:
            entries: list[Any] = [(at_ms,) for at_ms in self._handle.listTimers()]
        elif len(variable.entry):
            pairs = self._handles[variable.name].iterator()
            entries = [(*entry, *values) for entry, values in pairs]
        else:
            handle = self._handles[variable.name]
            entries = [handle.get()] if handle.exists() else []
        columns = [
            column_of([entry[i] for entry in entries], column, f'state "{variable.name}"')
            for i, column in enumerate(variable.schema)
        ]
        return _of_one_key(pa.RecordBatch.from_arrays(columns, schema=variable.schema))

    def _apply(self, variable: Variable, state: State) -> None:
        changes = state.changes[variable.name]
        removed = [entry for _, rows in changes.removed for entry in _tuples(rows)]
        put = [entry for _, rows in changes.put for entry in _tuples(rows)]
        if variable is TIMERS:
            for (at_ms,) in removed:
                self._handle.deleteTimer(at_ms)
            for (at_ms,) in put:
                self._handle.registerTimer(at_ms)
            return
        handle, width = self._handles[variable.name], len(variable.entry)
        if any(len(of) for of in changes.cleared):
            handle.clear()
        for entry in removed:
            handle.removeKey(entry) if width else handle.clear()
        for entry in put:
            handle.updateValue(entry[:width], entry[width:]) if width else handle.update(entry)


def _of_one_key(rows: pa.RecordBatch) -> Keyed:
    return Keyed(np.zeros(rows.num_rows, dtype=np.int64), rows)


def _tuples(rows: pa.RecordBatch) -> Iterable[tuple[Any, ...]]:
    return zip(*(values_of(column) for column in rows.columns), strict=True)
