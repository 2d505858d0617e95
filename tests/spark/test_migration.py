"""Migrations between hosts that share no memory: the answer stays Spark's, whatever the strategy."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import headgate as hg
from headgate_lab.testing.cluster import StandaloneCluster

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

ALWAYS = ("subscale", "stop-restart", "executor")
FURTHER = (
    "aggregates", "default", "all-at-once", "fluid", "on-demand", "to-one", "bounded", "second-request",
)  # fmt: skip
"""Further strategies, and a further number of slots: with ``--thorough`` only."""

SCRIPT = Path(__file__).parent / "migration_runs.py"
KILLED = -9


@pytest.fixture(scope="module")
def lives(tmp_path_factory, request):
    """What each run said, what `inspect` said after the driver was killed, and how it ended."""
    base = tmp_path_factory.mktemp("migration")
    found = {}
    names = [*ALWAYS, *(FURTHER if request.config.getoption("--thorough") else ())]
    with StandaloneCluster(base, workers=2, cores=2) as cluster:
        for part in ("first", "then"):
            done = subprocess.run(
                [sys.executable, str(SCRIPT), cluster.master, str(base), part, *names],
                capture_output=True,
                text=True,
                timeout=400,
                check=False,
                start_new_session=True,
            )
            lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
            found |= {one["name"]: one for one in map(json.loads, lines)}
            found[part] = {"code": done.returncode, "said": done.stderr[-3000:]}
            if part == "first":
                found["inspected"] = hg.inspect(base / "ck-driver")
    return found


@pytest.mark.parametrize(
    "name",
    [
        *ALWAYS[:2],
        *(pytest.param(name, marks=pytest.mark.thorough) for name in FURTHER[:-1]),
    ],
)
def test_the_answer_of_each_strategy_is_sparks(lives, name):
    assert name in lives, lives["first"]
    found = lives[name]
    assert found["equal"], found
    assert found["what"][-1] == "finished"
    assert found["bytes_moved"] > 0
    assert len(found["hosts"]) == 2


@pytest.mark.thorough
def test_by_default_state_that_changes_host_goes_by_subscales(lives):
    assert lives["default"]["strategy"] == "subscale"
    assert lives["default"]["slots"] == 8


@pytest.mark.thorough
def test_all_of_the_state_may_move_to_one_slot(lives):
    assert (lives["to-one"]["strategy"], lives["to-one"]["slots"]) == ("subscale", 1)


def test_with_subscales_no_record_waits_and_with_a_restart_some_do(lives):
    assert lives["subscale"]["waited"] == lives["subscale"]["suspended_s"] == 0
    assert lives["stop-restart"]["waited"] > 0
    assert lives["stop-restart"]["suspended_s"] > 0


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["all-at-once", "fluid"])
def test_with_the_other_strategies_some_records_wait_too(lives, name):
    assert lives[name]["waited"] > 0


@pytest.mark.thorough
def test_a_second_request_replaces_the_first(lives):
    found = lives["second-request"]
    assert found["struck"]
    assert found["equal"], found
    assert found["slots"] == 3
    assert "superseded" in found["what"]


def test_an_executor_killed_in_a_migration_changes_no_answer(lives):
    found = lives["executor"]
    assert found["struck"]
    assert found["equal"], found
    assert found["slots"] == 4


def test_a_driver_killed_in_a_migration_is_shown_by_inspect_and_resumed(lives):
    assert lives["first"]["code"] == KILLED, lives["first"]
    shown = lives["inspected"]["operators"]["aggregate-0"]["migration"]
    assert (shown["slots_from"], shown["slots_to"]) == (2, 4)
    assert sum(shown["groups_by_phase"].values()) > 0
    assert lives["then"]["code"] == 0, lives["then"]
    assert lives["driver"]["equal"], lives["driver"]
    assert lives["driver"]["slots"] == 4


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("strategy", "points"),
    [
        ("subscale", ("started:1", "caught-up:0", "routed:0", "installed:0", "released:0")),
        ("subscale(decoupling=false", ("held:0", "routed:0", "installed:0", "released:0")),
    ],
)
def test_a_driver_killed_in_every_stage_of_one_migration_changes_no_answer(
    tmp_path, strategy, points
):
    strategy += ", per_host=1)" if "(" in strategy else "(per_host=1)"
    with StandaloneCluster(tmp_path, workers=2, cores=2) as cluster:
        command = [sys.executable, str(SCRIPT), cluster.master, str(tmp_path), "stage", strategy]
        lives = [
            subprocess.run(
                [*command, *point],
                capture_output=True,
                text=True,
                timeout=200,
                check=False,
                start_new_session=True,
            )
            for point in (*((one,) for one in points), ())
        ]
    ended = [one.returncode for one in lives]
    assert ended == [KILLED] * len(points) + [0], lives[-1].stderr[-3000:]
    (found,) = [json.loads(one) for one in lives[-1].stdout.splitlines() if one.startswith("{")]
    assert found["equal"], found
    assert found["slots"] == 4
    assert found["what"][-1] == "finished"


@pytest.mark.thorough
def test_a_checkpoint_with_records_that_wait_for_their_groups_is_a_point_to_go_on_from(tmp_path):
    """DRRS IV-C, figure 9: the driver dies before the confirm, and once more behind it.

    What waits is in the manifest, first at the slot that gives the groups up, then at the one that gets
    them.
    """
    with StandaloneCluster(tmp_path, workers=2, cores=2) as cluster:
        command = [sys.executable, str(SCRIPT), cluster.master, str(tmp_path), "stage"]
        lives, seen = [], []
        for point in (("routed:0",), ("installed:0",), ()):
            done = subprocess.run(
                [*command, "all-at-once", *point],
                capture_output=True,
                text=True,
                timeout=200,
                check=False,
                start_new_session=True,
            )
            lives.append(done)
            (operator,) = hg.inspect(tmp_path / "ck-stage")["operators"].values()
            seen.append(operator)
    assert [one.returncode for one in lives] == [KILLED, KILLED, 0], lives[-1].stderr[-3000:]
    before, behind, after = seen
    assert before["backlog_rows"] > 0
    assert behind["backlog_rows"] > 0
    assert set(before["migration"]["groups_by_phase"]) == {"route"}
    assert set(behind["migration"]["groups_by_phase"]) == {"install"}
    assert "migration" not in after
    assert after["backlog_rows"] == 0
    (found,) = [json.loads(one) for one in lives[-1].stdout.splitlines() if one.startswith("{")]
    assert found["equal"], found
    assert (found["slots"], found["what"][-1]) == (4, "finished")


def test_nothing_is_left_running_when_no_migration_is(lives):
    assert not any(one["threads"] for one in lives.values() if "threads" in one)
