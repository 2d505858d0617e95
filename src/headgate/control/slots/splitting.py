"""Computes splits: the fewest slots over which the records of one hot key group are within the bound.

Pure functions over an `OperatorView`, as in `strategies`. A split helps a key group that no slot can
serve alone, where no move helps. A split deals the records of the group to several slots. Each slot
merges its own records, and the group's owner merges the results. Only aggregates can be merged so;
`OperatorView.splittable` says whether an operator can be split.
"""

from __future__ import annotations

import numpy as np

from headgate.control.decision import ChangeKind
from headgate.control.observation import OperatorView
from headgate.control.slots.projection import F64, pressure, projected_latency_s
from headgate.control.slots.strategies import Flags, UnitStrategy

_SPARE = 1.25
"""A split ends if the group fits on fewer slots even with so many times its load. Larger: splits last
longer; at 1, the end of one split would cause the next. Chosen, not tuned."""


_WINDOWS = 5
"""Windows of the SLO for which a split must have too many shares before it ends. Chosen, not tuned."""

_DOUBLED_MOST = 6
"""Most doublings of that time; 6 give 320 windows."""


class Patience:
    """Decides how long a split must be unneeded before it ends; the time doubles after an early end.

    The end of a split and its return stop a hot key twice, and a low load may soon be over. So a split
    ends only if it had too many shares in every cycle of five windows. Where a key group gets more shares
    again after it got fewer, the end was too early, and the time of that key group doubles.
    """

    def __init__(self) -> None:
        self._since_s: dict[str, float] = {}
        self._shares: dict[tuple[str, int], int] = {}
        self._ended: set[tuple[str, int]] = set()
        self._doubled: dict[tuple[str, int], int] = {}

    def observe(self, operator: str, view: OperatorView) -> None:
        """Take note of the shares that each key group has now."""
        known = {group for name, group in self._shares if name == operator}
        for group in known | view.assignment.split.keys():
            key, shares = (operator, group), len(view.assignment.shares_of(group))
            before = self._shares.get(key, shares)
            if shares < before:
                self._ended.add(key)
            elif shares > before and key in self._ended:
                self._ended.remove(key)
                self._doubled[key] = min(self._doubled.get(key, 0) + 1, _DOUBLED_MOST)
            self._shares[key] = shares

    def needed(self, operator: str) -> None:
        """Take note that no split of the operator has too many shares now."""
        self._since_s.pop(operator, None)

    def left_s(self, operator: str, group: int, time_s: float, window_s: float) -> float:
        """Return the seconds that a split with too many shares must still last; <= 0: it may end."""
        since_s = self._since_s.setdefault(operator, time_s)
        wait_s = _WINDOWS * window_s * 2.0 ** self._doubled.get((operator, group), 0)
        return since_s + wait_s - time_s


def share_rate(view: OperatorView) -> F64:
    """Return the arrivals per second of the largest share of each key group, shape [G]."""
    rates = view.group_rate.copy()
    for group, shares in view.assignment.split.items():
        rates[group] = rates[group] / len(shares) + view.merging_rate(group, len(shares))
    return rates


def hottest_at(view: OperatorView, slot: int, which: Flags) -> int | None:
    """Return the key group in `which` (bool[G]) with the largest share at a slot; None without one."""
    assignment = view.assignment
    there = [*assignment.groups_of(slot), *assignment.shares_at(slot)]
    candidates = [group for group in there if which[group]]
    rates = share_rate(view)
    return max(candidates, key=lambda group: (rates[group], -group), default=None)


def best_split(view: OperatorView, epsilon: float, group: int) -> UnitStrategy | None:
    """Return the split of a key group over the fewest slots on which the group is within the bound.

    Slots that have a share keep it. Other slots that stay within the bound with a share get one, the
    least loaded first. If these are too few, new slots are added as far as `slots_max` allows. Where no
    number of slots is enough, return the split with the least pressure at its busiest slot. None where
    no slot is free, or no split helps.
    """
    held = view.assignment.shares_of(group)
    most = min(view.slots_max, view.assignment.key_groups)
    best: UnitStrategy | None = None
    least = float(pressure(view.slot_rate, view.service_rate, epsilon)[list(held)].max())
    for shares in range(len(held) + 1, max(most, view.slots) + 1):
        strategy, fits, worst = _split_over(view, epsilon, group, shares, most)
        if strategy is not None and fits:
            return strategy
        if strategy is not None and worst < least:
            best, least = strategy, worst
    return best


def _split_over(
    view: OperatorView, epsilon: float, group: int, shares: int, most: int
) -> tuple[UnitStrategy | None, bool, float]:
    """Return the split over `shares` slots, whether it is within the bound, and its largest pressure."""
    held = view.assignment.shares_of(group)
    owner, mu = held[0], view.service_rate
    part = float(view.group_rate[group]) / shares
    merging = view.merging_rate(group, shares)
    others = _without(view, group)
    with_part = view.floor_s + projected_latency_s(others + part, mu, epsilon)
    order = np.argsort(pressure(others + part, mu, epsilon), kind="stable").tolist()
    free = [slot for slot in order if slot not in held]
    room = [slot for slot in free if with_part[slot] <= view.bound_s]
    slots = [*held, *room][:shares]
    new = min(shares - len(slots), max(most - view.slots, 0))
    if len(slots) + new < shares:
        # no further new slot is allowed: slots that are too busy for a share get one, too
        slots += [slot for slot in free if slot not in slots][: shares - len(slots) - new]
    if len(slots) + new < shares:
        return None, False, np.inf
    chosen = (*slots, *range(view.slots, view.slots + new))
    mu = np.append(mu, np.full(new, mu[owner]))
    rates = np.append(others, np.zeros(new))
    rates[list(chosen)] += part
    rates[owner] += merging
    latency = projected_latency_s(rates, mu, epsilon)
    # the owner's other key groups can move away; the other slots must bear a share beside their load
    alone = view.floor_s + float(projected_latency_s(part + merging, mu[owner], epsilon))
    helpers = view.floor_s + latency[list(chosen[1:])]
    fits = alone <= view.bound_s and bool(np.all(helpers <= view.bound_s))
    worst = float(pressure(rates, mu, epsilon)[list(chosen)].max())
    strategy = UnitStrategy(
        ChangeKind.SPLIT,
        (),
        owner,
        chosen[-1],
        (*range(view.slots), *[None] * new),
        latency,
        {**view.assignment.split, group: chosen},
    )
    return strategy, fits, worst


def best_whole(view: OperatorView, epsilon: float) -> UnitStrategy | None:
    """Return the strategy that ends a split or takes slots from it; None where no split can spare any.

    The group must be within the bound on the remaining slots with `_SPARE` times its load. Load is here
    the group's arrivals, plus its backlog served within the time of the bound.
    """
    for group, held in sorted(view.assignment.split.items()):
        others = _without(view, group)
        order = np.argsort(pressure(others, view.service_rate, epsilon), kind="stable").tolist()
        helpers = [slot for slot in order if slot in held[1:]]
        for shares in range(1, len(held)):
            chosen = (held[0], *helpers[: shares - 1])
            rates = others.copy()
            waiting = float(view.backlog[group]) / view.bound_s
            rates[list(chosen)] += (float(view.group_rate[group]) + waiting) / shares
            if shares > 1:
                rates[held[0]] += view.merging_rate(group, shares)
            grown = others + (rates - others) * _SPARE
            latency = projected_latency_s(grown, view.service_rate, epsilon)
            if np.any(view.floor_s + latency[list(chosen)] > view.bound_s):
                continue
            left = {g: slots for g, slots in view.assignment.split.items() if g != group}
            if shares > 1:
                left[group] = chosen
            return UnitStrategy(
                ChangeKind.SPLIT,
                (),
                held[0],
                held[0],
                tuple(range(view.slots)),
                projected_latency_s(rates, view.service_rate, epsilon),
                left,
            )
    return None


def _without(view: OperatorView, group: int) -> F64:
    """Return the arrivals per second at each slot without the records of a key group, shape [N]."""
    held = view.assignment.shares_of(group)
    others = view.slot_rate
    others[list(held)] -= float(view.group_rate[group]) / len(held)
    others[held[0]] -= view.merging_rate(group, len(held))
    return np.maximum(others, 0.0)
