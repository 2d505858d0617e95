"""End-to-end bounds: split so that every operator meets its share about equally often."""

from __future__ import annotations

import numpy as np
import pytest
from control_views import view

from headgate.control.estimators.split import BoundSplit, paths_of
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
    split = BoundSplit([("split", "count")], 2.0, interval_s=10.0)
    run(split, {"split": 0.6, "count": 0.2}, range(10))
    assert split.bounds_s == {"split": 1.0, "count": 1.0}
    run(split, {"split": 0.6, "count": 0.2}, range(10, 11))
    assert split.bound_s("split") > 1.0


def test_bounds_settle_where_success_is_equal() -> None:
    """Shares of exponential latencies within b are equal where b / mean is."""
    split = BoundSplit([("split", "count")], 2.0)
    run(split, {"split": 0.6, "count": 0.2}, range(2000))
    assert split.bound_s("split") == pytest.approx(1.5, rel=0.05)


def test_bounds_follow_when_the_load_changes_sides() -> None:
    split = BoundSplit([("split", "count")], 2.0)
    run(split, {"split": 0.6, "count": 0.2}, range(2000))
    run(split, {"split": 0.2, "count": 0.6}, range(2000, 4000))
    assert split.bound_s("count") == pytest.approx(1.5, rel=0.05)


def test_every_operator_keeps_a_least_bound() -> None:
    split = BoundSplit([("split", "count")], 2.0, least=0.1)
    run(split, {"split": 100.0, "count": 1e-6}, range(2000))
    assert split.bounds_s == pytest.approx({"split": 1.9, "count": 0.1})


def test_nothing_moves_while_an_operator_is_not_seen_or_completes_nothing() -> None:
    split = BoundSplit([("split", "count")], 2.0)
    run(split, {"split": 5.0}, range(50))
    run(split, {"split": 5.0, "count": float("nan")}, range(50, 100))
    assert split.bounds_s == {"split": 1.0, "count": 1.0}


def test_one_operator_has_the_whole_bound() -> None:
    split = BoundSplit([("count",)], 2.0)
    run(split, {"count": 5.0}, range(50))
    assert split.bounds_s == pytest.approx({"count": 2.0})


@pytest.mark.parametrize("name", ["end_to_end_s", "interval_s", "gain", "least"])
def test_parameters_out_of_range_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name}=0 is out of range"):
        BoundSplit([("a",)], **{"end_to_end_s": 1.0, name: 0.0})


def test_a_split_among_none_is_refused() -> None:
    with pytest.raises(ConfigError, match="no operators"):
        BoundSplit([], 1.0)


JOIN = {"join": ("left", "right"), "right": ("clean",)}
"""What is cleaned and counted on the right meets what is counted on the left."""


def test_paths_lead_from_each_source_to_each_result() -> None:
    assert paths_of(["left", "clean", "right", "join"], JOIN) == [
        ("left", "join"),
        ("clean", "right", "join"),
    ]
    split = {"even": ("head",), "odd": ("head",)}
    assert paths_of(["head", "even", "odd"], split) == [("head", "even"), ("head", "odd")]
    assert paths_of(["a", "b"], {}) == [("a",), ("b",)]


def test_an_operator_on_several_paths_is_held_to_the_least_of_its_shares() -> None:
    paths = paths_of(["left", "clean", "right", "join"], JOIN)
    for given in (paths, paths[::-1]):
        split = BoundSplit(given, 3.0)
        assert split.bounds_s == {"left": 1.5, "join": 1.0, "clean": 1.0, "right": 1.0}


def test_on_no_path_bounds_add_up_to_more_than_the_whole() -> None:
    names = ["left", "clean", "right", "join"]
    paths = paths_of(names, JOIN)
    split = BoundSplit(paths, 3.0)
    rng = np.random.default_rng(2)
    for cycle in range(2000):
        # all of a path's trouble is at the join first, and at what is cleaned later
        mean_s = {"left": 0.1, "clean": 0.1, "right": 0.1, "join": 0.6}
        mean_s |= {"clean": 2.0} if cycle > 1000 else {}
        views = {
            name: view([1.0] * 40, slots=20, latency_s=rng.exponential(mean_s[name], 20))
            for name in names
        }
        split.observe(float(cycle), views)
        for path in paths:
            assert sum(split.bound_s(name) for name in path) <= 3.0 + 1e-9
        if cycle == 1000:
            assert split.bound_s("join") > 1.5
    assert split.bound_s("clean") > 1.5 > split.bound_s("join")


def test_a_path_moves_though_another_one_shows_nothing() -> None:
    split = BoundSplit([("left", "join"), ("right", "join")], 2.0)
    for cycle in range(50):
        views = {
            "left": view([1.0] * 4, slots=2, latency_s=np.array([0.1, 0.1])),
            "join": view([1.0] * 4, slots=2, latency_s=np.array([5.0, 5.0])),
        }
        split.observe(float(cycle), views)
    assert split.bound_s("left") < 0.5
    assert split.bound_s("right") == split.bound_s("join") == 1.0
