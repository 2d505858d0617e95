"""Real time on several hosts: the answer stays Spark's while key groups move and processes end."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

ALWAYS = ("subscale",)
FURTHER = (
    "rival",
    "kills",
    "again",
    "executor",
    "pause",
    "host",
    "stopped",
    "cut",
    "parted",
    "store",
    "relayed",
)
"""Runs that are made with ``--thorough`` only."""

ALONE = ("unshare", "--net", "--mount")
"""Begins a command that has networks of its own."""

Runs = Callable[[str], dict[str, Any]]


def can_cut() -> bool:
    """Return whether a host can be cut off here."""
    return os.getuid() == 0 and shutil.which("ip") is not None


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    """Return what makes a run once, on a cluster of its own, and returns what it said."""

    @cache
    def made(name: str) -> dict[str, Any]:
        program = Path(__file__).parent / "real_time_hosts.py"
        command = [sys.executable, str(program), str(tmp_path_factory.mktemp(name)), name]
        if name in ("cut", "parted"):
            if not can_cut():
                pytest.skip("to cut a host off needs root, and `ip` of iproute2.")
            command = [*ALONE, *command]
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        (line,) = [line for line in done.stdout.splitlines() if line.startswith("{")]
        found: dict[str, Any] = json.loads(line)
        return found

    return made


@pytest.mark.parametrize(
    "name", [*ALWAYS, *(pytest.param(one, marks=pytest.mark.thorough) for one in FURTHER)]
)
def test_the_answer_is_that_of_sparks_batch(run: Runs, name: str) -> None:
    found = run(name)
    assert found["failed"] is None
    assert found["verified"], found
    assert found["rows"] > 50
    assert found["came_again"] == 0
    assert found["left"] == found["arenas"] == []


def test_slots_are_on_both_hosts_and_their_state_moves_while_records_flow(run: Runs) -> None:
    found = run("subscale")
    expected = ["agent 127.0.0.11", "agent 127.0.0.12", "feeder 0", "slot 0", "slot 1"]
    assert found["processes"] == expected
    assert found["what"].count("finished") == found["what"].count("requested") == 2
    assert found["bytes_moved"] > 0
    assert found["slots"] == 3
    assert found["retries"] == []


@pytest.mark.thorough
def test_an_executor_that_is_stopped_is_lost_before_spark_thinks_so(run: Runs) -> None:
    """Spark gives it up after two minutes, and records would wait as long."""
    said = run("pause")["retries"][0]
    assert re.search(r"executor \d+ on host 127.0.0.1\d is stopped \(process \d+\)", said)


@pytest.mark.thorough
def test_the_loss_of_a_process_is_one_sentence_each(run: Runs) -> None:
    said = " ".join(run("kills")["retries"])
    assert len(run("kills")["retries"]) >= 4
    assert "routed" in run("kills")["what"]
    assert any(run("kills")["kept"])  # both, on a machine that is not too busy
    for part in ("slot", "agent of host 127.0.0.1"):
        assert part in said


@pytest.mark.thorough
def test_a_query_that_is_stopped_goes_on_with_its_migration(run: Runs) -> None:
    found = run("again")
    assert (found["slots"], found["what"][-1]) == (4, "finished")


@pytest.mark.thorough
def test_a_host_that_comes_back_gets_slots_again(run: Runs) -> None:
    found = run("host")
    assert found["slots"] == 4
    assert found["bytes_moved"] > 0


@pytest.mark.thorough
def test_a_host_that_is_cut_off_is_left_out_and_comes_back(run: Runs) -> None:
    said = " ".join(run("cut")["retries"])
    assert "the agent of host 10.77.0.12 has not answered for 15 s" in said
    assert run("cut")["slots"] == 3


@pytest.mark.thorough
def test_hosts_that_cannot_reach_each_other_are_noticed(run: Runs) -> None:
    assert len(run("parted")["retries"]) == 1
    assert run("parted")["bytes_moved"] > 0


@pytest.mark.thorough
def test_a_host_that_is_silent_is_left_out_and_its_slots_end_when_it_comes_back(run: Runs) -> None:
    said = " ".join(run("stopped")["retries"])
    assert "the agent of host 127.0.0.12 has not answered for 15 s" in said


@pytest.mark.thorough
def test_kills_in_the_middle_of_migrations_change_no_answer(tmp_path: Path) -> None:
    """Strategies, queries, victims and moments are drawn by lot; some drivers die, too."""
    program = Path(__file__).parent / "real_time_hosts_drawn.py"
    lines = tmp_path / "lines"
    command = [sys.executable, str(program), str(tmp_path), "--kills", "20", "--seed", "20261402"]
    command = [*(ALONE if can_cut() else ()), *command, "--json-lines", str(lines)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=850, check=True)
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["kills"] >= 20
    faults = ("wrong", "missing", "doubled", "violations", "late", "failed")
    assert not any(found[name] for name in faults), lines.read_text()
