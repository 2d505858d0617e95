"""What goes around any policy: limits on what it may do, and what it learns from doing it.

Each decorator is a policy. None reads a clock: time is the observation's. An order that makes sense,
from the inside out: clamps, cost, hysteresis, cool-down, rollback, action limit, freeze, advice.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from headgate.control.decision import Change, Decision, Kind
from headgate.control.limits import check_range
from headgate.control.observation import Observation, OperatorView
from headgate.control.policy import Policy, asked
from headgate.control.projection import F64, projected_latency_s
from headgate.control.rescaling import arrival_rate, mean_latency_s, mean_service_rate, rescaled
from headgate.core.assignment import Assignment

_MINUTE_S = 60.0

_SMOOTHING = 1 / 8
"""Weight of the newest cost; StreamSwitch 4.2 smooths rates alike."""

_SAME_LOAD = 1.1
"""A change is not blamed for latency if arrivals grew by more than this; chosen, not tuned."""


@dataclass(frozen=True)
class Advice(Decision):
    """A decision that nobody carries out: it has changes, and counts as nothing."""

    def __bool__(self) -> bool:
        return False


class Decorator:
    """A policy around a policy, which it passes everything on to.

    Parameters
    ----------
    policy : Policy
        The policy inside; its name is also the name outside.
    """

    def __init__(self, policy: Policy) -> None:
        self._policy = policy

    @property
    def name(self) -> str:
        """Name of the policy inside."""
        return self._policy.name

    def decide(self, observation: Observation) -> Decision:
        """Return what the policy inside wants."""
        return self._policy.decide(observation)

    def applied(self, operator: str, change: Change, took_s: float) -> None:
        """Tell the policy inside."""
        self._policy.applied(operator, change, took_s)

    def slot_failed(self, operator: str, slot_id: int) -> None:
        """Tell the policy inside."""
        self._policy.slot_failed(operator, slot_id)


class Clamped(Decorator):
    """Keep every operator between two numbers of slots.

    The policy inside is shown the narrower range; a change that leaves it all the same is dropped,
    and an operator outside is brought in at once, whatever the policy wants.

    Parameters
    ----------
    policy : Policy
    slots_min, slots_max : int
        At least 1 and ascending. Where they contradict the limits of an operator, those hold.
    """

    def __init__(self, policy: Policy, slots_min: int, slots_max: int) -> None:
        super().__init__(policy)
        check_range("clamps", "slots_min", slots_min, 1)
        check_range("clamps", "slots_max", slots_max, slots_min)
        self._min, self._max = slots_min, slots_max

    def decide(self, observation: Observation) -> Decision:
        """Return what the policy inside wants, within the range."""
        views = {name: self._narrow(view) for name, view in observation.operators.items()}
        decision = self._policy.decide(replace(observation, operators=views))
        outside = {
            name: f"{change.assignment.slots} slots are out of range"
            for name, change in decision.changes.items()
            if not views[name].slots_min <= change.assignment.slots <= views[name].slots_max
        }
        decision = _without(decision, outside, "clamps")
        brought = {
            name: change
            for name, view in views.items()
            if name not in decision.changes
            and not view.slots_min <= view.slots <= view.slots_max
            and (change := rescaled(view, view.slots))
        }
        if not brought:
            return decision
        reason = f"{', '.join(brought)}: brought within {self._min} to {self._max} slots."
        return Decision({**decision.changes, **brought}, reason, "clamps", decision.numbers)

    def _narrow(self, view: OperatorView) -> OperatorView:
        low = min(max(view.slots_min, self._min), view.slots_max)
        high = max(low, min(view.slots_max, self._max))
        return replace(view, slots_min=low, slots_max=high)


class Hysteresis(Decorator):
    """Let a decision through only after it was wanted in several cycles running.

    Two decisions for an operator are the same if they are of one kind and lead to more, fewer or
    as many slots; which groups move is taken from the newest.

    Parameters
    ----------
    policy : Policy
    cycles : int
        At least 1; 1 lets everything through. Cycles without the operator do not count.
    """

    def __init__(self, policy: Policy, cycles: int) -> None:
        super().__init__(policy)
        check_range("hysteresis", "cycles", cycles, 1)
        self._cycles = cycles
        self._runs: dict[str, tuple[tuple[Kind, int], int]] = {}
        """Per operator: what was wanted last, and in how many cycles running."""

    def decide(self, observation: Observation) -> Decision:
        """Return what has been wanted for long enough."""
        decision = self._policy.decide(observation)
        early: dict[str, str] = {}
        for name, view in observation.operators.items():
            change = decision.changes.get(name)
            if change is None:
                self._runs.pop(name, None)
                continue
            what = (change.kind, _sign(change.assignment.slots - view.slots))
            before, length = self._runs.get(name, (what, 0))
            length = length + 1 if before == what else 1
            if length < self._cycles:
                self._runs[name] = (what, length)
                early[name] = f"wanted in {length} of {self._cycles} cycles"
            else:
                self._runs.pop(name, None)
        return _without(decision, early, "hysteresis")


class Cooldown(Decorator):
    """Leave the slots of a change alone for a while after it came into force.

    Parameters
    ----------
    policy : Policy
    cooldown_s : float
        Seconds, more than 0. In that time a slot is neither source nor destination, new slots
        included; changes among other slots of the operator go through.

    References
    ----------
    Not in StreamSwitch's paper; its published code has 5 s and 10 s per involved executor. Differs:
    there locked executors are no part of the diagnosis either; here only the decision is held.
    """

    def __init__(self, policy: Policy, cooldown_s: float = 5.0) -> None:
        super().__init__(policy)
        check_range("cool-down", "cooldown_s", cooldown_s, 0.0, above=True)
        self._cooldown_s = cooldown_s
        self._until_s: dict[tuple[str, int], float] = {}
        """Per operator and identity of a slot: when it is free again."""
        self._decided: dict[str, tuple[Change, tuple[int, ...], float]] = {}
        """Per operator: the last change let through, its slots by new number, and when."""
        self._applied: dict[str, tuple[Change, tuple[int, ...], float]] = {}
        """Per operator: the last change in force whose slots are not locked yet, and until when."""

    def decide(self, observation: Observation) -> Decision:
        """Return what the policy inside wants of slots that are free."""
        self._lock(observation)
        decision = self._policy.decide(observation)
        held: dict[str, str] = {}
        for name, change in decision.changes.items():
            view = observation.operators[name]
            before, after = involved(view, change)
            locked = [slot for slot in before if (name, view.slot_ids[slot]) in self._until_s]
            if locked:
                held[name] = f"slot {locked[0]} is cooling down"
            else:
                self._decided[name] = (change, after, observation.time_s)
        return _without(decision, held, "cool-down")

    def applied(self, operator: str, change: Change, took_s: float) -> None:
        """Start the cool-down of the slots involved."""
        super().applied(operator, change, took_s)
        decided = self._decided.pop(operator, None)
        if decided is not None and decided[0] is change:
            _, slots, time_s = decided
            self._applied[operator] = (change, slots, time_s + took_s + self._cooldown_s)

    def _lock(self, observation: Observation) -> None:
        """Lock slots by identity as soon as theirs can be seen; free those whose time has come."""
        for name in [name for name in self._applied if name in observation.operators]:
            view = observation.operators[name]
            change, slots, until_s = self._applied.pop(name)
            if view.assignment.epoch == change.assignment.epoch:
                self._until_s.update({(name, view.slot_ids[slot]): until_s for slot in slots})
        if self._until_s:
            now_s = observation.time_s
            self._until_s = {slot: t for slot, t in self._until_s.items() if t > now_s}


class ActionLimit(Decorator):
    """Let at most so many changes through in any minute, over all operators.

    Belongs outside of everything that may still drop a change: what passes is counted.

    Parameters
    ----------
    policy : Policy
    per_minute : int
        At least 1.
    """

    def __init__(self, policy: Policy, per_minute: int) -> None:
        super().__init__(policy)
        check_range("action limit", "per_minute", per_minute, 1)
        self._per_minute = per_minute
        self._times_s: deque[float] = deque(maxlen=per_minute)

    def decide(self, observation: Observation) -> Decision:
        """Return what the policy inside wants, upstream operators first, up to the limit."""
        decision = self._policy.decide(observation)
        if not decision:
            return decision
        over: dict[str, str] = {}
        for name in observation.operators:
            if name not in decision.changes:
                continue
            times = self._times_s
            if len(times) == self._per_minute and observation.time_s - times[0] < _MINUTE_S:
                over[name] = f"{self._per_minute} changes in the last minute"
            else:
                times.append(observation.time_s)
        return _without(decision, over, "action limit")


class Freezable(Decorator):
    """Decide nothing while frozen; the policy inside is not asked."""

    def __init__(self, policy: Policy) -> None:
        super().__init__(policy)
        self._until_s = -math.inf

    def freeze(self, until_s: float = math.inf) -> None:
        """Decide nothing before `until_s`, in seconds since the start of the job."""
        self._until_s = until_s

    def thaw(self) -> None:
        """Decide again."""
        self._until_s = -math.inf

    def decide(self, observation: Observation) -> Decision:
        """Return what the policy inside wants, unless frozen."""
        if observation.time_s < self._until_s:
            return Decision(reason="Frozen by hand.", rule="frozen")
        return asked(self._policy, observation)


class AdviseOnly(Decorator):
    """Turn every decision into advice, which is written down and not carried out.

    Attributes
    ----------
    on : bool
        Whether to do so now.
    """

    def __init__(self, policy: Policy, *, on: bool = True) -> None:
        super().__init__(policy)
        self.on = on

    def decide(self, observation: Observation) -> Decision:
        """Return what the policy inside wants, as advice."""
        decision = self._policy.decide(observation)
        if not (self.on and decision):
            return decision
        return Advice(decision.changes, decision.reason, decision.rule, decision.numbers)


class CostAware(Decorator):
    """Skip a change whose gain over `horizon_s` does not exceed what such changes have cost.

    With c the smoothed time from decided to in force of the operator's changes:

    - fewer slots: the gain is ``(slots saved) x horizon_s``, the cost ``(slots that stop) x c``,
      both in slot-seconds;
    - otherwise: the gain is ``(W - W') x horizon_s``, the cost ``lambda_K x c^2 / 2``, both in
      seconds of waiting summed over records. W, the mean number of records in the operator, is the
      sum of ``lambda_i L_i`` (Little), W' the same afterwards, and lambda_K the arrival rate of
      the groups that move, each of whose records waits c / 2 on average.

    An operator that is overloaded now, or has not changed yet, is never held back.

    Parameters
    ----------
    policy : Policy
    horizon_s : float
        How long a change is expected to be of use, in seconds, more than 0; chosen, not tuned.
    epsilon : float
        Safety margin of the projected latencies, in [0, 1).

    References
    ----------
    StreamSwitch 6.5 names the switching overhead as the limit of any policy, and does not charge it.
    """

    def __init__(self, policy: Policy, horizon_s: float = 60.0, epsilon: float = 0.2) -> None:
        super().__init__(policy)
        check_range("cost", "horizon_s", horizon_s, 0.0, above=True)
        check_range("cost", "epsilon", epsilon, 0.0, 1.0 - 1e-9)
        self._horizon_s, self._epsilon = horizon_s, epsilon
        self._cost_s: dict[str, float] = {}

    def decide(self, observation: Observation) -> Decision:
        """Return the changes that are worth their cost."""
        decision = self._policy.decide(observation)
        poor: dict[str, str] = {}
        for name, change in decision.changes.items():
            took_s = self._cost_s.get(name)
            if took_s is None:
                continue
            gain, cost = self._balance(observation.operators[name], change, took_s)
            if not gain > cost:
                poor[name] = f"gains {gain:.3g} and costs {cost:.3g} at {took_s:.2g} s a change"
        return _without(decision, poor, "cost")

    def applied(self, operator: str, change: Change, took_s: float) -> None:
        """Learn what a change costs."""
        super().applied(operator, change, took_s)
        before = self._cost_s.get(operator, took_s)
        self._cost_s[operator] = before + _SMOOTHING * (took_s - before)

    def _balance(self, view: OperatorView, change: Change, took_s: float) -> tuple[float, float]:
        """Return gain and cost, in the same unit."""
        saved = view.slots - change.assignment.slots
        if saved > 0:
            return saved * self._horizon_s, len(involved(view, change)[0]) * took_s
        waiting = self._waiting(view.slot_rate, view.service_rate)
        if waiting == math.inf:
            return math.inf, 0.0
        new = mean_service_rate(view)
        service = np.array([new if s is None else view.service_rate[s] for s in change.survivors])
        rate = np.bincount(
            change.assignment.slot_of, weights=view.group_rate, minlength=len(service)
        ).astype(np.float64)
        gain = waiting - self._waiting(rate, service)
        moving = sum(float(view.group_rate[group]) for group in _moved(view, change))
        return gain * self._horizon_s, moving * took_s**2 / 2

    def _waiting(self, rate: F64, service_rate: F64) -> float:
        """Return the mean number of records in the operator; infinite in overload."""
        busy = rate > 0.0
        latency_s = projected_latency_s(rate[busy], service_rate[busy], self._epsilon)
        return float(np.sum(rate[busy] * latency_s))


@dataclass
class _Trial:
    """A change that may turn out to be harmful.

    Attributes
    ----------
    change : Change
    before : Assignment
        What held until then.
    latency_s, rate : float
        Mean latency above the floor and arrivals per second over the window before the decision.
    decided_s : float
    applied_s : float or None
        When it came into force; None until then.
    """

    change: Change
    before: Assignment
    latency_s: float
    rate: float
    decided_s: float
    applied_s: float | None = None


class Rollback(Decorator):
    """Return to the previous assignment after a change that did harm, and bar that change.

    A change is judged once, over ``window_s`` seconds that begin ``window_s`` after it came into
    force (before, its own pause would be counted). It was harmful if the mean latency above the
    floor grew by more than the factor `worse`, the bound is missed on the average, and arrivals did
    not grow by more than a tenth, so that nothing but the change explains it. It is not judged if
    another change or a failed slot comes in between.

    Barred is what has the same kind and leads to the same number of slots.

    Parameters
    ----------
    policy : Policy
    window_s : float
        Seconds, more than 0; chosen, not tuned.
    worse : float
        At least 1; chosen, not tuned.
    bar_s : float
        How long a harmful change stays barred, in seconds, at least 0; chosen, not tuned.
    """

    def __init__(
        self, policy: Policy, window_s: float = 10.0, worse: float = 1.5, bar_s: float = 300.0
    ) -> None:
        super().__init__(policy)
        check_range("rollback", "window_s", window_s, 0.0, above=True)
        check_range("rollback", "worse", worse, 1.0)
        check_range("rollback", "bar_s", bar_s, 0.0)
        self._window_s, self._worse, self._bar_s = window_s, worse, bar_s
        self._history: dict[str, deque[tuple[float, float, float]]] = {}
        """Per operator: time, latency and arrival rate of each cycle of the last window."""
        self._trials: dict[str, _Trial] = {}
        self._barred_s: dict[tuple[str, Kind, int], float] = {}
        """Per operator, kind and number of slots: until when."""

    def decide(self, observation: Observation) -> Decision:
        """Return what the policy inside wants and is not barred, or the way back."""
        self._remember(observation)
        back = {
            name: change
            for name, view in observation.operators.items()
            if (change := self._way_back(name, view, observation.time_s))
        }
        decision = self._policy.decide(observation)
        barred = {
            name: "it did harm before"
            for name, change in decision.changes.items()
            if self._is_barred(name, change, observation.time_s)
        }
        decision = _without(decision, barred, "rollback")
        for name, change in decision.changes.items():
            if name not in back:
                self._try(name, change, observation)
        if not back:
            return decision
        reason = f"{', '.join(back)}: the last change made latency worse; back to what held before."
        return Decision({**decision.changes, **back}, reason, "rollback", decision.numbers)

    def applied(self, operator: str, change: Change, took_s: float) -> None:
        """Begin to judge `change`."""
        super().applied(operator, change, took_s)
        trial = self._trials.get(operator)
        if trial is None or trial.change is not change:
            self._trials.pop(operator, None)
        else:
            trial.applied_s = trial.decided_s + took_s

    def slot_failed(self, operator: str, slot_id: int) -> None:
        """Judge no change by what a failure did."""
        super().slot_failed(operator, slot_id)
        self._trials.pop(operator, None)

    def _remember(self, observation: Observation) -> None:
        for name, view in observation.operators.items():
            history = self._history.setdefault(name, deque())
            history.append((observation.time_s, mean_latency_s(view), arrival_rate(view)))
            while history[0][0] <= observation.time_s - self._window_s:
                history.popleft()

    def _outcome(self, operator: str) -> tuple[float, float]:
        """Return mean latency above the floor and arrivals per second over the last window."""
        _, latencies_s, rates = zip(*self._history[operator], strict=True)
        return sum(latencies_s) / len(latencies_s), sum(rates) / len(rates)

    def _try(self, operator: str, change: Change, observation: Observation) -> None:
        latency_s, rate = self._outcome(operator)
        before = observation.operators[operator].assignment
        self._trials[operator] = _Trial(change, before, latency_s, rate, observation.time_s)

    def _way_back(self, operator: str, view: OperatorView, now_s: float) -> Change | None:
        """Return the change that undoes the one on trial, if it is time and it was harmful."""
        trial = self._trials.get(operator)
        if trial is None or trial.applied_s is None:
            return None
        if now_s < trial.applied_s + 2 * self._window_s:
            return None
        del self._trials[operator]
        latency_s, rate = self._outcome(operator)
        before = trial.before
        harmful = (
            latency_s > self._worse * trial.latency_s
            and latency_s + view.floor_s > view.bound_s
            and rate <= _SAME_LOAD * trial.rate
        )
        same = view.assignment.slot_of == trial.change.assignment.slot_of
        if not (harmful and same and view.slots_min <= before.slots <= view.slots_max):
            return None
        self._barred_s[_bar(operator, trial.change)] = now_s + self._bar_s
        number = {old: new for new, old in enumerate(trial.change.survivors) if old is not None}
        return Change(
            Kind.RESCALE,
            Assignment(before.slot_of, before.slots, view.assignment.epoch + 1),
            tuple(number.get(slot) for slot in range(before.slots)),
        )

    def _is_barred(self, operator: str, change: Change, now_s: float) -> bool:
        return now_s < self._barred_s.get(_bar(operator, change), -math.inf)


def involved(view: OperatorView, change: Change) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the slots that a change stops: by the numbers before it, and by those after it.

    A slot is involved if it loses or gains a key group, vanishes, or is new.
    """
    survivors, slots = change.survivors, change.assignment.slots
    number = {old: new for new, old in enumerate(survivors) if old is not None}
    touched_old = {slot for slot in range(view.slots) if slot not in number}
    touched_new = {slot for slot in range(slots) if survivors[slot] is None}
    for group in _moved(view, change):
        touched_old.add(view.assignment.slot_of[group])
        touched_new.add(change.assignment.slot_of[group])
    before = touched_old | {s for n in touched_new if (s := survivors[n]) is not None}
    after = touched_new | {number[slot] for slot in touched_old if slot in number}
    return tuple(sorted(before)), tuple(sorted(after))


def _moved(view: OperatorView, change: Change) -> list[int]:
    """Return the key groups whose owner changes; a slot that is renumbered stays the owner."""
    number = {old: new for new, old in enumerate(change.survivors) if old is not None}
    pairs = zip(view.assignment.slot_of, change.assignment.slot_of, strict=True)
    return [group for group, (old, new) in enumerate(pairs) if number.get(old) != new]


def _bar(operator: str, change: Change) -> tuple[str, Kind, int]:
    return operator, change.kind, change.assignment.slots


def _sign(number: int) -> int:
    return (number > 0) - (number < 0)


def _without(decision: Decision, held: Mapping[str, str], by: str) -> Decision:
    """Return `decision` without the operators in `held`, and say who held them back and why."""
    if not held:
        return decision
    changes = {name: change for name, change in decision.changes.items() if name not in held}
    why = "; ".join(f"{name}: {text}" for name, text in held.items())
    rule = decision.rule if changes else f"{decision.rule}, held by {by}"
    reason = f"{decision.reason} Held back by {by}: {why}."
    return replace(decision, changes=changes, reason=reason, rule=rule)
