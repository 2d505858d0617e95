"""Implements the unified policy over a fleet: forecasts each job's need, and divides slots by utility."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from headgate.control.estimators.trend import Trend
from headgate.control.fleet.view import (
    SATURATED,
    Action,
    FleetDecision,
    FleetJob,
    FleetOperator,
    FleetView,
    Slots,
)
from headgate.control.limits import check_range
from headgate.core.utility import Metric

_MANY = 1e9
"""Cap on a number of slots before it is rounded: more than any operator may have."""

_ROUNDING = 1e-9

_HURRY = 3.0
"""Divisor of the time between two divisions while an operator cannot keep up; larger: sooner."""

_KEPT_WORTH = 4.0
"""Factor on the worth of a job that is served already. Larger: the served jobs change less often; a job
that was late must first serve its backlog. Tuned on two draws of `fleet-loads`."""


@dataclass(frozen=True)
class UnifiedFleetParameters:
    """Holds the parameters of `UnifiedFleet`."""

    epsilon: float = 0.4
    """Margin of granted slots, as in `Unified`. Larger: fewer changes, which may each stop a job, and
    more slots."""
    ahead_s: float = 120.0
    """How far ahead inputs are forecast, seconds; >= 0. A change takes about so long to show."""
    look_back_s: float = 120.0
    """Time over which trends are taken, seconds; > 0."""
    observe_s: float = 900.0
    """Time for which a new fleet is only watched, seconds; >= 0. Henge 8."""
    settle_s: float = 60.0
    """Time after a change in which a job keeps its slots, seconds; >= 0. Henge 5.1."""
    catch_up_s: float = 300.0
    """Time within which the backlog is to be served, seconds; > 0. Chosen: Henge's longest wait for
    an action to take effect."""
    kept: int = 2
    """Multiple of its need that an operator keeps when it gives slots back; >= 1. Larger: less often
    short of slots, which costs a change."""
    bound_s: float = 1.0
    """Bound on the latency of a job without an intent for it, seconds; > 0."""

    def __post_init__(self) -> None:
        for name in ("epsilon", "ahead_s", "observe_s", "settle_s"):
            check_range("unified", name, getattr(self, name), 0.0)
        check_range("unified", "kept", self.kept, 1)
        for name in ("look_back_s", "catch_up_s", "bound_s"):
            check_range("unified", name, getattr(self, name), 0.0, above=True)


@dataclass
class _Known:
    """Holds the trends and costs of one job, as measured so far.

    Attributes
    ----------
    rate : Trend
        Trend of the job's input.
    costs : dict of str to Trend
        By operator: trend of the time that a slot needs for a record.
    beside_s : dict of str to float
        By operator: least latency of the job beyond the operator's projected latency, in seconds.
    work_s : dict of str to float
        By operator: slot-seconds of work that waited in the last round; empty after a change.
    service_rates : dict of str to float
        By operator: records of the job's input that a slot serves per second, last measured.
    seen_s, changed_s : float
        Times of the last round and of the last change, in seconds.
    """

    rate: Trend
    costs: dict[str, Trend] = field(default_factory=dict)
    beside_s: dict[str, float] = field(default_factory=dict)
    work_s: dict[str, float] = field(default_factory=dict)
    service_rates: dict[str, float] = field(default_factory=dict)
    seen_s: float = -math.inf
    changed_s: float = -math.inf


@dataclass(frozen=True)
class _Need:
    """Holds the forecast load of an operator, and its present slots.

    Attributes
    ----------
    operator : FleetOperator
    rate : float
        Records per second of the job's input; forecast.
    waiting : float
        Waiting records of the job's input.
    mu : float
        Records per second that a slot serves; forecast.
    within_s : float
        The bound, minus the latency that no slot can change.
    rate_now, mu_now : float
        `rate` and `mu` without the forecast.
    """

    operator: FleetOperator
    rate: float
    waiting: float
    mu: float
    within_s: float
    rate_now: float
    mu_now: float

    @property
    def now(self) -> _Need:
        """Return the need without the forecast."""
        return replace(self, rate=self.rate_now, mu=self.mu_now)

    def slots(self, epsilon: float, catch_up_s: float) -> int:
        """Return the slots that serve the arrivals and the backlog, with the margin `epsilon`.

        References
        ----------
        StreamSwitch 4.2, for slots with the same load.
        """
        operator = self.operator
        rate = (self.rate + self.waiting / catch_up_s) / (1.0 - epsilon)
        spare = 1.0 / self.within_s if self.within_s * self.mu > 1.0 else 0.0
        wanted = math.ceil(min(rate / (self.mu - spare), _MANY) - _ROUNDING)
        # `room` respects the request of the job's own policy, which knows its need better
        most = operator.slots + operator.room
        return max(operator.slots_min, min(max(wanted, 1), most))


@dataclass(frozen=True)
class _Tier:
    """Holds one way to move slots: the margin of jobs that get slots, and what giving jobs keep.

    The policy tries the tiers in sequence, and takes the first that fits into the budget.

    Attributes
    ----------
    epsilon : float
        The margin.
    catch_up_s : float
        Time within which a job that gets slots serves its backlog, in seconds.
    kept : int
        Multiple of its need that a giving job keeps.
    left : float
        Least share of its slots that a giving job keeps, since its need may soon rise again.
    """

    epsilon: float
    catch_up_s: float
    kept: int = 1
    left: float = 0.0


Needs = Mapping[str, Mapping[str, _Need]]


class UnifiedFleet:
    """Divides one budget of slots among jobs by the forecast need of every job.

    Each round the policy forecasts the arrivals of every operator, and the time that a slot needs for a
    record. An operator needs the fewest slots with which these arrivals and its backlog are projected to
    be within the job's bound. All jobs that hold less get their need and a margin in one decision, before
    they miss their SLO.

    - While the budget suffices, no other job gives back slots, since a change may stop a job.
    - If it does not suffice, other jobs give back slots: first slots beyond twice their need, then their
      margin. Then the margins of all jobs shrink.
    - If not even the needs without margin fit, the jobs that are worth most per slot are served. The
      other jobs share the remaining slots in proportion to their needs, so that each falls behind as
      little as possible. If the arrivals alone need more than all slots, some jobs stay late in any case.
      Then the served jobs get slots to serve their backlog soon, and after them one job at a time.

    Parameters
    ----------
    parameters : UnifiedFleetParameters

    References
    ----------
    Ours. Henge 5 (rounds, utility, watching first), StreamSwitch 4.2 (projection), PSPS IV (forecast).
    The policy ignores the congestion of hosts: the budget bounds the slots of all jobs.
    """

    def __init__(self, parameters: UnifiedFleetParameters | None = None) -> None:
        self._p = parameters or UnifiedFleetParameters()
        self._known: dict[str, _Known] = {}
        self._started_s: float | None = None
        self._divided_s = -math.inf
        self._served: set[str] = set()

    @property
    def name(self) -> str:
        """``unified-fleet(0.4, 120)``."""
        return f"unified-fleet({self._p.epsilon:g}, {self._p.ahead_s:g})"

    def decide(self, view: FleetView) -> FleetDecision:
        """Return the new slots of all jobs that change."""
        if self._started_s is None:
            self._started_s = view.time_s
        self._known = {
            name: self._known.get(name) or _Known(Trend(self._p.look_back_s)) for name in view.jobs
        }
        needs = {
            name: self._needs(name, job, view.time_s)
            for name, job in view.jobs.items()
            if job.reported
        }
        if view.time_s < self._started_s + self._p.observe_s:
            reason = f"Watching the first {self._p.observe_s:g} s."
            return FleetDecision(rule="observing", reason=reason)
        return self._granted(view, needs)

    def _needs(self, name: str, job: FleetJob, time_s: float) -> dict[str, _Need]:
        """Return the forecast need of each operator of a job, without sources."""
        known = self._known[name]
        assert job.values is not None  # it has reported
        bound_s, latency_s = self._bound(job, job.values)
        known.rate.observe(time_s, job.input_rate)
        rate = job.input_rate * known.rate.growth(self._p.ahead_s)
        needs = {}
        for op, operator in job.operators.items():
            if operator.source:
                continue
            if not operator.capacity * job.input_rate > 0.0:
                if job.input_rate == 0.0 and operator.backlog_s == 0.0:
                    needs[op] = _Need(operator, 0.0, 0.0, 1.0, bound_s, 0.0, 1.0)
                continue
            before = known.work_s.get(op), known.service_rates.get(op)
            mu = _service_rate(operator, job.input_rate, *before, time_s - known.seen_s)
            known.service_rates[op] = mu
            if operator.capacity < SATURATED:
                own_s = 1.0 / (mu * (1.0 - operator.capacity))
                beside_s = max(0.0, latency_s - own_s)
                known.beside_s[op] = min(known.beside_s.get(op, math.inf), beside_s)
            waiting = operator.backlog_s * operator.slots * mu
            cost = known.costs.setdefault(op, Trend(self._p.look_back_s))
            cost.observe(time_s, 1.0 / mu)
            within_s = max(bound_s - known.beside_s.get(op, 0.0), 0.0)
            later_mu = mu / cost.growth(self._p.ahead_s)
            needs[op] = _Need(operator, rate, waiting, later_mu, within_s, job.input_rate, mu)
        known.work_s = {op: view.backlog_s * view.slots for op, view in job.operators.items()}
        known.seen_s = time_s
        return needs

    def _bound(self, job: FleetJob, values: tuple[float, ...]) -> tuple[float, float]:
        """Return the tightest latency of an intent and its value; else the default, and 0."""
        pairs = zip(job.utility.intents, values, strict=True)
        latencies = [(i.threshold, v) for i, v in pairs if i.metric is Metric.LATENCY]
        return min(latencies, default=(self._p.bound_s, 0.0))

    def _granted(self, view: FleetView, needs: Needs) -> FleetDecision:
        """Return the first decision that fits into the budget, or a division of all slots."""
        short = [name for name, operators in needs.items() if self._short(name, operators, view)]
        if not short:
            return FleetDecision(rule="projected within", reason="No job needs more slots.")
        p = self._p
        urgent = any(
            n.operator.capacity > SATURATED for name in short for n in needs[name].values()
        )
        tiers = (
            _Tier(p.epsilon, p.settle_s, p.kept, 0.75),
            _Tier(p.epsilon, p.settle_s, 1, 0.75),
            _Tier(p.epsilon / 2, p.settle_s, 1, 0.75),
            _Tier(p.epsilon / 2, p.settle_s, 1, 0.5),
            _Tier(p.epsilon / 2, p.settle_s),
            _Tier(p.epsilon / 2, p.catch_up_s),
            _Tier(0.0, p.catch_up_s),
        )
        for tier in tiers:
            wishes = {name: self._wish(needs[name], tier) for name in short}
            spare = {
                name: slots
                for name, operators in needs.items()
                if name not in short and (urgent or not self._settling(name, view.time_s))
                if (slots := self._spare(operators, tier))
            }
            changes = fitting(view, wishes, spare)
            if len(changes.keys() & wishes.keys()) == len(wishes):
                reason = f"{', '.join(short)} will need more slots; they get them."
                return self._changed(view, changes, reason, "forecast -> reconfiguration")
        if view.time_s < self._divided_s + (p.settle_s / _HURRY if urgent else p.settle_s):
            return FleetDecision(rule="divided", reason="The last division takes effect.")
        changes = self._divided(view, needs)
        self._divided_s = view.time_s
        reason = (
            f"{', '.join(short)} will need more slots than there are: who is worth most per slot "
            "is served first, the others share the rest."
        )
        return self._changed(view, changes, reason, "short -> division")

    def _short(self, name: str, operators: Mapping[str, _Need], view: FleetView) -> bool:
        """Return whether a job needs more slots than it holds, and may change now."""
        late = [need for need in operators.values() if self._late(need)]
        if not self._settling(name, view.time_s):
            return bool(late)
        return any(need.operator.capacity > SATURATED for need in late)

    def _late(self, need: _Need) -> bool:
        """Return whether an operator holds less than it needs."""
        return self._least(need) > need.operator.slots

    def _settling(self, name: str, time_s: float) -> bool:
        return time_s < self._known[name].changed_s + self._p.settle_s

    def _least(self, need: _Need) -> int:
        return need.slots(0.0, self._p.catch_up_s)

    def _wish(self, operators: Mapping[str, _Need], tier: _Tier) -> dict[str, int]:
        """Return the slots that a job should get; the job also gives back spare slots."""
        slots = self._spare(operators, replace(tier, kept=self._p.kept, left=0.0))
        for op, need in operators.items():
            if self._late(need):
                slots[op] = need.slots(tier.epsilon, tier.catch_up_s)
        return slots

    def _spare(self, operators: Mapping[str, _Need], tier: _Tier) -> dict[str, int]:
        """Return the slots that each operator keeps, for the operators that hold more."""
        enough = {
            op: max(
                tier.kept * need.slots(tier.epsilon, self._p.catch_up_s),
                math.ceil(need.operator.slots * tier.left),
            )
            for op, need in operators.items()
        }
        return {op: slots for op, slots in enough.items() if slots < operators[op].operator.slots}

    def _divided(self, view: FleetView, needs: Needs) -> dict[str, Mapping[str, int]]:
        """Return a division of the slots where not all needs fit: only the operators that change.

        The next division follows within a minute, so this one uses no forecast.
        """
        needs = {name: {op: need.now for op, need in ops.items()} for name, ops in needs.items()}
        least = {
            name: {op: self._least(need) for op, need in operators.items()}
            for name, operators in needs.items()
        }
        held = {
            name: {op: need.operator.slots for op, need in needs[name].items()} for name in needs
        }
        slots = {
            name: {op: need.operator.slots_min for op, need in needs[name].items()}
            for name in needs
        }
        room = view.slots_free + _sum(held) - _sum(slots)
        # A job that was served last time may still have a backlog, and hold fewer slots than that needs.
        served = self._served
        worth = {
            name: view.jobs[name].utility.maximum
            * (_KEPT_WORTH if name in served or _covers(held[name], least[name]) else 1.0)
            / max(sum(least[name].values()), 1)
            for name in needs
        }
        self._served, late = set(), []
        for name in sorted(needs, key=lambda name: (-worth[name], name)):
            more = sum(least[name].values()) - sum(slots[name].values())
            if more <= room:
                slots[name] = dict(least[name])
                self._served.add(name)
                room -= more
            else:
                late.append(name)
        arrivals = sum(n.slots(0.0, math.inf) for ops in needs.values() for n in ops.values())
        if arrivals > view.slots_free + _sum(held):
            served_first = sorted(self._served, key=lambda name: (-worth[name], name))
            for name in [*served_first, *late]:
                room -= _top_up(slots[name], needs[name], self._p.settle_s, room)
        _share(slots, {name: least[name] for name in late}, max(room, 0))
        changes: dict[str, Mapping[str, int]] = {}
        for name, operators in slots.items():
            changed = {op: n for op, n in operators.items() if n != held[name][op]}
            if changed:
                changes[name] = changed
        return changes

    def _changed(
        self, view: FleetView, changes: Mapping[str, Mapping[str, int]], reason: str, rule: str
    ) -> FleetDecision:
        for name in changes:
            known = self._known[name]
            known.changed_s, known.work_s = view.time_s, {}
        if not changes:
            return FleetDecision(rule=rule, reason=reason)
        return FleetDecision(Action.RECONFIGURATION, changes, reason, rule)


def _sum(slots: Slots) -> int:
    return sum(count for operators in slots.values() for count in operators.values())


def _covers(held: Mapping[str, int], least: Mapping[str, int]) -> bool:
    return all(held[op] >= slots for op, slots in least.items())


def _top_up(slots: dict[str, int], needs: Mapping[str, _Need], catch_up_s: float, room: int) -> int:
    """Give a job's operators at most `room` slots to serve its backlog in time; return the number."""
    added = 0
    for op, need in needs.items():
        more = max(0, min(need.slots(0.0, catch_up_s) - slots[op], room - added))
        slots[op] += more
        added += more
    return added


def _share(slots: dict[str, dict[str, int]], least: Slots, room: int) -> None:
    """Give `room` slots one by one, each to the operator with the least share of its need `least`."""
    lacking = [(name, op) for name, operators in least.items() for op in operators]
    for _ in range(room):
        open_ = [at for at in lacking if slots[at[0]][at[1]] < least[at[0]][at[1]]]
        if not open_:
            return
        name, op = min(open_, key=lambda at: (slots[at[0]][at[1]] / least[at[0]][at[1]], at))
        slots[name][op] += 1


def fitting(view: FleetView, wishes: Slots, spare: Slots) -> dict[str, Mapping[str, int]]:
    """Return the wishes that fit into the budget, and the changes of jobs that give back slots.

    Parameters
    ----------
    view : FleetView
    wishes : mapping of str to mapping of str to int
        Slots by job and operator. Jobs with most utility per slot come first; a wish is granted as a
        whole or not at all.
    spare : mapping of str to mapping of str to int
        Slots that suffice for operators of other jobs, which give back slots only for a wish.
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
        space = room + sum(gain[giver] for giver in givers)
        if space >= extra[name]:
            back = {giver: dict(spare[giver]) for giver in givers}
            room = space - extra[name]
            if givers:
                room -= _left(back[givers[-1]], view.jobs[givers[-1]], room)
            changes |= {**back, name: wishes[name]}
            gain = {giver: slots for giver, slots in gain.items() if giver not in givers}
    return changes


def _left(slots: dict[str, int], job: FleetJob, most: int) -> int:
    """Leave up to `most` slots with operators that would give them back; return the number."""
    left = 0
    for op, count in slots.items():
        more = min(most - left, job.operators[op].slots - count)
        slots[op] += more
        left += more
    return left


def _difference(job: FleetJob, slots: Mapping[str, int]) -> int:
    return sum(count - job.operators[op].slots for op, count in slots.items())


def _service_rate(
    operator: FleetOperator,
    input_rate: float,
    work_before_s: float | None,
    rate_before: float | None,
    round_s: float,
) -> float:
    """Return the records of the job's input that a slot of an operator can serve per second.

    This is the input rate over the slots that its work needs. That work is the work that the slots did,
    and for saturated slots also the growth of the waiting work since the last round, `round_s` ago. The
    growth is negative while an operator catches up. Right after a change the growth is unknown, and the
    result is the last rate: the input of saturated slots does not show their speed.
    """
    work = operator.slots * operator.capacity
    if operator.capacity > SATURATED:
        if work_before_s is None:
            return input_rate / work if rate_before is None else rate_before
        work += (operator.backlog_s * operator.slots - work_before_s) / round_s
        if not work > 0.0:  # records were lost, or the counters are of different times
            return (
                input_rate / (operator.slots * operator.capacity)
                if rate_before is None
                else rate_before
            )
    return input_rate / work
