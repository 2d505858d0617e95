"""Unit strategies against brute force, hand-made vectors and the slips of the printed algorithms."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from control_views import view
from hypothesis import given
from hypothesis import strategies as st

from headgate.control.decision import ChangeKind
from headgate.control.observation import OperatorView
from headgate.control.slots import strategies
from headgate.control.slots.projection import pressure, projected_latency_s
from headgate.control.slots.strategies import (
    best_balance,
    best_prefix,
    best_scale_in,
    best_scale_out,
    change_of,
    joined,
    view_after,
)
from headgate.core.assignment import Assignment

NAN = float("nan")


@st.composite
def views(draw: st.DrawFn) -> OperatorView:
    """Operators whose rates are whole numbers, so that sums in any order are equal."""
    groups = draw(st.integers(2, 14))
    slots = draw(st.integers(1, min(groups, 6)))
    slot_of = tuple(draw(st.integers(0, slots - 1)) for _ in range(groups))
    rates = [float(draw(st.sampled_from([0, 0, 1, 5, 60, 300, 700, 1200]))) for _ in range(groups)]
    mu = [float(draw(st.sampled_from([500, 1000, 2000]))) for _ in range(slots)]
    latency = [draw(st.sampled_from([NAN, 0.0, 0.1, 0.1, 0.3, 2.0])) for _ in range(groups)]
    assignment = Assignment(slot_of, slots)
    return view(rates, mu, assignment=assignment, group_latency_s=np.array(latency))


def ascending(seen: OperatorView, source: int) -> list[int]:
    latency = seen.group_latency_s
    groups = seen.assignment.groups_of(source)
    return sorted(groups, key=lambda g: (-1.0 if math.isnan(latency[g]) else latency[g], g))


def test_projected_latency_of_the_papers_example_is_one_second() -> None:
    assert projected_latency_s(1799.0, 2000.0, 0.1) == pytest.approx(1.0, rel=1e-9)


def test_projected_latency_is_infinite_from_the_margin_on_and_never_negative() -> None:
    projected = projected_latency_s(np.array([799.0, 800.0, 1000.0, 5000.0]), 1000.0, 0.2)
    assert projected.tolist() == [1.0, math.inf, math.inf, math.inf]


@given(st.lists(st.floats(0.0, 1e9), min_size=2, max_size=30), st.floats(1e-3, 1e9))
def test_pressure_orders_as_projected_latency_and_overload_by_load(
    rates: list[float], mu: float
) -> None:
    rates.sort()
    scores = pressure(np.array(rates), mu, 0.2)
    assert np.all(np.diff(scores) >= 0.0)
    overloaded = np.isinf(projected_latency_s(np.array(rates), mu, 0.2))
    assert np.array_equal(overloaded, scores >= 0.0)


@given(views(), st.sampled_from([0.0, 0.2, 0.5]), st.floats(0.0, 2000.0).map(round))
def test_best_prefix_equals_the_linear_scan_over_all_prefixes(
    seen: OperatorView, epsilon: float, rate: int
) -> None:
    """Shortest of the best, never the whole source, by latency ascending."""
    for source in range(seen.slots):
        order = ascending(seen, source)
        mu = float(seen.service_rate[source])
        total = seen.group_rate[order].sum()
        scan = []
        for length in range(1, len(order)):
            moved = seen.group_rate[order[:length]].sum()
            pair = (pressure(total - moved, mu, epsilon), pressure(rate + moved, 1000.0, epsilon))
            scan.append((float(max(pair)), length))
        found = best_prefix(seen, epsilon, source, 1000.0, float(rate))
        if not scan:
            assert found is None
            continue
        assert found is not None
        score, length = min(scan)
        assert found.pressure == score
        assert found.groups == tuple(order[:length])


def test_best_prefix_needs_a_logarithmic_number_of_projections(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """O(log K) for one destination, O(N log K) for N of them."""
    counted = 0

    def counting(rate: object, service_rate: object, epsilon: float) -> object:
        nonlocal counted
        projected = pressure(rate, service_rate, epsilon)  # type: ignore[arg-type]
        counted += projected.size
        return projected

    monkeypatch.setattr(strategies, "pressure", counting)
    groups, slots = 1024, 8
    slot_of = tuple(g if g < slots else 0 for g in range(groups))
    crowded = view([1.0] * groups, 2000.0, assignment=Assignment(slot_of, slots))
    assert best_scale_out(crowded, 0.2, 0) is not None
    assert counted <= 2 * (math.log2(groups) + 4)
    counted = 0
    assert best_balance(crowded, 0.2, 0) is not None
    assert counted <= 2 * slots * (math.log2(groups) + 4)


def test_prefix_does_not_contain_the_group_that_made_it_worse() -> None:
    """The printed loop adds a group, sees that it is worse, and keeps it."""
    seen = view([300.0, 300.0, 300.0, 300.0], 2000.0, slots=1)
    found = best_prefix(seen, 0.2, 0, 2000.0, 0.0)
    assert found is not None
    assert found.groups == (0, 1)


def test_prefix_of_a_drowned_slot_has_the_least_load_though_both_stay_overloaded() -> None:
    """Stopping at the first group that leaves the source infinite finds nothing."""
    seen = view([120.0] * 10, 1000.0, slots=1)
    found = best_scale_out(seen, 0.2, 0)
    assert found is not None
    assert len(found.groups) == 5
    drowned = best_prefix(seen, 0.2, 0, 1000.0, 1000.0)
    assert drowned is not None
    assert drowned.groups == (0,)
    assert drowned.pressure == pytest.approx(1.12)


def test_idle_groups_move_first_and_equal_latencies_by_number() -> None:
    seen = view([100.0] * 5, 1000.0, slots=1)
    seen = replace(seen, group_latency_s=np.array([0.2, 0.1, NAN, 0.1, 0.3]))
    found = best_prefix(seen, 0.2, 0, 1000.0, 0.0)
    assert found is not None
    assert found.groups == (2, 1)
    lighter = best_prefix(seen, 0.2, 0, 4000.0, 0.0)
    assert lighter is not None
    assert lighter.groups == (2, 1, 3, 0)


def test_a_group_without_arrivals_is_not_moved_for_its_own_sake() -> None:
    seen = view([900.1, 0.0, 0.0], 1000.0, slots=1)
    seen = replace(seen, group_latency_s=np.array([0.2, NAN, NAN]))
    assert best_scale_out(seen, 0.2, 0) is None


def test_no_strategy_empties_its_source_into_another_slot() -> None:
    """Replacing a slot is not a strategy."""
    alone = view([900.0, 10.0], 1000.0, slots=2)
    assert best_scale_out(alone, 0.2, 0) is None
    assert best_balance(alone, 0.2, 0) is None


def test_fixed_groups_stay_and_all_others_may_go() -> None:
    seen = view([1200.0, 10.0, 10.0], 1000.0, slots=1)
    fixed = np.array([True, False, False])
    found = best_scale_out(seen, 0.2, 0, fixed=fixed)
    assert found is not None
    assert found.groups == (1, 2)
    assert best_scale_out(seen, 0.2, 0, fixed=np.ones(3, dtype=bool)) is None


def test_scale_out_projects_the_new_slot_with_the_service_rate_of_its_source() -> None:
    seen = view([450.0, 450.0, 10.0, 10.0], [1000.0, 77.0], slots=2)
    found = best_scale_out(seen, 0.2, 0)
    assert found is not None
    assert found.kind is ChangeKind.SCALE_OUT
    assert (found.source, found.destination) == (0, 2)
    assert found.latency_s == pytest.approx([1 / 350, 1 / (0.8 * 77 - 20), 1 / 350])


def test_balance_prefers_the_destination_that_is_faster() -> None:
    """Every destination with its own service rate."""
    seen = view([450.0, 450.0, 10.0, 0.0, 10.0, 0.0], [1000.0, 700.0, 1500.0], slots=3)
    found = best_balance(seen, 0.2, 0)
    assert found is not None
    assert (found.destination, found.groups) == (2, (0,))


def test_balance_takes_the_lowest_slot_of_equal_ones() -> None:
    seen = view([450.0, 450.0, 10.0, 0.0, 10.0, 0.0], 1000.0, slots=3)
    found = best_balance(seen, 0.2, 0)
    assert found is not None
    assert found.destination == 1


@given(views(), st.sampled_from([0.0, 0.2]))
def test_balance_equals_brute_force_over_destinations_and_prefixes(
    seen: OperatorView, epsilon: float
) -> None:
    rates, mu = seen.slot_rate, seen.service_rate
    for source in range(seen.slots):
        order = ascending(seen, source)
        now = float(pressure(rates[source], mu[source], epsilon))
        best = (now, -1, 0)
        for destination in set(range(seen.slots)) - {source}:
            for length in range(1, len(order)):
                moved = seen.group_rate[order[:length]].sum()
                left = float(pressure(rates[source] - moved, mu[source], epsilon))
                more = float(pressure(rates[destination] + moved, mu[destination], epsilon))
                if max(left, more) < best[0]:
                    best = (max(left, more), destination, length)
        found = best_balance(seen, epsilon, source)
        if best[1] < 0:
            assert found is None
            continue
        assert found is not None
        after = seen.slot_rate
        after[source] -= seen.group_rate[list(found.groups)].sum()
        after[found.destination] += seen.group_rate[list(found.groups)].sum()
        pair = [source, found.destination]
        assert pressure(after, mu, epsilon)[pair].max() == best[0]
        assert found.latency_s == pytest.approx(projected_latency_s(after, mu, epsilon))


@given(views(), st.sampled_from([0.0, 0.2]))
def test_scale_in_equals_brute_force_over_ordered_pairs(seen: OperatorView, epsilon: float) -> None:
    """Least descending vector, from lambda_s + lambda_d and mu_d."""
    rates, mu = seen.slot_rate, seen.service_rate
    now = pressure(rates, mu, epsilon)
    vectors = []
    for source in range(seen.slots):
        for destination in set(range(seen.slots)) - {source}:
            kept = [now[slot] for slot in range(seen.slots) if slot not in (source, destination)]
            merged = pressure(rates[source] + rates[destination], mu[destination], epsilon)
            vectors.append((sorted([*kept, float(merged)], reverse=True), source, destination))
    found = best_scale_in(seen, epsilon)
    if not vectors:
        assert found is None
        return
    assert found is not None
    assert (found.source, found.destination) == min(vectors)[1:]
    assert found.groups == seen.assignment.groups_of(found.source)


def test_two_idle_equal_slots_merge() -> None:
    """Starting from the vector of doing nothing, equal slots never would."""
    found = best_scale_in(view([0.0] * 4, 1000.0), 0.2)
    assert found is not None
    assert (found.source, found.destination) == (0, 1)
    assert len(found.latency_s) == 1


def test_equal_slots_merge_though_others_like_them_share_a_key_group() -> None:
    """The first two of four idle slots cannot merge: each has a share of key group 0."""
    split = Assignment((0, 1, 2, 3), 4, 0, {0: (0, 1)})
    found = best_scale_in(view([0.0] * 4, 1000.0, assignment=split), 0.2)
    assert found is not None
    assert {found.source, found.destination} != {0, 1}
    whole = Assignment((0, 1, 2), 3, 0, {0: (0, 1, 2)})
    assert best_scale_in(view([0.0] * 3, 1000.0, assignment=whole), 0.2) is None


def test_scale_in_of_a_middle_slot_renumbers_the_last_into_the_hole() -> None:
    seen = view([300.0, 300.0, 1.0, 1.0, 200.0, 200.0, 250.0, 250.0], 1000.0, slots=4)
    found = best_scale_in(seen, 0.2)
    assert found is not None
    assert (found.source, found.destination) == (1, 2)
    change = change_of(seen, found)
    assert change.survivors == (0, 3, 2)
    assert change.assignment.slot_of == (0, 0, 2, 2, 2, 2, 1, 1)
    assert change.assignment.epoch == seen.assignment.epoch + 1
    assert found.latency_s == pytest.approx([1 / 200, 1 / 300, 1 / 398])


@given(views(), st.sampled_from([0.0, 0.2]))
def test_every_change_moves_groups_of_one_slot_to_one_other(
    seen: OperatorView, epsilon: float
) -> None:
    found = [best_scale_in(seen, epsilon)]
    for source in range(seen.slots):
        found += [best_balance(seen, epsilon, source)]
        if seen.slots < seen.assignment.key_groups:
            found += [best_scale_out(seen, epsilon, source)]
    for strategy in filter(None, found):
        change = change_of(seen, strategy)
        old_of = [strategy.destination if s is None else s for s in change.survivors]
        pairs = zip(seen.assignment.slot_of, change.assignment.slot_of, strict=True)
        moved = {g: (old, old_of[new]) for g, (old, new) in enumerate(pairs) if old != old_of[new]}
        assert set(moved) == set(strategy.groups)
        assert set(moved.values()) <= {(strategy.source, strategy.destination)}
        assert change.assignment.slots == len(strategy.latency_s) == len(change.survivors)


def test_groups_for_a_new_slot_are_chosen_for_one_as_fast_as_their_source() -> None:
    """Slot 1 is four times as fast, and has nothing to do with it."""
    assignment = Assignment((0, 0, 0, 0, 1), 2)
    seen = view([300.0] * 4 + [10.0], [1000.0, 4000.0], assignment=assignment)
    found = best_scale_out(seen, 0.2, 0)
    assert found is not None
    assert found.groups == (0, 1)


def test_a_merged_slot_is_as_late_as_the_later_of_the_two() -> None:
    seen = view([20.0] * 4, 1000.0, latency_s=[0.01, 0.09])
    merge = best_scale_in(seen, 0.2)
    assert merge is not None
    assert view_after(seen, merge).latency_s.tolist() == [0.09]


def test_a_balance_and_a_scale_out_in_one_are_a_scale_out() -> None:
    seen = view([450.0, 450.0, 10.0, 10.0], 1000.0)
    balance = best_balance(seen, 0.2, 0)
    assert balance is not None
    after = view_after(seen, balance)
    out = best_scale_out(after, 0.2, 1)
    assert out is not None
    both = joined(change_of(seen, balance), change_of(after, out))
    assert (both.kind, both.survivors) == (ChangeKind.SCALE_OUT, (0, 1, None))
