"""Packs key groups into as few slots as possible, with as many moves at once as needed."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from headgate.control.decision import NOTHING, Change, ChangeKind, Decision
from headgate.control.limits import check_range
from headgate.control.observation import Observation, OperatorView
from headgate.control.slots.projection import F64, projected_latency_s
from headgate.control.slots.streamswitch import Health, healthiness, latency_seen_s
from headgate.core.assignment import Assignment

I64 = npt.NDArray[np.int64]

_EPSILON_MAX = 0.99
# With a larger margin no load fits.


class Packing:
    """Uses StreamSwitch's diagnosis, and moves key groups one by one to the slots where they fit best.

    A slot's *fill* is the load at which its projected latency, with a margin of `epsilon`, is at the
    bound. The margin only applies to filling: a slot is severe if it is projected to be above the bound
    with its whole service rate. So the load of a filled slot may grow by `epsilon` of the service rate
    before another change is needed.

    - With severe slots, each of them gives away its largest key groups until its load is within its fill,
      each group to the slot of best fit. If not all fit, a new slot gets half of the rest.
    - Without severe slots, the slots with least load are emptied, one after another, as long as their key
      groups fit into other good slots. Moderate slots do not change.

    All of that is one change. StreamSwitch fills less: it joins two whole slots, and only while all are
    good. The price of packing is three to five times as many moves, each of which stops more slots, so
    that success with the same margin is slightly lower.

    Parameters
    ----------
    epsilon : float
        Safety margin in [0, 0.99]: share of a slot's service rate that stays free when the slot is
        filled.

    References
    ----------
    Ours. StreamSwitch 3.2 to 3.4 and 4.2 for health and projection; best fit decreasing for the rest. As
    in StreamSwitch, a key group that alone is above the bound on any slot stays in its slot, which gives
    away the other groups and gets no further slots.
    """

    def __init__(self, epsilon: float = 0.2) -> None:
        check_range("packing", "epsilon", epsilon, 0.0, _EPSILON_MAX)
        self._epsilon = epsilon

    @property
    def name(self) -> str:
        """``packing(0.2)``."""
        return f"packing({self._epsilon:g})"

    def decide(self, observation: Observation) -> Decision:
        """Return at most one change per operator."""
        changes: dict[str, Change] = {}
        reasons: list[str] = []
        rules: dict[str, None] = {}
        numbers: dict[str, float] = {}
        for name, view in observation.operators.items():
            if view.floor_s >= view.bound_s:
                continue  # no slots can help
            bins = _Bins(view, self._epsilon)
            projected = projected_latency_s(view.slot_rate, view.service_rate)
            health = healthiness(view, latency_seen_s(view), projected)
            severe = np.flatnonzero(health == Health.SEVERE)
            if len(severe):
                rule, reason = bins.relieve(severe)
            else:
                rule, reason = bins.close(np.flatnonzero(health == Health.GOOD))
            change = bins.change()
            if change is not None:
                changes[name] = change
                rules[rule] = None
                reasons.append(f"{name}: {reason}.")
                numbers |= {f"{name}.{key}": value for key, value in bins.numbers().items()}
        if not changes:
            return NOTHING
        return Decision(changes, " ".join(reasons), ", ".join(rules), numbers)

    def applied(self, operator: str, change: Change, took_s: float) -> None:
        """Do nothing; the next observation shows the change."""

    def slot_failed(self, operator: str, slot_id: int) -> None:
        """Do nothing; the next observation shows the failure."""


@dataclass
class _Plan:
    """Holds the planned slots of key groups. Slots keep their numbers; new slots come last.

    Attributes
    ----------
    slot_of : int64[G]
    load, fill : list of float
        Arrivals per second of each slot, and their largest value.
    open : list of bool
        Whether the slot exists after the change.
    """

    slot_of: I64
    load: list[float]
    fill: list[float]
    open: list[bool]

    def copy(self) -> _Plan:
        return _Plan(self.slot_of.copy(), self.load[:], self.fill[:], self.open[:])

    def best_fit(self, rate: float, among: list[int]) -> int | None:
        """Return the slot of best fit for a key group of that `rate`; None if it fits nowhere."""
        left = [(self.fill[slot] - self.load[slot] - rate, slot) for slot in among]
        return min((fit for fit in left if fit[0] >= 0.0), default=(0.0, None))[1]

    def move(self, group: int, rate: float, destination: int) -> None:
        source = int(self.slot_of[group])
        self.slot_of[group] = destination
        self.load[source] -= rate
        self.load[destination] += rate


class _Bins:
    """Plans the slots of one operator during a decision."""

    def __init__(self, view: OperatorView, epsilon: float) -> None:
        self._view = view
        self._within = view.bound_s - view.floor_s
        mu = view.service_rate
        fill = (1.0 - epsilon) * mu - 1.0 / self._within
        slot_of = np.array(view.assignment.slot_of)
        self._plan = _Plan(slot_of, view.slot_rate.tolist(), fill.tolist(), [True] * view.slots)
        # Largest first, since the small groups that remain fit more easily.
        self._largest_first: list[int] = np.argsort(-view.group_rate, kind="stable").tolist()
        single = projected_latency_s(view.group_rate, float(mu.max()), epsilon)
        self._hopeless = view.floor_s + single > view.bound_s

    def relieve(self, severe: I64) -> tuple[str, str]:
        """Bring severe slots within their fill; return the rule and the reason."""
        plan, most = self._plan, min(self._view.slots_max, self._view.assignment.key_groups)
        order = sorted(severe.tolist(), key=lambda slot: -plan.load[slot])
        others = [slot for slot in range(len(plan.load)) if slot not in set(order)]
        for source in order:
            for group in self._movable(source):
                if plan.load[source] <= plan.fill[source] or self._alone(source):
                    break
                destination = plan.best_fit(self._rate(group), others)
                if destination is not None:
                    plan.move(group, self._rate(group), destination)
            left = self._movable(source)
            above = plan.load[source] > self._most(source)
            if above and left and not self._alone(source) and len(plan.load) < most:
                others.append(self._split(source, left))
        opened = len(plan.load) - self._view.slots
        slots = "1 slot is" if len(order) == 1 else f"{len(order)} slots are"
        reason = f"{slots} severe; {self._moves()}" + (f", {opened} of them new" * (opened > 0))
        return ("severe -> scale-out" if opened else "severe -> balance"), reason

    def close(self, good: I64) -> tuple[str, str]:
        """Empty slots, the least loaded first, into the others; return the rule and the reason."""
        candidates: list[int] = good.tolist()
        while len(candidates) > 1 and sum(self._plan.open) > max(self._view.slots_min, 1):
            source = min(candidates, key=lambda slot: (self._plan.load[slot], slot))
            candidates.remove(source)
            emptied = self._emptied(source, candidates)
            if emptied is None:
                break
            self._plan = emptied
        reason = f"{self._moves()}, so that {sum(self._plan.open)} slots do"
        return "good -> scale-in", reason

    def change(self) -> Change | None:
        """Return the planned change; None if the plan is the present assignment."""
        view, plan = self._view, self._plan
        if plan.slot_of.tolist() == list(view.assignment.slot_of):
            return None
        slots = sum(plan.open)
        # The last slots take the numbers of closed slots.
        spare = iter([slot for slot in range(slots, len(plan.open)) if plan.open[slot]])
        stays = [slot if plan.open[slot] else next(spare) for slot in range(slots)]
        number = {old: new for new, old in enumerate(stays)}
        slot_of = tuple(number[slot] for slot in plan.slot_of.tolist())
        assignment = Assignment(slot_of, slots, view.assignment.epoch + 1)
        survivors = tuple(slot if slot < view.slots else None for slot in stays)
        if slots == view.slots:
            return Change(ChangeKind.BALANCE, assignment, survivors)
        kind = ChangeKind.SCALE_OUT if slots > view.slots else ChangeKind.SCALE_IN
        return Change(kind, assignment, survivors)

    def numbers(self) -> dict[str, float]:
        """Return the figures behind the decision."""
        rates: F64 = self._view.group_rate
        return {
            "slots": float(self._view.slots),
            "rate": float(rates.sum()),
            "moved_groups": float(len(self._moved())),
            "moved_share": float(rates[self._moved()].sum() / max(rates.sum(), 1e-9)),
        }

    def _emptied(self, source: int, among: list[int]) -> _Plan | None:
        """Return the plan with all of a slot's key groups in other slots; None if they do not fit."""
        plan = self._plan.copy()
        for group in self._groups(source):
            destination = plan.best_fit(self._rate(group), among)
            if destination is None:
                return None
            plan.move(group, self._rate(group), destination)
        plan.open[source] = False
        return plan

    def _split(self, source: int, groups: list[int]) -> int:
        """Move about half of a slot's load, the smallest key groups, to a new slot; return its number."""
        plan = self._plan
        new = len(plan.load)
        plan.load.append(0.0)
        plan.fill.append(plan.fill[source])
        plan.open.append(True)
        for group in reversed(groups):
            more = plan.load[new] + self._rate(group)
            if new in plan.slot_of and more > plan.load[source] - self._rate(group):
                break
            if self._alone(source):
                break
            plan.move(group, self._rate(group), new)
        return new

    def _most(self, slot: int) -> float:
        """Return the load at which a slot's projected latency, without a margin, is at the bound."""
        return float(self._view.service_rate[slot]) - 1.0 / self._within

    def _groups(self, slot: int) -> list[int]:
        return [group for group in self._largest_first if self._plan.slot_of[group] == slot]

    def _movable(self, slot: int) -> list[int]:
        """Return the key groups of a slot that relieve it if they move, the largest first."""
        return [g for g in self._groups(slot) if self._rate(g) > 0.0 and not self._hopeless[g]]

    def _alone(self, slot: int) -> bool:
        return int((self._plan.slot_of == slot).sum()) < 2  # noqa: PLR2004

    def _rate(self, group: int) -> float:
        return float(self._view.group_rate[group])

    def _moved(self) -> I64:
        return np.flatnonzero(self._plan.slot_of != np.asarray(self._view.assignment.slot_of))

    def _moves(self) -> str:
        moved = self._moved()
        to = len(set(self._plan.slot_of[moved].tolist()))
        groups = "1 key group moves" if len(moved) == 1 else f"{len(moved)} key groups move"
        return f"{groups} to {to} {'slot' if to == 1 else 'slots'}"
