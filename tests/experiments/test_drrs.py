"""DRRS's figures at a size that takes a second or two: their shape, not their numbers."""

from __future__ import annotations

import json
from collections.abc import Iterator

import numpy as np
import pytest

from headgate.experiments.drrs import (
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
from headgate.experiments.registry import Request

QUICK = Request(quick=True)


@pytest.fixture(autouse=True)
def _small() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compare, "QUICK_FACTOR", 30.0)
        patch.setattr(compare, "QUICK_COUNT", 8)
        yield


@pytest.mark.parametrize("name", list(compare.WORKLOADS))
def test_a_workload_keeps_its_rate_and_prints_its_state(name: str) -> None:
    case = compare.Case(name, compare.NO_SCALE, quick=True)
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
    stages = twitch.shorter(100.0, 1).job(1).operators
    assert len(stages) == 1 + 7  # the source, and seven operators
    assert all((w.slots_before, w.slots_after) == (8, 12) for w in (q7, q8, twitch))


def test_figure_2_has_every_method_beside_no_scaling() -> None:
    data = fig02.run(QUICK)
    rows = {row["method"]: row for row in data["rows"]}
    assert rows["no scale"]["mean_ratio"] == 1.0
    assert rows["otfs fluid"]["paper_mean_ratio"] == 3.47
    assert rows["otfs fluid"]["peak_ratio"] > rows["unbound"]["peak_ratio"]
    json.dumps(data)


def test_figure_10_compares_each_measure_with_the_papers() -> None:
    data = fig10.measure(("q7",), QUICK)
    rows = {row["method"]: row for row in data["rows"]}
    assert rows["drrs"]["peak_less"] is None
    assert rows["megaphone"]["peak_paper"] == 81.1
    assert rows["megaphone"]["operation_s"] > rows["drrs"]["operation_s"]
    json.dumps(data)


def test_figure_11_tells_dip_overshoot_and_when_it_settles() -> None:
    data = fig11.measure(("q7",), QUICK)
    assert {row["method"] for row in data["rows"]} == {"drrs", "megaphone", "meces"}
    assert all(row["dip"] <= 1.0 <= row["overshoot"] + 0.1 for row in data["rows"])
    json.dumps(data)


def test_throughput_has_settled_once_ten_seconds_are_within_a_twentieth() -> None:
    assert fig11.settled_s([50, 150, *[100] * 12], 100.0) == 2
    assert fig11.settled_s([100] * 9, 100.0) is None


def test_figure_12_has_both_overheads() -> None:
    data = fig12.measure(("q7",), QUICK)
    rows = {row["method"]: row for row in data["rows"]}
    assert rows["megaphone"]["propagation_s"] > rows["drrs"]["propagation_s"]
    assert rows["megaphone"]["dependency_s"] > rows["drrs"]["dependency_s"]
    json.dumps(data)


def test_figure_13_counts_suspension_and_trips() -> None:
    data = fig13.measure(("q7",), QUICK)
    rows = {row["method"]: row for row in data["rows"]}
    assert rows["meces"]["suspension_s"] > rows["drrs"]["suspension_s"]
    assert rows["drrs"]["units_again"] == 0
    json.dumps(data)


def test_figure_14_has_five_rows() -> None:
    data = fig14.run(QUICK)
    assert [row["on"] for row in data["rows"]] == [
        "all",
        "decoupling",
        "scheduling",
        "subscale",
        "none",
    ]
    assert data["rows"][0]["peak_more"] == 0.0
    json.dumps(data)


def test_figure_15_has_a_row_per_cell() -> None:
    data = fig15.measure((5_000,), (5,), (0.0, 1.5), factor=60.0)
    assert len(data["rows"]) == 2
    assert all(row["drrs_done"] for row in data["rows"])
    assert all(row["drrs_deviation"] < 0.2 for row in data["rows"] if row["skew"] == 0.0)
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
