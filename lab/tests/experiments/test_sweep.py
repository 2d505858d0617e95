"""What it means to dominate, on points made by hand."""

from __future__ import annotations

from typing import Any

import pytest

from headgate_lab.experiments.streamswitch.fig05 import reaches
from headgate_lab.experiments.streamswitch.sweep import (
    FULL,
    domination,
    inner_box,
    success_at,
)


def point(policy: str, slots: float, success: float, groups: list[float] | None = None) -> Any:
    groups = groups or [success]
    return {
        "policy": policy,
        "slots_mean": slots,
        "success": success,
        "groups": groups,
        "deviation": 0.0,
    }


SWITCH = [point("streamswitch(0)", 8.0, 0.90), point("streamswitch(0.2)", 10.0, 0.98)]
RIVALS = [point("drs(0.2)", 9.0, 0.6), point("drs-lb(0.2)", 9.0, 0.7)]


def test_a_full_sweep_has_the_papers_20_experiments() -> None:
    ours = [name for name in FULL.policies() if name.startswith("packing")]
    assert len(ours) == len(FULL.packing)
    assert len(FULL.policies()) == len(set(FULL.policies())) == 20 + len(ours)


def test_success_is_interpolated_between_the_points_of_switch() -> None:
    assert success_at(SWITCH, 9.0) == pytest.approx(0.94)


def test_more_slots_than_switch_used_count_as_its_most() -> None:
    assert success_at(SWITCH, 12.0) == pytest.approx(0.98)


def test_fewer_slots_than_switch_used_compare_with_nothing() -> None:
    assert success_at(SWITCH, 7.0) is None


def test_switch_dominates_where_every_rival_is_below_its_curve() -> None:
    found = domination([*SWITCH, *RIVALS, point("static(9)", 9.0, 0.93)])
    assert found["all"]
    assert found["static"]["least_lead"] == pytest.approx(0.01)


def test_switch_does_not_dominate_a_rival_with_as_much_success_at_as_many_slots() -> None:
    found = domination([*SWITCH, *RIVALS, point("static(9)", 9.0, 0.94)])
    assert not found["static"]["dominates"]
    assert not found["all"]
    assert found["drs"]["dominates"]


def test_a_rival_cheaper_than_any_point_of_switch_is_named_not_judged() -> None:
    static = [point("static(7)", 7.0, 0.99), point("static(9)", 9.0, 0.5)]
    found = domination([*SWITCH, *RIVALS, *static])
    assert found["static"]["cheaper"] == ["static(7)"]
    assert found["static"]["dominates"]


def test_a_family_that_cannot_be_compared_is_not_dominated() -> None:
    found = domination([*SWITCH, *RIVALS, point("static(7)", 7.0, 0.1)])
    assert not found["static"]["dominates"]


def test_the_inner_box_takes_the_closest_number_of_slots_and_counts_groups() -> None:
    switch = point("streamswitch(0.2)", 10.0, 0.9, [0.9, 0.9, 0.9])
    rivals = [
        point("static(8)", 8.0, 0.5, [0.99, 0.99, 0.99]),
        point("static(11)", 10.5, 0.5, [0.95, 0.9, 0.1]),
        *[point(f"{name}(0.2)", 10.0, 0.5, [0.1, 0.1, 0.1]) for name in ("drs", "drs-lb")],
    ]
    found = inner_box([switch, *rivals])
    assert found["static"]["policy"] == "static(11)"
    assert found["static"]["lower"] == 1
    assert found["drs"]["lower"] == 0


@pytest.mark.parametrize(
    ("slots", "success", "met"), [(8.4, 0.9628, True), (8.5, 0.99, False), (8.0, 0.96, False)]
)
def test_the_papers_result_is_reached_with_its_success_and_its_slots(
    slots: float, success: float, met: bool
) -> None:
    assert reaches([point("streamswitch(0.2)", slots, success)])["met"] is met


def test_another_margin_may_reach_the_papers_result() -> None:
    points = [point("streamswitch(0)", 8.0, 0.97), point("streamswitch(0.2)", 10.0, 0.98)]
    found = reaches(points)
    assert not found["met"]
    assert found["met_by_some_epsilon"]
    assert found["success_at_the_papers_slots"] == pytest.approx(0.972)
