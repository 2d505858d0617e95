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
"""Most virtual slots of a rule; more need more time and memory."""

_CONSTANTS = 64
"""Most slots of a constant rule: there is one rule for each number from 1."""

_LONG_S, _SHORT_S = 1800.0, 20.0
"""Time constants of the scores of rules, in seconds: long and short memory. Chosen."""

REST = 5.0
"""Bounds for which added slots stay; larger: fewer changes and more slots. Chosen."""

_LEARNING_S = 20.0
"""Seconds at the start without scores: the rates of the key groups are not known yet. Chosen."""

_GROUP_S, _LEAP_S = 30.0, 4.0
"""Time constants of a key group's rate and of its leaps, in seconds; longer: less noise. Chosen."""

_SURE = 2.0
"""Standard deviations by which a leap must exceed chance; larger: fewer leaps count."""

_AS_EXPECTED_S = 120.0
"""Seconds of misses as expected that are assumed in advance; more correct more slowly. Chosen."""

_ROWS = 2
"""Number of rows of the packing that a cycle computes anew; more: newer rows, more time. Chosen."""

_MOST = 1e3
"""Largest weight of a rarely active key group; a group that is always active has 1."""

_NOW_S = 2.0
"""Time constant of the misses that correct the speed of virtual slots, in seconds. Chosen."""

_SLOWER_PER_S, _FASTER_PER_S = 0.01, 0.0005
"""Share per second by which virtual slots become slower than measured, or faster again. Chosen."""

_SUDDEN = 5.0
"""Virtual slots become slower if misses exceed twice the expected ones by this times `missed`. Chosen."""

_SLOWER_LEAST, _SLOWER_MOST = 1.0, 1.5
"""Least and largest factor on a record's cost at virtual slots. Chosen."""

_WHOLE_BOUND = 0.8
"""Latency above the floor that is allowed where the bound is not above the floor, in bounds."""


@dataclass(frozen=True)
class RuleScores:
    """Holds the scores of the rules; each array has shape [R]."""

    late: F64
    late_now: F64
    """`late`, `late_now`: float64[R]: share of the key groups' time in which records would have been
    late, in the long and in the short memory."""
    slots: F64
    """float64[R]: mean number of slots."""
    changes_per_s: F64
    """float64[R]: changes of the number of slots per second."""


class Hindsight:
    """Plays the arrivals of one operator on the virtual slots of all rules.

    `view`: the operator's first view. `epsilon`: least margin of every rule, as a share of the load.

    Attributes
    ----------
    load : float64[G]    Records per second of each key group.
    slots : int64[R]    Number of slots of each rule now.
    slower : float
        Factor on a record's cost at virtual slots; above 1 where virtual slots did better than real ones.
    watched_s : float    Time since the start, seconds.
    missed : float    Share of windows that may be late for a safe rule.
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
        """Decayed sums: late weight and weight, as measured; both again, of the rule in use."""
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

        `stop_s`: time for which a change stops slots, seconds. `rule`: index of the rule in use.
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
        """Add the measured share of late key groups and the share that the rule in use expects."""
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
        """Make virtual slots slower while many more records are late than expected, else faster again."""
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
        """Return the least number of slots above `slots` that a rule has, or the least of all."""
        more = self.slots[self.slots > slots]
        return int((more if len(more) else self.slots).min())


def _decayed(
    mean: F64, weight_s: float, memory_s: float, elapsed_s: float, records: F64
) -> tuple[F64, float]:
    """Return the decayed mean rate with `records` added, and the seconds that the mean covers."""
    kept = math.exp(-elapsed_s / memory_s)
    gain_s = memory_s * (1.0 - kept)
    weight_s = weight_s * kept + gain_s
    return mean + gain_s / weight_s * (records / elapsed_s - mean), weight_s
