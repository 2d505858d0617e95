"""Generated queries in real time answer as Spark's batch does, whatever happens between two epochs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import nexmark_runs as runs
import pytest
from grammar_forms import FORMS
from real_time_grammar import BACKLOG, LEFT_OUT, UNJUDGED

# a session of its own, and ten queries
pytestmark = pytest.mark.timeout(900)

SEEDS, AT_ONCE = 400, 10

SHORT = ("12", "q3 0", "q5 0", BACKLOG)
"""The queries of the short run: a chain, of NEXMark a join of two streams and a chain, and a union."""


def outcomes(tmp_path: Path, happenings: str, *names: str) -> list[str]:
    """Return what is wrong with queries."""
    program = Path(__file__).parent / "real_time_grammar.py"
    command = [sys.executable, str(program), str(tmp_path), happenings, *names]
    ran = subprocess.run(command, stdout=subprocess.PIPE, check=True)
    lines = [json.loads(line) for line in ran.stdout.splitlines() if line.startswith(b"{")]
    assert [line["query"] for line in lines] == list(names)
    wrong = [line["wrong"] for line in lines]
    return [one for one in wrong if one and not one.startswith((UNJUDGED, LEFT_OUT))]


def test_generated_queries_answer_as_spark_does_in_real_time(tmp_path: Path) -> None:
    assert not outcomes(tmp_path, "changes", *SHORT)


@pytest.mark.thorough
@pytest.mark.parametrize("first", range(0, SEEDS, AT_ONCE))
def test_any_generated_query_answers_as_spark_does_whatever_happens(
    tmp_path: Path, first: int
) -> None:
    found = outcomes(tmp_path, "all", *map(str, range(first, first + AT_ONCE)))
    assert not found, "\n\n".join(found)


@pytest.mark.thorough
@pytest.mark.parametrize("happenings", ["changes", "all"])
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("names", runs.GROUPS, ids="-".join)
def test_nexmark_answers_as_one_thread_does(
    tmp_path: Path, happenings: str, seed: int, names: tuple[str, ...]
) -> None:
    found = outcomes(tmp_path, happenings, *(f"{name} {seed}" for name in names))
    assert not found, "\n\n".join(found)


@pytest.mark.thorough
@pytest.mark.parametrize("first", range(0, len(FORMS), AT_ONCE))
def test_a_form_that_people_write_answers_as_spark_does_in_real_time(
    tmp_path: Path, first: int
) -> None:
    found = outcomes(tmp_path, "changes", *list(FORMS)[first : first + AT_ONCE])
    assert not found, "\n\n".join(found)
