"""End-to-end bounds: split so that every operator meets its share about equally often."""

from __future__ import annotations

import numpy as np
import pytest
from control_views import view

from headgate.control.estimators.split import BoundSplit
from headgate.core.errors import ConfigError


def run(split: BoundSplit, mean_s: dict[str, float], cycles: range) -> None:
    """Observe cycles of one second; each operator's latencies are exponential."""
    rng = np.random.default_rng(1)
    for cycle in cycles:
        views = {
            name: view([1.0] * 40, slots=20, latency_s=rng.exponential(mean, 20))
            for name, mean in mean_s.items()
        }
        split.observe(float(cycle), views)
        assert sum(split.bounds_s.values()) == pytest.approx(2.0)


def test_bounds_begin_equal_and_move_at_the_end_of_an_interval_only() -> None:
    split = BoundSplit(["split", "count"], 2.0, interval_s=10.0)
    run(split, {"split": 0.6, "count": 0.2}, range(10))
    assert split.bounds_s == {"split": 1.0, "count": 1.0}
    run(split, {"split": 0.6, "count": 0.2}, range(10, 11))
    assert split.bound_s("split") > 1.0


def test_bounds_settle_where_success_is_equal() -> None:
    """Shares of exponential latencies within b are equal where b / mean is."""
    split = BoundSplit(["split", "count"], 2.0)
    run(split, {"split": 0.6, "count": 0.2}, range(2000))
    assert split.bound_s("split") == pytest.approx(1.5, rel=0.05)


def test_bounds_follow_when_the_load_changes_sides() -> None:
    split = BoundSplit(["split", "count"], 2.0)
    run(split, {"split": 0.6, "count": 0.2}, range(2000))
    run(split, {"split": 0.2, "count": 0.6}, range(2000, 4000))
    assert split.bound_s("count") == pytest.approx(1.5, rel=0.05)


def test_every_operator_keeps_a_least_bound() -> None:
    split = BoundSplit(["split", "count"], 2.0, least=0.1)
    run(split, {"split": 100.0, "count": 1e-6}, range(2000))
    assert split.bounds_s == pytest.approx({"split": 1.9, "count": 0.1})


def test_nothing_moves_while_an_operator_is_not_seen_or_completes_nothing() -> None:
    split = BoundSplit(["split", "count"], 2.0)
    run(split, {"split": 5.0}, range(50))
    run(split, {"split": 5.0, "count": float("nan")}, range(50, 100))
    assert split.bounds_s == {"split": 1.0, "count": 1.0}


def test_one_operator_has_the_whole_bound() -> None:
    split = BoundSplit(["count"], 2.0)
    run(split, {"count": 5.0}, range(50))
    assert split.bounds_s == pytest.approx({"count": 2.0})


@pytest.mark.parametrize("name", ["end_to_end_s", "interval_s", "gain", "least"])
def test_parameters_out_of_range_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name}=0 is out of range"):
        BoundSplit(["a"], **{"end_to_end_s": 1.0, name: 0.0})


def test_a_split_among_none_is_refused() -> None:
    with pytest.raises(ConfigError, match="no operators"):
        BoundSplit([], 1.0)
