"""PSPS's tables at one seed: who wins, and by how much at least."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headgate.control.estimators.forecast import Naive, Smoothed
from headgate.core.errors import ConfigError
from headgate_lab.experiments import registry
from headgate_lab.experiments.psps import forecast, workloads
from headgate_lab.experiments.registry import Request

QUICK = Request(quick=True)


def rows(name: str) -> dict[str, dict[str, Any]]:
    return {row["system"]: row for row in registry.run(name, QUICK)["rows"]}


def test_table_2_is_the_papers_to_the_last_digit() -> None:
    found = registry.run("psps-table-2", QUICK)
    assert found["exact"]
    assert [row["replicas"] for row in found["rows"]] == [2, 3, 9]


def test_the_load_has_the_papers_peak_and_one_replica_processes_a_third_of_it() -> None:
    load = workloads.bursts()
    assert load.max() == pytest.approx(8.0, abs=0.1)
    assert 1.0 / load.mean() == pytest.approx(0.3319, abs=0.03)


def test_longer_intervals_mean_more_latency() -> None:
    found = rows("psps-table-4")
    latency = [found[f"td = {td} s, no t_out"]["latency_ms"] for td in (30, 60, 120, 180)]
    assert latency == sorted(latency)
    assert found["td = 30 s"]["paper_latency_ms"] == 2098.91


def test_a_shorter_timeout_lowers_latency_and_loses_events() -> None:
    found = list(rows("psps-table-5").values())
    assert [row["latency_ms"] for row in found] == sorted(row["latency_ms"] for row in found)
    assert [row["processed"] for row in found] == sorted(row["processed"] for row in found)
    assert (found[0]["dropped"] > 0, found[-1]["dropped"]) == (True, 0)


def test_shorter_queues_lower_latency_and_lose_events() -> None:
    found = list(rows("psps-table-6").values())
    assert [row["processed"] for row in found] == sorted(row["processed"] for row in found)


def test_60_percent_less_waiting_than_shuffle_is_reached_by_least_work_and_not_by_load_aware() -> (
    None
):
    reaches = registry.run("psps-table-7", QUICK)["reaches"]
    assert reaches["met"] == [
        "bursts, foreseen: least-work against PSPS with shuffle",
        "bursts, foreseen: load-aware against PSPS with shuffle",
        "bursts, foreseen: shuffle against PSPS with shuffle",
        "bursts: load-aware against the printed row",
        "steady 2.8: least-work",
        "steady 6.3, unequal: least-work",
        "steady 6.3: least-work",
    ]
    lower = reaches["lower"]
    for load in ("steady 2.8", "steady 6.3", "steady 6.3, unequal"):
        assert 0.3 < lower[f"{load}: load-aware"] < 0.6 < lower[f"{load}: least-work"]
    assert 0.05 < lower["bursts: load-aware"] < lower["bursts: least-work"] < 0.2


@pytest.mark.parametrize("name", ["psps-table-8", "psps-table-10"])
def test_ours_drops_nothing_and_saves_more_than_its_rivals(name: str) -> None:
    reaches = registry.run(name, QUICK)["reaches"]
    assert all(reaches.values()), reaches


def test_tables_with_pictures_are_found_by_the_figures_numbers() -> None:
    assert registry.load("psps-9") is registry.load("psps-8") is registry.load("psps-table-8")
    assert registry.load("psps-11") is registry.load("psps-10")
    assert registry.load("psps-14") is registry.load("psps-table-12")


@pytest.mark.parametrize("table", [9, 11, 12])
def test_psps_processes_what_fewer_replicas_do_not(table: int) -> None:
    found = rows(f"psps-table-{table}")
    psps = found["PSPS"]
    assert psps["saved"] > 0.5
    assert psps["processed"] > 0.99
    if table == 9:
        assert found["r = 1"]["latency_ms"] > 20 * psps["latency_ms"]
        assert found["r = 1"]["processed"] < 0.4
    elif table == 11:
        assert psps["saved"] >= found["r = 5"]["saved"] + 0.745  # the paper's
    else:
        assert found["r = 1"]["latency_ms"] > 1.2 * psps["latency_ms"]


def test_the_error_of_a_forecast_is_that_one_interval_ahead() -> None:
    assert forecast.mean_error(Naive(), np.array([1.0, 4.0, 2.0])) == 2.5
    assert forecast.mean_error(Smoothed(0.0), np.array([1.0, 4.0, 2.0])) == 2.0


def test_a_directory_without_the_logs_is_refused_by_the_missing_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r'no "worldcup98.per_minute.csv.gz" in'):
        registry.run("psps-forecast", Request(quick=True, data=tmp_path))


def test_figures_are_drawn() -> None:
    pytest.importorskip("matplotlib")
    for name in ("psps-table-2", "psps-table-8", "psps-table-11"):
        registry.load(name).draw(registry.run(name, QUICK))
