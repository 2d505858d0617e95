"""The unified policy over a fleet: `Unified` says what each job needs, utility who gets it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from headgate.control.fleet_view import (
    SATURATED,
    Action,
    FleetDecision,
    FleetJob,
    FleetOperator,
    FleetView,
    Slots,
)
from headgate.control.limits import check_range
from headgate.control.observation import Observation, OperatorView
from headgate.control.policies.unified import Unified
from headgate.core.assignment import spread
from headgate.core.utility import Metric


@dataclass(frozen=True)
class UnifiedFleetParameters:
    """Parameters of `UnifiedFleet`."""

    epsilon: float = 0.4
    """As of `Unified`: how much more than is needed is given, so that the next change is far away; a
    change of a job may stop it."""

    ahead_s: float = 120.0
    """How far the input of a job is forecast, seconds; >= 0: as long as a change takes to show."""

    look_back_s: float = 120.0
    """What its trend is taken over, seconds; > 0."""

    observe_s: float = 900.0
    """How long a new fleet is only watched, seconds; >= 0. Henge 8."""

    settle_s: float = 60.0
    """How long a job is left alone after a change, seconds; >= 0. Henge 5.1."""

    catch_up_s: float = 300.0
    """Within how long what waits is to be served, seconds; > 0. Chosen: the longest that Henge waits
    for an action to take effect."""

    kept: int = 2
    """How many times what it needs an operator keeps when it gives slots back; >= 1. To be short of
    slots costs a change."""

    bound_s: float = 1.0
    """The bound on a job's waiting where no intent of it says one, seconds; > 0."""

    def __post_init__(self) -> None:
        for name in ("epsilon", "ahead_s", "observe_s", "settle_s"):
            check_range("unified", name, getattr(self, name), 0.0)
        check_range("unified", "kept", self.kept, 1)
        for name in ("look_back_s", "catch_up_s", "bound_s"):
            check_range("unified", name, getattr(self, name), 0.0, above=True)


@dataclass
class _Known:
    """What was learnt of one job.

    Attributes
    ----------
    policy : Unified
    beside_s : dict of str to float
        By operator, the least that the job took beside what is projected for the operator.
    backlog_s : dict of str to float
        Of the round before, by operator; empty after a change.
    seen_s, changed_s : float
        When that round was, and the last change, in seconds.
    """

    policy: Unified
    beside_s: dict[str, float] = field(default_factory=dict)
    backlog_s: dict[str, float] = field(default_factory=dict)
    seen_s: float = -math.inf
    changed_s: float = -math.inf


class UnifiedFleet:
    """`Unified` with ``even=1`` for every job, under one budget.

    Each round every job's operators are shown to its own `Unified`: their arrivals are the job's input,
    their service rate is what their busy share says. All jobs that will need more get it in one decision,
    before they miss their SLO. While the budget suffices nothing is taken back, since a change may stop a
    job; where it does not, operators give what they do not need, and what there is goes to the jobs that
    gain most utility per slot.

    Parameters
    ----------
    parameters : UnifiedFleetParameters

    References
    ----------
    Ours. Henge 5 (rounds, utility, watching first), StreamSwitch 4.2 (projection), PSPS IV (forecast).
    Whether hosts are congested is not looked at: the budget bounds what they are given.
    """

    def __init__(self, parameters: UnifiedFleetParameters | None = None) -> None:
        self._p = parameters or UnifiedFleetParameters()
        self._known: dict[str, _Known] = {}
        self._started_s: float | None = None

    @property
    def name(self) -> str:
        """``unified-fleet(0.4, 120)``."""
        return f"unified-fleet({self._p.epsilon:g}, {self._p.ahead_s:g})"

    def decide(self, view: FleetView) -> FleetDecision:
        """Return the slots of all jobs that will need others."""
        if self._started_s is None:
            self._started_s = view.time_s
        self._known = {name: self._known.get(name) or _Known(self._policy()) for name in view.jobs}
        needed = {
            name: self._needed(name, job, view.time_s)
            for name, job in view.jobs.items()
            if job.reported
        }
        if view.time_s < self._started_s + self._p.observe_s:
            reason = f"Watching the first {self._p.observe_s:g} s."
            return FleetDecision(rule="observing", reason=reason)
        return self._granted(view, needed)

    def _policy(self) -> Unified:
        return Unified(self._p.epsilon, self._p.ahead_s, 1, self._p.look_back_s)

    def _needed(self, name: str, job: FleetJob, time_s: float) -> dict[str, int]:
        """Return the slots that the job's policy wants, by operator that should change."""
        known = self._known[name]
        assert job.values is not None  # it has reported
        bound_s, latency_s = self._bound(job, job.values)
        views = {}
        for op, operator in job.operators.items():
            if operator.source or not operator.capacity * job.input_rate > 0.0:
                continue
            before_s = known.backlog_s.get(op)
            mu = _service_rate(operator, job.input_rate, before_s, time_s - known.seen_s)
            if operator.capacity < SATURATED:
                own_s = 1.0 / (mu * (1.0 - operator.capacity))
                beside_s = max(0.0, latency_s - own_s)
                known.beside_s[op] = min(known.beside_s.get(op, math.inf), beside_s)
            within = _Within(bound_s, self._p.catch_up_s, known.beside_s.get(op, 0.0))
            views[op] = _view(operator, job.input_rate, mu, within)
        known.backlog_s = {op: operator.backlog_s for op, operator in job.operators.items()}
        known.seen_s = time_s
        decision = known.policy.decide(Observation(time_s, views))
        if time_s < known.changed_s + self._p.settle_s:
            return {}
        wanted = {op: change.assignment.slots for op, change in decision.changes.items()}
        most = {op: job.operators[op].slots + job.operators[op].room for op in wanted}
        # a job's own policy knows better how many it can spend
        return {op: min(slots, most[op]) for op, slots in wanted.items()}

    def _bound(self, job: FleetJob, values: tuple[float, ...]) -> tuple[float, float]:
        """Return the tightest latency that an intent wants, and what it is; else the default, and 0."""
        pairs = zip(job.utility.intents, values, strict=True)
        latencies = [(i.threshold, v) for i, v in pairs if i.metric is Metric.LATENCY]
        return min(latencies, default=(self._p.bound_s, 0.0))

    def _granted(self, view: FleetView, needed: Mapping[str, Mapping[str, int]]) -> FleetDecision:
        """Return what the budget has room for."""
        wanted: dict[str, dict[str, int]] = {}
        spare: dict[str, dict[str, int]] = {}
        for name, operators in needed.items():
            for op, slots in operators.items():
                held = view.jobs[name].operators[op].slots
                if slots > held:
                    wanted.setdefault(name, {})[op] = slots
                elif slots * self._p.kept < held:
                    spare.setdefault(name, {})[op] = slots * self._p.kept
        if not wanted:
            return FleetDecision(rule="projected within", reason="No job needs more slots.")
        # A job that changes anyway gives back what it can spare; others only where room is short.
        wishes = {name: {**spare.pop(name, {}), **slots} for name, slots in wanted.items()}
        changes = fitting(view, wishes, spare)
        for name in changes:
            known = self._known[name]
            known.changed_s, known.backlog_s = view.time_s, {}
        given = [name for name in wishes if name in changes]
        who = ", ".join(given) or "none of them"
        reason = f"{', '.join(wishes)} will need more slots; {who} get them."
        return FleetDecision(Action.RECONFIGURATION, changes, reason, "forecast -> reconfiguration")


def fitting(view: FleetView, wishes: Slots, spare: Slots) -> dict[str, Mapping[str, int]]:
    """Return the wishes that a budget has room for, and what others give back for them.

    Parameters
    ----------
    view : FleetView
    wishes : mapping of str to mapping of str to int
        Slots by job and operator. The jobs with most utility per slot come first; a wish is granted
        whole or not at all.
    spare : mapping of str to mapping of str to int
        What operators of other jobs could do with; they give it back only if that makes a wish fit.
    """
    extra = {name: _difference(view.jobs[name], slots) for name, slots in wishes.items()}
    gain = {name: -_difference(view.jobs[name], slots) for name, slots in spare.items()}
    worth = {name: view.jobs[name].utility.maximum / max(extra[name], 1) for name in wishes}
    room = view.slots_free
    changes: dict[str, Mapping[str, int]] = {}
    for name in sorted(wishes, key=lambda name: (-worth[name], name)):
        givers: list[str] = []
        for giver in sorted(gain, key=lambda giver: (-gain[giver], giver)):
            if room + sum(gain[each] for each in givers) < extra[name]:
                givers.append(giver)
        found = room + sum(gain[giver] for giver in givers)
        if found >= extra[name]:
            room = found - extra[name]
            changes |= {giver: spare[giver] for giver in givers} | {name: wishes[name]}
            gain = {giver: slots for giver, slots in gain.items() if giver not in givers}
    return changes


def _difference(job: FleetJob, slots: Mapping[str, int]) -> int:
    return sum(count - job.operators[op].slots for op, count in slots.items())


def _service_rate(
    operator: FleetOperator, input_rate: float, backlog_before_s: float | None, round_s: float
) -> float:
    """Return the records of the job's input that a slot of an operator can serve per second.

    The input over the slots' worth of work that it is: what they were busy for, and where they always
    are, by how much the backlog grew since the last round, `round_s` ago.
    """
    grew_s = 0.0
    if backlog_before_s is not None and operator.capacity > SATURATED:
        grew_s = max(0.0, operator.backlog_s - backlog_before_s)
    return input_rate / (operator.slots * (operator.capacity + grew_s / round_s))


class _Within(NamedTuple):
    """Within what an operator is to serve: a record, what waits, and what of it no slot can change."""

    bound_s: float
    catch_up_s: float
    floor_s: float


def _view(operator: FleetOperator, input_rate: float, mu: float, within: _Within) -> OperatorView:
    """Return an operator of a job in records of the job's input."""
    groups, slots = operator.slots_max, operator.slots
    waiting = operator.backlog_s * slots * mu
    return OperatorView(
        assignment=spread(slots, groups),
        slot_ids=tuple(range(slots)),
        latency_s=np.full(slots, within.floor_s),
        group_latency_s=np.full(groups, within.floor_s),
        group_rate=np.full(groups, input_rate / groups),
        service_rate=np.full(slots, mu),
        utilisation=np.full(slots, operator.capacity),
        backlog=np.full(groups, waiting / groups),
        bound_s=within.bound_s,
        window_s=within.catch_up_s,
        alert_s=within.bound_s / 10.0,
        floor_s=within.floor_s,
        slots_min=operator.slots_min,
        slots_max=groups,
    )
