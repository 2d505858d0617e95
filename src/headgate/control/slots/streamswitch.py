"""Implements StreamSwitch: bounds the mean latency of every slot with as few slots as possible."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from enum import IntEnum

import numpy as np
import numpy.typing as npt

from headgate.control.decision import Change, ChangeKind, Decision
from headgate.control.limits import check_range
from headgate.control.observation import Observation, OperatorView
from headgate.control.slots.projection import F64, pressure, projected_latency_s
from headgate.control.slots.splitting import (
    Patience,
    best_split,
    best_whole,
    hottest_at,
    share_rate,
)
from headgate.control.slots.strategies import (
    Flags,
    UnitStrategy,
    best_balance,
    best_scale_in,
    best_scale_out,
    change_of,
    joined,
    view_after,
)

I64 = npt.NDArray[np.int64]

_EPSILON_MAX = 0.99
# The paper says below 1; above 0.99 hardly any service rate is left.
_STEPS_MAX = 1024

_SCALE_IN = "good -> scale-in"
_CALM = ("good", "moderate", _SCALE_IN)
"""Rules with which a split may end; relief of a severe slot comes first."""


_ALERT_RECORDS = 3.0
"""Least alert threshold, in service times of a record: the latency of M/M/1 at load 2/3. Not tuned."""


class Health(IntEnum):
    """Ranks the risk that a slot violates its bound; an operator has the rank of its worst slot."""

    GOOD = 0
    MODERATE = 1
    SEVERE = 2


@dataclass(frozen=True)
class _Diagnosis:
    """Holds the decision for one operator, and the reason."""

    rule: str
    reason: str
    numbers: dict[str, float]
    strategy: UnitStrategy | None = None


class StreamSwitch:
    """Balances or scales out for one severe slot at a time; scales in when all slots are good.

    A slot is *severe* if its latency l_i is above the alert threshold l **and** its projected
    latency L_i is above the bound L, *good* if neither is, else *moderate*. An operator is severe
    if any slot is, and good if all are.

    - severe: balance the severe slot with the largest L_i if no slot is severe under the projected
      latencies, else scale it out by one slot;
    - good: scale in by one slot if all stay good;
    - moderate: no change.

    When load rises, L_i exceeds L before any record is slow, and the alert threshold makes the policy
    wait for slow records. When load falls, l_i is high until the backlog is gone and prevents a scale-in.

    Parameters
    ----------
    epsilon : float
        Safety margin in [0, 0.99]: the share of a slot's service rate that stays unused. A larger margin
        is safer and needs more slots; 0.2 is the paper's baseline.
    steps : int
        Most unit strategies per decision, from 1; the paper has 1. With more, each next strategy is
        chosen as if the one before were in force, and must have the same direction. A load that needs
        six more slots then gets them in one change instead of six.
    alert_s : float
        Alert threshold l in seconds; 0, the default, for the threshold of the SLO.
    split : int
        1, the default: splits a key group that no slot can serve alone over several slots, if the
        operator can merge their results; 0: only the paper's treatments.

    References
    ----------
    StreamSwitch 3.1 to 3.4. Differs:

    - l is compared with l_i minus the engine's floor, and L with L_i plus the floor: no slot can bring
      the latency of a micro-batch below the floor;
    - l is at least three service times of a record, or half the bound if that is less: where a record
      takes longer than l, no slot would ever be good, and no slot could be removed;
    - a slot that completed nothing counts as below the alert threshold if no record waits there, and
      as moderate if one waits;
    - a key group that would be above the bound even alone on any slot is split, if the operator can
      merge results: over the fewest slots on which its shares are within the bound. The paper has no
      such treatment. The split ends, or gets fewer slots, once fewer slots have been enough for five
      windows, even for a quarter more than its load and backlog, and no slot needs relief. After an end
      that came too soon, the time is longer (see `Patience`);
    - where such a group cannot be split, it stays where it is, and its slot is relieved of the other
      groups. If only slots of such groups stay severe, a balance suffices, and no slot is added;
    - where the worst severe slot cannot be relieved, the policy relieves the next one;
    - where no more slots are allowed, a balance must bring only its source and destination within the
      bound.
    """

    def __init__(
        self, epsilon: float = 0.2, steps: int = 1, split: int = 1, alert_s: float = 0.0
    ) -> None:
        check_range("streamswitch", "epsilon", epsilon, 0.0, _EPSILON_MAX)
        check_range("streamswitch", "steps", steps, 1, _STEPS_MAX)
        check_range("streamswitch", "split", split, 0, 1)
        check_range("streamswitch", "alert_s", alert_s, 0.0)
        self._epsilon = epsilon
        self._steps = int(steps)
        self._split = bool(split)
        self._patience = Patience()
        self._alert_s = alert_s

    @property
    def name(self) -> str:
        """``streamswitch(0.2)``, or ``streamswitch(0.2, steps=8)``."""
        steps = f", steps={self._steps}" if self._steps > 1 else ""
        split = "" if self._split else ", split=0"
        alert = f", alert_s={self._alert_s:g}" if self._alert_s else ""
        return f"streamswitch({self._epsilon:g}{steps}{split}{alert})"

    def decide(self, observation: Observation) -> Decision:
        """Return at most one change per operator."""
        changes: dict[str, Change] = {}
        reasons: list[str] = []
        rules: dict[str, None] = {}
        numbers: dict[str, float] = {}
        seen = observation.operators
        if self._alert_s:
            seen = {name: replace(view, alert_s=self._alert_s) for name, view in seen.items()}
        diagnoses = {
            name: self._diagnose_or_rejoin(name, view, observation.time_s)
            for name, view in seen.items()
        }
        acts = any(diagnosis.strategy for diagnosis in diagnoses.values())
        for name, diagnosis in diagnoses.items():
            numbers |= {f"{name}.{key}": value for key, value in diagnosis.numbers.items()}
            reason = diagnosis.reason
            if diagnosis.strategy is not None:
                changes[name], reason = self._extended(seen[name], diagnosis)
            elif acts:
                continue
            rules[diagnosis.rule] = None
            reasons.append(f"{name}: {reason}.")
        return Decision(changes, " ".join(reasons), ", ".join(rules), numbers)

    def applied(self, operator: str, change: Change, took_s: float) -> None:
        """Do nothing: the next observation shows the new assignment."""

    def slot_failed(self, operator: str, slot_id: int) -> None:
        """Do nothing: the next observation shows the failure."""

    def _extended(self, view: OperatorView, diagnosis: _Diagnosis) -> tuple[Change, str]:
        """Return one change made of the diagnosed strategy and later strategies, and the reason."""
        assert diagnosis.strategy is not None
        strategy, steps = diagnosis.strategy, 1
        change = change_of(view, strategy)
        inward = _inward(view, strategy)
        while steps < self._steps:
            view = view_after(view, strategy)
            following = self._diagnose(view).strategy
            if following is None or _inward(view, following) is not inward:
                break
            strategy, steps = following, steps + 1
            change = joined(change, change_of(view, strategy))
        if steps == 1:
            return change, diagnosis.reason
        more = "1 more move" if steps == 2 else f"{steps - 1} more moves"  # noqa: PLR2004
        return change, f"{diagnosis.reason}; with {more}, {change.assignment.slots} slots"

    def _diagnose_or_rejoin(self, name: str, view: OperatorView, time_s: float) -> _Diagnosis:
        """Return the diagnosis of an operator, or the end of a split that was unneeded for long enough.

        Whether a split is needed follows from arrivals and backlog; the split itself changes latency.
        """
        self._patience.observe(name, view)
        diagnosis = self._diagnose(view)
        whole = best_whole(view, self._epsilon) if view.assignment.split else None
        if whole is None:
            self._patience.needed(name)
            return diagnosis
        rejoined = _rejoined(view, whole, diagnosis.numbers)
        group = int(rejoined.numbers["group"])
        left_s = self._patience.left_s(name, group, time_s, view.window_s)
        if diagnosis.rule not in _CALM or (left_s > 0.0 and diagnosis.strategy is not None):
            return diagnosis
        if left_s <= 0.0:
            return rejoined
        reason = f"{diagnosis.reason}; {rejoined.reason}, if that stays so for {left_s:.3g} s more"
        return replace(diagnosis, reason=reason)

    def _diagnose(self, view: OperatorView) -> _Diagnosis:
        rates = view.slot_rate
        projected = projected_latency_s(rates, view.service_rate, self._epsilon)
        health = healthiness(view, latency_seen_s(view), projected)
        overall = int(health.max())  # NumPy compares with plain numbers ten times faster
        good = overall == Health.GOOD
        # If all slots are good, all projections are finite and order the slots as pressures do.
        worst = projected if good else pressure(rates, view.service_rate, self._epsilon)
        worst_slot = int(np.argmax(worst if good else np.where(health == overall, worst, -np.inf)))
        numbers = _numbers(view, worst_slot, float(rates[worst_slot]), float(projected[worst_slot]))
        if view.floor_s >= view.bound_s:
            reason = (
                f"the bound of {view.bound_s:g} s is not above the floor of {view.floor_s:.3g} s"
            )
            return _Diagnosis("unreachable", reason, numbers)
        if good:
            return self._save(view, rates, numbers)
        about = _about(view, worst_slot, numbers)
        if overall == Health.MODERATE:
            return _Diagnosis("moderate", f"{about} is moderate; nothing to do", numbers)
        # Largest pressure first; of equal ones the lower number first.
        severe = np.flatnonzero(health == overall)
        order = severe[np.argsort(-worst[severe], kind="stable")]
        return self._relieve(view, order.tolist(), numbers, about)

    def _relieve(
        self, view: OperatorView, severe: list[int], numbers: dict[str, float], about: str
    ) -> _Diagnosis:
        """Return the relief of the first of the `severe` slots that can be relieved."""
        full = view.slots >= min(view.slots_max, view.assignment.key_groups)
        fastest = float(view.service_rate.max())
        single = projected_latency_s(share_rate(view), fastest, self._epsilon)
        hopeless = view.floor_s + single > view.bound_s
        for source in severe:
            if (split := self._split_of(view, source, hopeless, numbers)) is not None:
                return split
            balance = best_balance(view, self._epsilon, source, fixed=hopeless)
            if balance is not None and self._suffices(view, balance, hopeless, alone=full):
                return _relief("severe -> balance", view, balance, numbers, about)
            out = best_scale_out(view, self._epsilon, source, fixed=hopeless)
            if out is not None and full:
                reason = f"{about} is severe, and a slot more than {view.slots} is not allowed"
                return _Diagnosis("severe, no slot left", reason, numbers)
            if out is not None:
                return _relief("severe -> scale-out", view, out, numbers, about)
        is_split = np.zeros(len(hopeless), dtype=bool)
        is_split[list(view.assignment.split)] = True
        for source in severe:
            if (split := self._split_of(view, source, is_split, numbers)) is not None:
                return split
        reason = f"{about} is severe, but cannot split: no key group that could move relieves it"
        group = hottest_at(view, severe[0], hopeless)
        if group is not None and not view.splittable:
            load = _share_of_load(view, group)
            reason += (
                f"; key group {group} alone is {load:.0%} of the load, more than a slot can serve, "
                f"and stays whole: {view.unsplittable}"
            )
        return _Diagnosis("severe, cannot split", reason, numbers)

    def _split_of(
        self, view: OperatorView, source: int, which: Flags, numbers: dict[str, float]
    ) -> _Diagnosis | None:
        """Return the split of the hottest key group in `which` at a severe slot; None if none helps."""
        group = hottest_at(view, source, which) if self._split and view.splittable else None
        split = None if group is None else best_split(view, self._epsilon, group)
        if group is None or split is None or split.split is None:
            return None
        shares, load = split.split[group], _share_of_load(view, group)
        new = split.survivors.count(None)
        added = f", {new} of them new" if new else ""
        reason = (
            f"key group {group} alone is {load:.0%} of the load, {view.group_rate[group]:.4g} records/s, "
            f"and no slot can serve it: split over {len(shares)} slots{added}"
        )
        numbers |= {"group": float(group), "shares": float(len(shares)), "share": load}
        return _Diagnosis("severe -> split", reason, numbers, split)

    def _suffices(
        self, view: OperatorView, balance: UnitStrategy, hopeless: Flags, *, alone: bool
    ) -> bool:
        """Return whether no slot is severe after a balance, except slots that no move can help.

        With `alone`, only its source and destination have to end within the bound.
        """
        slot_of = np.array(view.assignment.slot_of)
        slot_of[list(balance.groups)] = balance.destination
        curable = np.bincount(slot_of, minlength=view.slots) > 1
        curable[slot_of[hopeless]] = False
        beyond = curable & (view.floor_s + balance.latency_s > view.bound_s)
        if alone:
            return not (beyond[balance.source] or beyond[balance.destination])
        return not np.any(beyond & (view.latency_s - view.floor_s > alert_s(view)))

    def _save(self, view: OperatorView, rates: F64, numbers: dict[str, float]) -> _Diagnosis:
        """Return the diagnosis of good slots: a scale-in, if all slots stay good."""
        slots = view.slots
        if slots > max(view.slots_min, 1) and self._one_fewer_may_do(view, rates):
            merge = best_scale_in(view, self._epsilon)
            # `merge` is None where all slots have a share of one key group
            if merge is not None and np.all(view.floor_s + merge.latency_s <= view.bound_s):
                numbers |= {"moved_groups": float(len(merge.groups))}
                reason = (
                    f"all {slots} slots are good; slot {merge.source} merges into slot "
                    f"{merge.destination} with {len(merge.groups)} key groups, and the largest "
                    f"projected latency is {view.floor_s + merge.latency_s.max():.3g} s, within "
                    f"the bound of {view.bound_s:g} s"
                )
                return _Diagnosis(_SCALE_IN, reason, numbers, merge)
        few = "no fewer are allowed" if slots <= view.slots_min else "one fewer would be too few"
        return _Diagnosis("good", f"all {slots} slots are good, and {few}", numbers)

    def _one_fewer_may_do(self, view: OperatorView, rates: F64) -> bool:
        """Return whether some slot stays within the bound with the load of another slot added.

        The best merge is good if and only if any merge is good, so this check often saves the search.
        """
        least, second = np.partition(rates, 1)[:2]
        other = np.where(np.arange(len(rates)) == np.argmin(rates), second, least)
        merged = projected_latency_s(rates + other, view.service_rate, self._epsilon)
        return bool(np.any(view.floor_s + merged <= view.bound_s))


def latency_seen_s(view: OperatorView) -> F64:
    """Return l_i; of a slot that completed no record, 0 if no record waits there, NaN if one waits."""
    silent = np.isnan(view.latency_s)
    if not silent.any():
        return view.latency_s
    waiting = view.by_slot(view.backlog)
    return np.where(silent & (waiting == 0.0), 0.0, view.latency_s)


def alert_s(view: OperatorView) -> F64:
    """Return l of each slot, in seconds: the view's, or if more, `_ALERT_RECORDS` service times.

    The service times count for at most half the bound.
    """
    with np.errstate(divide="ignore", over="ignore"):
        records_s = np.where(view.service_rate > 0.0, _ALERT_RECORDS / view.service_rate, 0.0)
    threshold_s: F64 = np.maximum(view.alert_s, np.minimum(records_s, view.bound_s / 2.0))
    return threshold_s


def healthiness(view: OperatorView, latency_s: F64, projected_s: F64) -> I64:
    """Return the `Health` of each slot.

    Parameters
    ----------
    view : OperatorView    Gives l, L and the floor.
    latency_s : float64[n]
        l_i of each present or planned slot; a slot with NaN is not good.
    projected_s : float64[n]    L_i(x) of the same slots.

    References
    ----------
    StreamSwitch 3.3: both above is severe, neither is good.
    """
    alerts_s = alert_s(view)
    if len(alerts_s) != len(latency_s):  # these are planned slots
        alerts_s = np.broadcast_to(alerts_s.min(), latency_s.shape)
    severe = (latency_s - view.floor_s > alerts_s) & (view.floor_s + projected_s > view.bound_s)
    good = (latency_s - view.floor_s <= alerts_s) & (view.floor_s + projected_s <= view.bound_s)
    fair = np.where(good, int(Health.GOOD), int(Health.MODERATE))
    health: I64 = np.where(severe, int(Health.SEVERE), fair)
    return health


def _inward(view: OperatorView, strategy: UnitStrategy) -> bool:
    """Return whether a strategy removes slots or shares."""
    if strategy.split is None:
        return strategy.kind is ChangeKind.SCALE_IN
    before = sum(map(len, view.assignment.split.values()))
    return sum(map(len, strategy.split.values())) < before


def _share_of_load(view: OperatorView, group: int) -> float:
    """Return a key group's share of the arrivals at its operator."""
    total = float(view.group_rate.sum())
    return float(view.group_rate[group]) / total if total > 0.0 else 0.0


def _rejoined(view: OperatorView, whole: UnitStrategy, numbers: dict[str, float]) -> _Diagnosis:
    """Return the diagnosis that gives a split key group fewer slots, or makes it whole."""
    assert whole.split is not None
    before, after = view.assignment.split, whole.split
    group = next(g for g in before if len(after.get(g, (0,))) < len(before[g]))
    shares = len(after.get(group, (0,)))
    numbers = numbers | {"group": float(group), "shares": float(shares)}
    what = "whole again" if shares == 1 else f"split over {shares} slots"
    reason = (
        f"key group {group} can be {what} instead of split over {len(before[group])}: that would be "
        f"enough even for a quarter more than its load of {view.group_rate[group]:.4g} records/s and "
        f"its backlog of {view.backlog[group]:.0f} records"
    )
    return _Diagnosis("good -> split", reason, numbers, whole)


def _relief(
    rule: str, view: OperatorView, strategy: UnitStrategy, numbers: dict[str, float], about: str
) -> _Diagnosis:
    """Return the diagnosis that moves some groups away from a severe slot."""
    rate = view.slot_rate[strategy.source]
    share = view.group_rate[list(strategy.groups)].sum() / rate if rate > 0.0 else 0.0
    moved = len(strategy.groups)
    is_new = strategy.destination == view.slots
    to = f"{'new ' if is_new else ''}slot {strategy.destination}"
    groups = "1 key group" if moved == 1 else f"{moved} key groups"
    whose = "its" if strategy.source == numbers["slot"] else f"slot {strategy.source}'s"
    verb = "moves" if moved == 1 else "move"
    reason = f"{about} is severe; {groups}, {share:.0%} of {whose} load, {verb} to {to}"
    numbers |= {"moved_groups": float(moved), "moved_share": float(share)}
    return _Diagnosis(rule, reason, numbers, strategy)


def _numbers(view: OperatorView, slot: int, rate: float, projected_s: float) -> dict[str, float]:
    """Return the figures of one slot, without figures that are not finite."""
    mu = float(view.service_rate[slot])
    figures = {
        "slots": float(view.slots),
        "slot": float(slot),
        "latency_s": float(view.latency_s[slot]),
        "projected_s": view.floor_s + projected_s,
        "rate": rate,
        "service_rate": mu,
        "bound_s": view.bound_s,
        "alert_s": view.alert_s,
        "floor_s": view.floor_s,
    }
    return {name: value for name, value in figures.items() if math.isfinite(value)}


def _about(view: OperatorView, slot: int, numbers: dict[str, float]) -> str:
    """Return the beginning of a sentence about a slot: its latencies and its load."""
    latency = f"{numbers['latency_s']:.3g} s" if "latency_s" in numbers else "unknown"
    projected = f"{numbers['projected_s']:.3g} s" if "projected_s" in numbers else "unbounded"
    floor = f" above a floor of {view.floor_s:.3g} s" if view.floor_s > 0.0 else ""
    return (
        f"slot {slot} (latency {latency}, alert {view.alert_s:g} s{floor}; projected {projected}, "
        f"bound {view.bound_s:g} s; {numbers['rate']:.4g} of {numbers['service_rate']:.4g} records/s)"
    )
