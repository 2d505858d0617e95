"""DRRS's measures on series and logs made by hand."""

from __future__ import annotations

import numpy as np
import pytest

from headgate_lab import scaling_period
from headgate_lab.scaling_period import Latencies
from headgate_lab.sim.dataflow import measures
from headgate_lab.sim.dataflow.eventlog import EventLog


def latencies(values: list[float], step_s: float = 10.0) -> Latencies:
    return Latencies(np.arange(len(values)) * step_s, np.array(values, dtype=np.float64))


def test_the_level_is_the_greatest_latency_of_an_interval() -> None:
    found = latencies([5.0, 1.0, 1.2, 1.1, 9.0])
    assert scaling_period.level_s(found, 10.0, 40.0) == 1.2
    assert scaling_period.level_s(found, 100.0, 200.0) == 0.0


def test_timeline_of_a_scaling_period() -> None:
    # s        0    10   20   30   40  ...                          150
    # latency  1.0  3.0  1.0  1.2  1.1 1.05 ... : 1.2 at 30 s is the last above 110 % of 1.0
    series = [1.0, 3.0, 1.0, 1.2, 1.1, 1.05, *[1.0] * 10]
    assert scaling_period.stable_from_s(latencies(series), 1.0, from_s=0.0) == 30.0


def test_a_rebound_within_100_s_restarts_the_count() -> None:
    series = [1.0, 3.0, *[1.0] * 8, 2.0, *[1.0] * 11]
    assert scaling_period.stable_from_s(latencies(series), 1.0, from_s=0.0) == 100.0


def test_a_run_that_ends_too_early_has_no_scaling_period() -> None:
    assert scaling_period.stable_from_s(latencies([1.0, 3.0, 1.0, 1.0]), 1.0, from_s=0.0) is None


def test_it_is_not_stable_before_the_time_from_which_is_asked() -> None:
    assert scaling_period.stable_from_s(latencies([1.0] * 16), 1.0, from_s=20.0) == 20.0


def log() -> EventLog:
    """Two steps: the first starts at two slots, the second waits for it."""
    made = EventLog()
    made.add(10.0, "requested")
    made.add(10.0, "trigger", "map/0", step=1)
    made.add(10.5, "trigger", "map/1", step=1)
    made.add(11.0, "started", "count/0", step=1)
    made.add(13.0, "started", "count/1", step=1)
    made.add(11.0, "left", "count/0", step=1, unit=0)
    made.add(12.0, "left", "count/0", step=1, unit=1)
    made.add(20.0, "injected", "map/0", step=2)
    made.add(20.5, "started", "count/0", step=2)
    made.add(20.5, "left", "count/0", step=2, unit=2)
    made.add(21.5, "left", "count/1", step=2, unit=0)
    return made


def test_propagation_is_from_the_first_injection_to_the_start_summed_over_signals() -> None:
    assert measures.propagation_s(log()) == pytest.approx(2.0 + 0.5)


def test_dependency_is_from_the_request_to_the_first_departure_less_propagation() -> None:
    assert measures.dependency_s(log()) == pytest.approx(((1 - 2) + (2 - 2) + (10.5 - 0.5)) / 3)


def test_dependency_in_a_step_counts_from_its_start() -> None:
    assert measures.dependency_in_step_s(log()) == pytest.approx((0.0 + 1.0 + 0.0) / 3)


def test_a_log_without_a_request_has_no_overhead() -> None:
    assert measures.propagation_s(EventLog()) == 0.0
    assert measures.dependency_s(EventLog()) == 0.0
    assert measures.dependency_in_step_s(EventLog()) == 0.0


def test_suspensions_of_slots_add_up_and_are_cut_at_the_end() -> None:
    stretches = [[1.0, 2.0], [1.5, 3.0], [9.0, float("inf")]]
    assert measures.suspension_s(stretches, 10.0) == pytest.approx(1.0 + 1.5 + 1.0)
    assert measures.suspension_by_second(stretches, 1.0, 2) == pytest.approx([1.5, 2.5])


def test_trips_count_units_that_travelled_again() -> None:
    assert measures.trips(log()) == (1, 2.0, 2)
    assert measures.trips(EventLog()) == (0, 0.0, 0)
