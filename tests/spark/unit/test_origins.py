"""How old results are, through windows and chains; steps are told, not run, each worked out by hand."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from headgate.journal import histogram
from headgate.spark.job.origins import Origins, sparse
from headgate.spark.job.reports import Ran


def report(operator, at_s, *, latency_s=None, newest=(), results=(), holds_s=0, group=0):
    """Return a report of a slot that ended at `at_s`; times of windows are seconds, too."""
    latency_ms = [] if latency_s is None else [latency_s * 1e3]
    return SimpleNamespace(
        operator=operator,
        histogram=histogram.sparse_of(histogram.counts_of(latency_ms, [1] * len(latency_ms))),
        latency_sum_ms=sum(latency_ms),
        newest_ms={group: {begin * 1_000_000: came * 1e3 for begin, came in newest}},
        results={group: {end * 1_000_000: count for end, count in results}},
        holds_us=holds_s * 1_000_000,
        ran=Ran("host", 0.0, at_s * 1e3, None),
    )


def ages_s(found):
    return [(round(one.latency_ms / 1e3, 3), one.count) for one in found]


def test_a_result_of_a_window_is_as_old_as_its_newest_record():
    origins = Origins({"op": ()}, {"op": 10_000_000})
    assert origins.step([report("op", 8, newest=[(0, 7.5), (5, 7.0)])])["op"] == []
    found = origins.step([report("op", 12, newest=[(5, 9.5), (10, 11.5)], results=[(10, 3)])])
    assert ages_s(found["op"]) == [(2.5, 3)]  # from 9.5 s, in a slice of it, not from 11.5 s


def test_a_result_is_as_old_as_the_newest_record_of_its_own_key_group():
    origins = Origins({"op": ()}, {"op": 10_000_000})
    slots = [
        report("op", 12, newest=[(0, 2.0)], results=[(10, 1)], group=3),
        report("op", 12, newest=[(0, 9.0)], results=[(10, 2)], group=5),
    ]
    assert ages_s(origins.step(slots)["op"]) == [(10.0, 1), (3.0, 2)]


def test_a_group_that_has_moved_to_another_slot_keeps_its_newest_record():
    origins = Origins({"op": ()}, {"op": 10_000_000})
    origins.step([report("op", 8, newest=[(0, 7.0)], group=3), report("op", 8, group=4)])
    slots = [report("op", 12, group=4), report("op", 12, results=[(10, 1)], group=3)]
    assert ages_s(origins.step(slots)["op"]) == [(5.0, 1)]


def test_the_newest_record_of_all_slots_counts():
    origins = Origins({"op": ()}, {"op": 10_000_000})
    slots = [
        report("op", 12, newest=[(0, 7.0)], results=[(10, 1)]),
        report("op", 12, newest=[(0, 9.0)]),
    ]
    assert ages_s(origins.step(slots)["op"]) == [(3.0, 1)]


def test_a_window_begun_before_the_start_is_not_counted():
    origins = Origins({"op": ()}, {"op": 10_000_000})
    assert origins.step([report("op", 12, newest=[(10, 11.0)], results=[(10, 3)])])["op"] == []


def test_what_is_put_out_at_once_is_as_old_as_its_records():
    origins = Origins({"op": ()}, {})
    assert ages_s(origins.step([report("op", 5, latency_s=0.4)])["op"]) == [(0.4, 1)]
    assert not origins.judges("op")


def test_through_a_chain_the_age_of_what_was_put_out_above_is_added():
    # what a join put out was 0.5 s old; a window behind it waits for 4 s more
    origins = Origins({"join": (), "count": ("join",)}, {"count": 10_000_000})
    origins.step([report("join", 6.0, latency_s=0.5), report("count", 6.2, newest=[(0, 6.1)])])
    found = origins.step(
        [report("join", 10.0, latency_s=2.0), report("count", 10.1, results=[(10, 7)])]
    )
    assert ages_s(found["count"]) == [(10.1 - 6.1 + 0.5, 7)]
    assert origins.last == ["count"]


def test_what_waited_behind_an_operator_is_as_old_as_what_that_put_out_then():
    origins = Origins({"a": (), "b": ("a",)}, {})
    origins.step([report("a", 1.0, latency_s=3.0), report("b", 1.1)])
    found = origins.step([report("a", 5.0, latency_s=0.2), report("b", 5.1, latency_s=4.0)])
    assert ages_s(found["b"]) == [(pytest.approx(7.0, abs=0.01), 1)]


def test_slices_of_which_all_windows_are_out_are_forgotten():
    origins = Origins({"op": ()}, {"op": 10_000_000})
    for begin in range(100):
        origins.step([report("op", begin, newest=[(begin, begin)], holds_s=begin)])
    assert sum(map(len, origins._kept["op"].newest_ms.values())) <= 12


def test_results_of_a_step_have_a_histogram():
    origins = Origins({"op": ()}, {"op": 1_000_000})
    found = origins.step([report("op", 3, newest=[(0, 1.0)], results=[(1, 4)])])["op"]
    ((edge_ms, count),) = sparse(found)
    assert (edge_ms, count) == (pytest.approx(2000.0, rel=0.06), 4)
    assert sparse([]) == ()
