"""Real time on several hosts: the answer stays Spark's while key groups move and processes end."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

ALWAYS = ("subscale",)
FURTHER = ("rival", "kills", "again", "executor", "host", "stopped")
"""Runs that are made with ``--thorough`` only."""

Runs = dict[str, dict[str, Any]]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Runs:
    """What each run said."""
    base = tmp_path_factory.mktemp("hosts")
    names = [*ALWAYS, *(FURTHER if request.config.getoption("--thorough") else ())]
    program = Path(__file__).parent / "real_time_hosts.py"
    done = subprocess.run(
        [sys.executable, str(program), str(base), *names],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    return {one["name"]: one for one in map(json.loads, lines)}


@pytest.mark.parametrize(
    "name", [*ALWAYS, *(pytest.param(one, marks=pytest.mark.thorough) for one in FURTHER)]
)
def test_the_answer_is_that_of_sparks_batch(runs: Runs, name: str) -> None:
    found = runs[name]
    assert found["failed"] is None
    assert found["verified"], found
    assert found["rows"] > 50
    assert found["came_again"] == 0
    assert found["left"] == found["arenas"] == []


def test_slots_are_on_both_hosts_and_their_state_moves_while_records_flow(runs: Runs) -> None:
    found = runs["subscale"]
    expected = ["agent 127.0.0.11", "agent 127.0.0.12", "feeder 0", "slot 0", "slot 1"]
    assert found["processes"] == expected
    assert found["what"].count("finished") == found["what"].count("requested") == 3
    assert found["bytes_moved"] > 0
    assert found["slots"] == 2
    assert found["retries"] == []


@pytest.mark.thorough
def test_the_loss_of_a_process_is_one_sentence_each(runs: Runs) -> None:
    said = " ".join(runs["kills"]["retries"])
    assert len(runs["kills"]["retries"]) >= 4
    assert "routed" in runs["kills"]["what"]
    for part in ("slot", "agent of host 127.0.0.1", "the pipe starts again"):
        assert part in said


@pytest.mark.thorough
def test_a_query_that_is_stopped_goes_on_with_its_migration(runs: Runs) -> None:
    found = runs["again"]
    assert (found["slots"], found["what"][-1]) == (4, "finished")


@pytest.mark.thorough
def test_a_host_that_comes_back_gets_slots_again(runs: Runs) -> None:
    found = runs["host"]
    assert found["slots"] == 4
    assert found["bytes_moved"] > 0


@pytest.mark.thorough
def test_a_host_that_is_silent_is_left_out_and_its_slots_end_when_it_comes_back(runs: Runs) -> None:
    said = " ".join(runs["stopped"]["retries"])
    assert "the agent of host 127.0.0.12 has not answered for 15 s" in said
