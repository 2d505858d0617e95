"""Runs a policy within a fleet's grant: limits its slots, and computes its request and the excess.

The request is the number of slots that the policy would use without the grant. The excess is the number
of slots above the grant, which the job gives up.
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import TypeVar

import numpy as np

from headgate.control.decision import Change, Decision
from headgate.control.decorators import Decorator
from headgate.control.fleet.grant import UNLIMITED, Grant
from headgate.control.observation import Observation, OperatorView
from headgate.control.policy import Policy, asked
from headgate.control.pools.replicas import Interval, ReplicaDecision, ReplicaPolicy
from headgate.control.slots.rescaling import rescaled
from headgate.control.slots.strategies import best_scale_in, change_of, joined, view_after

AnyPolicy = TypeVar("AnyPolicy", Policy, ReplicaPolicy)


_KEPT_S = 10.0
"""Seconds for which a request lasts; some policies request slots in one cycle and balance in the next.
Chosen."""


_ASKED_MOST = 64
"""Most calls of a policy's copy in one cycle, each for further slots."""


class _Requests:
    """Remembers the largest wish of each operator in the last `_KEPT_S`, while it uses all its grant."""

    def __init__(self) -> None:
        self._wishes: dict[str, list[tuple[float, int]]] = {}

    def note(
        self,
        time_s: float,
        wishes: Mapping[str, int],
        most: Mapping[str, int],
        full: Collection[str],
    ) -> dict[str, int]:
        """Note wishes, and return those above `most` of operators in `full`."""
        for name, slots in wishes.items():
            self._wishes.setdefault(name, []).append((time_s, slots))
        self._wishes = {
            name: [(at_s, slots) for at_s, slots in made if at_s > time_s - _KEPT_S]
            for name, made in self._wishes.items()
            if name in full
        }
        largest = {n: max((s for _, s in made), default=0) for n, made in self._wishes.items()}
        return {name: slots for name, slots in largest.items() if slots > most.get(name, 0)}


class Granted(Decorator):
    """Limits the slots of a policy to its grant, and computes how many it would use without a grant.

    Where an operator holds more than its grant, the decision merges its least loaded slots, and the
    policy is not called. Where an operator holds all of its grant, a copy of the policy decides without
    a grant: the slots that the copy wants above the grant are the request. The policy itself does not
    see this, so a request does not change its later decisions.

    Attributes
    ----------
    grant : Grant    Replaced with each new grant of the fleet; used from the next decision on.
    requests : dict of str to int
        By operator: slots that the policy would use, each more than granted. Replaced, never changed.
    """

    def __init__(self, policy: Policy) -> None:
        super().__init__(policy)
        self.grant: Grant = UNLIMITED
        self.requests: dict[str, int] = {}
        self._requested = _Requests()

    def decide(self, observation: Observation) -> Decision:
        """Return the decision of the policy inside, within its grant."""
        most = {
            n: v.slots if v.held else self.grant.most(n, v.slots_max)
            for n, v in observation.operators.items()
        }
        over = {n: v for n, v in observation.operators.items() if v.slots > most[n]}
        if over and self.grant is not UNLIMITED:
            return _given_up(over, most)
        bounded = {n for n, v in observation.operators.items() if most[n] < v.slots_max}
        if not bounded:
            self.requests, self._requested = {}, _Requests()
            return asked(self._policy, observation)
        free = _copy_of(self._policy)
        within = {n: _limited(v, most[n]) for n, v in observation.operators.items()}
        decision = asked(self._policy, replace(observation, operators=within))
        full = {n for n in bounded if _after(decision, n, observation) >= most[n]}
        wishes = _wishes(free, observation, full) if full else {}
        # an operator with a change under way is not observed, and keeps its earlier request
        unseen = self.requests.keys() - observation.operators.keys()
        self.requests = self._requested.note(observation.time_s, wishes, most, full | unseen)
        return decision


class GrantedPools:
    """Limits the replicas of a policy over pools to its grant, and computes how many it would use.

    As `Granted`, for pools of replicas: a pool is as large as its grant.

    Attributes
    ----------
    grant : Grant    Replaced with each new grant of the fleet; used from the next decision on.
    requests : dict of str to int
        By stage: replicas that the policy would use, each more than granted. Replaced, never changed.
    """

    def __init__(self, policy: ReplicaPolicy) -> None:
        self._policy = policy
        self.grant: Grant = UNLIMITED
        self.requests: dict[str, int] = {}
        self._requested = _Requests()
        self._time_s = 0.0

    @property
    def name(self) -> str:
        """Return the name of the policy inside."""
        return self._policy.name

    def decide(self, interval: Interval) -> ReplicaDecision:
        """Return the decision of the policy inside, within its grant."""
        most = {n: self.grant.most(n, pool.pool) for n, pool in interval.operators.items()}
        if all(most[n] == pool.pool for n, pool in interval.operators.items()):
            self.requests, self._requested = {}, _Requests()
            return self._policy.decide(interval)
        free = _copy_of(self._policy)
        within = {
            n: replace(pool, pool=most[n], least=min(pool.least, most[n]))
            for n, pool in interval.operators.items()
        }
        decision = self._policy.decide(replace(interval, operators=within))
        wishes = {} if free is None else free.decide(interval).active
        self._time_s += interval.duration_s
        full = {
            n
            for n, pool in interval.operators.items()
            if decision.active.get(n, pool.active) >= most[n]
        }
        self.requests = self._requested.note(self._time_s, wishes, most, full)
        return decision


def _copy_of(policy: AnyPolicy) -> AnyPolicy | None:
    """Return a copy of a policy as it is now; None for a policy that cannot be copied."""
    try:
        return copy.deepcopy(policy)
    except Exception:  # a user's policy that cannot be copied: its requests stay unknown
        return None


def _wishes(policy: Policy | None, observation: Observation, full: set[str]) -> dict[str, int]:
    """Return the slots that a policy would use for the operators in `full`, which use all their grant.

    A policy may add one slot at a time, so it is called with each added slot until it adds none.
    """
    wishes: dict[str, int] = {}
    for _ in range(_ASKED_MOST if policy is not None else 0):
        assert policy is not None
        try:
            decision = policy.decide(observation)
        except Exception:  # the policy fails in its own decision as well, which reports the failure
            break
        more = {
            name: change
            for name, change in decision.changes.items()
            if name in full and change.assignment.slots > wishes.get(name, 0)
        }
        if not more:
            break
        wishes |= {name: change.assignment.slots for name, change in more.items()}
        views = dict(observation.operators)
        views |= {name: _under(views[name], change) for name, change in more.items()}
        observation = replace(observation, operators=views)
    return wishes


def _under(view: OperatorView, change: Change) -> OperatorView:
    """Return the view after a change, with unchanged rates.

    A new slot gets service rate and latency of the change's source; without a source, those of the slot
    with the highest rate.
    """
    origin = change.source if change.source is not None else int(np.argmax(view.slot_rate))
    kept = [origin if old is None else old for old in change.survivors]
    return replace(
        view,
        assignment=replace(change.assignment, epoch=view.assignment.epoch),
        slot_ids=tuple(
            -1 - new if old is None else view.slot_ids[old]
            for new, old in enumerate(change.survivors)
        ),
        latency_s=view.latency_s[kept],
        service_rate=view.service_rate[kept],
        utilisation=view.utilisation[kept],
    )


def _after(decision: Decision, operator: str, observation: Observation) -> int:
    change = decision.changes.get(operator)
    return observation.operators[operator].slots if change is None else change.assignment.slots


def _limited(view: OperatorView, most: int) -> OperatorView:
    return replace(view, slots_max=most, slots_min=min(view.slots_min, most))


def _given_up(over: Mapping[str, OperatorView], most: Mapping[str, int]) -> Decision:
    """Return the changes that give up slots above the grant."""
    changes = {name: merged(view, most[name]) for name, view in over.items()}
    counts = ", ".join(f"{name} {view.slots} -> {most[name]}" for name, view in over.items())
    return Decision(
        changes, f"Given up, since no longer granted: {counts} slots.", "grant taken back"
    )


def merged(view: OperatorView, slots: int) -> Change:
    """Return the change to `slots` slots, fewer than now, by a sequence of best merges.

    Where a slot's service rate is unknown, or no two slots can merge since all have a share of one
    split key group, the change gives all slots equally many key groups instead.

    References
    ----------
    StreamSwitch 3.4, Algorithm 1, repeated.
    """
    change: Change | None = None
    known = bool((view.service_rate > 0.0).all())
    while view.slots > slots:
        strategy = best_scale_in(view, 0.0) if known else None
        if strategy is None:
            spread = rescaled(replace(view, slots_min=1, slots_max=view.slots), slots)
            assert spread is not None  # it has more
            return spread if change is None else joined(change, spread)
        merge = change_of(view, strategy)
        change = merge if change is None else joined(change, merge)
        view = view_after(view, strategy)
    assert change is not None  # it has more
    return change
