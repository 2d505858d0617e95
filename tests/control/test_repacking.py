"""Another number of slots, evenly loaded, and few key groups moved."""

from __future__ import annotations

import numpy as np
import pytest
from control_views import view

from headgate.control.slots.repacking import repacked
from headgate.core.assignment import Assignment


def loads(change, load: np.ndarray) -> list[float]:  # type: ignore[no-untyped-def]
    """Return what each slot has after a change."""
    slots = change.assignment.slots
    return np.bincount(change.assignment.slot_of, weights=load, minlength=slots).tolist()


@pytest.mark.parametrize("wanted", [1, 3, 5, 8, 11])
def test_slots_are_evenly_loaded_whatever_groups_bring(wanted: int) -> None:
    load = np.random.default_rng(1).pareto(2.0, 128) + 0.1
    change = repacked(view([1.0] * 128, slots=8), wanted, load)
    assert change is not None or wanted == 8
    if change is not None:
        share = load.sum() / wanted
        assert max(loads(change, load)) <= max(share * 1.15, load.max() + 1e-9)


def test_a_slot_more_moves_only_what_it_gets() -> None:
    operator = view([1.0] * 128, slots=4)
    change = repacked(operator, 5, np.ones(128))
    assert change is not None
    moved = operator.assignment.moved(change.assignment)
    assert {change.assignment.slot_of[group] for group in moved} == {4}
    assert 22 <= len(moved) <= 26


def test_the_slot_with_the_least_load_goes() -> None:
    load = np.array([3.0, 3.0, 0.2, 0.2, 3.0, 3.0])
    change = repacked(view([1.0] * 6, slots=3), 2, load)
    assert change is not None
    assert change.survivors == (0, 2)
    assert sorted(loads(change, load)) == pytest.approx([6.2, 6.2])


def test_a_group_that_is_more_than_a_share_is_left_alone() -> None:
    load = np.array([9.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0])
    change = repacked(view([1.0] * 8, slots=2), 2, load)
    assert change is not None
    assert change.assignment.groups_of(change.assignment.slot_of[0]) == (0,)


def test_what_is_even_stays() -> None:
    assert repacked(view([1.0] * 12, slots=3), 3, np.ones(12)) is None


def test_a_split_ends_with_the_slot_that_had_the_share() -> None:
    held = Assignment((0, 0, 1, 1, 2, 2), 3, 1, {0: (0, 2)})
    load = np.array([8.0, 1.0, 3.0, 3.0, 0.0, 0.0])
    operator = view([1.0] * 6, assignment=held)
    same = repacked(operator, 4, load)
    assert same is not None
    assert same.assignment.split[0][1] == 2
    fewer = repacked(operator, 1, load)
    assert fewer is not None
    assert fewer.assignment.split == {}


def test_all_silent_groups_together_count_as_a_tenth_of_the_load() -> None:
    """They go where there is more than a tenth less."""
    load = np.array([1.0, 0.8, *[0.0] * 8])
    change = repacked(view([1.0] * 10, slots=3), 2, load)
    assert change is not None
    assert change.assignment.slot_of == (0, *[1] * 9)
