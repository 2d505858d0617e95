"""Percentiles from buckets against NumPy on the values themselves."""

from __future__ import annotations

import random
import sys

import numpy as np
import pytest

from headgate.core.errors import ConfigError
from headgate.journal.histogram import (
    BUCKETS,
    EDGES_MS,
    FIRST_MS,
    GROWTH,
    RunLatencies,
    completed,
    counts_of,
    merge,
    percentile_ms,
    share_within,
    sparse_of,
)

SHARES = (0.01, 0.25, 0.5, 0.9, 0.95, 0.99, 0.999)


def latencies(kind: str, seed: int) -> np.ndarray:
    generator = np.random.default_rng(seed)
    return {
        "lognormal": generator.lognormal(6.0, 1.0, 5000),
        "exponential": generator.exponential(400.0, 5000),
        "uniform": generator.uniform(1.0, 2000.0, 5000),
        "two humps": np.r_[generator.normal(300, 5, 4000), generator.normal(9000, 50, 1000)],
        "constant": np.full(5000, 417.0),
    }[kind]


@pytest.mark.parametrize("kind", ["lognormal", "exponential", "uniform", "two humps", "constant"])
@pytest.mark.parametrize("seed", range(5))
def test_percentile_is_within_a_bucket_of_the_order_statistic(kind: str, seed: int) -> None:
    values = latencies(kind, seed)
    histogram = sparse_of(counts_of(values))
    for share in SHARES:
        # The order statistics on both sides of the rank: between two humps either is right.
        low = float(np.quantile(values, share, method="lower"))
        high = float(np.quantile(values, share, method="higher"))
        found = percentile_ms(histogram, share)
        assert found is not None
        assert low / 1.0501 - FIRST_MS <= found <= high * 1.0501 + FIRST_MS, (seed, share)


def test_every_value_lies_in_the_bucket_that_is_named_by_its_upper_edge() -> None:
    values = np.random.default_rng(3).lognormal(4, 3, 1000)
    for value in values:
        ((edge_ms, count),) = sparse_of(counts_of([value]))
        assert count == 1
        assert edge_ms == EDGES_MS[0] or edge_ms / GROWTH * 0.999 <= value <= edge_ms


def test_buckets_are_never_wider_than_five_percent() -> None:
    # Above 1 ms; below, rounding the names to 0.1 us shows.
    edges = EDGES_MS[EDGES_MS > 1.0]
    assert np.all(edges[1:] / edges[:-1] < 1.0501)
    assert EDGES_MS.shape == (BUCKETS,)
    assert EDGES_MS[-1] > 24 * 3_600_000


def test_merging_equals_counting_all_at_once() -> None:
    one, two = latencies("lognormal", 1), latencies("exponential", 2)
    parts = [sparse_of(counts_of(one)), sparse_of(counts_of(two))]
    whole = sparse_of(counts_of(np.r_[one, two]))
    assert merge(parts) == whole
    assert completed(whole) == one.size + two.size


def test_a_latency_counts_as_often_as_its_weight() -> None:
    assert completed(sparse_of(counts_of([5.0, 7.0], weights=[3, 4]))) == 7


def test_negative_is_zero_nan_is_nothing_and_huge_is_the_last_bucket() -> None:
    histogram = sparse_of(counts_of([-5.0, float("nan"), 1e300]))
    assert histogram == ((FIRST_MS, 1), (float(EDGES_MS[-1]), 1))


def test_an_empty_histogram_has_no_percentile() -> None:
    assert percentile_ms((), 0.5) is None


def test_a_share_outside_zero_to_one_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"95 is out of range; use 0 to 1"):
        percentile_ms(((1.0, 1),), 95)


def test_the_share_within_a_bound_is_what_the_percentile_says() -> None:
    histogram = sparse_of(counts_of(latencies("lognormal", 1)))
    for share in SHARES:
        bound_ms = percentile_ms(histogram, share)
        assert bound_ms is not None
        assert share_within(histogram, bound_ms) == pytest.approx(share)
    assert share_within(histogram, 0.0) == 0.0
    assert share_within((), 1.0) is None


@pytest.mark.parametrize("count", [0, 1, 63, 64, 65, 200])
def test_a_run_has_the_sums_and_the_mean_of_its_batches(count: int) -> None:
    """A batch without a histogram counts with the records that it served; one without a mean not."""
    dice, run = random.Random(count), RunLatencies()
    histograms, spent_ms, records = [], 0.0, 0
    for _ in range(count):
        histogram = sparse_of(
            counts_of([dice.uniform(0, 900) for _ in range(dice.choice([0, 1, 9]))])
        )
        mean_ms, served = dice.choice([None, dice.uniform(0, 900)]), dice.randint(1, 9)
        run.add(histogram, mean_ms, served)
        histograms.append(histogram)
        if mean_ms is not None:
            records += completed(histogram) or served
            spent_ms += mean_ms * (completed(histogram) or served)
    assert run.histogram == merge(histograms)
    assert run.mean_ms == (pytest.approx(spent_ms / records) if records else None)


def test_a_long_run_does_not_keep_the_histograms_of_its_batches() -> None:
    run, histogram = RunLatencies(), ((float("1.5"), 2),)
    for _ in range(10_000):
        run.add(histogram, 1.0, 2)
    assert sys.getrefcount(histogram) < 100
