"""Records which tests run which lines of headgate, and tells which tests should notice a change.

A recording is a run of tests under coverage.py with a context for each test, made of each file of tests
once and again when that file has changed. The lines of an older recording are found again by comparing
its sources with those of today. The tests on Spark take as long as they do, so they are recorded only
when asked for; without that, tests on Spark are chosen by the names that stand in them.

This file is also the plugin of pytest that records.
"""

from __future__ import annotations

import ast
import difflib
import functools
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import coverage
import pytest
from changes import Change, sources

ROOT = Path(__file__).resolve().parents[2]
PLACE = ROOT / ".mutants"
SOURCES = Path("src") / "headgate"
"""Where the sources lie in any checkout: a recording names them so, and goes along with a copy."""
TEST_LIMIT_S = 60
"""Of one test while it is recorded; a longer one is no test to ask about a line, except on Spark."""

_BLIND = (
    "tests/tidy/",
    "tests/laws/test_migration_mutants.py",
    "lab/tests/dataflow/test_mutants.py",
)
"""Tests that are never recorded: most read the sources of the checkout, and so see no mutant."""
_WHOLE = ("test_answers.py", "test_refusals.py", "test_processor.py", "test_life.py")
"""Tests on Spark that run whole queries, asked where too few name a file."""


def _test_files(kind: str) -> dict[str, str]:
    """Return the digests of the files of tests that are recorded, by their names."""
    tops = ("tests", "lab/tests", "demo/tests") if kind == "unit" else ("tests/spark",)
    how = "test_*.py" if kind == "spark" else "**/test_*.py"
    paths = {path for top in tops for path in (ROOT / top).glob(how)}
    names = {str(path.relative_to(ROOT)): path for path in paths}
    return {
        name: hashlib.sha256(path.read_bytes()).hexdigest()
        for name, path in sorted(names.items())
        if not name.startswith((*_BLIND, "lab/tests/spark/", "demo/tests/spark/"))
    }


# --- The plugin ---------------------------------------------------------------------------------------


class Recorder:
    """Gives each test a context, and keeps how long it took if it passed."""

    def __init__(self, kind: str, data: Path) -> None:
        self._kind = kind
        self._data = data
        self._seconds: dict[str, float] = {}
        self._known = set(Recordings("unit").seconds) if kind == "spark" else set()
        self._coverage = coverage.Coverage(
            data_file=str(data), source=[str(ROOT / SOURCES)], config_file=False
        )
        self._coverage.set_option("run:relative_files", True)
        self._coverage.start()

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Leave the tests of this kind."""
        items[:] = [item for item in items if self._wants(item)]
        for item in items:
            if self._kind == "unit":
                item.add_marker(pytest.mark.timeout(TEST_LIMIT_S))

    def _wants(self, item: pytest.Item) -> bool:
        if item.nodeid.startswith(_BLIND):
            return False
        on_spark = item.path.parent.name == "spark"
        if self._kind == "spark":
            return on_spark and item.nodeid not in self._known
        return not on_spark or "spark" not in getattr(item, "fixturenames", ())

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        """Record a test under its name."""
        self._coverage.switch_context(item.nodeid)
        began = time.monotonic()
        result = yield
        self._coverage.switch_context("")
        if item.nodeid in self._seconds:
            self._seconds[item.nodeid] = round(time.monotonic() - began, 3)
        return result

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep tests that passed."""
        if report.when == "call" and report.passed:
            self._seconds[report.nodeid] = 0.0

    def pytest_sessionfinish(self) -> None:
        """Write what was recorded."""
        self._coverage.stop()
        self._coverage.save()
        self._data.with_suffix(".seconds").write_text(json.dumps(self._seconds))


def pytest_configure(config: pytest.Config) -> None:
    """Record, in each process that runs tests."""
    kind = os.environ.get("HEADGATE_RECORDS", "")
    of_workers = config.getoption("numprocesses", None) and not hasattr(config, "workerinput")
    if kind and not of_workers:
        worker = getattr(config, "workerinput", {}).get("workerid", "one")
        data = Path(os.environ["HEADGATE_RECORDS_AT"]) / f"{worker}.part"
        config.pluginmanager.register(Recorder(kind, data))


# --- Recordings ---------------------------------------------------------------------------------------


class Recordings:
    """What was recorded of one kind of tests, each file of tests as it is now."""

    def __init__(self, kind: str) -> None:
        self._files = _test_files(kind)
        self._read: list[dict[str, Any]] = []
        self._data: list[coverage.CoverageData] = []
        self.seconds: dict[str, float] = {}
        self.missing = set(self._files)
        for path in sorted(PLACE.glob(f"{kind}-*.json")):
            data = coverage.CoverageData(str(path.with_suffix(".coverage")))
            data.read()
            if any(Path(file).is_absolute() for file in data.measured_files()):
                continue  # of another checkout, perhaps: its tests are missing, and recorded anew
            self._read.append(json.loads(path.read_text()))
            self._data.append(data)
        for read in self._read:
            same = {name for name, known in read["files"].items() if self._files.get(name) == known}
            self.missing -= same
            self.seconds |= {
                t: s for t, s in read["seconds"].items() if t.partition("::")[0] in same
            }

    def running(self, file: str, lines: range, text: str, around: range) -> set[str]:
        """Return the tests that run lines of a file of the sources.

        A recording that is older than all of these lines has the tests that run lines `around` them.
        """
        found: set[str] = set()
        for number, read in enumerate(self._read):
            if file not in read["sources"]:
                continue
            line_of = _lines_of(read["sources"][file], text)
            by_line = self._by_line(number, file)
            known = [line_of[line] for line in lines if line in line_of]
            for line in known or [line_of[line] for line in around if line in line_of]:
                found.update(by_line.get(line, ()))
        return found & self.seconds.keys()

    def idle(self) -> set[str]:
        """Return the tests that ran no line: what they read was made at import."""
        ran = set().union(*(data.measured_contexts() for data in self._data))
        return self.seconds.keys() - ran

    def at_import(self, file: str, line: int, text: str) -> bool:
        """Return whether a line of a file of the sources ran while no test did."""
        for number, read in enumerate(self._read):
            if file in read["sources"]:
                old = _lines_of(read["sources"][file], text).get(line, 0)
                if "" in self._by_line(number, file).get(old, ()):
                    return True
        return False

    @functools.cache  # noqa: B019 - lives as long as the program
    def _by_line(self, number: int, file: str) -> dict[int, list[str]]:
        return self._data[number].contexts_by_lineno(str(SOURCES / file))


@functools.cache
def _lines_of(old: str, new: str) -> dict[int, int]:
    """Return the line of an older text that each line of a text was."""
    matcher = difflib.SequenceMatcher(None, old.splitlines(), new.splitlines(), autojunk=False)
    return {
        block.b + i + 1: block.a + i + 1
        for block in matcher.get_matching_blocks()
        for i in range(block.size)
    }


def record(kind: str, jobs: int) -> None:
    """Run the files of tests of a kind that changed, and keep which lines each test ran."""
    PLACE.mkdir(exist_ok=True)
    missing = Recordings(kind).missing
    files = {name: known for name, known in _test_files(kind).items() if name in missing}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "covering", "-p", "no:cacheprovider"]
    command += ["-n", str(jobs), "--no-header", "--tb=line", *files]
    command += ["--dist", "loadfile", "--no-loadscope-reorder"] if kind == "spark" else []
    environment = os.environ | {
        "HEADGATE_RECORDS": kind,
        "PYTHONPATH": str(Path(__file__).parent),
        "HYPOTHESIS_PROFILE": "mutants",
    }
    if kind == "unit":
        environment["JAVA_HOME"] = "/nonexistent"  # a test that starts Spark fails at once
    texts = sources(ROOT)
    name = f"{kind}-{int(time.time())}"
    below = tempfile.mkdtemp(dir=PLACE)  # others may record at the same time
    environment["HEADGATE_RECORDS_AT"] = below
    with (PLACE / f"{kind}.log").open("wb") as log:
        subprocess.run(command, cwd=ROOT, env=environment, stdout=log, stderr=log, check=False)
    parts = sorted(Path(below).glob("*.part"))
    if not parts:
        msg = f"no test was recorded; see {PLACE / f'{kind}.log'}"
        raise RuntimeError(msg)
    seconds: dict[str, float] = {}
    data = coverage.CoverageData(str(PLACE / f"{name}.coverage"))
    for part in parts:
        read = coverage.CoverageData(str(part))
        read.read()
        data.update(read)
        seconds |= json.loads(part.with_suffix(".seconds").read_text())
    data.write()
    kept = {"files": files, "seconds": seconds, "sources": texts}
    (PLACE / f"{name}.json").write_text(json.dumps(kept))
    shutil.rmtree(below)


# --- Units of the sources, and who names whom ---------------------------------------------------------


@dataclass(frozen=True)
class Unit:
    """A function, or a statement that runs at import."""

    file: str
    first: int
    last: int
    defines: frozenset[str]
    names: frozenset[str]
    is_function: bool


@functools.cache
def _names(file: str, names: frozenset[str]) -> bool:
    """Return whether a file of tests names one of some names."""
    text = (ROOT / file).read_text(encoding="utf-8")
    return any(re.search(rf"\b{re.escape(name)}\b", text) for name in names)


def _file_of(test: str) -> str:
    return test.partition("::")[0]


def _module(file: str) -> str:
    return "headgate." + file.removesuffix(".py").replace("/", ".")


def _imports(module: str) -> re.Pattern[str]:
    """Return a pattern of what imports a module, or something of it."""
    package, _, name = module.rpartition(".")
    return re.compile(rf"from {re.escape(package)}(\.{name} import\b| import [^\n(]*\b{name}\b)")


def _units(file: str, text: str) -> Iterator[Unit]:
    def names(nodes: Iterable[ast.AST]) -> frozenset[str]:
        found = set()
        for part in (part for node in nodes for part in ast.walk(node)):
            if isinstance(part, ast.Name):
                found.add(part.id)
            elif isinstance(part, ast.Attribute):
                found.add(part.attr)
            elif isinstance(part, ast.keyword) and part.arg:
                found.add(part.arg)
        return frozenset(found)

    def block(body: list[ast.stmt], above: frozenset[str]) -> Iterator[Unit]:
        for node in body:
            last = node.end_lineno or node.lineno
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                own = frozenset({node.name}) - {"__init__", "__post_init__"} or above
                first = node.body[0].lineno
                yield Unit(file, first, last, own, names(node.body), True)
                head = min([node.lineno, *(d.lineno for d in node.decorator_list)])
                yield Unit(file, head, first - 1, own, names(node.decorator_list), False)
            elif isinstance(node, ast.ClassDef):
                yield from block(node.body, frozenset({node.name}))
                yield Unit(
                    file,
                    node.lineno,
                    node.body[0].lineno - 1,
                    above | {node.name},
                    names(node.bases),
                    False,
                )
            elif isinstance(node, ast.If | ast.Try | ast.With | ast.For):
                yield from block(
                    [n for n in ast.iter_child_nodes(node) if isinstance(n, ast.stmt)], above
                )
                yield Unit(file, node.lineno, node.lineno, above, frozenset(), False)
            elif not isinstance(node, ast.Import | ast.ImportFrom):
                targets = (
                    node.targets
                    if isinstance(node, ast.Assign)
                    else [getattr(node, "target", node)]
                )
                own = frozenset(
                    t.id for target in targets for t in ast.walk(target) if isinstance(t, ast.Name)
                )
                yield Unit(file, node.lineno, last, own or above, names([node]), False)

    yield from block(ast.parse(text).body, frozenset())


class Covering:
    """Which tests run which lines.

    Parameters
    ----------
    texts : dict
        The sources as they are, by file below src/headgate.
    """

    def __init__(self, texts: dict[str, str]) -> None:
        self._texts = texts
        self._recordings = {kind: Recordings(kind) for kind in ("unit", "spark")}
        self._sources = {_module(file): text for file, text in texts.items()} | {
            ".".join(path.relative_to(top).with_suffix("").parts): path.read_text(encoding="utf-8")
            for top in (ROOT / "demo/src", ROOT / "lab/src")
            for path in top.rglob("*.py")
        }
        self._units = {file: tuple(_units(file, text)) for file, text in texts.items()}
        self._naming: dict[str, list[Unit]] = defaultdict(list)
        for units in self._units.values():
            for unit in units:
                for name in unit.names:
                    self._naming[name].append(unit)
        self.compiled = {file for file, text in texts.items() if "@jit" in text}
        """Files of kernels, whose lines no tracer sees."""

    def seconds(self, kind: str, test: str) -> float:
        """Return how long a test took when it was recorded."""
        return self._recordings[kind].seconds.get(test, 0.0)

    def longest_s(self, kind: str, test: str) -> float:
        """Return how long the longest test of a test's file took: a fixture may be behind any of them."""
        seconds, file = self._recordings[kind].seconds, _file_of(test)
        return max(s for other, s in seconds.items() if _file_of(other) == file)

    def as_python(self, change: Change) -> bool:
        """Return whether kernels must run as Python, so that none compiled before is taken."""
        if change.file in self.compiled:
            return True
        imported = any(
            f"from {_module(change.file)} import" in self._texts[file] for file in self.compiled
        )
        return imported and self._unit(change) is not None and not self._unit(change).is_function

    def tests(self, kind: str, change: Change) -> list[str]:
        """Return tests that should notice a change, shortest first."""
        unit = self._unit(change)
        if unit is None:
            return []
        found: set[str] = set()
        if unit.is_function and change.file not in self.compiled:
            last = change.line + self._texts[change.file].encode()[change.begin : change.end].count(
                b"\n"
            )
            found = self._running(kind, unit, change.line, last) or self._running(kind, unit)
            # of a line that runs at import whoever uses what comes of it can say more than who calls it
            if not self._recordings[kind].at_import(
                change.file, change.line, self._texts[change.file]
            ):
                return self._sorted(kind, found)
        near, far = self._users(unit)
        # whoever runs anything of the file may have built what a class or a default says
        near += [other for other in self._units[change.file] if other.is_function]
        room = f"tests/{change.file.partition('/')[0]}/"
        idle = {test for test in self._recordings[kind].idle() if test.startswith(room)}
        first = idle.union(self._reading(kind, unit), *(self._running(kind, u) for u in near))
        later = set().union(*(self._running(kind, u) for u in far), set())
        parts = (found, first - found, later - first - found)
        found_in_order = [test for part in parts for test in self._sorted(kind, part)]
        return sorted(
            found_in_order,
            key=lambda test: (test not in found, not _names(_file_of(test), unit.defines)),
        )

    def _reading(self, kind: str, unit: Unit) -> set[str]:
        """Return the tests of files that import what a unit defines: they may do no more than read it."""
        tests, mark = self._recordings[kind].seconds, _imports(_module(unit.file))
        files = {
            file
            for file in {_file_of(test) for test in tests}
            if _names(file, unit.defines) and mark.search((ROOT / file).read_text(encoding="utf-8"))
        }
        return {test for test in tests if _file_of(test) in files}

    def named(self, change: Change, *, on_spark: bool, most: int = 6) -> list[str]:
        """Return files of tests that name what a change is in, or import that, or are of its room."""
        unit = self._unit(change)
        names = {n: re.compile(rf"\b{n}\b") for n in (unit.defines if unit else ())}
        texts = {
            str(path.relative_to(ROOT)): path.read_text(encoding="utf-8")
            for top in ("tests", "lab/tests", "demo/tests")
            for path in (ROOT / top).rglob("test_*.py")
            if (path.parent.name == "spark") == on_spark
        }
        modules = seen = {_module(change.file)}
        found: list[str] = []
        while modules and len(found) < most:
            marks = [re.compile(rf"{re.escape(m)}\b") for m in sorted(modules)]
            scores = {
                test: (
                    any(mark.search(text) for mark in marks),
                    sum(bool(name.search(text)) for name in names.values()),
                )
                for test, text in texts.items()
                if test not in found and not test.startswith(_BLIND)
            }
            here = [test for test, score in scores.items() if any(score)]
            here.sort(key=lambda test: (*(-int(n) for n in scores[test]), len(texts[test]), test))
            found += here[: most - len(found)]
            names = {}  # only what the file itself defines
            modules = {
                name
                for name, text in self._sources.items()
                if any(f"from {module} import" in text for module in modules)
            } - seen
            seen = seen | modules
        room = f"tests/{change.file.partition('/')[0]}/"
        whole = sorted((t for t in texts if t.startswith(room)), key=lambda test: len(texts[test]))
        if on_spark:
            whole = [f"tests/spark/{name}" for name in _WHOLE]
        return list(dict.fromkeys(found + whole))[: 2 * most]

    def importing(self, change: Change) -> list[str]:
        """Return tests without a session of files that import what a change is in, or what imports that.

        A slot, a fork server or an agent is a process of its own, whose lines no tracer sees.
        """
        tests = self._recordings["unit"].seconds
        files = {_file_of(test) for test in tests}
        texts = {file: (ROOT / file).read_text(encoding="utf-8") for file in files}
        modules = seen = {_module(change.file)}
        while modules:
            marks = [_imports(module) for module in modules]
            those = {file for file, text in texts.items() if any(m.search(text) for m in marks)}
            if those:
                found = (test for test in tests if _file_of(test) in those)
                return self._sorted("unit", found)
            modules = {
                name
                for name, text in self._sources.items()
                if any(mark.search(text) for mark in marks)
            } - seen
            seen = seen | modules
        return []

    def _sorted(self, kind: str, tests: Iterable[str]) -> list[str]:
        seconds = self._recordings[kind].seconds
        return sorted(tests, key=lambda test: (seconds[test], test))

    def _unit(self, change: Change) -> Unit | None:
        holding = [u for u in self._units[change.file] if u.first <= change.line <= u.last]
        return min(holding, key=lambda u: u.last - u.first, default=None)

    def _users(self, unit: Unit) -> tuple[list[Unit], list[Unit]]:
        """Return functions that name what a unit defines, directly or not: of its file, and of others."""
        near, far = [], []
        seen, names = {unit}, set(unit.defines)
        tried: set[str] = set()
        while names - tried:
            name = min(names - tried)
            tried.add(name)
            for user in self._naming[name]:
                if user in seen:
                    continue
                seen.add(user)
                if not user.is_function or user.file in self.compiled:
                    names |= user.defines
                if user.is_function and user.file not in self.compiled:
                    (near if user.file == unit.file else far).append(user)
        return near, far

    def _running(self, kind: str, unit: Unit, first: int = 0, last: int = 0) -> set[str]:
        """Return the tests that run a unit, or some of its lines."""
        whole = range(unit.first, unit.last + 1)
        lines = range(first, last + 1) if first else whole
        return self._recordings[kind].running(unit.file, lines, self._texts[unit.file], whole)
