"""Estimates the cost of a slot's tasks: a fixed part for each task, and a part for each record."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

F64 = npt.NDArray[np.float64]

FIXED_MS = 20.0
"""Fixed cost of a task assumed at first: 5 to 30 ms were measured on Spark."""

_FIXED_DECAY = 0.97
"""With each new task of a slot, its earlier tasks' weight in the fit of the fixed cost is multiplied by
this, so about the last thirty count. The fixed cost is assumed not to drift."""

_WARM_BATCHES = 3
"""Number of first batches with records that are left out of the fit of the fixed cost: workers are still
loading and compiling."""

_RECORD_DECAY = 0.9
"""As `_FIXED_DECAY`, for the cost of a record: about the last ten tasks of the usual size count. Chosen,
not tuned."""

_MADE_UP = 0.125
"""Weight of the made-up task without records (see `TaskCost`), in units of 1 / the usual number of
records. In this unit a task of the usual size weighs 0.5; this is a quarter of that. Chosen, not
tuned."""

_LEAST_OF, _SHORT_SHARE = 64, 0.25
"""The fixed cost is at most the lower quartile of the last 64 tasks' times; the shortest alone may be
luck."""

_DRIFT_DECAY = 0.6
"""`_RECORD_DECAY` falls towards this while the cost drifts: then about the last three tasks count."""

_SIDE_WEIGHT, _SIDE_CHANCE = 0.2, 0.5
"""A batch's sign is +1 if it took longer than expected, -1 if less. First: the newest batch's weight in
the running mean of signs. Second: the absolute mean up to which it is put down to chance. Only the sign
of the difference counts, not its size, since one expensive record is no drift. Chosen, not tuned."""

_RECORDS_SHARE_MIN = 0.05
"""The least share of the tasks' time that is ascribed to their records; keeps a record's cost above
zero."""

_RATIO, _LINE = 4, 5
"""Numbers of rows of `_ratio` and `_line`."""


class TaskCost:
    """Fits ``time = a + b x records`` over the recent tasks of an operator's slots.

    All slots have the same fixed cost `a`. Each slot has its own cost of a record `b`: keys may differ.
    If the costs of records are independent, the standard deviation of the time of n records grows with
    the square root of n. So

    - least squares over all slots fit `a`. A task with more records weighs less. Only tasks of different
      sizes reveal `a`. Where all have one size, a made-up task without records decides: it takes 20 ms,
      or the lower quartile of the last 64 tasks' times if that is less. `a` never exceeds that quartile.
    - `b` is the sum of the tasks' times above `a`, divided by the sum of their records. For such times
      that is the best estimate; the slope of a line would depend on a few expensive records.
    - differences between slots that chance can explain count as chance: the estimate moves each slot's
      `b` towards the `b` of all slots. It moves further if the slot had fewer records, or if their cost
      varies more.

    For `b`, a new task makes the slot's earlier tasks count less. A task with fewer records than usual
    has less of this effect, so nearly empty tasks do not replace full tasks.

    References
    ----------
    `b` is the credibility estimator of Bühlmann and Straub (1970). StreamSwitch 4.2 has mu =
    completions / useful time, without a fixed cost.
    """

    def __init__(self) -> None:
        self._took_ms: deque[float] = deque(maxlen=_LEAST_OF)
        self._ratio: F64 = np.zeros((_RATIO, 0))
        """By slot, sums over tasks: tasks, records, ms, and squared residuals per record."""
        self._line: F64 = np.zeros((_LINE, 0))
        """By slot, weighted sums over tasks: 1, x, y, x*x, x*y; x is records, y is ms."""
        self._side, self._decay = 0.0, _RECORD_DECAY
        """Smoothed sign of (time taken - time expected) per batch, and the decay that it sets."""
        self._batches = 0
        self._fixed_ms = FIXED_MS
        self._record_ms: F64 = np.zeros(0)

    @property
    def fixed_ms(self) -> float:
        """`a`, the fixed cost of a task, in ms."""
        return self._fixed_ms

    @property
    def record_ms(self) -> F64:
        """`b`, the cost of a record, by slot, in ms; 0 before the first task of any slot."""
        return self._record_ms

    def widen(self, slots: int) -> None:
        """Make room for at least `slots` slots; new slots cost as much as the others."""
        more = slots - self._ratio.shape[1]
        if more > 0:
            self._ratio = np.hstack([self._ratio, np.zeros((_RATIO, more))])
            self._line = np.hstack([self._line, np.zeros((_LINE, more))])
            self._solve()

    def renumber(self, survivors: Sequence[int | None]) -> None:
        """Take note of a new assignment; `survivors`: the old number of each slot, None if new."""
        old = self._ratio.shape[1]
        ratio, line = np.zeros((_RATIO, len(survivors))), np.zeros((_LINE, len(survivors)))
        for slot, survivor in enumerate(survivors):
            if survivor is not None and survivor < old:
                ratio[:, slot] = self._ratio[:, survivor]
                line[:, slot] = self._line[:, survivor]
        if ratio[0].any() or not self._ratio[0].any():
            self._ratio, self._line = ratio, line
        self._solve()

    def add(self, tasks: Sequence[tuple[int, float, float]]) -> None:
        """Take the tasks of a batch into account.

        `tasks` (sequence of (slot, records, ms)): a task without records is ignored; its time does not
        show a record's cost, and it may have skipped part of the fixed work.
        """
        self._follow(tasks)
        self._batches += any(records > 0 for _, records, _ in tasks)
        for slot, records, took_ms in tasks:
            if records > 0:
                self.widen(slot + 1)
                self._took_ms.append(took_ms)
                self._add(slot, float(records), took_ms)
        self._solve()

    def _follow(self, tasks: Sequence[tuple[int, float, float]]) -> None:
        """Forget faster while successive batches all take longer than expected, or all shorter."""
        known_ms = self._record_ms
        off_ms = sum(
            took_ms - self._fixed_ms - known_ms[slot] * records
            for slot, records, took_ms in tasks
            if records > 0 and slot < len(known_ms) and known_ms[slot] > 0.0
        )
        if off_ms:
            self._side += _SIDE_WEIGHT * (math.copysign(1.0, off_ms) - self._side)
        excess = max(0.0, (abs(self._side) - _SIDE_CHANCE) / (1.0 - _SIDE_CHANCE))
        self._decay = _RECORD_DECAY - (_RECORD_DECAY - _DRIFT_DECAY) * excess

    def _add(self, slot: int, x: float, y: float) -> None:
        mine, seen = self._ratio[:, slot], self._ratio.sum(axis=1)
        usual = seen[1] / seen[0] if seen[0] else x
        known_ms = float(self._record_ms[slot])
        off = y - self._fixed_ms - known_ms * x if known_ms else 0.0
        own = mine[1] / mine[0] if mine[0] else x
        mine *= self._decay ** min(1.0, x / own)
        mine += np.array([1.0, x, y, off * off / x])
        if self._batches <= _WARM_BATCHES:
            return
        weight = 1.0 / (x + usual)
        self._line[:, slot] *= _FIXED_DECAY
        self._line[:, slot] += weight * np.array([1.0, x, y, x * x, x * y])

    def _solve(self) -> None:
        tasks, records, took_ms, squares = self._ratio
        some = records > 0.0
        if not some.any():
            self._record_ms = np.zeros(len(records))
            return
        self._fixed_ms = self._fitted_ms()
        above_ms = np.maximum(took_ms - self._fixed_ms * tasks, _RECORDS_SHARE_MIN * took_ms)
        own_ms = above_ms[some] / records[some]
        weight, total = records[some], float(records.sum())
        mean_ms = float(above_ms[some].sum()) / total
        chance = float(squares.sum()) / float(tasks.sum())
        spread = float((weight * (own_ms - mean_ms) ** 2).sum()) - (len(weight) - 1) * chance
        room = total - float((weight * weight).sum()) / total
        real = max(0.0, spread / room) if room > 0.0 else 0.0
        signal = real * weight
        credible = signal / (signal + chance) if chance > 0.0 else np.ones(len(weight))
        cost_ms = np.full(len(records), mean_ms)
        cost_ms[some] = mean_ms + credible * (own_ms - mean_ms)
        self._record_ms = cost_ms

    def _fitted_ms(self) -> float:
        """Return `a`: least squares with one `a` for all slots and one slope per slot."""
        short_ms = sorted(self._took_ms)
        least_ms = short_ms[int(_SHORT_SHARE * len(short_ms))]
        guess_ms = min(FIXED_MS, least_ms)
        weights, x, y, xx, xy = self._line[:, self._line[0] > 0.0]
        made_up = _MADE_UP * float(self._ratio[0].sum() / self._ratio[1].sum())
        weight = float((weights - x * x / xx).sum()) + made_up
        fitted_ms = (float((y - xy * x / xx).sum()) + made_up * guess_ms) / weight
        return min(max(fitted_ms, 0.0), least_ms)


def makespan_ms(tasks_ms: Sequence[float], at_once: int) -> float:
    """Return the time until all tasks end; a task begins in its turn, as soon as a core is free.

    `tasks_ms`: time of each task, in the sequence of their turns. `at_once`: number of cores, >= 1.
    """
    if len(tasks_ms) <= at_once:
        return max(tasks_ms, default=0.0)
    free_ms = [0.0] * at_once
    for took_ms in tasks_ms:
        free_ms[free_ms.index(min(free_ms))] += took_ms
    return max(free_ms)
