"""The unified policy over pools of replicas: PSPS's graph, and a latency bound."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest

from headgate.control.estimators.forecast import Naive
from headgate.control.pools.psps import Psps
from headgate.control.pools.replicas import Interval, OperatorInterval, ReplicaDecision
from headgate.control.pools.unified_pools import UnifiedPools
from headgate.core.errors import UnsupportedQuery


def interval(events: float, queued: float = 0.0, active: int = 2, **more: object) -> Interval:
    """Ten seconds of a chain whose second operator gets half of what the first one does."""
    first = OperatorInterval(active, 16, 0.04, events, from_source=events, queued=queued)
    second = OperatorInterval(1, 16, 0.04, events / 2, received={"first": events / 2})
    return Interval(10.0, events, {"first": first, "second": second}, **more)  # type: ignore[arg-type]


def after(series: Sequence[float], **named: float) -> ReplicaDecision:
    policy = UnifiedPools(**named)  # type: ignore[arg-type]
    for events in series:
        decision = policy.decide(interval(events))
    return decision


def test_a_rise_is_met_with_the_replicas_of_the_next_interval() -> None:
    """500, 750, 1,000 events are followed by 1,250: 5 replicas' work, and some to stay within 1 s."""
    wanted = after([500.0, 750.0, 1000.0]).active
    assert wanted["first"] == 6
    assert Psps().decide(interval(1000.0)).active["first"] == 4


def test_operators_downstream_follow_from_the_input_at_once() -> None:
    assert after([500.0, 750.0, 1000.0]).active["second"] == 3


def test_a_tighter_bound_wants_more_replicas() -> None:
    """Of 25 events/s a replica may be given 24 for a bound of 1 s, and 15 for one of 0.1 s."""
    loose = UnifiedPools(1.0, forecaster=Naive()).decide(interval(1000.0)).active["first"]
    tight = UnifiedPools(0.1, forecaster=Naive()).decide(interval(1000.0)).active["first"]
    assert (loose, tight) == (5, 7)


def test_what_waits_is_drained_within_nine_intervals() -> None:
    calm = UnifiedPools(forecaster=Naive()).decide(interval(900.0)).active["first"]
    full = UnifiedPools(forecaster=Naive()).decide(interval(900.0, queued=1000.0)).active["first"]
    more = UnifiedPools(forecaster=Naive()).decide(interval(900.0, queued=3000.0)).active["first"]
    assert (calm, full, more) == (4, 5, 6)


def test_absurd_samples_change_nothing() -> None:
    decision = UnifiedPools().decide(interval(math.nan))
    assert not decision
    assert "missing or absurd" in decision.reason


def test_a_stateful_operator_is_refused() -> None:
    stateful = OperatorInterval(1, 4, 0.01, 5.0, from_source=5.0, stateful=True)
    with pytest.raises(UnsupportedQuery, match="keeps state"):
        UnifiedPools().decide(Interval(1.0, 5.0, {"count": stateful}))
