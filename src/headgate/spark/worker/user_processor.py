"""Runs a user's PySpark ``StatefulProcessor`` unchanged, as a processor of many keys per call.

It calls the methods as Spark does, in the same order: ``init`` before the first key of a task,
``handleInitialState`` in the first batch, ``handleInputRows`` per key with all its rows,
``handleExpiredTimer`` after the rows, ``close`` at the end; each task has a new object.
Imported in Python workers.
"""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import pyarrow as pa
from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import (
    ExpiredTimerInfo,
    StatefulProcessor,
    TimerValues,
)

from headgate.core.errors import ProcessorError
from headgate.operators.failure import FAILURES, explained
from headgate.operators.processor import Keyed, State, TimeMode, Timers, Variable
from headgate.spark.worker.state_handle import SlotHandle, column_of, values_of
from headgate.spark.worker.state_values import copied


@dataclass
class RowProcessor:
    """Runs a processor of ``transformWithState``, whose input and output are rows."""

    processor: StatefulProcessor
    """The user's processor."""
    keys: pa.Schema
    inputs: pa.Schema
    initial: pa.Schema
    """`keys`, `inputs`, `initial`: pyarrow.Schema: The grouping columns; all columns of the stream;
    all columns of the initial state."""
    outputs: pa.Schema
    """Columns of the output."""
    states: Mapping[str, tuple[Any, ...]]
    """Variables that ``init`` declares: by name, the other arguments of `Variable`."""
    mode: TimeMode
    _handle: SlotHandle | None = field(default=None, init=False, repr=False)
    _place: str = field(default="", init=False, repr=False)

    @cached_property
    def _nested(self) -> bool:
        return any(pa.types.is_nested(kind) for kind in self.outputs.types)

    @property
    def name(self) -> str:
        """The class of the user's processor."""
        return type(self.processor).__name__

    def handleInitial(
        self, keys: pa.RecordBatch, initial: Keyed, state: State, timers: Timers
    ) -> None:
        """Call ``handleInitialState`` for every row of the initial state."""
        user = self.processor.handleInitialState

        def call(key: Any, rows: Iterator[Any], times: TimerValues) -> Iterable[Any]:
            for row in rows:
                user(key, row, times)
            return ()

        rows = self._rows_by_key(initial, keys.num_rows)
        self._each(self._key_values(keys), rows, state, timers, call, user)

    def handleBatch(
        self, keys: pa.RecordBatch, batch: Keyed, state: State, timers: Timers
    ) -> pa.RecordBatch:
        """Call ``handleInputRows`` for every key."""
        if keys.num_rows == 0:
            return pa.RecordBatch.from_pylist([], schema=self.outputs)
        user = self.processor.handleInputRows
        rows = self._rows_by_key(batch, keys.num_rows)
        return self._each(self._key_values(keys), rows, state, timers, user, user)

    def handleExpired(
        self, keys: pa.RecordBatch, expired: Keyed, state: State, timers: Timers
    ) -> pa.RecordBatch:
        """Call ``handleExpiredTimer`` for every timer."""
        user, row = self.processor.handleExpiredTimer, Row(*self.keys.names)
        handle, starts = self._opened(), expired.starts(keys.num_rows).tolist()
        at_all_ms = expired.rows.column(0).to_pylist()

        def call(key: Any, rows: Iterator[Any], times: TimerValues) -> Iterable[Any]:
            for at_ms in rows:
                info = ExpiredTimerInfo(at_ms)
                # Spark passes these arguments by name
                yield from _rows_of(user(key=key, timerValues=times, expiredTimerInfo=info))
                handle.deleteTimer(at_ms)

        def rows(number: int) -> Iterator[int]:
            return iter(at_all_ms[starts[number] : starts[number + 1]])

        named = [row(*values) for values in self._timer_keys(keys)]
        return self._each(named, rows, state, timers, call, user)

    def close(self) -> None:
        """Call the user's ``close``, if there was an ``init``."""
        if self._handle is not None:
            self._handle = None
            self.processor.close()

    # -- the form of rows; `PandasProcessor` overrides it ------------------------------------------

    def _rows_by_key(self, keyed: Keyed, keys: int) -> Callable[[int], Iterator[Any]]:
        """Return a function from a key's position to its rows."""
        kind = row_class(keyed.rows.schema.names)
        values = list(zip(*(column.to_pylist() for column in keyed.rows.columns), strict=True))
        starts = keyed.starts(keys).tolist()
        new = tuple.__new__

        def rows(key: int) -> Iterator[Any]:
            first = starts[key]
            for number in range(first, starts[key + 1]):
                self._place = f"record {number - first + 1} of {starts[key + 1] - first}"
                yield new(kind, values[number])

        return rows

    def _key_values(self, keys: pa.RecordBatch) -> list[tuple[Any, ...]]:
        return list(zip(*(column.to_pylist() for column in keys.columns), strict=True))

    def _timer_keys(self, keys: pa.RecordBatch) -> list[tuple[Any, ...]]:
        """Return keys as Spark passes them with a timer: read from state, so times have no zone."""
        return list(zip(*map(values_of, keys.columns), strict=True))

    def _copied(self, row: Any) -> Any:
        """Return a copy of an output row: the user may change its lists before the batch is complete."""
        return copied(row) if self._nested else row

    def _output(self, rows: list[Any]) -> pa.RecordBatch:
        """Return the user's output rows as a batch, matched by the names of their fields."""
        try:
            return _of_rows(rows, self.outputs, f"the output of {self.name}")
        except (AttributeError, TypeError):
            kinds = sorted({type(row).__name__ for row in rows if not hasattr(row, "__fields__")})
            what = f"a {kinds[0]}" if kinds else "rows without names"
            msg = (
                f"{self.name} put out {what}; it must put out Row({', '.join(self.outputs.names)})."
            )
            raise ProcessorError(msg) from None

    # -- calls --------------------------------------------------------------------------------------

    def _each(
        self,
        keys: Sequence[tuple[Any, ...]],
        rows: Callable[[int], Iterator[Any]],
        state: State,
        timers: Timers,
        call: Callable[..., Iterable[Any]],
        user: Callable[..., Any],
    ) -> pa.RecordBatch:
        """Call a function once per key and return all output; `user` is the user's method, for errors."""
        handle = self._opened()
        handle.begin(state)
        watermarks_ms = timers.watermark_ms.tolist()
        put_out: list[Any] = []
        number = 0
        try:
            for number, key in enumerate(keys):
                handle.turn(number)
                self._place = "no record"
                times = TimerValues(timers.timestamp_ms, watermarks_ms[number])
                put_out.extend(map(self._copied, _rows_of(call(key, rows(number), times))))
        except FAILURES as error:
            what = getattr(user, "__name__", type(user).__name__)
            where = f"{what}, at {self._place} of key {number + 1} of {len(keys)}"
            raise explained(error, where, user) from None
        handle.finish(state)
        return self._output(put_out)

    def _opened(self) -> SlotHandle:
        if self._handle is None:
            variables = tuple(Variable(name, *self.states[name]) for name in sorted(self.states))
            self._handle = SlotHandle(variables, self.mode)
            self.processor.init(self._handle)
        return self._handle


def _rows_of(returned: Any) -> Iterable[Any]:
    """Return the result of a user's method, if it is iterable."""
    if isinstance(returned, Iterable):
        return returned
    msg = (
        f"it returned {type(returned).__name__}, which has no rows; yield the rows, or return a list of "
        "rows."
    )
    raise ProcessorError(msg)


def row_class(names: list[str]) -> type[Row]:
    """Return a subclass of PySpark's Row with these columns; access by name needs no search.

    A column named like a member of Row (``count``) does not hide that member, as in PySpark.
    """
    # The class must stay referenced while it is used: a collected class has an empty dictionary.
    places = [f"c{i}" for i in range(len(names))]
    getters: Any = namedtuple("_Getters", places)  # type: ignore[misc]
    members: dict[str, Any] = {
        name: vars(getters)[places[i]]
        for i, name in reversed(list(enumerate(names)))
        if not hasattr(Row, name)
    }
    return type("Row", (Row,), {**members, "__fields__": Row(*names)})


def _of_rows(rows: list[Any], schema: pa.Schema, what: str) -> pa.RecordBatch:
    """Return named rows as a batch; a name that is missing is null, others are ignored, as in Spark."""
    if not rows:
        return pa.RecordBatch.from_pylist([], schema=schema)
    names = list(rows[0].__fields__)
    nested = any(pa.types.is_nested(column.type) for column in schema)
    if nested or any(row.__fields__ != rows[0].__fields__ for row in rows):
        dictionaries = [row.asDict(True) for row in rows]
        values = {n: [row.get(n) for row in dictionaries] for n in schema.names}
    else:
        values = dict(zip(names, map(list, zip(*rows, strict=True)), strict=True))
    nothing = [None] * len(rows)
    columns = [column_of(values.get(f.name, nothing), f, what, zoned=False) for f in schema]
    return pa.RecordBatch.from_arrays(columns, schema=schema)
