"""The generated loads: fixed by seed, split before anything is tuned, scaled alike."""

from __future__ import annotations

import numpy as np
import pytest

from headgate_lab.workloads.loads import COUNT, KEY_GROUPS, KINDS, SLOTS, generated, split


def test_building_and_aside_share_no_load_and_are_fixed() -> None:
    building, aside = split()
    assert len(building) == len(aside) == COUNT // 2
    assert sorted(building + aside) == list(range(COUNT))
    assert building[:10] == (0, 1, 2, 4, 7, 10, 12, 13, 14, 15)


@pytest.mark.parametrize("number", range(len(KINDS)))
def test_a_load_is_scaled_to_four_slots_and_the_same_each_time(number: int) -> None:
    named, again = generated(number), generated(number)
    assert named.kind == KINDS[number]
    load = named.load
    assert load.slots_mean == pytest.approx(SLOTS)
    assert np.all(np.diff(load.arrival_s) >= 0.0)
    assert load.groups.max() < KEY_GROUPS
    np.testing.assert_array_equal(load.demand_s, again.load.demand_s)
    np.testing.assert_array_equal(load.groups, again.load.groups)


def test_heavy_costs_differ_by_much() -> None:
    demand_s = generated(KINDS.index("heavy")).load.demand_s
    assert demand_s.max() / demand_s.min() > 50.0
