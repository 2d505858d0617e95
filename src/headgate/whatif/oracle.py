"""Computes bounds for policies: the fewest slots if the future is known, and the fewest fixed slots.

The *oracle* chooses the slots of each 10 s, knows all arrivals and service times, and its changes cost
nothing. Its records wait in one queue for all slots, and a key group's records go to any slot: it is a
lower bound. `whole` knows the future too, and keeps a key group on one slot: its number of slots is
attainable, and perhaps not the fewest. A *constant* spreads key groups by their number, as `Static`
does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from headgate.control.slots.hindsight.kernels import pack
from headgate.control.success import Success, success_rates
from headgate.core.assignment import spread
from headgate.whatif import oracle_kernels as kernels

F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]

EPOCH_S = 10.0
"""Time for which the oracle keeps a number of slots, in s."""

WEIGHTS = (1e5, 3e3, 1e3, 300.0, 100.0, 50.0, 30.0, 20.0, 10.0, 5.0)
"""Prices of missing every window, in slots; each weight gives a point of success and slots. Chosen so
that the points range from all windows to about nine in ten."""

_AHEAD = 8
"""Epochs after a change of slots whose records are served again to judge it."""

_SWEEPS = 12
"""Most sweeps over all epochs, per weight."""

_SHARES = (0.0, 0.15, 0.3, 0.6, 1.0, 1.5)
"""Extra slots that `whole` tries, as a share of the busy slots."""

_SILENT = 0.1
"""Weight added to each key group, as a share of the mean: so idle key groups are spread, too."""

_NEVER = np.inf
_ROUNDING = 1e-12


@dataclass(frozen=True)
class Load:
    """Holds the records of one operator, known beforehand, and the SLO for them."""

    arrival_s: F64
    """float64[n]: ascending."""
    groups: I64
    """int64[n]."""
    demand_s: F64
    """float64[n]: service times at normal speed."""
    key_groups: int
    duration_s: float
    bound_s: float = 1.0
    window_s: float = 1.0
    """`bound_s`, `window_s`: L and T of the SLO."""
    delta_s: float = 0.1
    """Length of a tick."""
    from_s: float = 0.0
    """Windows and slots before it are left out: a warm-up."""
    slots_max: int = 64
    quantile: float | None = None
    """The share of all records of a window that has to be within the bound, of the operator as a
    whole; None for the mean of each key group."""

    @property
    def slots_mean(self) -> float:
        """Return the mean number of slots that serving all records would keep busy."""
        return float(self.demand_s.sum()) / self.duration_s

    def success(self, done_s: F64) -> Success:
        """Return the success of records that are completed at `done_s`, float64[n]; never: infinite."""
        ticks = max(1, round(self.duration_s / self.delta_s))
        window = max(1, int(np.ceil(self.window_s / self.delta_s - 1e-9)))
        first = int(np.ceil(self.from_s / self.delta_s - 1e-9))
        cells = ticks * self.key_groups

        def at(time_s: F64, weights: F64 | None = None) -> F64:
            row = np.maximum(np.ceil(time_s / self.delta_s - 1e-9), 1.0) - 1.0
            inside = row < ticks
            cell = row[inside].astype(np.int64) * self.key_groups + self.groups[inside]
            some = None if weights is None else weights[inside]
            counts = np.bincount(cell, weights=some, minlength=cells).astype(np.float64)
            return counts.reshape(ticks, self.key_groups)

        completed = at(done_s)
        with np.errstate(invalid="ignore"):
            latency_s = at(done_s, done_s - self.arrival_s)
        arrived, bound = at(self.arrival_s), self.bound_s
        if self.quantile is not None:
            # Of all key groups together, and the share of those that are late in place of a mean.
            late = at(done_s, (done_s - self.arrival_s > self.bound_s).astype(np.float64))
            arrived, completed, latency_s = (
                of.sum(axis=1, keepdims=True) for of in (arrived, completed, late)
            )
            bound = 1.0 - self.quantile
        waiting = np.cumsum(arrived - completed, axis=0)
        return success_rates(
            completed[first:],
            latency_s[first:],
            waiting[first:],
            window_ticks=window,
            bound_s=bound,
        )


@dataclass(frozen=True)
class Point:
    """Holds the success of a number of slots."""

    success: float
    worst: float
    """`success`, `worst`: mean over the key groups, and the least."""
    slots: float
    """Time-average."""


def constant(load: Load, slots: int) -> Point:
    """Return the success of a fixed number of slots, exactly as simulated under ``static``."""
    slot_of = np.array(spread(slots, load.key_groups).slot_of, dtype=np.int64)
    done_s = np.empty(len(load.arrival_s))
    kernels.serve_fixed(
        load.arrival_s, load.demand_s, slot_of[load.groups], np.zeros(slots), done_s
    )
    success = load.success(done_s)
    return Point(success.mean, success.worst, float(slots))


class Constants:
    """Simulates fixed numbers of slots on one load, each number when it is first needed.

    `known`: points that are known already.
    """

    def __init__(self, load: Load, known: Sequence[Point] = ()) -> None:
        self._load = load
        self.points = {round(point.slots): point for point in known}

    def at(self, slots: int) -> Point:
        """Return the success of `slots`."""
        if slots not in self.points:
            self.points[slots] = constant(self._load, slots)
        return self.points[slots]

    def best(self, success: float) -> Point:
        """Return the fewest slots with at least `success`; where none has it, the most successful.

        Above 16 slots every second number is tried, above 32 every fourth, and the most there may be.
        """
        most = min(self._load.slots_max, self._load.key_groups)
        least = max(1, min(int(self._load.slots_mean / 2.0), most))
        tried = [n for n in range(least, most) if n % (1 if n <= 16 else 2 if n <= 32 else 4) == 0]  # noqa: PLR2004
        for slots in [*tried, most]:
            if self.at(slots).success >= success - _ROUNDING:
                return self.at(slots)
        return max(self.points.values(), key=lambda point: (point.success, -point.slots))


def whole(load: Load, success: float) -> Point:
    """Return the fewest slots found with which `success` is kept by whole key groups, the future known.

    Each 10 s has a share of slots more than its work keeps busy, and some slots more, which is searched
    over both; key groups are dealt to them by the work that they bring then, the heaviest first. Records
    wait in the order of arrival at the slot that their key group had when they came. Where no number of
    slots keeps `success`, the most successful is returned.
    """
    epochs = max(1, int(np.ceil(load.duration_s / EPOCH_S)))
    most = min(load.slots_max, load.key_groups)
    epoch = np.minimum((load.arrival_s / EPOCH_S).astype(np.int64), epochs - 1)
    cells = epochs * load.key_groups
    cell = epoch * load.key_groups + load.groups
    work_s: F64 = np.bincount(cell, weights=load.demand_s, minlength=cells).astype(np.float64)
    by_epoch = work_s.reshape(epochs, load.key_groups)
    busy = by_epoch.sum(axis=1) / EPOCH_S
    points = []
    for share in _SHARES:
        low, high = 0, most
        while low <= high:  # the fewest of this share, by halving
            more = (low + high) // 2
            slots = np.clip(np.ceil(busy * (1.0 + share)) + more, 1, most).astype(np.int64)
            points.append(_dealt(load, epoch, by_epoch, slots))
            low, high = (low, more - 1) if points[-1].success >= success else (more + 1, high)
    enough = [point for point in points if point.success >= success - _ROUNDING]
    if enough:
        return min(enough, key=lambda point: point.slots)
    return max(points, key=lambda point: (point.success, -point.slots))


def _dealt(load: Load, epoch: I64, by_epoch: F64, slots: I64) -> Point:
    rows = np.zeros(by_epoch.shape, dtype=np.int64)
    scratch = np.zeros(int(slots.max()))
    for k, work_s in enumerate(by_epoch):
        order = np.argsort(-work_s, kind="stable")
        pack(order, work_s + work_s.mean() * _SILENT, int(slots[k]), rows[k], scratch)
    done_s = np.empty(len(load.arrival_s))
    kernels.serve_fixed(
        load.arrival_s, load.demand_s, rows[epoch, load.groups], np.zeros(len(scratch)), done_s
    )
    success = load.success(done_s)
    return Point(success.mean, success.worst, _mean_slots(load, slots))


def oracle(
    load: Load,
    weights: Sequence[float] = WEIGHTS,
    on_progress: Callable[[int, int], None] = lambda done, of: None,
) -> list[Point]:
    """Return the fewest slots per 10 s for several shares of success, most of it first.

    For each weight, the slots of all epochs are searched for the least sum of slots and of what is
    missed: one epoch after the other has a slot less or more, or hands one on to the next epoch, while
    that helps. The success of a point is the true one, over windows. `on_progress` is told how many
    weights are done, of how many.
    """
    epochs = max(1, int(np.ceil(load.duration_s / EPOCH_S)))
    most = min(load.slots_max, load.key_groups)
    share = _shares(load)
    slots = _fluid(load, epochs, most)
    search = _Search(load, epochs, most, share)
    points = []
    for weight in weights:
        search.improve(slots, weight * epochs)
        success = load.success(search.done_s(slots))
        points.append(Point(success.mean, success.worst, _mean_slots(load, slots)))
        on_progress(len(points), len(weights))
    return points


def slots_at(points: Sequence[Point], success: float) -> float:
    """Return the slots of the oracle at some success, between its points; at least its fewest."""
    known = sorted(points, key=lambda point: (point.success, point.slots))
    slots = np.maximum.accumulate([point.slots for point in known])
    return float(np.interp(success, [point.success for point in known], slots))


def _mean_slots(load: Load, slots: I64) -> float:
    """Return the time-average of slots per epoch after the warm-up."""
    edges = np.minimum(np.arange(len(slots) + 1) * EPOCH_S, load.duration_s)
    lengths = np.diff(np.maximum(edges, load.from_s))
    return float((slots * lengths).sum() / lengths.sum())


def _shares(load: Load) -> F64:
    """Return about which share of all success hangs on each record, float64[n].

    Every key group counts alike, and within it every stretch of a window's length with records.
    """
    stretch = (load.arrival_s / load.window_s).astype(np.int64)
    cell = stretch * load.key_groups + load.groups
    _, where, counts = np.unique(cell, return_inverse=True, return_counts=True)
    first = np.unique(cell)
    cells = np.bincount(first % load.key_groups, minlength=load.key_groups)
    groups = int((cells > 0).sum())
    shares: F64 = 1.0 / (counts[where] * cells[load.groups] * groups)
    return shares


def _fluid(load: Load, epochs: int, most: int) -> I64:
    """Return slots per epoch that are more than the work that arrives in it."""
    epoch = np.minimum((load.arrival_s / EPOCH_S).astype(np.int64), epochs - 1)
    work_s = np.bincount(epoch, weights=load.demand_s, minlength=epochs)
    slots: I64 = np.clip(np.ceil(work_s / EPOCH_S) + 2, 1, most).astype(np.int64)
    return slots


class _Search:
    """Holds the queue at the beginning of every epoch, and the missed windows in it."""

    def __init__(self, load: Load, epochs: int, most: int, share: F64) -> None:
        self._load, self._most, self._share = load, most, share
        self._free = np.zeros((epochs + 1, most))
        self._next = np.zeros(epochs + 1, dtype=np.int64)
        self._missed = np.zeros(epochs)
        self._done = np.full(len(share), _NEVER)

    def improve(self, slots: I64, price: float) -> None:
        """Change `slots` while the sum of slots and `price` times missed windows decreases."""
        load = self._load
        records = (load.arrival_s, load.demand_s, self._share)
        terms = (EPOCH_S, load.bound_s, load.window_s)
        state = (self._free, self._next, self._missed)
        kernels.run(0, len(slots), slots, *records, *terms, *state, self._done)
        for _ in range(_SWEEPS):
            if not kernels.sweep(
                slots, self._most, price, _AHEAD, *records, *terms, *state, self._done
            ):
                return

    def done_s(self, slots: I64) -> F64:
        """Return when each record is completed."""
        load = self._load
        self._done[:] = _NEVER
        records = (load.arrival_s, load.demand_s, self._share)
        terms = (EPOCH_S, load.bound_s, load.window_s)
        state = (self._free, self._next, self._missed)
        kernels.run(0, len(slots), slots, *records, *terms, *state, self._done)
        return self._done
