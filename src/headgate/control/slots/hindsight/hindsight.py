"""Scores every rule on one operator's load, cycle by cycle."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from headgate.control.observation import OperatorView
from headgate.control.slots.hindsight.batches import Cycle, VirtualBatches
from headgate.control.slots.hindsight.cost import RecordCost
from headgate.control.slots.hindsight.demand import F64
from headgate.control.slots.hindsight.kernels import I64, pack, play
from headgate.control.slots.hindsight.rules import Rules

_SLOTS_MOST = 128
"""Virtual slots of a rule, at the most."""

_CONSTANTS = 64
"""Constant rules: 1 to so many slots."""

_LONG_S, _SHORT_S = 1800.0, 20.0
"""Memories of how rules did, seconds. Chosen."""

REST = 5.0
"""Bounds for which slots that were added are kept. Chosen."""

_LEARNING_S = 20.0
"""Seconds after the start that say nothing of the rules: what groups bring is not known. Chosen."""

_GROUP_S, _LEAP_S = 30.0, 4.0
"""Memories of how much each key group brings, seconds, and of a leap of it. Chosen."""

_SURE = 2.0
"""Standard deviations by which a leap must be more than chance."""

_AS_EXPECTED_S = 120.0
"""Seconds that count as having been as expected. Chosen."""

_ROWS = 2
"""Numbers of slots for which a cycle computes a new assignment of key groups. Chosen."""

_MOST = 1e3
"""The most that a silent key group counts, of one that has records all the time."""

_NOW_S = 2.0
"""Memory of what is late just now, seconds. Chosen."""

_SLOWER_PER_S, _FASTER_PER_S = 0.01, 0.0005
"""How fast virtual slots become slower than measured, and as fast again. Chosen."""

_SUDDEN = 5.0
"""How many times the misses that are allowed make virtual slots slower. Chosen."""

_SLOWER_LEAST, _SLOWER_MOST = 1.0, 1.5
"""How much slower they are, at the least and at the most. Chosen."""

_WHOLE_BOUND = 0.8
"""Share of a bound that is at or below the floor which is taken to be left for waiting."""


@dataclass(frozen=True)
class RuleScores:
    """Holds the scores of the rules; each array has shape [R]."""

    late: F64
    late_now: F64
    """`late`, `late_now`: float64[R]: Share of key groups' time in which records would have been
    late, in the long memory and in the short one."""
    slots: F64
    """float64[R]: mean number of slots."""
    changes_per_s: F64
    """float64[R]."""


class Hindsight:
    """Plays all rules over the arrivals of one operator.

    `view`: the first one. `epsilon`: share of the load that every rule has to spare, at least.

    Attributes
    ----------
    load : float64[G]    Records per second of each key group.
    slots : int64[R]    Of each rule, now.
    slower : float
        How much more a record takes for virtual slots: more than 1 where they did better than real ones.
    watched_s : float    Since the start, seconds.
    missed : float    The share of windows that may be late with safety.
    """

    def __init__(self, view: OperatorView, epsilon: float) -> None:
        groups = view.assignment.key_groups
        self._most = min(groups, _SLOTS_MOST)
        self.rules = Rules(min(self._most, _CONSTANTS), view.bound_s, _LONG_S, epsilon)
        self.missed = 0.0
        count = len(self.rules.all)
        self.cost = RecordCost()
        self.load: F64 = np.zeros(groups)
        self.slots: I64 = np.full(count, min(view.slots, self._most), dtype=np.int64)
        self._seen: F64 | None = None
        if view.arrived is not None:
            self._seen = view.arrived - view.group_rate * view.window_s
        self._slow, self._fast = np.zeros(groups), np.zeros(groups)
        self._slow_s = self._fast_s = 0.0
        self._active_s: F64 = np.zeros(groups)
        self._remembered_s = 0.0
        self._waiting_s: F64 = np.zeros((count, self._most))
        self._calm_s: F64 = np.zeros(count)
        self._come_s: F64 = np.zeros(self._most)
        self._batches: VirtualBatches | None = None
        self._late, self._changed = np.zeros(count), np.zeros(count)
        self._sums: F64 = np.zeros((3, count))
        """Decayed sums of late weight, of slots and of changes."""
        self._now: F64 = np.zeros(count)
        self._weight = self._weight_now = self._time_s = 0.0
        self._judged_s: F64 = np.zeros(groups)
        self._really: F64 = np.zeros(4)
        """Decayed: late weight and weight of what was measured, and of what the rule followed gave."""
        self._really_now: F64 = np.zeros(4)
        """The same in the short memory."""
        self.slower = 1.0
        self._packing: I64 = np.zeros((self._most + 1, groups), dtype=np.int64)
        for slots in range(1, self._most + 1):
            self._packing[slots] = np.arange(groups) * slots // groups
        self._next = 0
        self.watched_s = self._expected_s = 0.0
        self._learning_s = _LEARNING_S

    @property
    def learned(self) -> bool:
        """Return whether the load was watched long enough to know the rate of each key group."""
        return self.watched_s >= self._learning_s

    def waiting_s(self, rule: int) -> float:
        """Return the seconds of work that wait at all virtual slots of a rule."""
        return float(self._waiting_s[rule].sum())

    def watch(
        self, time_s: float, elapsed_s: float, view: OperatorView, stop_s: float, rule: int
    ) -> None:
        """Play the arrivals of the last `elapsed_s` seconds.

        `stop_s`: how long a change stops slots, seconds. `rule`: the one that is followed.
        """
        batch = view.batch
        stretch = 1.0 if batch is None else batch.stretch(view.bound_s)
        self.cost.add(elapsed_s, view, stretch)
        records = self._arrivals(elapsed_s, view)
        total = float(records.sum())
        work_s = total * self.cost.mean_s * self.slower
        within_s = view.bound_s - view.floor_s
        if within_s <= 0.0:
            within_s = _WHOLE_BOUND * view.bound_s
        if self.watched_s >= self._expected_s:
            self._expected_s = self.watched_s + view.bound_s
            if batch is None:
                self.rules.expect(self.cost.mean_s, self.cost.variability, within_s)
            else:
                dear_s = self.cost.dear_s / stretch
                self.rules.expect_batches(batch.fixed_s, dear_s, view.bound_s)
        wanted, leap = self.rules.wanted(time_s, elapsed_s, work_s, total)
        self._learn_load(elapsed_s, records)
        active = np.flatnonzero(records)
        counts = records[active]
        weight = self._weights(elapsed_s, active)
        if batch is not None:
            cycle = Cycle(
                elapsed_s,
                view.bound_s,
                active,
                counts,
                weight,
                wanted,
                leap,
                REST * view.bound_s,
                max(1, min(view.slots_max, self._most)),
                self._packing,
            )
            if self._batches is None:
                self._batches = VirtualBatches(len(self.slots), self._most)
            self._late, self._changed = self._batches.play(
                cycle, batch, self.cost, self.slower / stretch, self.slots, self._calm_s
            )
        else:
            each_s = self.cost.drawn(counts) * self.slower
            play(
                elapsed_s,
                stop_s,
                within_s,
                active,
                counts * each_s,
                each_s,
                weight,
                wanted,
                leap,
                REST * view.bound_s,
                self._calm_s,
                max(1, min(view.slots_max, self._most)),
                self._packing,
                self.slots,
                self._waiting_s,
                self._come_s,
                self._late,
                self._changed,
            )
        self._keep(elapsed_s, float(weight.sum()))
        self._compare(elapsed_s, view, float(self._late[rule]), float(weight.sum()))
        self._correct(elapsed_s)

    @property
    def memory_s(self) -> float:
        """Return the length of the past that the score covers, in seconds."""
        return min(self.watched_s, _LONG_S)

    @property
    def off(self) -> float:
        """Return the factor by which records are late more often than the rules in use expected."""
        late, judged, expected, weight = self._really
        if judged <= 0.0 or weight <= 0.0:
            return 1.0
        usual = self.missed * _AS_EXPECTED_S / max(self._time_s, 1e-9)
        return float((late / judged + usual) / (expected / weight + usual))

    @property
    def score(self) -> RuleScores:
        """Return the scores of the rules so far."""
        late, slots, changes = self._sums
        weight, time_s = max(self._weight, 1e-9), max(self._time_s, 1e-9)
        now = self._now / max(self._weight_now, 1e-9)
        return RuleScores(late / weight, now, slots / time_s, changes / time_s)

    def _keep(self, elapsed_s: float, weight: float) -> None:
        self.watched_s += elapsed_s
        if self.watched_s < self._learning_s:
            return
        kept, now = math.exp(-elapsed_s / _LONG_S), math.exp(-elapsed_s / _SHORT_S)
        self._sums *= kept
        self._sums[0] += self._late
        self._sums[1] += self.slots * elapsed_s
        self._sums[2] += self._changed
        self._now = self._now * now + self._late
        self._weight = self._weight * kept + weight
        self._weight_now = self._weight_now * now + weight
        self._time_s = self._time_s * kept + elapsed_s

    def _compare(self, elapsed_s: float, view: OperatorView, late: float, weight: float) -> None:
        """Compare the real share of late records with the share that the followed rule expects."""
        if self.watched_s < 2.0 * self._learning_s:
            return
        kept = math.exp(-elapsed_s / _LONG_S)
        judged = ~np.isnan(view.group_latency_s)
        self._judged_s *= kept
        self._judged_s[judged] += elapsed_s
        weights = elapsed_s * np.minimum(
            self._time_s / np.maximum(self._judged_s[judged], 1e-9), _MOST
        )
        over = view.group_latency_s[judged] > view.bound_s
        new = np.array((float(weights[over].sum()), float(weights.sum()), late, weight))
        self._really = self._really * kept + new
        self._really_now = self._really_now * math.exp(-elapsed_s / _NOW_S) + new

    def _correct(self, elapsed_s: float) -> None:
        """Make virtual slots slower while records are late against expectation, else faster again."""
        late, judged, expected, weight = self._really_now
        if judged <= 0.0 or weight <= 0.0:
            return
        if late / judged > 2.0 * expected / weight + _SUDDEN * self.missed:
            self.slower = min(self.slower * (1.0 + _SLOWER_PER_S * elapsed_s), _SLOWER_MOST)
        else:
            self.slower = max(self.slower * (1.0 - _FASTER_PER_S * elapsed_s), _SLOWER_LEAST)

    def _arrivals(self, elapsed_s: float, view: OperatorView) -> F64:
        if view.arrived is None or self._seen is None:
            return view.group_rate * elapsed_s
        records = np.maximum(view.arrived - self._seen, 0.0)
        self._seen = view.arrived
        return records

    def _weights(self, elapsed_s: float, active: I64) -> F64:
        """Return the weights of the active key groups: over time all groups weigh the same."""
        kept = math.exp(-elapsed_s / _LONG_S)
        self._active_s *= kept
        self._remembered_s = self._remembered_s * kept + elapsed_s
        self._active_s[active] += elapsed_s
        weights_s: F64 = elapsed_s * np.minimum(self._remembered_s / self._active_s[active], _MOST)
        return weights_s

    def _learn_load(self, elapsed_s: float, records: F64) -> None:
        """Learn the rate of each key group: slowly, except for a leap that chance does not explain."""
        self._slow, self._slow_s = _decayed(self._slow, self._slow_s, _GROUP_S, elapsed_s, records)
        self._fast, self._fast_s = _decayed(self._fast, self._fast_s, _LEAP_S, elapsed_s, records)
        surely = self._fast - _SURE * np.sqrt(self._fast / max(self._fast_s, 1e-9))
        self.load = np.maximum(self._slow, surely)
        load = self.load + self.load.mean() * 0.1
        order = np.argsort(-load, kind="stable")
        for _ in range(_ROWS):
            self._next = self._used_after(self._next)
            pack(order, load, self._next, self._packing[self._next], self._come_s)

    def _used_after(self, slots: int) -> int:
        """Return the next number of slots that some rule has."""
        more = self.slots[self.slots > slots]
        return int((more if len(more) else self.slots).min())


def _decayed(
    mean: F64, weight_s: float, memory_s: float, elapsed_s: float, records: F64
) -> tuple[F64, float]:
    """Return a mean rate that forgets, and the seconds that it stands for."""
    kept = math.exp(-elapsed_s / memory_s)
    gain_s = memory_s * (1.0 - kept)
    weight_s = weight_s * kept + gain_s
    return mean + gain_s / weight_s * (records / elapsed_s - mean), weight_s
