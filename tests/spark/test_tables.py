"""Delta and Iceberg as sinks, under merges and as sources: each output once, whatever comes again.

Connectors are jars that Spark fetches, so each kind is one process with all its scenarios. Where a minor
of Spark has no connector, or the jars cannot be had, the tests are skipped with that reason; `make
matrix` runs them on a minor that has.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from headgate.core.errors import EngineError
from headgate_lab.bench import kill
from headgate_lab.testing import connectors

pytestmark = pytest.mark.timeout(900)

CHANGED = ("others", "dropped_column", "gone", "anew")
EVERY = [[k, step] for k in (0, 1) for step in (1, 2, 3)]
SINCE = [[k, step] for k in (0, 1) for step in (2, 3)]
"""Steps in a table that was made anew after the first one."""

APPENDED = [[0, 2], [1, 1], [1, 2]]
FETCHED = "unresolved dependency"


@pytest.fixture(scope="module", params=["delta", "iceberg"])
def found(request, tmp_path_factory):
    """What came of each scenario with tables of a kind."""
    try:
        connectors.coordinate(request.param)
    except EngineError as error:
        pytest.skip(str(error))
    work = tmp_path_factory.mktemp(request.param)
    script = Path(__file__).with_name("table_jobs.py")
    env = os.environ | {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
    command = [sys.executable, str(script), request.param, str(work)]
    ran = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    if FETCHED in ran.stdout + ran.stderr:
        pytest.skip(f"the jars of {request.param} cannot be fetched from here")
    assert ran.returncode == 0, ran.stderr[-2000:]
    return json.loads(ran.stdout.splitlines()[-1])


def test_each_output_is_in_a_table_once_also_if_it_comes_again(found):
    seen = found["appended"]
    assert seen["first"] == seen["again"] == APPENDED
    assert seen["further"] == [[0, 1], *APPENDED[:1], [1, 1], *APPENDED[1:]]


def test_who_reads_a_table_now_and_then_sees_what_was_written_since(found):
    assert found["looked_at"] == [[[0, 2], [1, 1]], APPENDED]


def test_a_checkpoint_that_is_behind_its_table_is_refused(found):
    # output 0 had no rows: no window had closed yet
    assert "has output 3 of this query already" in found["appended"]["copied"]
    assert "has output" in found["merged_again"]["copied"]


def test_a_table_that_is_gone_is_not_made_anew(found):
    assert "does not exist, but this query has written" in found["appended"]["gone"]


def test_complete_mode_replaces(found):
    assert found["replaced"] == [[0, 3], [1, 4]]


def test_what_does_not_fit_a_table_is_one_sentence(found):
    seen = found["refused"]
    assert "has no column more, which the result has" in seen["column"]
    assert not seen["made"]
    assert "writing to table" in seen["kind"] or "cannot be written to" in seen["kind"]
    assert not any("\n" in seen[what] for what in ("column", "kind"))
    assert seen["rows"] == APPENDED


def test_merges_update_insert_and_delete_under_headgate_and_plain_spark(found):
    assert found["merged"] == {
        "elastic": [[0, 3, 2], [1, 4, 3]],
        "plain": [[0, 3, 2], [1, 4, 3]],
        "deleted": [],
    }


def test_a_step_is_merged_once_also_if_it_comes_again(found):
    seen = found["merged_again"]
    assert seen["first"] == seen["again"] == [[0, 3, 2], [1, 4, 3]]
    assert seen["further"] == [[0, 4, 3], [1, 4, 3]]


def test_several_rows_of_a_key_are_refused_or_the_latest_counts(found):
    seen = found["several"]
    assert "several rows of one key (k)" in seen["why"]
    assert seen["kept"] == []
    assert seen["latest"] == [[0, 7, "2026-01-01 00:05:00"], [1, 7, "2026-01-01 00:05:01"]]


def test_two_merges_into_one_table_need_names(found):
    assert "give each a name" in found["two_merges"]["why"]
    assert found["two_merges"]["rows"] == [[0, 3], [1, 4]]


def test_a_table_is_read_as_a_stream_and_verified_up_to_the_jobs_offsets(found):
    seen = found["read"]
    assert seen["rows"] == [[0, 1683], [1, 1617], [2, 1650]]
    assert seen["verified"]["verified"], seen["verified"]


@pytest.mark.parametrize("how", ["append", "merge"])
def test_what_others_do_to_a_table_is_said_and_nothing_is_lost(found, how):
    seen = {change: found["altered"][f"{how}_{change}"] for change in CHANGED}
    assert seen["others"] == {"said": ["", "", ""], "rows": EVERY}
    dropped = seen["dropped_column"]
    # Iceberg's sink may have the table as it was, and write a column that nobody reads
    assert not dropped["said"] or "has no column more, which the result has" in dropped["said"]
    assert "has no column more, which the result has" in dropped["again"]
    assert (dropped["after"], dropped["rows"]) == (["", ""], EVERY)
    assert "does not exist, but this query has written 1 output to it" in seen["gone"]["said"]
    assert seen["gone"]["again"]
    assert "was dropped and created again while this query wrote to it" in seen["anew"]["said"]
    for change in ("gone", "anew"):
        assert (seen[change]["after"], seen[change]["rows"]) == (["", ""], SINCE)
    assert not any("\n" in str(seen[change].get("said")) for change in CHANGED)


@pytest.mark.thorough
@pytest.mark.parametrize("sink", ["delta", "iceberg", "merge-delta", "merge-iceberg"])
def test_drivers_killed_on_one_checkpoint_leave_each_row_in_the_table_once(sink):
    try:
        connectors.coordinate(sink.removeprefix("merge-"))
    except EngineError as error:
        pytest.skip(str(error))
    found = kill.run(count=3, seed=1, sink=sink)
    assert found["verified"], found
    assert (found["kills"], found["doubled"], found["failed"]) == (3, 0, [])
    assert found["at"]["after-sink"] >= 1
