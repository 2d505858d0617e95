"""Laws that every policy of headgate keeps, and the plainest of them."""

from __future__ import annotations

import pytest
from control_views import seen, view
from policy_laws import PolicyLaws

from headgate.control.decision import ChangeKind
from headgate.control.registry import names
from headgate.control.slots.static import Static
from headgate.control.slots.threshold import Threshold
from headgate.core.errors import ConfigError


@pytest.mark.parametrize("text", [name if name != "static" else "static(3)" for name in names()])
class TestLaws(PolicyLaws):
    pass


# static


def test_static_brings_every_operator_to_its_number_and_then_rests() -> None:
    made = Static(3)
    decision = made.decide(seen(0.0, a=view([1.0] * 8, slots=2), b=view([1.0] * 8, slots=3)))
    assert list(decision.changes) == ["a"]
    assert decision.changes["a"].assignment.slots == 3
    assert decision.changes["a"].survivors == (0, 1, None)


def test_static_without_a_number_never_changes_anything() -> None:
    assert not Static().decide(seen(0.0, a=view([900.0] * 8)))


def test_static_keeps_to_the_limits_of_an_operator() -> None:
    decision = Static(9).decide(seen(0.0, a=view([1.0] * 8, slots=2, slots_max=4)))
    assert decision.changes["a"].assignment.slots == 4


# threshold


@pytest.mark.parametrize(
    ("start", "provisioned"), [(1, 2), (5, 9), (9, 16), (18, 31), (30, 52), (40, 69)]
)
def test_threshold_provisions_as_stretch_does(start: int, provisioned: int) -> None:
    rates = [120.0 * start / 144] * 144
    decision = Threshold().decide(seen(0.0, a=view(rates, slots=start)))
    assert decision.changes["a"].assignment.slots == provisioned


@pytest.mark.parametrize(
    ("start", "left"), [(5, 2), (9, 3), (18, 7), (30, 12), (40, 17), (60, 25), (70, 30)]
)
def test_threshold_decommissions_as_stretch_does(start: int, left: int) -> None:
    rates = [30.0 * start / 144] * 144
    decision = Threshold().decide(seen(0.0, a=view(rates, slots=start)))
    assert decision.changes["a"].assignment.slots == left
    assert decision.changes["a"].kind is ChangeKind.RESCALE


@pytest.mark.parametrize(("rate", "start", "left"), [(465.0, 9, 3), (1296.0, 70, 30)])
def test_threshold_takes_a_load_for_what_it_is_but_for_one_record_of_its_window(
    rate: float, start: int, left: int
) -> None:
    # 30 % of what 9 and 70 slots sustain, 464.76/s and 1,296.15/s, as counted over a second.
    mu = {9: 464.76, 70: 1296.15}[start] / (0.3 * start)
    made = Threshold()
    one = view([rate / 144] * 144, mu, slots=start)
    decision = made.decide(seen(0.0, a=one))
    assert decision.changes["a"].assignment.slots == left
    # Nor does what it leads to ask for another change.
    assert not made.decide(seen(1.0, a=view([rate / 144] * 144, mu, slots=left)))


@pytest.mark.parametrize("load", [0.45, 0.6, 0.9])
def test_threshold_does_nothing_within_the_band_and_on_its_edges(load: float) -> None:
    assert not Threshold().decide(seen(0.0, a=view([load * 50.0] * 4, slots=2)))


def test_threshold_never_scales_in_so_far_that_it_must_scale_out_again() -> None:
    # 3 slots at 44 %: floor(1.32 / 0.7) is one slot at 132 %.
    decision = Threshold().decide(seen(0.0, a=view([22.0] * 6, slots=3)))
    assert decision.changes["a"].assignment.slots == 2


def test_threshold_decides_nothing_while_no_service_rate_is_known() -> None:
    assert not Threshold().decide(seen(0.0, a=view([50.0] * 4, 0.0)))


@pytest.mark.parametrize("bad", [(0.9, 0.7, 0.0), (0.7, 0.7, 0.4), (0.9, 0.4, 0.5)])
def test_threshold_wants_its_three_numbers_to_ascend(bad: tuple[float, float, float]) -> None:
    with pytest.raises(ConfigError, match="threshold: low="):
        Threshold(*bad)
