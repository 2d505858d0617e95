"""A policy that another distribution brings, named on the command line and in a fleet's file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import own_policies
import pytest
from fakes import FakeClock, FakeEngine
from typer.testing import CliRunner

from headgate import scenario as scenarios
from headgate.cli import app

SLO = "mean < 2 s over 2 s"


@pytest.fixture(autouse=True)
def _installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    own_policies.install_example(monkeypatch, tmp_path / "site")


def call(*arguments: str | Path) -> tuple[int, Any]:
    result = CliRunner().invoke(app, [*map(str, arguments), "--json"])
    return result.exit_code, json.loads(result.stdout.splitlines()[-1])


def test_simulate_compares_an_installed_policy_with_headgates_own(tmp_path: Path) -> None:
    rows = [f"{second},k{key},10" for second in range(10) for key in range(20)]
    trace = tmp_path / "trace.csv"
    trace.write_text("\n".join(["time,key,count", *rows]), encoding="utf-8")
    given = ["simulate", trace, "--slo", SLO, "--service-rate", "50", "--policy"]
    code, found = call(*given, "lag(0.5),static")
    assert code == 0
    assert [row["policy"] for row in found["rows"]] == ["lag(0.5)", "static"]
    code, found = call(*given, "lga")
    assert code == 2
    assert 'unknown policy "lga"; did you mean "lag"?' in found["error"]["message"]


def test_run_takes_an_installed_policy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    engine, real = FakeEngine(), scenarios.run_scenario

    def run(it: scenarios.Scenario, on_progress: Any) -> dict[str, Any]:
        clock = FakeClock()
        return real(it, on_progress, engine=engine, clock_s=clock, sleep=clock.sleep)

    monkeypatch.setattr(scenarios, "run_scenario", run)
    given = ["run", "nexmark-q5", "--duration", "5s", "--checkpoint", tmp_path / "ck", "--slo", SLO]
    code, _ = call(*given, "--policy", "lag(1)")
    assert code == 0
    assert engine.scenario is not None
    assert engine.scenario.policy == "lag(1)"
    code, found = call(*given, "--policy", "lag(-1)")
    assert code == 2
    assert found["error"]["message"] == "lag: behind_s=-1 is out of range; use more than 0."


def test_a_fleets_file_names_an_installed_policy(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    entries = {"calm": "calm:Calm"}
    own_policies.install(
        monkeypatch,
        tmp_path / "calm",
        "calm",
        entries,
        group="headgate.fleet_policies",
        module="class Calm:\n    pass",
    )
    path = tmp_path / "fleet.toml"
    job = (
        f'[jobs.a]\nquery = "nexmark-q5"\nslo = "{SLO}"\ncheckpoint = "c"\nsink = {{path = "o"}}\n'
    )
    path.write_text(f'[fleet]\nslots = 4\npolicy = "calm"\n{job}', encoding="utf-8")
    code, found = call("fleet", "check", path)
    assert (code, found["slots"]) == (0, 4), found
    path.write_text(f'[fleet]\nslots = 4\npolicy = "clam"\n{job}', encoding="utf-8")
    code, found = call("fleet", "check", path)
    assert code == 2
    assert 'unknown fleet policy "clam"; did you mean "calm"?' in found["error"]["message"]
