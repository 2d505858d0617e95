"""The load with three bursts."""

from __future__ import annotations

import numpy as np
import pytest

from headgate.workloads.rates import parse_rate
from headgate_lab.workloads.bursts import LENGTH_S, replicas_needed, steps


def test_the_load_needs_1_to_8_replicas_and_a_third_of_that_on_average() -> None:
    load = replicas_needed(np.arange(0.0, LENGTH_S))
    assert load.min() == pytest.approx(1.0, abs=0.01)
    assert load.max() == pytest.approx(8.0, abs=0.01)
    assert 1.0 / load.mean() == pytest.approx(0.3319, abs=0.03)


def test_squeezed_into_a_minute_it_is_the_same_load() -> None:
    rate = parse_rate(steps(60.0, 100.0))
    assert int(rate.count(60.0)) == pytest.approx(
        100.0 * replicas_needed(np.arange(0.0, LENGTH_S)).mean() * 60.0, rel=0.01
    )
    assert rate.rate_at(50.0) == pytest.approx(100.0 * replicas_needed(900.0), rel=0.02)
