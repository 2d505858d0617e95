"""Arrivals and completions by time slot; time slot m is ((m-1) delta, m delta]."""

from __future__ import annotations

import numpy as np
import pytest

from headgate.operators import counts

DELTA_MS = 100.0


def entries(binned: counts.Binned) -> dict[tuple[int, int], float]:
    cells = zip(binned.tick.tolist(), binned.group.tolist(), strict=True)
    return dict(zip(cells, binned.records.tolist(), strict=True))


def arrived(group: list[int], at_ms: list[float], records: list[int] | None = None, last=None):
    at = np.array(at_ms)
    return counts.arrived(
        np.array(group), np.array(records or [1] * len(group)), at, at if last is None else last
    )


def test_a_record_counts_in_the_time_slot_that_ends_at_or_after_its_arrival() -> None:
    found = counts.count_arrivals(arrived([0, 0, 0, 1], [100.0, 100.1, 200.0, 250.0]), 100.0, 1e9)
    assert entries(found) == {(1, 0): 1, (2, 0): 2, (3, 1): 1}


def test_an_arrival_after_the_slot_began_counts_when_it_began() -> None:
    found = counts.count_arrivals(arrived([3], [990.0]), DELTA_MS, now_ms=450.0)
    assert entries(found) == {(5, 3): 1}


def test_half_the_records_of_a_row_count_at_either_end_of_its_time() -> None:
    rows = arrived([2, 4], [50.0, 150.0], [5, 1], last=np.array([350.0, 150.0]))
    assert entries(counts.count_arrivals(rows, DELTA_MS, 1e9)) == {(1, 2): 2, (4, 2): 3, (2, 4): 1}


def test_rows_are_served_one_after_the_other_over_the_time_of_the_task() -> None:
    done = counts.completed_ms(np.array([1, 1, 2]), 1000.0, 1400.0)
    assert done.tolist() == [1100.0, 1200.0, 1400.0]
    assert counts.completed_ms(np.zeros(0, dtype=np.int64), 1.0, 2.0).tolist() == []


def test_latencies_are_summed_and_compared_with_the_bound() -> None:
    rows = arrived([0, 0, 1], [100.0, 300.0, 0.0])
    found = counts.count_completions(rows, np.array([400.0, 400.0, 500.0]), DELTA_MS, 200.0)
    assert found.tick.tolist() == [4, 5]
    assert found.latency_ms.tolist() == [400.0, 500.0]
    assert found.within.tolist() == [1.0, 0.0]


def test_a_latency_that_is_not_known_or_negative_adds_nothing() -> None:
    rows = arrived([0, 1], [float("nan"), 900.0])
    found = counts.count_completions(rows, np.array([400.0, 400.0]), DELTA_MS)
    assert found.records.tolist() == [1.0, 1.0]
    assert found.latency_ms.tolist() == [0.0, 0.0]


@pytest.mark.parametrize("cells", [1 << 20, 0])
def test_a_backlog_of_hours_counts_as_a_short_one(
    cells: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(counts, "_DENSE_CELLS", cells)
    random = np.random.default_rng(1)
    group, at = random.integers(0, 8, 500), random.integers(1, 40, 500) * 100.0
    found = entries(counts.count_arrivals(arrived(group.tolist(), at.tolist()), DELTA_MS, 1e9))
    expected: dict[tuple[int, int], float] = {}
    for g, t in zip(group.tolist(), at.tolist(), strict=True):
        expected[int(t / 100), g] = expected.get((int(t / 100), g), 0) + 1
    assert found == expected


def test_nothing_arrives_where_nothing_came() -> None:
    assert entries(counts.count_arrivals(arrived([], []), DELTA_MS, 1.0)) == {}
