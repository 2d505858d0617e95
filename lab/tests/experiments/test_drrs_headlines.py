"""DRRS's figures 2 and 14 with state and rates of full size, as `--quick` has them: who wins, and why."""

from __future__ import annotations

import json

import pytest

from headgate_lab.experiments.drrs import fig02, fig14
from headgate_lab.experiments.registry import Request

pytestmark = pytest.mark.slow

QUICK = Request(quick=True)


def test_in_figure_2_scaling_on_the_fly_multiplies_latency_and_its_bound_does_not() -> None:
    rows = {row["method"]: row for row in fig02.run(QUICK)["rows"]}
    otfs, bound = rows["otfs fluid"], rows["unbound"]
    assert otfs["mean_ratio"] >= 1.5  # the paper has 3.47
    assert otfs["peak_ratio"] >= otfs["paper_peak_ratio"]
    assert bound["mean_ratio"] <= bound["paper_mean_ratio"]
    assert bound["peak_ratio"] <= bound["paper_peak_ratio"]
    assert rows["stop-restart"]["mean_ratio"] > 10 * otfs["mean_ratio"]


@pytest.mark.thorough
def test_in_figure_14_no_mechanism_alone_comes_near_all_three() -> None:
    data = fig14.run(QUICK)
    rows = {row["on"]: row for row in data["rows"]}
    assert list(rows) == ["all", "decoupling", "scheduling", "subscale", "none"]
    assert rows["all"]["peak_more"] == rows["all"]["mean_more"] == 0.0
    for alone in ("decoupling", "scheduling", "subscale", "none"):
        assert rows[alone]["peak_more"] >= 18.0  # the least that the paper has
        assert rows[alone]["mean_more"] >= 5.0
    assert rows["decoupling"]["mean_more"] > rows["scheduling"]["mean_more"]
    assert rows["decoupling"]["mean_more"] > rows["subscale"]["mean_more"]
    json.dumps(data)
