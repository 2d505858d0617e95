"""Wraps any policy: limits its decisions, or learns from their effect.

Each decorator is a policy. No decorator reads a clock: the observation has the time. Wrap decorators in
this sequence, the innermost first: hysteresis, cool-down, action limit, freeze, advice. A user writes the
first three among a policy's parameters (`headgate.control.registry`); the control loop adds the others.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, replace

from headgate.control.decision import Change, ChangeKind, Decision
from headgate.control.limits import check_range
from headgate.control.observation import Observation, OperatorView
from headgate.control.policy import Policy, asked

_MINUTE_S = 60.0


@dataclass(frozen=True)
class Advice(Decision):
    """Holds a decision that nobody carries out: it may have changes, but ``bool(advice)`` is False."""

    def __bool__(self) -> bool:
        return False


class Decorator:
    """Wraps a policy and passes every call on to it.

    `policy`: the policy inside. The decorator's name is the name of that policy plus the decorator's
    parameter.
    """

    parameter = ""
    """Name and value of the decorator's parameter, ``hysteresis=3``; empty if it has none."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy

    @property
    def name(self) -> str:
        """Return the text that makes the same policy again: ``streamswitch(0.2, hysteresis=3)``."""
        inside = self._policy.name
        if not self.parameter:
            return inside
        name, _, others = inside.removesuffix(")").partition("(")
        return f"{name}({', '.join(filter(None, (others, self.parameter)))})"

    def decide(self, observation: Observation) -> Decision:
        """Return the decision of the policy inside."""
        return self._policy.decide(observation)

    def applied(self, operator: str, change: Change, took_s: float) -> None:
        """Tell the policy inside."""
        self._policy.applied(operator, change, took_s)

    def slot_failed(self, operator: str, slot_id: int) -> None:
        """Tell the policy inside."""
        self._policy.slot_failed(operator, slot_id)


class Hysteresis(Decorator):
    """Lets a change through only after the policy wanted it in several successive cycles.

    Two changes of an operator count as the same if their kinds are equal and both lead to more, to
    fewer or to as many slots. The newest change goes through.

    `cycles`: at least 1; 1 lets everything through. Cycles without the operator do not count.
    """

    def __init__(self, policy: Policy, cycles: int) -> None:
        super().__init__(policy)
        check_range("hysteresis", "cycles", cycles, 1)
        self.parameter = f"hysteresis={cycles}"
        self._cycles = cycles
        self._runs: dict[str, tuple[tuple[ChangeKind, int], int]] = {}
        """Per operator: kind and direction of the last change, and in how many successive cycles."""

    def decide(self, observation: Observation) -> Decision:
        """Return the changes that the policy inside has wanted for long enough."""
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
    """Holds back further changes of the slots that a change involved, for a time after that change.

    `cooldown_s`: seconds, more than 0. A cooling slot, also a new slot, is neither source nor
    destination of a change. Changes among other slots of the operator go through.

    References
    ----------
    Not in StreamSwitch's paper; its published code has 5 s and 10 s per involved executor. Differs:
    that code also leaves locked executors out of the diagnosis; here only the decision is held back.
    """

    def __init__(self, policy: Policy, cooldown_s: float = 5.0) -> None:
        super().__init__(policy)
        check_range("cool-down", "cooldown_s", cooldown_s, 0.0, above=True)
        self.parameter = f"cooldown_s={cooldown_s:g}"
        self._cooldown_s = cooldown_s
        self._until_s: dict[tuple[str, int], float] = {}
        """Per operator and identity of a slot: the end of its cool-down, in seconds of job time."""
        self._decided: dict[str, tuple[Change, tuple[int, ...], float]] = {}
        """Per operator: the last change that went through, its slots (new numbers), and the time."""
        self._applied: dict[str, tuple[Change, tuple[int, ...], float]] = {}
        """Per operator: the last change in force whose slots `_lock` has not locked yet, those slots,
    and the end of their cool-down."""

    def decide(self, observation: Observation) -> Decision:
        """Return the changes of the policy inside that concern no locked slot."""
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
        """Lock slots by identity as soon as their identities are known; free slots whose time is over."""
        for name in [name for name in self._applied if name in observation.operators]:
            view = observation.operators[name]
            change, slots, until_s = self._applied.pop(name)
            if view.assignment.epoch == change.assignment.epoch:
                self._until_s.update({(name, view.slot_ids[slot]): until_s for slot in slots})
        if self._until_s:
            now_s = observation.time_s
            self._until_s = {slot: t for slot, t in self._until_s.items() if t > now_s}


class ActionLimit(Decorator):
    """Lets at most so many changes through in any minute, over all operators.

    Wrap it around every decorator that may drop a change: it counts the changes that it lets through.

    `per_minute`: at least 1.
    """

    def __init__(self, policy: Policy, per_minute: int) -> None:
        super().__init__(policy)
        check_range("action limit", "per_minute", per_minute, 1)
        self.parameter = f"per_minute={per_minute}"
        self._per_minute = per_minute
        self._times_s: deque[float] = deque(maxlen=per_minute)

    def decide(self, observation: Observation) -> Decision:
        """Return the changes of the policy inside, upstream operators first, up to the limit."""
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
    """Decides nothing while frozen, and does not call the policy inside."""

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
        """Return the decision of the policy inside, unless frozen."""
        if observation.time_s < self._until_s:
            return Decision(reason="Frozen by hand.", rule="frozen")
        return asked(self._policy, observation)


class AdviseOnly(Decorator):
    """Turns every decision into advice: the journal gets it, and nobody carries it out.

    Attributes
    ----------
    on : bool    Whether decisions become advice now.
    """

    def __init__(self, policy: Policy, *, on: bool = True) -> None:
        super().__init__(policy)
        self.on = on

    def decide(self, observation: Observation) -> Decision:
        """Return the decision of the policy inside, as advice."""
        decision = self._policy.decide(observation)
        if not (self.on and decision):
            return decision
        return Advice(decision.changes, decision.reason, decision.rule, decision.numbers)


def involved(view: OperatorView, change: Change) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the slots that a change involves: their numbers before the change, and after it.

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
    """Return the key groups whose owner changes; a slot with a new number stays the same owner."""
    number = {old: new for new, old in enumerate(change.survivors) if old is not None}
    pairs = zip(view.assignment.slot_of, change.assignment.slot_of, strict=True)
    return [group for group, (old, new) in enumerate(pairs) if number.get(old) != new]


def _sign(number: int) -> int:
    return (number > 0) - (number < 0)


def _without(decision: Decision, held: Mapping[str, str], by: str) -> Decision:
    """Return `decision` without the changes in `held`; its reason says who held them back, and why."""
    if not held:
        return decision
    changes = {name: change for name, change in decision.changes.items() if name not in held}
    why = "; ".join(f"{name}: {text}" for name, text in held.items())
    rule = decision.rule if changes else f"{decision.rule}, held by {by}"
    reason = f"{decision.reason} Held back by {by}: {why}."
    return replace(decision, changes=changes, reason=reason, rule=rule)
