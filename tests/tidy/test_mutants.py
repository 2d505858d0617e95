"""The lists of mutants name lines and tests that are there, and say truly what a run of a test shows."""

from __future__ import annotations

import ast
import functools
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "mutants"))

from run import judged  # noqa: E402

from mutants import PARTS, SOURCES, Mutant, applied, number_of_commit, parts, read  # noqa: E402

LISTED = read()


@functools.cache
def names_in(path: str) -> set[str]:
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


def test_every_mutant_changes_one_line_that_is_there_and_can_still_be_read() -> None:
    for mutant in LISTED:
        source = ROOT / SOURCES[Path(mutant.path).parts[0]] / mutant.path
        changed = applied(mutant, source.read_text(encoding="utf-8"))
        compile(changed, mutant.file, "exec")


def test_every_mutant_names_a_test_that_is_there() -> None:
    wrong = []
    for mutant in LISTED:
        path, _, name = mutant.test.partition("::")
        if name.partition("[")[0] not in names_in(path):
            wrong.append(mutant.test)
    assert wrong == []


def test_no_mutant_is_listed_twice() -> None:
    changes = [(mutant.file, mutant.old, mutant.new) for mutant in LISTED]
    assert len(set(changes)) == len(changes)


def test_there_are_enough_of_them_and_19_of_20_are_killed() -> None:
    assert len(LISTED) >= 150
    assert sum(bool(mutant.survives) for mutant in LISTED) <= len(LISTED) / 20


def test_twenty_commits_try_every_mutant_once_and_few_of_them_on_spark() -> None:
    hands = parts(LISTED)
    assert len(hands) == PARTS
    dealt = [mutant for hand in hands for mutant in hand]
    assert sorted(map(id, dealt)) == sorted(map(id, LISTED))
    assert max(sum(mutant.spark for mutant in hand) for hand in hands) <= 1
    number, why = number_of_commit(ROOT)
    assert number > 0
    assert str(number) in why


def test_a_mutant_that_is_not_one_line_or_not_there_is_refused() -> None:
    text = "a = 1\nb = 2\nb = 2\n"
    for old, new in (("b = 2", "b = 3"), ("c", "d"), ("a = 1\nb = 2", "a = 2\nb = 3")):
        with pytest.raises(ValueError, match=r"once|one line"):
            applied(Mutant("x.py", old, new, "test", "what"), text)
    assert applied(Mutant("x.py", "a = 1\n", "", "test", "what"), text) == "b = 2\nb = 2\n"


@pytest.mark.parametrize(
    ("code", "said", "outcome"),
    [
        (1, "E   assert 1 == 2\nFAILED tests/x.py::test - assert 1 == 2\n1 failed", "killed"),
        (0, "1 passed in 0.1s", "survived"),
        (0, "1 skipped in 0.1s", "broken"),
        (1, "E   NameError: name 'x' is not defined\nFAILED t - NameError: name 'x'", "broken"),
        (1, "E   ImportError: no\nERROR tests/x.py::test - ImportError: no", "broken"),
        (2, "E   SyntaxError: invalid\nERROR tests/x.py - SyntaxError", "broken"),
        (4, "ERROR: not found: tests/x.py::test", "broken"),
        (5, "no tests ran", "broken"),
        (1, "FAILED tests/x.py::test - Failed: Timeout (>300.0s) from pytest-timeout.", "hung"),
        (None, "no end", "hung"),
    ],
)
def test_only_a_test_that_ran_and_failed_kills(code: int | None, said: str, outcome: str) -> None:
    assert judged(code, said)[0] == outcome
