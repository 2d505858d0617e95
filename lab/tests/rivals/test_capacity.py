"""What a number of slots sustains, by utilisation and throughput."""

from __future__ import annotations

import math

import pytest

from headgate_lab.rivals.capacity import CapacityModel, ThroughputLine


def test_throughput_is_a_straight_line_over_utilisation() -> None:
    one = ThroughputLine()
    # Ten records per second cost nothing, each hundred more a utilisation of 1.
    for used in (0.2, 0.5, 0.3):
        one.add(used, 10.0 + 100.0 * used)
    assert one.at(1.0) == pytest.approx(110.0)
    assert one.at(0.0) == pytest.approx(10.0)


def test_where_utilisation_never_varied_the_line_goes_through_the_origin() -> None:
    one = ThroughputLine()
    assert one.at(1.0) == 0.0
    one.add(0.5, 40.0)
    one.add(0.5, 60.0)
    assert one.at(1.0) == pytest.approx(100.0)


def test_a_falling_line_sustains_nothing_rather_than_less() -> None:
    one = ThroughputLine()
    for used, done in ((0.1, 90.0), (0.2, 10.0)):
        one.add(used, done)
    assert one.at(1.0) == 0.0


def model(used: list[float], done: list[float]) -> CapacityModel:
    made = CapacityModel()
    made.observe(range(len(used)), used, done)
    made.renew()
    return made


def test_a_slot_that_is_less_busy_has_less_to_do_also_when_the_busiest_has_nothing_left() -> None:
    # 100/s each: the second, 0.2 less busy, gets to 0.8.
    assert model([0.5, 0.3], [50.0, 30.0]).of(2) == pytest.approx(180.0)
    assert model([0.5, 0.5], [50.0, 50.0]).of(2) == pytest.approx(200.0)


def test_numbers_never_seen_are_in_proportion_to_the_present_and_those_seen_are_remembered() -> (
    None
):
    made = model([0.5, 0.3], [50.0, 30.0])
    assert [made.of(slots) for slots in (1, 4)] == pytest.approx([90.0, 360.0])
    made.observe([0], [0.5], [60.0])
    made.renew()
    # What was seen of slot 0 says 110/s between them.
    assert made.of(2) == pytest.approx(180.0)
    assert made.of(4) == pytest.approx(4.0 * made.of(1))


def test_what_was_known_of_a_number_counts_half() -> None:
    made = model([0.5], [50.0])
    made.observe([0], [0.5], [70.0])
    made.renew()
    # The line is at 60 for 0.5 now.
    assert made.of(1) == pytest.approx((100.0 + 120.0) / 2.0)


def test_nothing_is_learned_while_a_slot_was_not_seen() -> None:
    made = CapacityModel()
    assert made.of(3) == 0.0
    made.observe([0, 1], [0.5, math.nan], [50.0, 0.0])
    made.renew()
    assert made.of(2) == 0.0
    made.observe([0, 1], [0.5, 0.5], [50.0, 50.0])
    made.forget(1)
    made.forget(9)
    made.renew()
    assert made.of(2) == 0.0


def test_a_slot_keeps_its_line_as_long_as_it_lives() -> None:
    made = model([0.5], [50.0])
    made.observe([0, 7], [0.5, 0.5], [70.0, 80.0])
    made.renew()
    assert made.of(2) == pytest.approx(120.0 + 160.0)
    made.observe([7], [0.5], [80.0])
    made.observe([0, 7], [0.5, 0.5], [70.0, 80.0])
    made.renew()
    # Slot 0 left, so what it was before is forgotten: 140 + 160, and half of what was known.
    assert made.of(2) == pytest.approx((280.0 + 300.0) / 2.0)
