"""Kubernetes' autoscaler over slots."""

from __future__ import annotations

import numpy as np
import pytest
from control_views import absurd_views, check, seen, view
from hypothesis import given

from headgate.control.observation import OperatorView
from headgate_lab.rivals.hpa import Hpa


def busy(used: float, slots: int) -> OperatorView:
    """Return an operator whose slots are all so busy."""
    return view([1.0] * 40, slots=slots, utilisation=np.full(slots, used))


def slots_after(policy: Hpa, time_s: float, used: float, slots: int) -> int:
    """Return the slots after a decision."""
    change = policy.decide(seen(time_s, it=busy(used, slots))).changes.get("it")
    return slots if change is None else change.assignment.slots


@pytest.mark.parametrize(
    ("used", "slots", "wanted"),
    [(0.9, 7, 9), (0.76, 7, 7), (0.64, 7, 7), (1.0, 1, 2), (0.0, 7, 1), (2.1, 2, 6), (2.1, 8, 16)],
)
def test_slots_are_in_proportion_to_utilisation(used: float, slots: int, wanted: int) -> None:
    assert slots_after(Hpa(window_s=0.0), 0.0, used, slots) == wanted


def test_it_decides_once_a_period() -> None:
    policy = Hpa()
    assert slots_after(policy, 0.0, 0.9, 7) == 9
    assert slots_after(policy, 14.0, 0.9, 9) == 9
    assert slots_after(policy, 15.0, 0.9, 9) == 12


def test_slots_are_given_back_after_the_most_of_the_window() -> None:
    policy = Hpa()
    assert slots_after(policy, 0.0, 0.7, 8) == 8
    assert slots_after(policy, 285.0, 0.2, 8) == 8
    assert slots_after(policy, 315.0, 0.2, 8) == 3


@given(absurd_views())
def test_every_decision_is_one_that_can_be_carried_out(operator: OperatorView) -> None:
    policy = Hpa()
    for second in (0.0, 20.0, 400.0):
        observation = seen(second, it=operator)
        check(observation, policy.decide(observation))
