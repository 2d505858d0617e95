"""Chooses one operator's slots by the rule that would have done best on the operator's own load."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from headgate.control.decision import Change
from headgate.control.observation import OperatorView
from headgate.control.slots.hindsight.demand import F64
from headgate.control.slots.hindsight.hindsight import REST, Hindsight
from headgate.control.slots.projection import projected_latency_s
from headgate.control.slots.repacking import repacked
from headgate.control.slots.splitting import best_split, best_whole, hottest_at, share_rate
from headgate.control.slots.strategies import UnitStrategy, change_of

_FIRST = "what half the bound needs, the most in 30 bounds, and 40% more"
"""Text of the rule at the start: this rule holds the slots that a burst needed."""

_WATCH_S = 30.0
"""Seconds of load before the policy leaves the first rule; longer: a surer, later choice. Chosen."""

_CHANGE_SLOT_S = 10.0
"""Price of a change, in slot-seconds; larger prefers rules with fewer changes. Chosen."""

_DEAR = 2.0
"""Exponent of misses in a price, up to `_HOPELESS` times the allowed ones; larger: more slots. Chosen."""

_HOPELESS, _CHEAP = 1.5, 0.7
"""Multiple of the allowed misses that loses the bound, and the exponent of misses beyond it. Chosen."""

_SAFE, _SAFER = 0.4, 1.5
"""Share of the allowed misses up to which a rule is safe, and the factor on the price of a rule that has
all of them: the future may be worse than the past. A factor of 1 would aim at the allowed misses.
Tuned on loads of heavy-tailed cost, `headgate loads --part tails`."""

_BETTER = 0.08
"""Share by which another rule must be cheaper to be followed; larger: rarer changes. Chosen."""

_NOW = 0.1
"""Share of misses in the short memory that excludes a rule, unless no rule has fewer. Chosen."""

_OFF = (0.4, 4.0)
"""Least and largest factor of measured misses over expected misses that is believed. Chosen."""

_CALM = 0.9
"""Load of a slot up to which no balance relieves it; larger: fewer balances. Chosen."""

_UNEVEN = 1.1
"""Multiple of the mean load from which on a balance relieves a slot; larger: fewer balances. Chosen."""

_GAIN = 0.75
"""Largest load of the busiest slot after a balance, as a share of its load before. With 0.95 most
balances relieved a slot of load that it had by chance. Chosen."""

_READABLE = 10.0
"""A larger share is told as a multiple: 93 times, in place of 9300%."""

_SOON = 4.0
"""A slot that clears its backlog within so many times the duration of a change, or within a bound, is
not relieved. Larger: fewer balances. Chosen."""

_USUAL, _CLEAR = 0.5, 3.0
"""Backlog of a slot that counts as usual, as a share of the bound, and the number of bounds in which the
slots must serve the backlog beyond it. Not tuned."""

_BATCHES_WITHIN = 3.0
"""Batches that must fit into a bound: a leap of the load is seen one batch late, the change is in force
one batch later, and that batch must serve the leap. More batches need more slots. On the same loads, 1.5
batches kept 92.3 % of windows, 3 kept 97.1, and 4 kept 98.0 with 2.2 slots more; see note 0176."""

_TOOK_S, _TOOK_GAIN = 0.3, 0.25
"""Assumed duration of a change at first, in seconds, and the weight of each measured duration."""


@dataclass(frozen=True)
class RuleChange:
    """Holds the change that one operator should make, and the reason."""

    change: Change
    rule: str
    reason: str
    numbers: dict[str, float]


class FollowsRules:
    """Chooses the slots of one operator by following the best rule.

    `view`: the operator's first view. `epsilon`: least margin of every rule, as a share of the load.

    Attributes
    ----------
    key_groups : int    G of the operator.
    """

    def __init__(self, view: OperatorView, epsilon: float) -> None:
        self.key_groups = view.assignment.key_groups
        self._hindsight = Hindsight(view, epsilon)
        self.aim(view.success)
        names = [str(rule) for rule in self._hindsight.rules.all]
        self._chosen = names.index(_FIRST)
        self._last_s: float | None = None
        self._elapsed_s = 0.0
        self._took_s = _TOOK_S
        self._extra = 0
        self._chosen_s = self._moved_s = self._added_s = -math.inf

    def aim(self, goal: float) -> None:
        """Set the share of windows that is to be within the bound, below 1."""
        self._missed = 1.0 - goal
        self._hindsight.missed = _SAFE * self._missed

    def applied(self, took_s: float) -> None:
        """Learn how long a change takes, in seconds."""
        self._took_s += _TOOK_GAIN * (took_s - self._took_s)

    def decide(self, time_s: float, view: OperatorView) -> RuleChange | None:
        """Return the change that the operator should make now; None for no change."""
        elapsed_s = view.window_s if self._last_s is None else time_s - self._last_s
        if elapsed_s <= 0.0:
            return None
        self._last_s, self._elapsed_s = time_s, elapsed_s
        hindsight = self._hindsight
        # Every record waits for the floor anyway: a change that takes no longer delays no record.
        stop_s = max(0.0, self._took_s - view.floor_s)
        hindsight.watch(time_s, elapsed_s, view, stop_s, self._chosen)
        if hindsight.cost.mean_s <= 0.0:
            return None
        due = time_s - self._chosen_s >= view.bound_s / 2.0
        if due and hindsight.watched_s >= _WATCH_S:
            self._chosen_s = time_s
            self._choose()
        split = self._split(view) if view.splittable else None
        if split is not None:
            return split
        slots = self._slots(view)
        if slots > view.slots:
            self._added_s = time_s
        resting = time_s - self._added_s < REST * view.bound_s or not hindsight.learned
        if slots > view.slots or (slots < view.slots and not resting):
            return self._rescale(view, slots)
        return self._balance(time_s, view)

    def _choose(self) -> None:
        """Follow the rule with the lowest price of slots, changes and misses."""
        score = self._hindsight.score
        least, most = _OFF
        missed = self._missed / min(max(self._hindsight.off, least), most)
        price = score.slots + _CHANGE_SLOT_S * score.changes_per_s
        price *= misses_price(score.late / missed)
        bad = score.late_now > max(_NOW, float(score.late_now.min()) + _NOW / 5.0)
        price = np.where(bad, np.inf, price)
        best = int(np.argmin(price))
        if price[best] < price[self._chosen] * (1.0 - _BETTER):
            self._chosen = best

    def _slots(self, view: OperatorView) -> int:
        """Return the slots of the rule plus those for the backlog, within the operator's limits."""
        slots = int(self._hindsight.slots[self._chosen])
        slots += self._room(view, slots)
        most = min(max(view.slots_max, view.slots_min), view.assignment.key_groups)
        return max(1, min(max(slots, view.slots_min), most))

    def _room(self, view: OperatorView, slots: int) -> int:
        """Return the slots that the backlog needs beyond the slots of the rule.

        With micro-batches these slots keep the next batch short, whatever backlog the rule expects. That
        batch serves the records that budgets left over, and the records that came during the last batch,
        which no counter has yet.
        """
        hindsight = self._hindsight
        waiting_s = float(view.backlog.sum()) * hindsight.cost.mean_s
        within_s = _within_s(view)
        if view.batch is not None:
            budget_s = view.slots * view.batch.budget_s
            next_s = max(waiting_s - budget_s, 0.0) + hindsight.rules.now * self._elapsed_s
            serving_s = view.bound_s / _BATCHES_WITHIN - view.batch.fixed_s
            # below the floor no slot helps: for a tenth of the bound alone they would come and go
            enough = next_s / max(serving_s, 0.1 * max(view.bound_s, view.floor_s))
            self._extra = max(0, math.ceil(min(enough, view.assignment.key_groups)) - slots)
            return self._extra
        usual_s = max(hindsight.waiting_s(self._chosen), _USUAL * within_s * slots)
        excess = (waiting_s - usual_s) / (_CLEAR * within_s)
        # A backlog that the present slots clear in time adds no slots.
        if excess > max(1.0, slots - hindsight.rules.now):
            self._extra = max(self._extra, math.ceil(min(excess, view.assignment.key_groups)))
        elif waiting_s < usual_s:
            self._extra = 0
        return self._extra

    def _rescale(self, view: OperatorView, slots: int) -> RuleChange | None:
        hindsight = self._hindsight
        # The backlog moves with its key groups; it counts as load, spread over ten bounds.
        load = hindsight.load + view.backlog / (10.0 * view.bound_s)
        change = repacked(view, slots, load)
        if change is None:
            return None
        score, now, waiting = hindsight.score, hindsight.rules.now, float(view.backlog.sum())
        kept = 1.0 - float(score.late[self._chosen])
        mean = float(score.slots[self._chosen])
        seen = (
            f"of {len(score.late)} rules for the number of slots, replayed on the last "
            f"{hindsight.memory_s:.0f} s, the cheapest that keeps the bound ({kept:.1%} of the time, "
            f"with {mean:.3g} slots in the mean) is"
            if hindsight.watched_s >= _WATCH_S
            else "until more is known the rule is"
        )
        reason = (
            f"incoming records need {now:.3g} slots, {waiting:.0f} records wait: {view.slots} -> {slots} "
            f"slots; {seen} {hindsight.rules.all[self._chosen]}"
        )
        numbers = {
            "slots": float(view.slots),
            "wanted": float(slots),
            "load": now,
            "waiting": waiting,
            "kept": kept,
            "extra": float(self._extra),
            "slower": hindsight.slower,
        }
        rule = "out" if slots > view.slots else "in"
        return RuleChange(change, f"hindsight, {rule}", reason, numbers)

    def _balance(self, time_s: float, view: OperatorView) -> RuleChange | None:
        """Return the change that relieves the busiest slot and keeps the number of slots."""
        if view.slots == 1 or time_s - self._moved_s < REST * view.bound_s:
            return None
        cost_s = self._hindsight.cost.mean_s
        # The backlog counts as load, spread over two bounds: it is the first sign of a hot group.
        load = (self._hindsight.load + view.backlog / (2.0 * view.bound_s)) * cost_s
        by_slot, waiting_s = view.by_slot(load), view.by_slot(view.backlog) * cost_s
        worst, mean = int(np.argmax(by_slot)), float(by_slot.mean())
        busiest = float(by_slot[worst])
        if busiest < _CALM and float(waiting_s.max()) < 0.5 * _within_s(view):
            return None
        comes = float(view.by_slot(self._hindsight.load)[worst]) * cost_s
        soon_s = max(_SOON * self._took_s, _within_s(view))
        if comes < _CALM and waiting_s[worst] / (1.0 - comes) < soon_s:
            return None
        if busiest < _UNEVEN * mean or (change := repacked(view, view.slots, load)) is None:
            return None
        after = float(replace(view, assignment=change.assignment).by_slot(load).max())
        if after > _GAIN * busiest:
            return None
        self._moved_s = time_s
        reason = (
            f"slot {worst} has {_multiple(busiest)} what it can serve and the mean of {view.slots} slots "
            f"is {mean:.0%}: key groups move until the busiest has {after:.0%}"
        )
        numbers = {"slots": float(view.slots), "busiest": busiest, "mean": mean, "after": after}
        return RuleChange(change, "hindsight, balance", reason, numbers)

    def _split(self, view: OperatorView) -> RuleChange | None:
        """Return the split of the hottest key group that no slot can serve, or the end of a split."""
        rates, cost_s = share_rate(view), self._hindsight.cost.mean_s
        hopeless = projected_latency_s(rates, 1.0 / cost_s) > _within_s(view)
        # where one record alone takes longer than the bound, no split divides it
        if cost_s > _within_s(view):
            hopeless &= rates * cost_s >= 1.0
        slots = np.asarray(view.assignment.slot_of)
        for slot in np.unique(slots[hopeless]).tolist():
            group = hottest_at(view, slot, hopeless)
            strategy = None if group is None else best_split(view, 0.0, group)
            if group is not None and strategy is not None and strategy.split is not None:
                share = rates[group] * cost_s
                reason = (
                    f"key group {group} alone brings {_multiple(share)} what a slot can serve: split "
                    f"over {len(strategy.split[group])} slots"
                )
                return _of(view, strategy, "hindsight, split", reason)
        if not view.assignment.split or not float(view.backlog.sum()) <= view.group_rate.sum():
            return None
        whole = best_whole(view, 0.0)
        if whole is None:
            return None
        reason = (
            f"all {view.slots} slots keep up, and do so with a key group split over fewer of them"
        )
        return _of(view, whole, "hindsight, whole", reason)


def misses_price(misses: F64) -> F64:
    """Return the factor on a rule's price for `misses`, in multiples of the allowed misses."""
    unsafe = np.clip(misses / _SAFE, 1.0, 1.0 / _SAFE)
    over = np.maximum(1.0, misses)
    price: F64 = unsafe ** (math.log(_SAFER) / -math.log(_SAFE))
    price *= np.minimum(over, _HOPELESS) ** _DEAR * np.maximum(1.0, over / _HOPELESS) ** _CHEAP
    return price


def _of(view: OperatorView, strategy: UnitStrategy, rule: str, reason: str) -> RuleChange:
    return RuleChange(change_of(view, strategy), rule, reason, {"slots": float(view.slots)})


def _multiple(share: float) -> str:
    """Return a share as "90% of" or "93 times"."""
    return f"{share:.0%} of" if share < _READABLE else f"{share:.0f} times"


def _within_s(view: OperatorView) -> float:
    """Return the latency above the floor that the bound allows, in seconds, at least 0.1 bounds."""
    return max(view.bound_s - view.floor_s, 0.1 * view.bound_s)
