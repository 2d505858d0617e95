"""What policies share that choose a number of slots."""

from __future__ import annotations

import math

import pytest
from control_views import seen, view

from headgate.control.slots.rescaling import mean_service_rate, rescaled
from headgate_lab.rivals.averages import Averages, is_whole, mean_latency_s, processing_rate


def test_a_rescale_keeps_within_limits_and_key_groups() -> None:
    four = view([1.0] * 8, slots=4, slots_min=2, slots_max=20)
    slots = [c and c.assignment.slots for c in (rescaled(four, n) for n in (0, 3, 4, math.inf))]
    assert slots == [2, 3, None, 8]


def test_a_rescale_keeps_the_numbers_of_the_slots_that_stay() -> None:
    four = view([1.0] * 8, slots=4)
    more, fewer = rescaled(four, 5), rescaled(four, 3)
    assert more is not None
    assert fewer is not None
    assert (more.survivors, fewer.survivors) == ((0, 1, 2, 3, None), (0, 1, 2))


def test_the_mean_service_rate_is_of_slots_where_it_is_known() -> None:
    assert mean_service_rate(view([1.0] * 4, [0.0, 50.0, 100.0, 0.0], slots=4)) == 75.0
    assert mean_service_rate(view([1.0] * 4, 0.0)) == 0.0


def test_the_mean_latency_is_weighted_and_above_the_floor() -> None:
    uneven = view([30.0, 10.0], latency_s=[0.5, 0.9], floor_s=0.4)
    assert mean_latency_s(uneven) == pytest.approx(0.2)


def test_slots_that_completed_nothing_have_no_part_in_the_mean_latency() -> None:
    assert mean_latency_s(view([30.0, 10.0], latency_s=[math.nan, 0.9])) == pytest.approx(0.9)
    assert mean_latency_s(view([30.0, 10.0], latency_s=math.nan)) == 0.0


def test_the_processing_rate_is_the_used_share_of_the_service_rate() -> None:
    busy = view([1.0] * 4, 100.0, slots=2)
    busy.utilisation[:] = [0.25, math.nan]
    assert processing_rate(busy) == [25.0, 0.0]


def test_averages_are_means_over_cycles() -> None:
    means = Averages()
    means.add(view([10.0] * 4, 100.0, latency_s=0.1))
    means.add(view([20.0] * 4, 200.0, latency_s=0.3))
    figures = (means.rate, means.service_rate, means.latency_s, means.processing_rate)
    assert figures == pytest.approx((60.0, 150.0, 0.2, 150.0))


def test_a_job_is_whole_when_every_operator_that_its_edges_name_can_be_seen() -> None:
    one, edges = view([1.0] * 4), {"b": ("a",)}
    assert is_whole(seen(0.0, edges, a=one, b=one))
    assert not is_whole(seen(0.0, edges, a=one))
    assert not is_whole(seen(0.0, edges, b=one))
    assert is_whole(seen(0.0, a=one))
