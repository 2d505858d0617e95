"""The rule that would have kept the bound with the fewest slots, followed: one operator's law."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from headgate.control.decision import Change
from headgate.control.hindsight.demand import F64
from headgate.control.hindsight.hindsight import REST, Hindsight
from headgate.control.observation import OperatorView
from headgate.control.repacking import repacked

_FIRST = "what half the bound needs, the most in 30 bounds, and 40% more"

_WATCH = 30.0
"""Bounds that are watched before a rule is chosen."""

_CHANGE_SLOT_S = 10.0
_BETTER = 0.04
_DEAR = 1.5
_NOW = 0.1
_CYCLES_MAX_S = 10.0


@dataclass(frozen=True)
class Wanted:
    """What one operator should have, and why."""

    change: Change
    reason: str
    rule: str
    numbers: dict[str, float] = field(default_factory=dict)


class HindsightLaw:
    """One operator."""

    def __init__(self, view: OperatorView, goal: float) -> None:
        self.hindsight = Hindsight(view)
        self._missed = 1.0 - goal
        names = [str(rule) for rule in self.hindsight.rules.all]
        self._chosen = names.index(_FIRST)
        self._last_s: float | None = None
        self._took_s = 0.3
        self._balance_s = -math.inf
        self._extra = 0
        self._added_s = -math.inf
        self._checked_s = -math.inf

    def applied(self, took_s: float) -> None:
        self._took_s += 0.25 * (took_s - self._took_s)

    def decide(self, time_s: float, view: OperatorView) -> Wanted | None:
        elapsed_s = view.window_s if self._last_s is None else time_s - self._last_s
        self._last_s = time_s
        if elapsed_s <= 0.0:
            return None
        hindsight = self.hindsight
        hindsight.watch(time_s, elapsed_s, view, max(0.0, self._took_s - view.floor_s), self._chosen, self._missed)
        if hindsight.cost.mean_s <= 0.0:
            return None
        if hindsight.watched_s >= _WATCH * view.bound_s and time_s - self._checked_s >= view.bound_s / 2:
            self._checked_s = time_s
            self._choose()
        least = max(1, view.slots_min)
        most = max(least, min(view.slots_max, view.assignment.key_groups))
        slots = int(hindsight.slots[self._chosen])
        slots += self._room(view, slots)
        slots = min(max(slots, min(least, view.assignment.key_groups)), most)
        slots = min(slots, view.assignment.key_groups)
        if slots > view.slots:
            self._added_s = time_s
        resting = time_s - self._added_s < REST * view.bound_s
        if slots > view.slots or (slots < view.slots and not resting and hindsight.learned):
            return self._rescale(view, slots)
        return self._balance(time_s, view)

    def _choose(self) -> None:
        score = self.hindsight.score
        price = score.slots + _CHANGE_SLOT_S * score.changes_per_s
        late, now = score.late, score.late_now
        missed = self._missed / min(max(self.hindsight.off(self._missed), 0.25), 4.0)
        allowed_now = max(_NOW, float(now.min()) + 0.02)
        # Half the misses too many are worth it only if they nearly halve the slots.
        price *= np.maximum(1.0, late / missed) ** _DEAR
        price = np.where(now <= allowed_now, price, np.inf)
        best = int(np.argmin(price))
        if price[best] < price[self._chosen] * (1.0 - _BETTER):
            self._chosen = best

    def _room(self, view: OperatorView, slots: int) -> int:
        """Return the slots that what waits needs beyond what the rule expects to wait."""
        waiting_s = float(view.backlog.sum()) * self.hindsight.cost.mean_s
        within_s = max(view.bound_s - view.floor_s, 0.1 * view.bound_s)
        usual_s = max(self.hindsight.waiting_s(self._chosen), 0.5 * within_s * slots)
        excess = (waiting_s - usual_s) / (3.0 * within_s)
        free = slots - self.hindsight.rules.now
        if excess > max(1.0, free):
            self._extra = max(self._extra, math.ceil(excess))
        elif waiting_s < usual_s:
            self._extra = 0
        return self._extra

    def _rescale(self, view: OperatorView, slots: int) -> Wanted | None:
        change = repacked(view, slots, self._load(view))
        if change is None:
            return None
        now = self.hindsight.rules.now
        score = self.hindsight.score
        rule = self.hindsight.rules.all[self._chosen]
        kept = 1.0 - float(score.late[self._chosen])
        reason = (
            f"{now:.3g} slots of work come, {view.backlog.sum():.0f} records wait: {view.slots} -> "
            f"{slots} slots; of {len(score.late)} rules the cheapest that would have kept the bound "
            f"({kept:.2%} of the last {min(self.hindsight.watched_s, 1800.0):.0f} s) is {rule}"
        )
        return Wanted(change, reason, "hindsight", {"slots": float(view.slots), "load": now})

    def _load(self, view: OperatorView) -> F64:
        """Return what each key group brings, slots: lately, and what of it waits."""
        load: F64 = self.hindsight.load + view.backlog / 10.0
        return load

    def _balance(self, time_s: float, view: OperatorView) -> Wanted | None:
        if view.slots == 1 or time_s - self._balance_s < 5.0 * view.bound_s:
            return None
        cost_s = self.hindsight.cost.mean_s
        load = self.hindsight.load * cost_s
        owners = np.asarray(view.assignment.slot_of)
        by_slot = np.bincount(owners, weights=load, minlength=view.slots)
        waiting_s = np.bincount(owners, weights=view.backlog, minlength=view.slots) * cost_s
        worst = int(np.argmax(by_slot))
        within_s = max(view.bound_s - view.floor_s, 0.1 * view.bound_s)
        if by_slot[worst] < 0.9 and waiting_s.max() < 0.5 * within_s:
            return None
        if by_slot[worst] < 1.1 * by_slot.mean():
            return None
        change = repacked(view, view.slots, load)
        if change is None:
            return None
        after = np.bincount(np.asarray(change.assignment.slot_of), weights=load, minlength=view.slots)
        if after.max() > 0.95 * by_slot[worst]:
            return None
        self._balance_s = time_s
        reason = (
            f"slot {worst} has {by_slot[worst]:.0%} of what it can serve, the mean of {view.slots} slots "
            f"is {by_slot.mean():.0%}: key groups move until the busiest has {after.max():.0%}"
        )
        return Wanted(change, reason, "hindsight, balance", {"slots": float(view.slots)})
