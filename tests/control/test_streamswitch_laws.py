"""What holds of every decision of StreamSwitch, whatever it sees.

The number of random observations comes from ``HEADGATE_LAWS_OBSERVATIONS``; a million take some
minutes.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import numpy as np
from control_views import absurd_views, check, seen
from hypothesis import given

from headgate.control.decision import ChangeKind, Decision
from headgate.control.observation import OperatorView
from headgate.control.slots.streamswitch import StreamSwitch
from headgate.core.assignment import Assignment

OBSERVATIONS = int(os.environ.get("HEADGATE_LAWS_OBSERVATIONS", "10000"))
EPSILON = 0.2
ABSURD = np.array([np.nan, 0.0, 1e-300, 1e-9, 1e15, 799.999, 800.0])


def hold(view: OperatorView, decision: Decision, *, steps: int = 1) -> ChangeKind | None:
    """Fail unless the laws hold of a decision about one operator; return what it does."""
    check(seen(0.0, it=view), decision)
    assert decision.rule
    assert decision.reason
    if not decision:
        return None
    change = decision.changes["it"]
    late = np.any(view.latency_s - view.floor_s > view.alert_s)
    if change.kind is ChangeKind.SCALE_IN:
        # Property 2 of the paper, 4.2; and none may be near its bound.
        assert np.all(view.slot_rate < (1.0 - EPSILON) * view.service_rate)
        assert not late
        assert view.slots - steps <= change.assignment.slots < view.slots
        assert change.assignment.slots >= view.slots_min
    else:
        # Property 1 of the paper, 4.1.
        assert late
        grown = change.assignment.slots - view.slots
        assert 1 <= grown <= steps if change.kind is ChangeKind.SCALE_OUT else grown == 0
        assert change.source in change.assignment.slot_of, "a source keeps a group"
    return change.kind


def mostly(rng: np.random.Generator, usual: np.ndarray, absurd: np.ndarray) -> np.ndarray:
    """Return `usual` with one entry in twenty replaced by an absurd one."""
    spoilt = rng.random(usual.shape) < 0.05
    return np.where(spoilt, rng.choice(absurd, usual.shape), usual)


def random_views(seed: int, count: int) -> Iterator[OperatorView]:
    """Operators around the edge between good and severe, with absurd values among them."""
    rng = np.random.default_rng(seed)
    for _ in range(max(count // 100, 1)):
        groups = int(rng.integers(1, 13))
        slots = int(rng.integers(1, groups + 1))
        assignment = Assignment(tuple(rng.integers(0, slots, groups).tolist()), slots)
        scale = 1000.0 * slots / groups * rng.choice([0.1, 0.4, 0.7, 1.0])
        rates = mostly(rng, rng.exponential(scale, (100, groups)), ABSURD[1:])
        mu = mostly(rng, rng.choice([500.0, 1000.0, 2000.0], (100, slots)), ABSURD[1:])
        latency = mostly(rng, rng.exponential(0.05, (100, slots)), ABSURD)
        backlog = rng.choice([0.0, 0.0, 5.0], (100, groups))
        order = mostly(rng, rng.exponential(0.05, (100, groups)), ABSURD)
        slots_min = int(rng.integers(1, 4))
        slots_max = slots_min + int(rng.integers(0, 12))
        for i in range(100):
            yield OperatorView(
                assignment=assignment,
                slot_ids=tuple(range(slots)),
                latency_s=latency[i],
                group_latency_s=order[i],
                group_rate=rates[i],
                service_rate=mu[i],
                utilisation=latency[i],
                backlog=backlog[i],
                bound_s=1.0,
                window_s=1.0,
                alert_s=0.1,
                floor_s=0.4 * (i % 2),
                slots_min=slots_min,
                slots_max=slots_max,
            )


def test_laws_hold_of_random_and_absurd_observations() -> None:
    """No replacement, no relief without an alert, no merge without room; and nothing is raised."""
    policy = StreamSwitch(EPSILON)
    seeds = range(max(OBSERVATIONS // 10_000, 1))
    kinds = [
        hold(view, policy.decide(seen(0.0, it=view)))
        for seed in seeds
        for view in random_views(seed, min(OBSERVATIONS, 10_000))
    ]
    assert len(kinds) >= OBSERVATIONS
    # A law about something that never happens says nothing.
    for kind in (ChangeKind.SCALE_IN, ChangeKind.SCALE_OUT, ChangeKind.BALANCE, None):
        assert kinds.count(kind) > OBSERVATIONS // 200


@given(absurd_views())
def test_laws_hold_of_anything_an_observation_may_contain(view: OperatorView) -> None:
    hold(view, StreamSwitch(EPSILON).decide(seen(0.0, it=view)))


@given(absurd_views())
def test_laws_hold_of_several_steps_at_once(view: OperatorView) -> None:
    policy = StreamSwitch(EPSILON, steps=8)
    hold(view, policy.decide(seen(0.0, it=view)), steps=8)


@given(absurd_views())
def test_a_decision_depends_on_nothing_but_the_observation(view: OperatorView) -> None:
    policy = StreamSwitch(EPSILON)
    observation = seen(0.0, it=view)
    assert policy.decide(observation) == policy.decide(observation)
