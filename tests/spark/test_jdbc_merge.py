"""Merges into PostgreSQL: each step once, in one transaction with its number."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from headgate.core.errors import EngineError
from headgate_lab.bench import kill
from headgate_lab.testing import postgres

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def found(tmp_path_factory, request):
    """What came of most jobs of `jdbc_jobs`."""
    further = request.config.getoption("--thorough")
    jobs = ("upserts", "leftovers", "failures") if further else ("upserts",)
    return came_of(tmp_path_factory.mktemp("jdbc"), *jobs)


def came_of(work, *jobs):
    """Return what came of jobs of `jdbc_jobs`."""
    env = os.environ | {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
    script = str(Path(__file__).with_name("jdbc_jobs.py"))
    try:
        with postgres.server() as url:
            command = [sys.executable, script, url, str(work), *jobs]
            ran = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    except EngineError as error:
        pytest.skip(str(error))
    if "unresolved dependency" in ran.stdout + ran.stderr:
        pytest.skip("the driver of PostgreSQL cannot be fetched from here")
    assert ran.returncode == 0, ran.stderr[-2000:]
    return json.loads(ran.stdout.splitlines()[-1])


def test_a_step_is_merged_once_also_if_it_comes_again(found):
    seen = found["upserts"]
    assert seen["first"] == seen["again"] == [["0", "3", "2"], ["1", "4", "3"]]
    assert seen["further"] == [["0", "4", "3"], ["1", "4", "3"]]
    assert seen["steps"] == [["3"]]
    names = [["headgate_rows_00000000_left"], ["headgate_steps"], ["totals"]]
    assert seen["tables"] == names


@pytest.mark.thorough
def test_nothing_is_left_but_the_table_of_steps_and_what_is_not_ours(found):
    assert found["leftovers"]["staged"] == [["0"]]


@pytest.mark.thorough
def test_null_keys_are_keys_and_a_step_that_the_checkpoint_does_not_know_is_refused(found):
    seen = found["leftovers"]
    assert seen["rows"] == [["1", "3"], ["", "4"]]
    assert "has output 1 of this query already" in seen["behind"]


@pytest.mark.thorough
def test_what_goes_wrong_is_one_sentence_and_the_next_start_goes_on(found):
    seen = found["failures"]
    assert 'relation "nosuch" does not exist' in seen["missing"]
    assert "Connection to 127.0.0.1:1 refused" in seen["away"]
    assert "strict_n_check" in seen["checked"]
    assert seen["rows"] == [["0", "2"], ["1", "3"]]  # the step that failed left nothing
    assert seen["after"] == "it did not fail"
    assert seen["all"] == [["0", "3"], ["1", "4"]]
    assert "several rows of one key (k)" in seen["twice"]
    assert seen["later"] == [["0", "7"], ["1", "7"]]
    assert not any("\n" in seen[what] for what in ("missing", "away", "checked", "twice"))


@pytest.mark.thorough
def test_what_others_do_to_a_table_is_said_and_nothing_is_lost(tmp_path):
    every = [[k, step] for k in (0, 1) for step in (1, 2, 3)]
    since = [[k, step] for k in (0, 1) for step in (2, 3)]
    seen = came_of(tmp_path, "altered")["altered"]
    assert seen["others"] == {"said": ["", "", ""], "rows": every}
    assert "has no column more, which the result has" in seen["dropped_column"]["said"]
    assert "has no column more, which the result has" in seen["dropped_column"]["again"]
    assert 'relation "merge_gone" does not exist' in seen["gone"]["said"]
    assert 'relation "merge_gone" does not exist' in seen["gone"]["again"]
    rows = {change: seen[change]["rows"] for change in ("dropped_column", "gone", "anew")}
    assert rows == {"dropped_column": every, "gone": since, "anew": since}
    assert all(seen[change]["after"] == ["", ""] for change in rows)


@pytest.mark.thorough
def test_drivers_killed_on_one_checkpoint_leave_each_row_in_the_table_once():
    found = kill.run(count=3, seed=1, sink="merge-postgres")
    assert found["verified"], found
    assert (found["kills"], found["doubled"], found["failed"]) == (3, 0, [])
