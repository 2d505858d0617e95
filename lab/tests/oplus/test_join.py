"""Join kernels against nested loops."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.core.errors import ConfigError, ProtocolError
from headgate.core.jit import jit
from headgate.operators.join import match as module
from headgate_lab.oplus.band import (
    Band,
    BandIndex,
    Records,
    ascending,
    compare_all,
    compare_theta_all,
)


def records(seed: int, count: int, high: int = 40) -> Records:
    random = np.random.default_rng(seed)
    return Records(
        np.sort(random.integers(0, 60, count)),
        random.integers(1, high, count).astype(np.int32),
        random.uniform(1, high, count).astype(np.float32),
    )


def nested_loop(probe: Records, stored: Records, band: Band) -> list[tuple[int, int]]:
    first, second = np.float32(band.second), stored.second.dtype.type
    assert second is np.float32
    return [
        (i, j)
        for i in range(probe.times.size)
        for j in range(stored.times.size)
        if abs(int(probe.times[i]) - int(stored.times[j])) <= band.reach
        and abs(int(probe.first[i]) - int(stored.first[j])) <= band.first
        and probe.second[i] - first <= stored.second[j] <= probe.second[i] + first
    ]


def pairs(result: tuple[np.ndarray, np.ndarray]) -> list[tuple[int, int]]:
    return list(zip(result[0].tolist(), result[1].tolist(), strict=True))


@given(
    st.integers(0, 1000), st.integers(0, 40), st.integers(0, 40),
    st.builds(Band, st.integers(0, 9), st.integers(0, 9), st.integers(0, 70)),
)  # fmt: skip
def test_both_forms_find_the_pairs_of_the_nested_loop(seed, probes, stored, band):
    probe, kept = records(seed, probes), records(seed + 1, stored)
    expected = nested_loop(probe, kept, band)
    assert pairs(compare_all(probe, kept, band)) == expected
    assert pairs(BandIndex(kept).look_up(probe, band)) == expected


def test_windows_longer_than_a_chunk_are_compared_wholly(monkeypatch):
    monkeypatch.setattr(module, "_PAIRS_FIRST", 1)  # and the output is too small many times
    probe, kept = records(1, 7), records(2, 2600)
    band = Band(3, 3, 25)
    expected = nested_loop(probe, kept, band)
    assert len(expected) > 100
    assert pairs(compare_all(probe, kept, band)) == expected
    assert pairs(BandIndex(kept).look_up(probe, band)) == expected


@pytest.mark.parametrize("most", [1, 9, 70_000, 2**31, 2**32, 2**62])
def test_numbers_are_ordered_as_a_stable_sort_orders_them(most):
    values = np.random.default_rng(most).integers(-most, most, 500)
    values[:100] = values[100:200]
    assert ascending(values).tolist() == np.argsort(values, kind="stable").tolist()
    assert ascending(values[:0]).tolist() == []
    halves = values / 2
    assert ascending(halves).tolist() == np.argsort(halves, kind="stable").tolist()


def test_reach_and_bands_are_inclusive():
    one = Records(np.array([10]), np.array([100], np.int32), np.array([5.0], np.float32))
    other = Records(np.array([0]), np.array([90], np.int32), np.array([7.5], np.float32))
    assert pairs(compare_all(one, other, Band(10, 2.5, 10))) == [(0, 0)]
    for narrower in (Band(9, 2.5, 10), Band(10, 2.4, 10), Band(10, 2.5, 9)):
        assert pairs(compare_all(one, other, narrower)) == []
        assert pairs(BandIndex(other).look_up(one, narrower)) == []


def test_bounds_beyond_the_type_of_an_integer_do_not_wrap():
    top = np.iinfo(np.int32).max
    ends = Records(np.array([0, 0]), np.array([top, -top - 1], np.int32), np.zeros(2, np.float32))
    assert pairs(compare_all(ends, ends, Band(10, 0, 0))) == [(0, 0), (1, 1)]
    assert pairs(BandIndex(ends).look_up(ends, Band(10, 0, 0))) == [(0, 0), (1, 1)]


def test_a_nan_matches_nothing_and_has_no_place_in_an_index():
    odd = Records(np.array([0, 0]), np.array([np.nan, 1.0], np.float32),
                  np.array([1.0, np.nan], np.float32))  # fmt: skip
    fine = Records(np.array([0]), np.ones(1, np.float32), np.ones(1, np.float32))
    assert pairs(compare_all(odd, fine, Band(9, 9, 0))) == []
    assert pairs(compare_all(fine, odd, Band(9, 9, 0))) == []
    assert pairs(BandIndex(fine).look_up(odd, Band(9, 9, 0))) == []
    with pytest.raises(ProtocolError, match="has NaN"):
        BandIndex(odd)


@jit
def hedged(probe, i, stored, j):
    """Q6: other company, and the normalised distances nearly opposite; no division, so no zero."""
    x, y = probe[1][i], stored[1][j]
    if probe[0][i] == stored[0][j] or x == 0:
        return False
    low, high = -1.05 * x, -0.95 * x
    return min(low, high) <= y <= max(low, high)


def test_any_predicate_on_columns_finds_the_pairs_of_the_nested_loop():
    random = np.random.default_rng(4)
    times = np.sort(random.integers(0, 50, 60))
    sides = [(random.integers(0, 4, 60), random.integers(-9, 10, 60) / 10) for _ in range(2)]
    found = compare_theta_all(hedged, times, sides[0], times, sides[1], 8)
    expected = [
        (i, j)
        for i in range(60)
        for j in range(60)
        if abs(times[i] - times[j]) <= 8 and hedged(sides[0], i, sides[1], j)
    ]
    assert expected
    assert pairs(found) == expected


def test_records_out_of_time_order_are_refused():
    with pytest.raises(ProtocolError, match="not in time order"):
        Records(np.array([2, 1]), np.zeros(2), np.zeros(2))


def test_attributes_of_another_length_are_refused():
    with pytest.raises(ProtocolError, match="give as many of each"):
        Records(np.array([1, 2]), np.zeros(2), np.zeros(3))


@pytest.mark.parametrize("band", [(-1, 0, 0), (0, float("nan"), 0), (0, 0, -1)])
def test_a_band_that_cannot_be_is_refused(band):
    with pytest.raises(ConfigError, match="use 0 or more"):
        Band(*band)


def test_floats_against_integers_are_refused():
    ints = Records(np.array([0]), np.array([1]), np.zeros(1))
    floats = Records(np.array([0]), np.array([1.5]), np.zeros(1))
    with pytest.raises(ProtocolError, match="cast a side"):
        compare_all(floats, ints, Band(1, 1, 1))
