"""Lines drawn by lot: each line has one lot, a change says something else, and the table counts truly."""

from __future__ import annotations

import ast
import json
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import coverage
import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "mutants"))

import covering  # noqa: E402
from changes import Change, changes, draw, sources  # noqa: E402
from drawn import ANY_NUMBER, Drawn, Trials, _near_first, equivalents, noticed, report  # noqa: E402
from forked import Run  # noqa: E402


def lines(text: str) -> set[tuple[str, str]]:
    """Return kind and changed text of all changes of a source."""
    return {(change.kind, change.applied(text)) for change in changes("x.py", text)}


@pytest.mark.parametrize(
    ("text", "kind", "changed"),
    [
        ("a = b < c\n", "comparison", "a = b <= c\n"),
        ("a = b not in c\n", "comparison", "a = b in c\n"),
        ("a = 1 <= b < c\n", "comparison", "a = b < c\n"),
        ("a = b and not c\n", "boolean", "a = b or not c\n"),
        ("a = b and not c\n", "boolean", "a = b\n"),
        ("a = b and not c\n", "boolean", "a = b and c\n"),
        ("a = (b + 1) * c\n", "arithmetic", "a = (b + 1) / c\n"),
        ("a -= b\n", "arithmetic", "a += b\n"),
        ("a -= b\n", "removal", "pass\n"),
        ("a = -b\n", "arithmetic", "a = b\n"),
        ("a = 3\n", "constant", "a = 2\n"),
        ("a = 0.5\n", "constant", "a = 1.0\n"),
        ("a = True\n", "constant", "a = False\n"),
        ("a = b if c else d\n", "condition", "a = d\n"),
        ("a = [b for b in c if d]\n", "condition", "a = [b for b in c if True]\n"),
        ("while a:\n    b()\n", "condition", "while False:\n    b()\n"),
        ("a.b = 'é' + f(c)\n", "removal", "pass\n"),
        ("a = f(b, c=d, **e)\n", "argument", "a = f(b, **e)\n"),
        ("a = f(b=c, d=e)\n", "argument", "a = f(d=e)\n"),
        ("a = (b - c).min()\n", "swap", "a = (b - c).max()\n"),
        ("def f():\n    return a\n", "return", "def f():\n    return None\n"),
        ("try:\n    a\nexcept B:\n    c()\n", "removal", "try:\n    pass\nexcept B:\n    c()\n"),
    ],
)
def test_a_change_says_something_else(text: str, kind: str, changed: str) -> None:
    assert (kind, changed) in lines(text)


@pytest.mark.parametrize(
    "text",
    [
        "'a docstring of 3 words'\n",
        "from a import b\n",
        "def f(a: int | None, *, b: X[3]) -> Y[4]: ...\n",
        "a: X | None\n",
        "if TYPE_CHECKING:\n    a = 3\n",
        "assert a < b, 'no'\n",
        "__all__ = ['a'] + ['b']\n",
        "@dataclass(frozen=True)\nclass A: ...\n",
        "a = cast('X | Y', b)\n",
        "a = zip(b, c, strict=True)\n",
        "a = shown(b, 60)\n",
        "del a, b\n",
        "msg = f'{a + 1} of {b}'\n",
        "class A(Protocol):\n    def f(a=1):\n        'Says what f does.'\n",
    ],
)
def test_what_only_describes_is_left_alone(text: str) -> None:
    assert not lines(text)


def test_every_change_of_the_product_can_be_read_and_is_one() -> None:
    texts = sources(ROOT)
    assert len(texts) > 300
    for change in draw(texts, 300, 1):
        text = texts[change.file]
        assert ast.dump(ast.parse(change.applied(text))) != ast.dump(ast.parse(text)), change


def test_the_same_seed_draws_the_same_and_each_line_has_one_lot() -> None:
    # ten changes on one line weigh as much as one on another
    text = "a = f(1, 2, 3, 4, b=5)\n" + "c = 1\n" * 9
    drawn = draw({"x.py": text}, 5, 7)
    assert drawn == draw({"x.py": text}, 5, 7)
    assert len({change.line for change in drawn}) == 5
    firsts = Counter(draw({"x.py": text}, 1, seed)[0].line == 1 for seed in range(400))
    assert 20 <= firsts[True] <= 60  # 40 is expected


def outcome(
    outcome: str, file: str = "state/a.py", *, at_once: bool = False, why: str = ""
) -> Drawn:
    change = Change(file, 3, "constant", 0, 1, "2")
    return Drawn(change, "a = 1", "a = 2", Run(outcome, at_once), 5, why, 0.5)


def test_the_table_counts_each_room_and_shows_what_nobody_noticed() -> None:
    outcomes = [
        outcome("killed"),
        outcome("killed", at_once=True),
        outcome("timed out"),
        outcome("survived", "spark/step/a.py"),
        outcome("not run", "state/b.py"),
        outcome("survived", why="it is only faster"),
    ]
    assert noticed(outcomes) == 3 / 5
    assert noticed(outcomes, without_at_once=True) == 2 / 4
    assert noticed([outcomes[-1]]) is None
    text = report(outcomes)
    rows = {line.split()[0]: line.split()[1:] for line in text.splitlines()[1:4]}
    assert rows["spark.step"] == ["1", "0", "0", "1", "0", "0", "0", "%", "0", "%"]
    assert rows["state"] == ["5", "2", "1", "0", "1", "1", "75", "%", "67", "%"]
    assert rows["all"][:6] == ["6", "2", "1", "1", "1", "1"]
    assert text.count("survived: src/headgate/spark/step/a.py:3") == 1
    assert "not run: src/headgate/state/b.py:3" in text
    assert "  - a = 1\n  + a = 2" in text


def test_a_change_that_is_called_equivalent_is_one_of_a_line_that_is_there() -> None:
    texts = sources(ROOT)
    for (file, old, new), reason in equivalents().items():
        assert reason
        possible = {change.diff(texts[file]) for change in changes(file, texts[file])}
        if new == ANY_NUMBER:
            assert old in {gone for gone, _ in possible}, f"{file}: {old}"
        else:
            assert (old, new) in possible, f"{file}: {old}"


def test_tests_of_a_files_own_name_come_first_then_the_recordings_of_its_room() -> None:
    names = [
        "tests/cli/test_a.py::x", "tests/tables/test_zones.py::x", "tests/tables/test_recorded.py::y",
        "tests/tables/test_b.py::x", "tests/tables/test_recorded.py::x", "tests/tables/test_c.py::x",
        "lab/tests/test_runs.py::x",
    ]  # fmt: skip
    first, rest = _near_first("tables/runs.py", dict.fromkeys(names, 1.0))
    assert list(first) == [
        "lab/tests/test_runs.py::x",
        "tests/tables/test_recorded.py::y",
        "tests/tables/test_recorded.py::x",
        "tests/tables/test_zones.py::x",
        "tests/tables/test_b.py::x",
    ]
    assert list(rest) == ["tests/cli/test_a.py::x", "tests/tables/test_c.py::x"]


class FakeForks:
    """Runs tests of which some fail, on the code as it is or on a change only."""

    def __init__(self, always: set[str], on_change: set[str], path: Path) -> None:
        self.always, self.on_change, self.path = always, on_change, path
        self.asked: list[tuple[list[str], list[str]]] = []

    def run(self, tests: dict[str, float], limit_s: float, but: Any = (), **_: Any) -> Run:
        self.asked.append((list(tests), sorted(but)))
        changed = self.path.read_text() != "a = 1\n"
        failing = self.always | (self.on_change if changed else set())
        for name in sorted(failing - set(but)):
            if name in tests or name.partition("::")[0] in tests:
                return Run("killed", by=name, tests=1)
        return Run("survived", tests=3)


@pytest.mark.parametrize("on_change", [set(), {"t/test_b.py::good"}])
def test_a_test_that_fails_on_the_code_as_it_is_takes_no_other_along(
    tmp_path: Path, on_change: set[str]
) -> None:
    path = tmp_path / "a.py"
    path.write_text("a = 1\n")
    trials = object.__new__(Trials)
    trials._texts, trials._fit, trials._unfit = {"a.py": "a = 1\n"}, set(), set()
    forks: Any = FakeForks({"t/test_b.py::bad", "t/test_c.py::bad"}, on_change, path)
    tests = {"t/test_b.py": 30.0, "t/test_c.py::bad": 30.0}
    run = trials._run(
        Change("a.py", 1, "constant", 4, 5, "2"), path, forks, tests, 60.0, {"jit": True}
    )
    assert run.outcome == ("killed" if on_change else "survived")
    also = set() if on_change else {"t/test_c.py::bad"}
    assert trials._unfit == {"t/test_b.py::bad"} | also
    assert path.read_text() == "a = 1\n"
    assert forks.asked[0] == (["t/test_b.py", "t/test_c.py::bad"], [])


def test_a_constant_of_pace_is_one_whatever_its_number() -> None:
    known = {(file, old) for (file, old, new) in equivalents() if new == ANY_NUMBER}
    assert ("scenario/run.py", "PROGRESS_S = 0.25") in known


_RECORDED = """
import json, sys
from covering import Recordings, record
if sys.argv[1:]:
    record("unit", 0)
recordings = Recordings("unit")
tests = recordings.running("a.py", range(1, 3), "def f():\\n    return 1\\n", range(0))
of_new = recordings.running("a.py", range(2, 3), "def f():\\n    return 2\\n", range(1, 3))
assert of_new == tests, "a line that is younger than the recording has the tests of its function"
print(json.dumps([sorted(recordings.missing), sorted(tests)]))
"""


def known(checkout: Path, *arguments: str) -> list[list[str]]:
    """Return the files of tests of which a checkout has no recording, and the tests of a line."""
    at = checkout / "tests" / "mutants"
    command = [sys.executable, "-c", _RECORDED, *arguments]
    said = subprocess.run(command, cwd=at, capture_output=True, text=True, check=True).stdout
    result: list[list[str]] = json.loads(said)
    return result


def test_a_recording_goes_along_with_a_copy_and_one_of_absolute_paths_counts_as_none(
    tmp_path: Path,
) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    for name in ("covering.py", "changes.py"):
        path = one / "tests" / "mutants" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / "tests" / "mutants" / name, path)
    (one / "src" / "headgate").mkdir(parents=True)
    (one / "src" / "headgate" / "a.py").write_text("def f():\n    return 1\n")
    (one / "tests" / "conftest.py").write_text(
        "import sys\nfrom pathlib import Path\n"
        "sys.path.insert(0, str(Path(__file__).parents[1] / 'src' / 'headgate'))\n"
    )
    (one / "tests" / "test_a.py").write_text("def test_f():\n    from a import f\n    assert f()\n")
    assert known(one, "record") == [[], ["tests/test_a.py::test_f"]]
    shutil.copytree(one, other)
    shutil.rmtree(one)
    assert known(other) == [[], ["tests/test_a.py::test_f"]]
    [path] = (other / ".mutants").glob("*.coverage")
    path.unlink()
    foreign = coverage.CoverageData(str(path))
    foreign.set_context("tests/test_a.py::test_f")
    foreign.add_lines({str(one / "src" / "headgate" / "a.py"): [1]})
    foreign.write()
    assert known(other) == [["tests/test_a.py"], []]


MADE_OF = {
    "src/headgate/a/limits.py": "MOST = 7\n\ndef f():\n    return 1\n",
    "src/headgate/a/peer.py": "from headgate.a.limits import f\n\ndef g():\n    return f()\n",
    "tests/a/test_read.py": "from headgate.a.limits import MOST\n",
    "tests/a/test_limits.py": "from headgate.a.limits import f\n",
    "tests/a/test_words.py": "MOST = 'the word alone'\n",
    "tests/b/test_peer.py": "from headgate.a import peer\n",
}


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> covering.Covering:
    """Return who covers made-up files; each of them has one test, of which no line was recorded."""
    for name, text in MADE_OF.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(covering, "ROOT", tmp_path)
    monkeypatch.setattr(covering, "PLACE", tmp_path / ".mutants")
    found = covering.Covering(sources(tmp_path))
    tests = (name for name in MADE_OF if name.startswith("tests/"))
    found._recordings["unit"].seconds = {f"{name}::test": 1.0 for name in tests}
    found._recordings["unit"].idle = set  # type: ignore[method-assign]
    return found


def test_a_test_that_only_reads_a_constant_is_asked_about_it(made: covering.Covering) -> None:
    [change] = [c for c in changes("a/limits.py", "MOST = 7\n") if c.new == "8"]
    assert made.tests("unit", change) == ["tests/a/test_read.py::test"]


def test_lines_of_another_process_are_asked_of_who_imports_them_or_at_last_their_importers(
    made: covering.Covering,
) -> None:
    limits, peer = Change("a/limits.py", 1, "", 0, 0, ""), Change("a/peer.py", 4, "", 0, 0, "")
    assert made.importing(limits) == ["tests/a/test_limits.py::test", "tests/a/test_read.py::test"]
    assert made.importing(peer) == ["tests/b/test_peer.py::test"]
    for name in ("test_limits", "test_read"):
        del made._recordings["unit"].seconds[f"tests/a/{name}.py::test"]
    assert made.importing(limits) == ["tests/b/test_peer.py::test"]
