"""Implements O+ as a PySpark ``StatefulProcessor``: STRETCH's operator, in slots and on plain Spark.

A key's windows are a map from left boundary to one state per input. If records must be in time order,
they wait in a second map until the watermark has passed them. Each key has one timer at most: at the
earliest time at which a window or a record is due. Imported in Python workers.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql import Row
from pyspark.sql import types as T
from pyspark.sql.streaming.stateful_processor import (
    ExpiredTimerInfo,
    StatefulProcessor,
    StatefulProcessorHandle,
    TimerValues,
)

from headgate.operators.key_windows import KeyWindows
from headgate.operators.operator_plus import Key, OperatorPlus, Record, State
from headgate.spark.worker.state_values import read
from headgate.spark.worker.user_processor import row_class

EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


@dataclass(frozen=True)
class InputColumns:
    """Describes the columns of one input of an operator."""

    names: list[str]
    """Names of the payload's columns."""
    first: int
    """Position of the input's first column in a row."""
    kinds: pa.Schema
    """pyarrow.Schema: Types of the columns."""
    fields: T.StructType
    """Spark's types of the columns."""
    state: T.DataType | None
    """Type of a window's state for this input; None if a window keeps the input's records."""

    @property
    def kept(self) -> T.DataType:
        """The type of a window's state for this input."""
        record = T.StructType(
            [T.StructField("time_us", T.LongType()), T.StructField("payload", self.fields)]
        )
        return T.ArrayType(record) if self.state is None else self.state


class WindowProcessor(StatefulProcessor):
    """Serves an `OperatorPlus`.

    A row has ``input`` (the input's number), ``at_us`` (event time), ``tie`` (a hash of the content),
    ``left_us`` (if there is a row for each window), and all inputs' columns, null for all inputs but one.

    Parameters
    ----------
    operator : OperatorPlus    Times in microseconds.
    keys : pyarrow.Schema
        Types of the columns of a key; a key of one column is its value, of several a tuple.
    outputs : sequence of str    Names of the output: the time, then the operator's schema.
    ordered : bool
        Whether records are served in the order of their times, once the watermark has passed them.
    """

    def __init__(
        self,
        operator: OperatorPlus,
        keys: pa.Schema,
        inputs: Sequence[InputColumns],
        outputs: Sequence[str],
        *,
        ordered: bool,
    ) -> None:
        self._operator = operator
        self._keys = keys
        self._inputs = list(inputs)
        self._outputs = list(outputs)
        self._ordered = ordered

    @property
    def window(self) -> str:
        """The windows that state is kept by, in words."""
        operator = self._operator
        kind = operator.window_type.value
        return f"{kind} window of {operator.window_size} us every {operator.window_advance} us"

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Open the state: windows, and records that wait."""
        self._handle = handle
        fields = [T.StructField(f"s{i}", columns.kept) for i, columns in enumerate(self._inputs)]
        self._windows = handle.getMapState("windows", _LEFT, T.StructType(fields))
        if self._ordered:
            records = [
                T.StructField(f"r{i}", columns.fields) for i, columns in enumerate(self._inputs)
            ]
            self._waiting = handle.getMapState("waiting", _PLACE, T.StructType(records))
        self._payloads = [row_class(columns.names) for columns in self._inputs]
        self._row = Row(*self._outputs)

    def handleInputRows(self, key: Any, rows: Any, timerValues: TimerValues) -> Iterator[Row]:
        """Store rows until they are due, or update windows, in order of time, input and content."""
        group = self._key(key)
        arrived = sorted(rows, key=_in_order)
        windows = self._opened(group)
        emitted: list[Record] = []
        for row in arrived:
            if self._ordered:
                self._hold(row)
            else:
                emitted += windows.update(row.left_us, self._record(row))
        self._close(windows, timerValues)
        return self._rows(emitted)

    def handleExpiredTimer(
        self, key: Any, timerValues: TimerValues, expiredTimerInfo: ExpiredTimerInfo
    ) -> Iterator[Row]:
        """Serve waiting records up to the watermark, then let windows expire."""
        windows = self._opened(self._key(key))
        watermark_us = timerValues.getCurrentWatermarkInMs() * 1000
        emitted: list[Record] = []
        if self._ordered:
            for record in self._released(watermark_us):
                emitted += windows.take(record)
        emitted += windows.advance(watermark_us)
        self._close(windows, timerValues)
        return self._rows(emitted)

    # -- windows ------------------------------------------------------------------------------------

    def _opened(self, key: Key) -> KeyWindows:
        states = {
            left: [self._state(i, state) for i, state in enumerate(values)]
            for (left,), values in self._windows.iterator()
        }
        return KeyWindows(self._operator, key, states)

    def _close(self, windows: KeyWindows, now: TimerValues) -> None:
        """Write changed windows into state, and register a timer for the next time that is due."""
        for left in sorted(windows.removed):
            self._windows.removeKey((left,))
        for left in sorted(windows.changed):
            states = windows.states(left)
            row = tuple(self._kept(i, state) for i, state in enumerate(states))
            self._windows.updateValue((left,), row)
        due = [] if windows.due is None else [windows.due]
        if self._ordered:
            due += [place[0] for place in self._waiting.keys()]
        # rounded up to whole milliseconds, since watermarks are whole milliseconds
        at_ms = -(-min(due) // 1000) if due else None
        registered = set(self._handle.listTimers())
        for other_ms in registered - {at_ms}:
            # the caller deletes the timer that has fired
            if other_ms > now.getCurrentWatermarkInMs():
                self._handle.deleteTimer(other_ms)
        if at_ms is not None and at_ms not in registered:
            self._handle.registerTimer(at_ms)

    def _state(self, number: int, state: Any) -> State:
        """Return a window's state in the operator's form, from its stored form."""
        columns = self._inputs[number]
        if columns.state is not None or state is None:
            return state
        kind = self._payloads[number]
        return tuple(Record(at_us, tuple.__new__(kind, p), number) for at_us, p in state)

    def _kept(self, number: int, state: State) -> Any:
        if self._inputs[number].state is not None or state is None:
            return state
        return [(record.time, tuple(record.payload)) for record in state]

    # -- records ------------------------------------------------------------------------------------

    def _record(self, row: Any) -> Record:
        columns = self._inputs[row.input]
        values = row[columns.first : columns.first + len(columns.names)]
        plain = [read(value, kind) for value, kind in zip(values, columns.kinds.types, strict=True)]
        return Record(row.at_us, tuple.__new__(self._payloads[row.input], plain), row.input)

    def _hold(self, row: Any) -> None:
        """Store a record behind equal records."""
        record, number = self._record(row), 0
        while self._waiting.containsKey((record.time, record.input, row.tie, number)):
            number += 1
        payloads: list[Any] = [None] * len(self._inputs)
        payloads[record.input] = tuple(record.payload)
        self._waiting.updateValue((record.time, record.input, row.tie, number), tuple(payloads))

    def _released(self, watermark_us: int) -> Iterable[Record]:
        """Remove the waiting records up to the watermark and yield them by time, input and content."""
        waiting = [(tuple(place), payloads) for place, payloads in self._waiting.iterator()]
        ready = [item for item in waiting if item[0][0] <= watermark_us]
        for place, payloads in sorted(ready, key=lambda item: item[0]):
            self._waiting.removeKey(place)
            at_us, number = place[:2]
            yield Record(at_us, tuple.__new__(self._payloads[number], payloads[number]), number)

    def _key(self, key: Any) -> Key:
        values = [read(v, kind) for v, kind in zip(tuple(key), self._keys.types, strict=True)]
        return values[0] if len(values) == 1 else tuple(values)

    def _rows(self, emitted: list[Record]) -> Iterator[Row]:
        for record in emitted:
            yield self._row(EPOCH + dt.timedelta(microseconds=record.time), *record.payload)


_LEFT = T.StructType([T.StructField("left_us", T.LongType())])
_PLACE = T.StructType(
    [T.StructField(name, T.LongType()) for name in ("at_us", "input", "tie", "number")]
)


def _in_order(row: Any) -> tuple[int, int, int]:
    return row.at_us, row.input, row.tie
