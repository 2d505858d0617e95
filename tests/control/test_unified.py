"""The unified policy: StreamSwitch on what is coming."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from control_views import absurd_views, check, seen, view
from hypothesis import given

from headgate.control.decision import Decision, Kind
from headgate.control.estimators.trend import Trend
from headgate.control.observation import OperatorView
from headgate.control.policies.unified import Unified


def after(
    loads: Sequence[float], *, slots: int = 2, latency_s: float = 0.5, ahead_s: float = 1.0
) -> Decision:
    """Return the decision after a second of each load, evenly spread over 40 key groups."""
    policy = Unified(0.1, ahead_s)
    for second, load in enumerate(loads):
        late = latency_s if second == len(loads) - 1 else 0.05
        operator = view([load / 40] * 40, 1000.0, slots=slots, latency_s=late)
        decision = policy.decide(seen(float(second), it=operator))
    return decision


def test_a_rise_is_met_as_far_as_it_is_foreseen() -> None:
    """1,700 records/s fit into two slots, the 2,000 of a second later do not."""
    rising = [500.0, 800.0, 1100.0, 1400.0, 1700.0]
    change = after(rising).changes["it"]
    assert change.kind is Kind.SCALE_OUT
    assert not after(rising, ahead_s=0.0)


def test_a_steady_load_is_what_it_is() -> None:
    assert not after([1700.0] * 6)


def test_a_fall_is_believed_when_it_has_come() -> None:
    falling = [1700.0, 1500.0, 1300.0, 1100.0, 950.0]
    assert not after(falling, latency_s=0.05)


def test_a_leap_takes_one_change() -> None:
    change = after([1700.0] * 5 + [7000.0]).changes["it"]
    assert change.assignment.slots >= 8


def test_a_trend_needs_half_its_time_and_is_bounded() -> None:
    trend = Trend(5.0)
    for time_s, rate in ((0.0, 1.0), (1.0, 100.0), (2.0, 200.0)):
        trend.observe(time_s, rate)
    assert trend.growth(1.0) == 1.0
    trend.observe(3.0, 300.0)
    assert trend.growth(1.0) == pytest.approx(1.0 + 99.7 / 300, rel=0.01)
    assert trend.growth(1000.0) == 2.0


@given(absurd_views())
def test_every_decision_is_one_that_can_be_carried_out(operator: OperatorView) -> None:
    policy = Unified()
    for second in range(4):
        observation = seen(float(second), it=operator)
        check(observation, policy.decide(observation))
