"""Henge's figures, short: who wins, and by how much at least."""

from __future__ import annotations

import csv
import gzip
import importlib.util
import json
import math
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any
from xml.etree import ElementTree

import pytest

from headgate.core.errors import ConfigError
from headgate.report.plot import save
from headgate_lab.experiments import guesses, registry
from headgate_lab.experiments.henge import (
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
from headgate_lab.experiments.registry import Request

drawing = pytest.mark.skipif(
    importlib.util.find_spec("matplotlib") is None,
    reason='matplotlib, the extra "plot", is not installed',
)
pytestmark = [pytest.mark.jit, pytest.mark.slow]


def written(folder: Path, level: Callable[[int], float]) -> Path:
    """Write a made-up day of both logs, whose requests by minute are `level`."""
    with gzip.open(folder / fig12.FILE, "wt", newline="") as file:
        table = csv.writer(file)
        table.writerow(["minute", "sdsc_requests", "epa_requests"])
        for minute in range(1440):
            table.writerow([minute, round(level(minute)), round(level(minute)) + minute % 3])
    return folder


@pytest.fixture(scope="module")
def logs(tmp_path_factory) -> Path:
    """The afternoon three times as busy as the night."""
    wave = lambda minute: 20 - 10 * math.cos(2 * math.pi * minute / 1440)  # noqa: E731
    return written(tmp_path_factory.mktemp("logs"), wave)


@pytest.fixture(scope="module")
def peaked_logs(tmp_path_factory) -> Path:
    """A third of the day at two and a half times the median."""
    peak = lambda minute: 25 if 600 <= minute < 1080 else 10  # noqa: E731
    return written(tmp_path_factory.mktemp("peaked"), peak)


@cache
def measured(module: ModuleType, *arguments: object, **named: object) -> dict[str, Any]:
    """Run a figure once for the tests of what it shows and of its picture."""
    found = module.measure(*arguments, **named) if arguments or named else module.run(Request())
    return json.loads(json.dumps(found))


def test_figure_1_needs_fewer_machines_together_than_one_cluster_per_job():
    data = measured(fig01, 2400.0)
    full = [row["resources"] for row in data["rows"] if row["henge"] > 0.99]
    assert min(full) <= 0.7
    assert all(row["henge"] >= row["unmanaged"] for row in data["rows"])
    by_share = {row["resources"]: row for row in data["rows"]}
    assert by_share[0.6]["henge"] >= 0.935  # the paper has it with 40 %
    assert by_share[0.6]["henge"] > 6.7 * by_share[0.6]["unmanaged"]


def test_figure_9_touches_the_highest_priority_first_and_brings_all_to_their_slo():
    data = measured(fig09, 2400.0)
    assert [row["jobs"] for row in data["rows"]] == [f"T{k}" for k in range(9, 0, -1)]
    restarts = {n: found for n, found in data["reaches"].items() if "restart" in n}
    assert len(restarts) == 2
    for found in restarts.values():
        assert found["all_met_s"] <= 1800.0  # the paper's
        assert found["satisfaction"] == 1.0
        assert set(found["jobs_by_actions"]) == {"1"}


def test_figure_11_hides_both_spikes():
    data = measured(fig11, 900.0)
    assert {found["utility_least"] for found in data["reaches"].values()} == {70.0}


def test_figure_12_beats_slots_set_by_hand_where_the_peak_is_more_than_they_serve(peaked_logs):
    found = measured(fig12, peaked_logs, jobs=1)
    reaches = found["reaches"]
    assert found["slots_by_hand"] == 28  # what Henge gives at the median load
    assert reaches["henge"]["mean"] > reaches["by hand"]["mean"] + 2.0
    assert reaches["henge"]["p15"] > reaches["by hand"]["p15"] + 10.0
    assert reaches["by hand"]["mean"] > reaches["unmanaged"]["mean"] + 50.0


@pytest.mark.thorough
def test_figure_12_comes_near_slots_that_suffice_all_day_and_acts_less_on_the_second(logs):
    reaches = measured(fig12, logs, jobs=1)["reaches"]
    assert reaches["by hand"]["mean"] > 99.0  # a day whose peak they serve, too
    assert reaches["henge"]["mean"] > reaches["by hand"]["mean"] - 5.0
    assert reaches["unmanaged"]["mean"] < 1.0
    assert reaches["actions_second_day"] < reaches["actions_first_day"]


def test_figure_12_names_the_log_that_is_missing(tmp_path):
    with pytest.raises(ConfigError, match=fig12.FILE):
        fig12.measure(tmp_path, jobs=1)


def test_figure_13_has_a_reduction_and_a_reversion_and_comes_to_rest():
    data = measured(fig13, 4000.0)
    assert {"reconfiguration", "reduction", "reversion"} <= set(data["reaches"]["actions"])
    assert data["rows"][-1]["action"] == "reversion"
    assert data["rows"][-1]["time_s"] < 3000.0
    assert data["reaches"]["satisfaction_at_the_end"] >= 0.686  # the paper's
    assert data["reaches"]["T1"]["p95"] < 1.0  # it alone wants more than there is


def test_figure_14_reduces_jobs_that_do_well_and_recovers():
    reaches = measured(fig14, 4000.0)["reaches"]
    assert reaches["actions_after_spike"]["reduction"] >= 1
    assert reaches["utility_after"] >= 0.98 * reaches["utility_before"]
    assert reaches["utility_least"] < 0.95 * reaches["utility_before"]


def test_figure_14_recovers_whatever_the_load_but_reduces_at_the_one_that_was_found_by_trying():
    rows = guesses.measure({"henge-14, taken": (3.2, 3.38, 3.55)})["rows"]
    little, used, more = rows
    assert [row["in_use"] for row in rows] == [False, True, False]
    assert little["utility_least"] == little["utility_before"]  # nothing happens
    assert (used["reduction"], more["reduction"]) == (1, 0)
    assert max(used["recovered_s"], more["recovered_s"]) <= 1200.0  # the paper's


def test_figure_15_comes_back_to_the_maximum_after_each_arrival():
    data = measured(fig15, 2, 1800.0)
    assert [row["jobs"] for row in data["rows"]] == [5, 7, 9, 11, 13]
    assert all(row["at_the_end"] > 0.99 for row in data["rows"])
    assert all(row["on_older_jobs"] == 0 for row in data["rows"])


@pytest.mark.thorough
def test_figure_16_meets_all_slos_with_thirty_machines_and_none_with_ten():
    few, many = measured(fig16, (10, 30), 4500.0)["rows"]
    assert (few["met"], many["met"]) == (0.0, 1.0)
    assert few["satisfaction"] < 0.2
    assert many["p5"] == 100.0


def test_figure_17_does_nothing_without_fresh_statistics():
    data = measured(fig17)
    assert data["reaches"]["actions_while_cut_or_collecting"] == 0
    assert data["reaches"]["first_action_after_s"] == 1680.0  # the paper's
    assert data["reaches"]["all_met_s"] < 2400.0


def test_figure_18_reaches_the_total_with_flat_memory():
    reaches = measured(fig18)["reaches"]
    assert reaches["utility"] == pytest.approx(400.0)
    assert reaches["all_met_s"] < 2444.0  # the paper's
    assert reaches["memory_most"] < 0.36
    assert abs(reaches["memory_growth_converged"]) < 0.001


def test_table_4_takes_stateful_jobs_longer_by_what_their_writes_take():
    stateful, stateless = measured(table4, 1)["rows"]
    assert stateful["rounds"] > stateless["rounds"] >= 1
    assert stateless["converged_s"] < 6000.0
    # The paper has 19.8 % more. Ours hangs on what a write is taken to take.
    assert stateful["converged_s"] > 1.4 * stateless["converged_s"]
    cheap, _ = measured(table4, 1, write_s=0.010)["rows"]
    assert cheap["converged_s"] < stateful["converged_s"]


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


@pytest.mark.thorough
@drawing
def test_every_figure_can_be_drawn(logs, tmp_path):
    drawn = {
        fig01: (2400.0,),
        fig09: (2400.0,),
        fig13: (4000.0,),
        fig15: (2, 1800.0),
        fig16: ((10, 30), 4500.0),
        fig18: (),
        table4: (1,),
        rivals: (1, 3000.0),
        parameters: (4000.0,),
        rounds: ((3,), 2),
    }
    found = [(module, measured(module, *arguments)) for module, arguments in drawn.items()]
    found.append((guesses, guesses.measure({"henge-table-4, write_s": (0.020,)})))
    for module, data in [*found, (fig12, measured(fig12, logs, jobs=1))]:
        save(module.draw(data), tmp_path / "figure.svg")
        assert ElementTree.parse(tmp_path / "figure.svg").getroot().tag.endswith("svg")


def test_figures_of_the_paper_that_share_a_run_are_found_by_both_names():
    assert registry.load("henge-10") is registry.load("henge-9")
