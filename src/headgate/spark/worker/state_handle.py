"""Implements PySpark's ``StatefulProcessorHandle`` in a slot, over the `State` of a call.

A call serves many keys. Its `State` has the state of all these keys as columns, and takes the changes as
columns. The columns of a variable become Python values when the processor first uses the variable.
Imported in Python workers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import (
    ListState,
    MapState,
    StatefulProcessorHandle,
    ValueState,
)

from headgate.core.errors import ProcessorError
from headgate.operators.processor import TIMERS, Keyed, State, TimeMode, Variable
from headgate.spark.worker.state_values import (
    copied,
    name_of,
    read,
    same_when_read,
    same_when_written,
    written,
)

Values = tuple[Any, ...]

_UNFIT = (pa.ArrowException, TypeError, ValueError, OverflowError, AttributeError)
"""Errors for a value that does not fit its column."""


class _Entries:
    """Holds one variable during a call: the stored values by key, and the changes.

    Attributes
    ----------
    key : int    Position of the key that the processor is called with.
    """

    def __init__(self, variable: Variable) -> None:
        self.variable = variable
        self.key = 0
        self._width = len(variable.entry)
        # Spark copies a value when it writes or reads it: later changes to a list in it have no effect
        nested = any(pa.types.is_nested(kind) for kind in variable.schema.types)
        self._own: Callable[[Any], Any] = copied if nested else _as_it_is
        self._before: Keyed | None = None

    def begin(self, before: Keyed) -> None:
        """Take the entries of the keys of a call."""
        self._before = before
        self._rows: list[Values] | None = None
        self._spans: dict[int, tuple[int, int]] = {}
        self._new: dict[int, Any] = {}

    def _here(self) -> list[Values]:
        """Return the entries of the present key as they were before the call."""
        if self._rows is None:
            self._read()
        assert self._rows is not None
        start, stop = self._spans.get(self.key, (0, 0))
        return self._rows[start:stop]

    def _read(self) -> None:
        assert self._before is not None
        of, rows = self._before.of, self._before.rows
        names = self.variable.schema.names
        columns = [values_of(rows.column(i)) for i in range(len(names))]
        self._rows = list(zip(*columns, strict=True))
        if len(of) == 0:
            return
        starts = np.flatnonzero(np.r_[True, of[1:] != of[:-1]])
        stops = np.r_[starts[1:], len(of)].tolist()
        keys = of[starts].tolist()
        self._spans = dict(zip(keys, zip(starts.tolist(), stops, strict=True), strict=True))

    def _taken(self, value: Any, schema: pa.Schema, what: str) -> Values:
        """Return the user's value as a tuple with an item per field; ProcessorError if it is not one."""
        if not isinstance(value, list | tuple) or len(value) != len(schema):
            value_text = (
                f"{len(value)} values" if isinstance(value, list | tuple) else type(value).__name__
            )
            msg = (
                f'{what} of state "{self.variable.name}" must be a tuple of {len(schema)} '
                f"({', '.join(schema.names)}), got {value_text}."
            )
            raise ProcessorError(msg)
        values: Values = self._own(tuple(value))
        return values

    def _put(self, state: State, of: list[int], rows: Sequence[Values]) -> None:
        if not of:
            return
        name, schema = self.variable.name, self.variable.schema
        columns = []
        for field, values in zip(schema, zip(*rows, strict=True), strict=True):
            columns.append(column_of(values, field, f'state "{name}"'))
        batch = pa.RecordBatch.from_arrays(columns, schema=schema)
        state.put(name, np.array(of, dtype=np.int64), batch)

    def _clear(self, state: State, of: list[int]) -> None:
        if of:
            state.clear(self.variable.name, np.array(of, dtype=np.int64))


class _Value(_Entries, ValueState):
    def exists(self) -> bool:
        return self.get() is not None

    def get(self) -> Values | None:
        if self.key in self._new:
            values: Values | None = self._own(self._new[self.key])
            return values
        here = self._here()
        return self._own(here[0]) if here else None

    def update(self, newValue: Values) -> None:
        self._new[self.key] = self._taken(newValue, self.variable.values, "a value")

    def clear(self) -> None:
        self._new[self.key] = None

    def finish(self, state: State) -> None:
        """Write the changes into `state`."""
        self._clear(state, [key for key, value in self._new.items() if value is None])
        values = {key: value for key, value in self._new.items() if value is not None}
        self._put(state, list(values), list(values.values()))


class _List(_Entries, ListState):
    # `_new` has for each changed key: (whether the old list was cleared, appended items)

    def exists(self) -> bool:
        return next(self.get(), None) is not None

    def get(self) -> Iterator[Values]:
        cleared, more = self._new.get(self.key, (False, []))
        return iter(self._own([*([] if cleared else self._here()), *more]))

    def put(self, newState: list[Values]) -> None:
        self._new[self.key] = (True, self._items(newState))

    def appendValue(self, newState: Values) -> None:
        self._behind().append(self._taken(newState, self.variable.values, "an item"))

    def appendList(self, newState: list[Values]) -> None:
        self._behind().extend(self._items(newState))

    def clear(self) -> None:
        self._new[self.key] = (True, [])

    def finish(self, state: State) -> None:
        """Write the changes into `state`."""
        self._clear(state, [key for key, (cleared, _) in self._new.items() if cleared])
        of = [key for key, (_, more) in self._new.items() for _ in more]
        self._put(state, of, [item for _, more in self._new.values() for item in more])

    def _behind(self) -> list[Values]:
        more: list[Values] = self._new.setdefault(self.key, (False, []))[1]
        return more

    def _items(self, values: list[Values]) -> list[Values]:
        if not values:
            msg = f'a list put into state "{self.variable.name}" must not be empty; use clear.'
            raise ProcessorError(msg)
        return [self._taken(value, self.variable.values, "an item") for value in values]


class _Changed:
    """Holds the map of one key during a call.

    Attributes
    ----------
    here : dict    Key and value of each entry, by the key's name (see `name_of`).
    gone : dict    Keys that were removed, by name.
    put : set    Names of the keys that were put.
    """

    def __init__(self, here: dict[Values, tuple[Values, Values]]) -> None:
        self.here = here
        self.cleared = False
        self.gone: dict[Values, Values] = {}
        self.put: set[Values] = set()


class _Map(_Entries, MapState):
    def __init__(self, variable: Variable) -> None:
        super().__init__(variable)
        self._name = name_of(variable.entry.types)
        self._row = Row(*variable.values.names)

    def exists(self) -> bool:
        return bool(self._mine().here)

    def getValue(self, key: Values) -> Row | None:
        entry = self._mine().here.get(self._name(key))
        # Spark, too, returns a Row here and tuples from the other methods
        return None if entry is None else self._row(*self._own(entry[1]))

    def containsKey(self, key: Values) -> bool:
        return self._name(key) in self._mine().here

    def updateValue(self, key: Values, value: Values) -> None:
        changed, entry = self._mine(), self._taken(key, self.variable.entry, "a key")
        name = self._name(entry)
        changed.here[name] = (entry, self._taken(value, self.variable.values, "a value"))
        changed.put.add(name)

    def iterator(self) -> Iterator[tuple[Values, Values]]:
        return iter(self._own(list(self._mine().here.values())))

    def keys(self) -> Iterator[Values]:
        return iter(self._own([entry for entry, _ in self._mine().here.values()]))

    def values(self) -> Iterator[Values]:
        return iter(self._own([value for _, value in self._mine().here.values()]))

    def removeKey(self, key: Values) -> None:
        changed, entry = self._mine(), self._taken(key, self.variable.entry, "a key")
        name = self._name(entry)
        if changed.here.pop(name, None) is not None:
            changed.gone[name] = entry
            changed.put.discard(name)

    def clear(self) -> None:
        changed = self._mine()
        changed.here.clear()
        changed.put.clear()
        changed.cleared = True

    def finish(self, state: State) -> None:
        """Write the changes into `state`."""
        changed: dict[int, _Changed] = self._new
        self._clear(state, [key for key, change in changed.items() if change.cleared])
        gone = [(key, entry) for key, change in changed.items() for entry in change.gone.values()]
        if gone:
            columns = [
                column_of(values, field, f'keys of state "{self.variable.name}"')
                for field, values in zip(
                    self.variable.entry, zip(*(e for _, e in gone), strict=True), strict=True
                )
            ]
            rows = pa.RecordBatch.from_arrays(columns, schema=self.variable.entry)
            state.remove(self.variable.name, np.array([k for k, _ in gone], np.int64), rows)
        put = [(key, *change.here[name]) for key, change in changed.items() for name in change.put]
        self._put(state, [key for key, _, _ in put], [(*e, *value) for _, e, value in put])

    def _mine(self) -> _Changed:
        changed: _Changed | None = self._new.get(self.key)
        if changed is None:
            width = self._width
            entries = [(row[:width], row[width:]) for row in self._here()]
            changed = _Changed({self._name(entry): (entry, value) for entry, value in entries})
            self._new[self.key] = changed
        return changed


class _Timers(_Entries):
    # `_new` has for each used key: (its timers now, those of them that were registered in this call)

    def now(self) -> set[int]:
        """Return the timers of the present key."""
        return self._mine()[0]

    def register(self, at_ms: int) -> None:
        now, fresh = self._mine()
        if at_ms not in now:
            now.add(at_ms)
            fresh.add(at_ms)

    def delete(self, at_ms: int) -> None:
        for timers in self._mine():
            timers.discard(at_ms)

    def finish(self, state: State) -> None:
        """Write the changes into `state`."""
        put, gone = [], []
        for key, (now, fresh) in self._new.items():
            self.key = key
            put += [(key, at_ms) for at_ms in fresh]
            gone += [(key, at_ms) for (at_ms,) in self._here() if at_ms not in now]
        self._put(state, [key for key, _ in put], [(at_ms,) for _, at_ms in put])
        if gone:
            rows = pa.RecordBatch.from_arrays(
                [pa.array([at_ms for _, at_ms in gone])], schema=TIMERS.schema
            )
            state.remove(TIMERS.name, np.array([key for key, _ in gone], dtype=np.int64), rows)

    def _mine(self) -> tuple[set[int], set[int]]:
        times: tuple[set[int], set[int]] | None = self._new.get(self.key)
        if times is None:
            times = self._new[self.key] = ({at_ms for (at_ms,) in self._here()}, set())
        return times


class SlotHandle(StatefulProcessorHandle):
    """Gives a processor the state of a slot's keys.

    `variables`: as ``init`` declared them when the query started.
    """

    def __init__(self, variables: tuple[Variable, ...], mode: TimeMode) -> None:
        # does not call PySpark's constructor, which needs a connection to the JVM
        self._states: dict[str, _Value | _List | _Map] = {}
        for variable in variables:
            kind = _Value if variable.single else _List if variable.ordered else _Map
            self._states[variable.name] = kind(variable)
        self._timers = _Timers(TIMERS) if mode is not TimeMode.NONE else None

    def begin(self, state: State) -> None:
        """Take the state of the keys of a call."""
        for entries in self._all():
            entries.begin(state[entries.variable.name])

    def turn(self, key: int) -> None:
        """Select the key whose state and timers the processor gets."""
        for entries in self._all():
            entries.key = key

    def finish(self, state: State) -> None:
        """Write the changes of the call into `state`."""
        for entries in self._all():
            entries.finish(state)

    def _all(self) -> Iterator[Any]:
        yield from self._states.values()
        if self._timers is not None:
            yield self._timers

    def getValueState(
        self, stateName: str, schema: Any, ttlDurationMs: int | None = None
    ) -> ValueState:
        """Return a value state."""
        state = self._state(stateName)
        assert isinstance(state, ValueState)
        return state

    def getListState(
        self, stateName: str, schema: Any, ttlDurationMs: int | None = None
    ) -> ListState:
        """Return a list state."""
        state = self._state(stateName)
        assert isinstance(state, ListState)
        return state

    def getMapState(
        self, stateName: str, userKeySchema: Any, valueSchema: Any, ttlDurationMs: int | None = None
    ) -> MapState:
        """Return a map state."""
        state = self._state(stateName)
        assert isinstance(state, MapState)
        return state

    def _state(self, name: str) -> Any:
        if name not in self._states:
            msg = (
                f'init declares state "{name}" now and did not when the query started; always '
                "declare the same."
            )
            raise ProcessorError(msg)
        return self._states[name]

    def registerTimer(self, expiryTimestampMs: int) -> None:
        """Register a timer of the key, in ms since 1970."""
        self._of_timers().register(int(expiryTimestampMs))

    def deleteTimer(self, expiryTimestampMs: int) -> None:
        """Delete a timer of the key."""
        self._of_timers().delete(int(expiryTimestampMs))

    def listTimers(self) -> Iterator[int]:
        """Return the key's timers, in ascending order."""
        return iter(sorted(self._of_timers().now()))

    def deleteIfExists(self, stateName: str) -> None:
        """Do nothing: there are no other states than those that ``init`` declares.

        A query refuses a checkpoint that has other states.
        """

    def _of_timers(self) -> _Timers:
        if self._timers is None:
            msg = 'there are no timers in time mode "None"; use "ProcessingTime" or "EventTime".'
            raise ProcessorError(msg)
        return self._timers


def _as_it_is(value: Any) -> Any:
    return value


def column_of(
    values: Sequence[Any], field: pa.Field, where: str, *, zoned: bool = True
) -> pa.Array:
    """Return Python values as a column.

    `zoned`: if True, times without a zone are local times, as in PySpark's state; if False, they are in
    UTC, as in the output of PySpark's processors. Raises `ProcessorError`: a value is of another type;
    the message gives the value's position, not its content.
    """
    kind = field.type
    as_it_is = not zoned or same_when_written(kind)

    def fitted(given: Sequence[Any]) -> pa.Array:
        return pa.array(given if as_it_is else [written(value, kind) for value in given], kind)

    try:
        return fitted(values)
    except _UNFIT:
        for number, value in enumerate(values):
            try:
                fitted([value])
            except _UNFIT:
                msg = (
                    f'column "{field.name}" of {where} is {kind}, and value {number + 1} of '
                    f"{len(values)} is of type {type(value).__name__} and does not fit."
                )
                raise ProcessorError(msg) from None
        raise


def values_of(column: pa.Array) -> list[Any]:
    """Return a column's values as PySpark passes state to a processor.

    NumPy converts numbers without nulls, ten times as fast as Arrow.
    """
    kind = column.type
    plain = pa.types.is_integer(kind) or pa.types.is_floating(kind)
    if plain and column.null_count == 0:
        items: list[Any] = column.to_numpy().tolist()
        return items
    values: list[Any] = column.to_pylist()
    return values if same_when_read(kind) else [read(value, kind) for value in values]
