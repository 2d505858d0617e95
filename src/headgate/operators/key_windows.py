"""Serves the window instances of one key, record by record: a slot's work with O+.

Implements algorithm 2 of [STRETCH] for a single key. A slot advances its keys to the watermark one after
another, so it does not search all keys for the next window end; `headgate_lab.oplus.reference` does.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from headgate.operators.operator_plus import (
    Key,
    OperatorPlus,
    Payload,
    Record,
    State,
    Window,
    Windows,
    WindowType,
)


class KeyWindows:
    """Holds the windows of one key during a call, and the changes that the call made.

    `states`: the states before the call, by left boundary; one state per input.

    Attributes
    ----------
    changed, removed : set of int    Left boundaries of windows that the call wrote, and removed.
    """

    def __init__(
        self, operator: OperatorPlus, key: Key, states: Mapping[int, Sequence[State]]
    ) -> None:
        self.changed: set[int] = set()
        self.removed: set[int] = set()
        self._operator = operator
        self._key = key
        self._states = dict(states)
        self._before = frozenset(states)

    @property
    def due(self) -> int | None:
        """Least right boundary; None without any window."""
        return min(self._states) + self._operator.window_size if self._states else None

    def states(self, left: int) -> Sequence[State]:
        """Return the states of the window at a left boundary, one per input."""
        return self._states[left]

    def take(self, record: Record) -> list[Record]:
        """Serve a record of a sorted input: no earlier record follows, so its time is the watermark.

        References
        ----------
        [STRETCH] definition 3, algorithm 2.
        """
        emitted = self.advance(record.time)
        operator = self._operator
        first, last = operator.earliest_left(record.time), operator.latest_left(record.time)
        if operator.window_type is WindowType.SINGLE:
            last = first
        for left in range(first, last + 1, operator.window_advance):
            emitted += self.update(left, record)
        return emitted

    def update(self, left: int, record: Record) -> list[Record]:
        """Update the window at `left`, which holds the record; return the records that f_U emits."""
        if left not in self._states:
            self._put(left, [None] * self._operator.inputs)
        states, payloads = self._operator.updated(self._windows(left, left), record)
        self._put(left, states)
        return self._emit(left, payloads)

    def advance(self, watermark: int) -> list[Record]:
        """Close windows that end at or before a watermark; return the emitted records, by time."""
        emitted: list[Record] = []
        while self._states:
            left = min(self._states)
            if left + self._operator.window_size > watermark:
                break
            emitted += self._emit(left, self._operator.emitted(self._windows(left, left)))
            if self._operator.window_type is WindowType.SINGLE:
                self._move(left, watermark)
            self._remove(left)
        return emitted

    def _move(self, left: int, watermark: int) -> None:
        operator = self._operator
        moved = left + operator.window_advance
        if operator.output is None:
            # Nothing is emitted on the way, so the window moves to its last position at once.
            moved = max(moved, operator.earliest_left(watermark))
        states = operator.slid(self._windows(left, moved))
        if any(state is not None for state in states):
            self._put(moved, states)

    def _put(self, left: int, states: Sequence[State]) -> None:
        self._states[left] = states
        self.changed.add(left)
        self.removed.discard(left)

    def _remove(self, left: int) -> None:
        del self._states[left]
        self.changed.discard(left)
        if left in self._before:
            self.removed.add(left)

    def _windows(self, left: int, shown: int) -> Windows:
        """Return the window instances of `left`, with `shown` as their left boundary."""
        right = shown + self._operator.window_size
        return tuple(Window(state, shown, right, self._key) for state in self._states[left])

    def _emit(self, left: int, payloads: Iterable[Payload]) -> list[Record]:
        right = left + self._operator.window_size
        return [Record(right, tuple(payload)) for payload in payloads]
