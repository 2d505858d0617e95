"""Implements one instance of O+ over a state that it may share: STRETCH's algorithms 2 and 4, by meaning.

::

    W      instance's watermark: no record before it follows
    ------------------------------------------------------------> event time
       [ window A )                   A.right <= W: expired, emitted, moved or removed
            [ window B )              W < B.right: a record at W or later may still fall in it
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from headgate.core.errors import ProtocolError
from headgate.operators.operator_plus import (
    NO_WATERMARK,
    Key,
    OperatorPlus,
    Payload,
    Record,
    State,
    Watermark,
    Window,
    Windows,
    WindowType,
)


@dataclass(frozen=True)
class Epoch:
    """Holds the mapping of keys to instances during one epoch.

    Parameters
    ----------
    number : int                  Grows with each reconfiguration.
    instances : frozenset of int  O: the connected instances.
    owner : callable              f_mu: key -> one of `instances`.
    """

    number: int
    instances: frozenset[int]
    owner: Callable[[Key], int]


def one_instance(number: int = 0) -> Epoch:
    """Return the epoch in which instance 0 owns every key."""
    return Epoch(number, frozenset({0}), lambda key: 0)


class WindowState:
    """Holds sigma: every window instance of every key, shared by all instances of an operator.

    Attributes
    ----------
    _states : dict of (key, left) -> list of state    One state for each input.
    _keys_at : dict of left -> dict of key -> None    The same pairs by boundary, in order of creation.
    _writers : dict of key -> (epoch, instance)       The last writer of each key. Within an epoch a key
                                                      has one writer, and epochs do not go back.
    """

    def __init__(self) -> None:
        self._states: dict[tuple[Key, int], list[State]] = {}
        self._keys_at: dict[int, dict[Key, None]] = {}
        self._writers: dict[Key, tuple[int, int]] = {}

    def __len__(self) -> int:
        """Return how many sets of window instances there are."""
        return len(self._states)

    def lefts(self, key: Key) -> list[int]:
        """Return the left boundaries of a key's window instances, ascending."""
        return sorted(left for left, keys in self._keys_at.items() if key in keys)

    def states(self, key: Key, left: int) -> tuple[State, ...]:
        """Return the states of one set of window instances, one for each input."""
        return tuple(self._states[key, left])

    def expired(self, right_at_most: int, size: int) -> list[int]:
        """Return the left boundaries of windows that end at or before a time, ascending."""
        return sorted(left for left in self._keys_at if left + size <= right_at_most)

    def keys_at(self, left: int) -> tuple[Key, ...]:
        """Return the keys that have window instances at a boundary, oldest first."""
        return tuple(self._keys_at.get(left, ()))

    def has(self, key: Key, left: int) -> bool:
        """Return whether there are window instances of `key` at `left`."""
        return (key, left) in self._states

    def put(self, key: Key, left: int, states: Iterable[State]) -> None:
        """Create or replace one set of window instances."""
        self._states[key, left] = list(states)
        self._keys_at.setdefault(left, {})[key] = None

    def remove(self, key: Key, left: int) -> None:
        """Remove one set of window instances."""
        del self._states[key, left]
        del self._keys_at[left][key]
        if not self._keys_at[left]:
            del self._keys_at[left]

    def claim(self, key: Key, epoch: int, instance: int) -> None:
        """Note that an instance is about to write a key.

        Raises
        ------
        ProtocolError    Another instance wrote it in this epoch, or a later epoch has begun for it.

        References
        ----------
        [STRETCH] theorem 3: each key is updated by exactly one instance at a time.
        """
        last_epoch, writer = self._writers.get(key, (epoch, instance))
        if (last_epoch, writer) != (epoch, instance) and last_epoch >= epoch:
            msg = (
                f"instance {instance} writes key {key!r} in epoch {epoch}, which instance {writer} "
                f"wrote in epoch {last_epoch}; a key has one writer per epoch."
            )
            raise ProtocolError(msg)
        self._writers[key] = (epoch, instance)


class Instance:
    """Implements o_j+, which sees every record and serves the keys that it owns.

    With implicit watermarks call `process` for each record in time order. With explicit ones call
    `update` for each record and `advance` for each watermark.

    Parameters
    ----------
    state : WindowState     Shared by instances of one operator, or this instance's own.
    number : int            j, as `Epoch.owner` returns it.
    watermark : int         W at the start; a new instance starts at that of the instances it joins.

    References
    ----------
    [STRETCH] algorithms 2 and 4. Differs from the printed form where that gives wrong answers: a
    window is found by its left boundary (line 28 counts from the key's first live window); a window
    expires when ``left + WS <= W`` (lines 33 and 22 say ``<``); W starts before all times, and
    expiry goes through the windows that exist (not through all multiples of WA from 0).
    """

    def __init__(
        self,
        operator: OperatorPlus,
        state: WindowState,
        number: int = 0,
        epoch: Epoch | None = None,
        watermark: int = NO_WATERMARK,
    ) -> None:
        self.operator = operator
        self.number = number
        self.epoch = one_instance() if epoch is None else epoch
        self.watermark = watermark
        self._state = state

    def process(self, item: Record | Watermark) -> list[Record]:
        """Process one item, whose time is the new watermark; return the records that are emitted."""
        emitted = self.advance(item.time)
        return emitted + self.update(item) if isinstance(item, Record) else emitted

    def advance(self, watermark: int) -> list[Record]:
        """Raise the watermark; return the output of the windows that expire with it, in time order.

        A watermark that is not above the present one changes nothing.
        """
        if watermark <= self.watermark:
            return []
        self.watermark = watermark
        emitted: list[Record] = []
        size = self.operator.window_size
        while True:
            # A window that moves may be due again at its new boundary, hence one boundary at a time.
            due = (
                (left, mine)
                for left in self._state.expired(watermark, size)
                if (mine := [k for k in self._state.keys_at(left) if self._owns(k)])
            )
            left, keys = next(due, (0, []))
            if not keys:
                return emitted
            for key in keys:
                emitted += self._expire(key, left)

    def update(self, record: Record) -> list[Record]:
        """Update the windows a record falls in, for the keys this instance owns.

        Windows that have expired are left out, so a record that is late for some of its windows still
        counts in the others.

        Raises
        ------
        ProtocolError    SINGLE windows and a record before the watermark, or after it.
        """
        operator = self.operator
        first, last = operator.earliest_left(record.time), operator.latest_left(record.time)
        if operator.window_type is WindowType.SINGLE:
            if record.time != self.watermark:
                msg = (
                    f"a record at {record.time} came at watermark {self.watermark}; single windows "
                    "need records in time order: sort them, or use multi windows."
                )
                raise ProtocolError(msg)
            last = first
        keys = [key for key in operator.keys_of(record) if self._owns(key)]
        emitted: list[Record] = []
        for left in range(first, last + 1, operator.window_advance):
            if left + operator.window_size <= self.watermark:
                continue
            for key in keys:
                emitted += self._update_window(key, left, record)
        return emitted

    def _owns(self, key: Key) -> bool:
        return self.epoch.owner(key) == self.number

    def _update_window(self, key: Key, left: int, record: Record) -> list[Record]:
        self._state.claim(key, self.epoch.number, self.number)
        if not self._state.has(key, left):
            self._state.put(key, left, [None] * self.operator.inputs)
        windows = self._windows(key, left, left)
        states, payloads = self.operator.updated(windows, record)
        self._state.put(key, left, states)
        return self._emit(left, payloads)

    def _expire(self, key: Key, left: int) -> list[Record]:
        self._state.claim(key, self.epoch.number, self.number)
        emitted = self._emit(left, self.operator.emitted(self._windows(key, left, left)))
        if self.operator.window_type is WindowType.SINGLE:
            moved = left + self.operator.window_advance
            if self.operator.output is None:
                # Nothing is emitted on the way, so the window moves at once as far as it must.
                moved = max(moved, self.operator.earliest_left(self.watermark))
            states = self.operator.slid(self._windows(key, left, moved))
            if any(state is not None for state in states):
                self._state.put(key, moved, states)
        self._state.remove(key, left)
        return emitted

    def _windows(self, key: Key, left: int, shown: int) -> Windows:
        """Return the window instances at `left`, but with `shown` as their left boundary."""
        right = shown + self.operator.window_size
        return tuple(Window(s, shown, right, key) for s in self._state.states(key, left))

    def _emit(self, left: int, payloads: Iterable[Payload]) -> list[Record]:
        right = left + self.operator.window_size
        return [Record(right, tuple(payload)) for payload in payloads]


def run(operator: OperatorPlus, items: Iterable[Record | Watermark]) -> list[Record]:
    """Return what one instance emits for items in time order, which defines the right result."""
    instance = Instance(operator, WindowState())
    return [record for item in items for record in instance.process(item)]
