"""Henge's figures, short: the shape the paper claims."""

from __future__ import annotations

import csv
import gzip
import importlib.util
import json
import math
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any
from xml.etree import ElementTree

import pytest

from headgate.core.errors import ConfigError
from headgate.experiments import registry
from headgate.experiments.henge import (
    fig01,
    fig09,
    fig11,
    fig12,
    fig13,
    fig14,
    fig15,
    fig16,
    fig17,
    fig18,
    parameters,
    rivals,
    rounds,
    table4,
)
from headgate.experiments.registry import Request
from headgate.report.plot import save

drawing = pytest.mark.skipif(
    importlib.util.find_spec("matplotlib") is None,
    reason='matplotlib, the extra "plot", is not installed',
)
pytestmark = [pytest.mark.jit, pytest.mark.slow]


@pytest.fixture(scope="module")
def logs(tmp_path_factory) -> Path:
    """A made-up day of both logs: the afternoon three times as busy as the night."""
    folder = tmp_path_factory.mktemp("logs")
    with gzip.open(folder / fig12.FILE, "wt", newline="") as file:
        table = csv.writer(file)
        table.writerow(["minute", "sdsc_requests", "epa_requests"])
        for minute in range(1440):
            level = round(20 - 10 * math.cos(2 * math.pi * minute / 1440))
            table.writerow([minute, level, level + minute % 3])
    return folder


@cache
def measured(module: ModuleType, *arguments: object, **named: object) -> dict[str, Any]:
    """Run a figure once for the tests of what it shows and of its picture."""
    found = module.measure(*arguments, **named) if arguments or named else module.run(Request())
    return json.loads(json.dumps(found))


def test_figure_1_needs_fewer_machines_together_than_one_cluster_per_job():
    data = measured(fig01, 2400.0)
    full = [row["resources"] for row in data["rows"] if row["henge"] > 0.99]
    assert min(full) < 1.0
    assert all(row["henge"] >= row["unmanaged"] for row in data["rows"])


def test_figure_9_touches_the_highest_priority_first_and_brings_all_to_their_slo():
    data = measured(fig09, 2400.0)
    assert [row["jobs"] for row in data["rows"]] == [f"T{k}" for k in range(9, 0, -1)]
    assert all(
        found["all_met_s"] < 2400.0 for n, found in data["reaches"].items() if "restart" in n
    )


def test_figure_11_hides_both_spikes():
    data = measured(fig11, 900.0)
    assert all(found["utility_mean"] > 0.97 * 70.0 for found in data["reaches"].values())


def test_figure_12_beats_slots_set_by_hand_and_acts_less_on_the_second_day(logs):
    reaches = measured(fig12, logs, jobs=1)["reaches"]
    assert reaches["henge"]["mean"] > reaches["unmanaged"]["mean"]
    assert reaches["actions_second_day"] < reaches["actions_first_day"]


def test_figure_12_names_the_log_that_is_missing(tmp_path):
    with pytest.raises(ConfigError, match=fig12.FILE):
        fig12.measure(tmp_path, jobs=1)


def test_figure_13_has_a_reduction_and_a_reversion_and_comes_to_rest():
    data = measured(fig13, 4000.0)
    assert {"reconfiguration", "reduction", "reversion"} <= set(data["reaches"]["actions"])
    assert data["rows"][-1]["time_s"] < 3000.0


def test_figure_14_reduces_jobs_that_do_well_and_recovers():
    reaches = measured(fig14, 4000.0)["reaches"]
    assert reaches["actions_after_spike"]["reduction"] >= 1
    assert reaches["utility_after"] >= 0.98 * reaches["utility_before"]
    assert reaches["utility_least"] < 0.95 * reaches["utility_before"]


def test_figure_15_comes_back_to_the_maximum_after_each_arrival():
    data = measured(fig15, 2, 1800.0)
    assert [row["jobs"] for row in data["rows"]] == [5, 7, 9, 11, 13]
    assert all(row["at_the_end"] > 0.99 for row in data["rows"])


def test_figure_16_has_more_utility_with_more_machines():
    few, many = measured(fig16, (10, 30), 1800.0)["rows"]
    assert few["satisfaction"] < many["satisfaction"]


def test_figure_17_does_nothing_without_fresh_statistics():
    data = measured(fig17)
    assert data["reaches"]["actions_while_cut_or_collecting"] == 0
    assert data["reaches"]["all_met_s"] is not None


def test_figure_18_reaches_the_total_with_flat_memory():
    reaches = measured(fig18)["reaches"]
    assert reaches["utility"] == pytest.approx(400.0)
    assert abs(reaches["memory_growth_converged"]) < 0.001


def test_table_4_has_both_kinds_converge():
    stateful, stateless = measured(table4, 1)["rows"]
    assert stateful["rounds"] >= 1
    assert stateless["converged_s"] < 6000.0


def test_henge_has_half_as_much_again_as_its_rivals_where_slots_are_scarce():
    rows = {(row["slots"], row["policy"]): row for row in measured(rivals, 1, 6000.0)["rows"]}
    assert rows["scarce", "equal-shares"]["henge_times"] >= 1.5
    assert rows["scarce", "first-come"]["henge_times"] >= 1.5
    assert rows["enough", "henge"]["utility"] == pytest.approx(450.0, rel=0.01)


def test_the_five_parameters_end_at_the_same_utility():
    rows = measured(parameters, 4000.0)["rows"]
    assert {row["parameter"] for row in rows} == set(parameters.VALUES)
    assert all(row["utility"] == pytest.approx(450.0, rel=0.01) for row in rows)


def test_a_round_is_measured_by_jobs():
    (row,) = measured(rounds, (3,), 2)["rows"]
    assert row["round_ms"] > 0.0


@drawing
def test_every_figure_can_be_drawn(logs, tmp_path):
    drawn = {
        fig01: (2400.0,),
        fig09: (2400.0,),
        fig13: (4000.0,),
        fig15: (2, 1800.0),
        fig16: ((10, 30), 1800.0),
        fig18: (),
        table4: (1,),
        rivals: (1, 3000.0),
        parameters: (4000.0,),
        rounds: ((3,), 2),
    }
    found = [(module, measured(module, *arguments)) for module, arguments in drawn.items()]
    for module, data in [*found, (fig12, measured(fig12, logs, jobs=1))]:
        save(module.draw(data), tmp_path / "figure.svg")
        assert ElementTree.parse(tmp_path / "figure.svg").getroot().tag.endswith("svg")


def test_figures_of_the_paper_that_share_a_run_are_found_by_both_names():
    assert registry.load("henge-10") is registry.load("henge-9")
