"""Defines the behaviours of operators, from a pass-through to windows per key."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from headgate_lab.sim.dataflow.elements import Record

NOTHING: tuple[Record, ...] = ()


@dataclass(slots=True)
class Held:
    """Holds the state of a unit of migration: a key group, or a part of one.

    Attributes
    ----------
    state_bytes : float
        Size of the state in a transfer.
    values : dict of int to Any
        Key -> state of the operator.
    """

    state_bytes: float = 0.0
    values: dict[int, Any] = field(default_factory=dict)


class Behaviour(Protocol):
    """Defines the behaviour of an operator."""

    def record(self, held: Held, record: Record) -> Sequence[Record]:
        """Process a record, and return its immediate output; a marker is always part of it."""

    def fire(self, held: Held, watermark_s: float) -> Sequence[Record]:
        """Return the output that is due when the watermark reaches `watermark_s`."""


class Pass:
    """Emits each record unchanged, and has no state."""

    def record(self, held: Held, record: Record) -> Sequence[Record]:
        """Return the record itself."""
        return (record,)

    def fire(self, held: Held, watermark_s: float) -> Sequence[Record]:
        """Return no records."""
        return NOTHING


@dataclass(frozen=True)
class Weigh(Pass):
    """Models only the size of state; emits only markers, as a window does.

    Parameters
    ----------
    bytes_per_record : float
        Growth of the state per record.
    every : bool
        Emit every record, as an aggregate without a window does.
    """

    bytes_per_record: float = 0.0
    every: bool = False

    def record(self, held: Held, record: Record) -> Sequence[Record]:
        """Return a marker, or every record."""
        held.state_bytes += self.bytes_per_record * record.count
        return (record,) if record.marker or self.every else NOTHING


@dataclass(frozen=True)
class Windows:
    """Computes count and largest record number per key and sliding event-time window.

    Emits ``(window, count, largest number)`` once, when the watermark reaches the end of a window. A
    record of a window that has been emitted is an error of the method that moved the state; for each
    such window ``("late", window)`` is emitted.
    """

    size_s: float
    slide_s: float

    def record(self, held: Held, record: Record) -> Sequence[Record]:
        """Count the record in every window that contains it."""
        windows = held.values.setdefault(record.key, {})
        put_out_s = held.values.get(-1, float("-inf"))
        last = math.floor(record.time_s / self.slide_s)
        first = math.floor((record.time_s - self.size_s) / self.slide_s) + 1
        out: list[Record] = [record] if record.marker else []
        for window in range(first, last + 1):
            if window * self.slide_s + self.size_s <= put_out_s:
                out.append(replace(record, marker=False, value=("late", window)))
                continue
            count, greatest = windows.get(window, (0, -1))
            windows[window] = (count + record.count, max(greatest, record.number))
        return out

    def fire(self, held: Held, watermark_s: float) -> Sequence[Record]:
        """Return the windows that end by the watermark, by end and key."""
        held.values[-1] = max(watermark_s, held.values.get(-1, float("-inf")))
        out = []
        for key, windows in held.values.items():
            if key == -1:
                continue
            for window in [w for w in windows if w * self.slide_s + self.size_s <= watermark_s]:
                end_s = window * self.slide_s + self.size_s
                out.append(Record(key, end_s, value=(window, *windows.pop(window))))
        return sorted(out, key=lambda record: (record.time_s, record.key))
