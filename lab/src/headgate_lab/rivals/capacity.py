"""Estimates the throughput of a number of slots, from a regression on utilisation for each slot."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

_CONSTANT = 1e-9
"""A variance below this is rounding."""


class ThroughputLine:
    """Fits a straight line to the throughput of one slot over its utilisation, by running means.

    Attributes
    ----------
    lately : list of float
        Utilisations since the list was last cleared.
    """

    def __init__(self) -> None:
        self._count = 0
        self._used = self._done = self._spread = self._shared = 0.0
        self.lately: list[float] = []

    def add(self, used: float, done: float) -> None:
        """Add a utilisation, and the records per second served at it."""
        self._count += 1
        off = used - self._used
        self._used += off / self._count
        self._done += (done - self._done) / self._count
        self._spread += off * (used - self._used)
        self._shared += off * (done - self._done)
        self.lately.append(used)

    def at(self, used: float) -> float:
        """Return the throughput at a utilisation, >= 0; proportional if the utilisation never varied."""
        if self._spread > _CONSTANT * self._count:
            return max(0.0, self._done + self._shared / self._spread * (used - self._used))
        return max(0.0, used * self._done / self._used) if self._used > 0.0 else 0.0


class CapacityModel:
    """Estimates the throughput of an operator's slots together, by their number.

    Skew is assumed to stay: when the busiest slot is saturated, a slot that is less busy by x has a
    utilisation of 1 - x. The sum of the slots' lines at these utilisations is the capacity of their
    number; it is averaged with the previous estimate. The capacity of another number of slots is
    proportional to the present capacity per slot.

    References
    ----------
    Daedalus, as `headgate_lab.rivals.daedalus`: regression of throughput on CPU per worker,
    data skew, observed and estimated capacities of scale-outs.
    """

    def __init__(self) -> None:
        self._lines: dict[int, ThroughputLine] = {}
        self._observed: dict[int, float] = {}
        self._per_slot = 0.0

    def observe(
        self, slot_ids: Iterable[int], utilisation: Sequence[float], throughput: Sequence[float]
    ) -> None:
        """Add a sample of every slot; removed slots are dropped, a utilisation may be NaN."""
        self._lines = {slot: self._lines.get(slot, ThroughputLine()) for slot in slot_ids}
        for slot, used, done in zip(self._lines.values(), utilisation, throughput, strict=True):
            if not math.isnan(used):
                slot.add(used, done)

    def forget(self, slot_id: int) -> None:
        """Drop the samples of a slot, which is on another host now."""
        if slot_id in self._lines:
            self._lines[slot_id] = ThroughputLine()

    def renew(self) -> None:
        """Update the estimate from the samples since the last call, if every slot has some."""
        lines = list(self._lines.values())
        if lines and all(each.lately for each in lines):
            used = [sum(each.lately) / len(each.lately) for each in lines]
            at = [1.0 - (max(used) - own) for own in used]
            found = sum(each.at(share) for each, share in zip(lines, at, strict=True))
            if found > 0.0:
                known = self._observed.get(len(lines), found)
                self._observed[len(lines)] = (known + found) / 2.0
                self._per_slot = found / len(lines)
        for each in lines:
            each.lately.clear()

    def of(self, slots: int) -> float:
        """Return the capacity of `slots` slots, in records per second; 0 without an estimate."""
        return self._observed.get(slots, slots * self._per_slot)
