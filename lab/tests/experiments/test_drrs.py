"""DRRS's figures at a size that takes a second or two: who wins, and by how much at least.

Figures 2 and 14 hang on how long state takes to move, which a small size hides: theirs are in
`test_drrs_headlines`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import pytest

from headgate_lab.experiments.drrs import (
    compare,
    fig02,
    fig10,
    fig11,
    fig12,
    fig13,
    fig14,
    fig15,
    workloads,
)
from headgate_lab.experiments.drrs.workloads import Workload
from headgate_lab.experiments.registry import Request

SMALL = 30.0
"""By how much state, times, rounds and transfers are scaled down."""

HERE = Request()


@pytest.fixture(autouse=True)
def _small() -> Iterator[None]:
    def small(make: Callable[[], Workload]) -> Callable[[], Workload]:
        full = make()
        return lambda: replace(
            full,
            state_bytes=full.state_bytes / SMALL,
            warm_up_s=full.warm_up_s / SMALL,
            after_s=full.after_s / SMALL,
            unit_s=full.unit_s / SMALL,
            count=full.count * 4,
        )

    with pytest.MonkeyPatch.context() as patch:
        made = {name: small(make) for name, make in compare.WORKLOADS.items()}
        patch.setattr(compare, "WORKLOADS", made)
        patch.setattr(compare, "ROUND_S", compare.ROUND_S / SMALL)
        yield


def test_quick_runs_are_shorter_and_otherwise_of_full_size() -> None:
    quick = compare.Case("q7", "drrs", quick=True).load()
    full = compare.Case("q7", "drrs", quick=False).load()
    assert quick.state_bytes == full.state_bytes
    assert quick.records_per_s == full.records_per_s
    assert quick.length_s == compare.QUICK_WARM_UP_S + compare.QUICK_AFTER_S
    assert quick.count == compare.QUICK_COUNT * full.count


@pytest.mark.parametrize("name", list(compare.WORKLOADS))
def test_a_workload_keeps_its_rate_and_prints_its_state(name: str) -> None:
    case = compare.Case(name, compare.NO_SCALE, quick=False)
    workload = case.load()
    flow = compare.run(case, workload)
    sizes = [h.state_bytes for s in flow.slots[workload.operator] for h in s.store.values()]
    assert len(sizes) == 128
    assert sum(sizes) >= workload.state_bytes * 0.999
    seconds = int(workload.length_s) - 1
    rate = sum(compare.throughput(flow, 1, seconds)) / seconds
    assert rate == pytest.approx(workload.records_per_s, rel=0.1)
    found = compare.latencies(flow)
    assert np.median(found.latency_s) < 1.0


def test_the_workloads_are_those_of_the_paper() -> None:
    q7, q8, twitch = workloads.q7(), workloads.q8(), workloads.twitch()
    assert (q7.records_per_s, q7.state_bytes) == (20_000, 800e6)
    assert (q8.records_per_s, q8.state_bytes) == (1_000, 3e9)
    assert (twitch.records_per_s, twitch.state_bytes) == (4_000, 500e6)
    stages = replace(twitch, after_s=1.0).job(1).operators
    assert len(stages) == 1 + 7  # the source, and seven operators
    assert all((w.slots_before, w.slots_after) == (8, 12) for w in (q7, q8, twitch))


def test_figure_2_has_every_method_beside_no_scaling() -> None:
    data = fig02.run(HERE)
    rows = {row["method"]: row for row in data["rows"]}
    assert rows["no scale"]["mean_ratio"] == 1.0
    assert rows["otfs fluid"]["paper_mean_ratio"] == 3.47
    assert rows["otfs fluid"]["peak_ratio"] > 2 * rows["unbound"]["peak_ratio"]
    assert rows["stop-restart"]["peak_ratio"] > 10 * rows["otfs fluid"]["peak_ratio"]
    json.dumps(data)


def test_in_figure_10_drrs_has_less_latency_than_both_rivals_and_is_done_first() -> None:
    data = fig10.measure(("q7",), HERE)
    rows = {row["method"]: row for row in data["rows"]}
    assert rows["drrs"]["peak_less"] is None
    assert rows["megaphone"]["peak_paper"] == 81.1
    assert rows["megaphone"]["peak_less"] >= 80.0
    assert rows["megaphone"]["mean_less"] >= 75.0
    assert rows["meces"]["peak_less"] >= 40.0
    assert rows["meces"]["mean_less"] >= 5.0
    assert rows["megaphone"]["operation_s"] > 10 * rows["drrs"]["operation_s"]
    assert rows["meces"]["operation_s"] > 3 * rows["drrs"]["operation_s"]
    json.dumps(data)


def test_the_order_of_methods_is_told_for_transfers_that_take_less_and_more() -> None:
    methods = {name: name for name in ("drrs", "megaphone", "meces")}
    little, much = compare.orders(["q7"], methods, HERE, (0.0, 0.08 / SMALL))
    assert (little["transfer_ms"], much["transfer_ms"]) == (0.0, pytest.approx(80 / SMALL))
    assert much["peak"] == ["drrs", "meces", "megaphone"]
    assert much["peak_s"]["meces"] > 2 * little["peak_s"]["meces"]
    json.dumps(much)
    (busier,) = compare.orders(["q7"], methods, HERE, (0.0,), slot_load=0.95)
    assert busier["mean_s"]["meces"] != little["mean_s"]["meces"]
    assert compare.Case("q7", "drrs", quick=False, slot_load=0.95).load().load == 0.95


def test_a_figure_says_what_is_guessed() -> None:
    guessed = fig10.measure(("q7",), HERE)["guessed"]
    assert guessed == {
        "transfer_ms": {"q7": pytest.approx(20 / SMALL)},
        "load": {"q7": workloads.LOAD},
    }


def test_in_figure_11_throughput_does_not_dip_with_drrs_and_does_with_megaphone() -> None:
    data = fig11.measure(("q7",), HERE)
    rows = {row["method"]: row for row in data["rows"]}
    assert set(rows) == {"drrs", "megaphone", "meces"}
    assert all(row["dip"] <= 1.0 <= row["overshoot"] + 0.1 for row in data["rows"])
    assert rows["drrs"]["dip"] >= 0.95
    assert rows["drrs"]["overshoot"] <= 1.05
    assert rows["drrs"]["settled_s"] == 0
    assert rows["megaphone"]["dip"] <= 0.8
    assert rows["megaphone"]["settled_s"] is None
    json.dumps(data)


def test_throughput_has_settled_once_ten_seconds_are_within_a_twentieth() -> None:
    assert fig11.settled_s([50, 150, *[100] * 12], 100.0) == 2
    assert fig11.settled_s([100] * 9, 100.0) is None


def test_in_figure_12_megaphone_is_far_above_in_both_overheads_and_meces_hardly_propagates() -> (
    None
):
    data = fig12.measure(("q7",), HERE)
    rows = {row["method"]: row for row in data["rows"]}
    assert rows["megaphone"]["propagation_s"] > 10 * rows["drrs"]["propagation_s"]
    assert rows["megaphone"]["dependency_s"] > 10 * rows["drrs"]["dependency_s"]
    assert rows["meces"]["propagation_s"] < rows["drrs"]["propagation_s"]
    assert rows["meces"]["dependency_s"] > 2 * rows["drrs"]["dependency_s"]
    json.dumps(data)


def test_in_figure_13_meces_is_suspended_longest_and_megaphone_shortest() -> None:
    data = fig13.measure(("q7",), HERE)
    rows = {row["method"]: row for row in data["rows"]}
    assert rows["meces"]["suspension_s"] > 5 * rows["drrs"]["suspension_s"]
    assert rows["megaphone"]["suspension_s"] < rows["drrs"]["suspension_s"]
    assert rows["drrs"]["units_again"] == 0
    json.dumps(data)


def test_figure_14_is_of_five_methods_of_which_all_three_together_are_drrs() -> None:
    rows = {row["on"]: row for row in fig14.run(HERE)["rows"]}
    assert list(rows) == ["all", "decoupling", "scheduling", "subscale", "none"]
    assert (
        len({(row["mean_s"], row["suspension_s"], row["operation_s"]) for row in rows.values()})
        == 5
    )
    (drrs,) = compare.compare(["twitch"], ["drrs"], HERE)["twitch"]
    assert rows["all"]["suspension_s"] == round(drrs["suspension_s"], 2)
    assert rows["all"]["operation_s"] == round(drrs["operation_s"], 1)


def test_in_figure_15_drrs_ends_everywhere_and_hot_keys_bound_all_alike() -> None:
    data = fig15.measure((5_000,), (5,), (0.0, 1.5), factor=60.0)
    assert len(data["rows"]) == 2
    assert all(row["drrs_done"] for row in data["rows"])
    even, skewed = data["rows"]
    assert even["drrs_deviation"] <= 0.01
    assert not even["megaphone_done"]
    assert even["drrs_best"]
    rivals = [skewed[f"{name}_deviation"] for name in ("megaphone", "meces")]
    assert skewed["drrs_deviation"] == pytest.approx(min(rivals), abs=0.02)
    json.dumps(data)


def test_figure_15_moves_229_of_256_groups_whose_sizes_add_up() -> None:
    cell = fig15.Cell(5_000, 10, 0.0, "drrs", 60.0, 6.0, 40)
    found = fig15.sizes(cell)
    assert len(found) == 256
    assert sum(found) == pytest.approx(0.8 * 10e9, rel=0.02)


@pytest.mark.parametrize(
    ("module", "data"),
    [
        (fig02, {"series": {"drrs": [0.1, None, 0.2]}}),
        (fig10, {"series": {"q7": {"drrs": [0.1, None, 0.2]}}}),
        (fig11, {"series": {"q7": {"drrs": [100, 90]}}}),
        (
            fig12,
            {"rows": [{"workload": "q7", "method": "drrs", "propagation_s": 1, "dependency_s": 2}]},
        ),
        (fig13, {"series": {"q7": {"drrs": [0.0, 1.0]}}}),
        (fig14, {"series": {"all": [0.1, 0.2]}}),
        (
            fig15,
            {
                "rows": [
                    {
                        "rate": 5,
                        "state_gb": 5,
                        "skew": 0.0,
                        "drrs_deviation": 0.0,
                        "megaphone_deviation": 0.1,
                        "meces_deviation": 0.2,
                    }
                ]
            },
        ),
    ],
)
def test_every_figure_draws_what_it_returned(module: object, data: dict[str, object]) -> None:
    pytest.importorskip("matplotlib")
    assert module.draw(data).axes  # type: ignore[attr-defined]
