"""The generated loads: fixed by seed, split before anything is tuned, scaled alike."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from headgate_lab.workloads.later import Market, later
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


def test_a_markets_orders_bring_others_of_their_symbol() -> None:
    """Counts per second vary more than a Poisson process's."""
    alone, brought = (
        Market(88.0, 40, share, 0.5).load(Path(), "market", np.random.default_rng(1)).load
        for share in (0.0, 0.7)
    )
    assert [alone.slots_mean, brought.slots_mean] == pytest.approx([SLOTS, SLOTS])
    fano = []
    for load in (alone, brought):
        hot = load.arrival_s[load.groups == np.bincount(load.groups).argmax()]
        counts = np.bincount(hot.astype(np.int64))
        fano.append(counts.var() / counts.mean())
    assert fano[1] > 2.0 * fano[0]


MARKET = 17
"""The smallest market among `later`'s loads: it needs no file."""


def test_what_came_later_is_the_same_each_time() -> None:
    first, again = (later(MARKET, Path()).load for _ in range(2))
    np.testing.assert_array_equal(first.arrival_s, again.arrival_s)
    np.testing.assert_array_equal(first.groups, again.groups)
