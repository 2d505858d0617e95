"""Runs tests on a changed copy of the sources, each run in a fork of a process that is warm.

Numpy, numba, PyArrow, PySpark and pytest are imported once; headgate and the tests are imported in each
fork, so a changed module is never mixed with one that was loaded before. `Forks` is the end of the
caller; run as a program, this file is the process that forks.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
GRACE_S = 10
"""How long a run may go on beyond its limit and that of its last test, before it is ended."""
_WAITING = 3
"""How many times as long as it computes a run may take."""
AT_ONCE = (
    "AttributeError",
    "ImportError",
    "ModuleNotFoundError",
    "NameError",
    "SyntaxError",
    "TypeError",
    "UnboundLocalError",
)
"""Exceptions of code that makes no sense: whatever test runs such a line fails."""


@dataclass(frozen=True)
class Run:
    """What a run of tests on changed sources showed."""

    outcome: str
    """``killed``, ``survived``, ``timed out`` or ``not run``."""
    at_once: bool = False
    """Whether headgate could not be imported, or the failure is one of `AT_ONCE`."""
    by: str = ""
    """The test that failed."""
    evidence: str = ""
    tests: int = 0
    """How many tests ran."""


class Forks:
    """A warm process that runs tests on one copy of the sources."""

    def __init__(self, copy: Path) -> None:
        self._environment = os.environ | {
            "PYTHONPATH": str(copy),
            "PYTHONDONTWRITEBYTECODE": "1",
            "HYPOTHESIS_PROFILE": "mutants",
        }
        self._process = self._started()

    def _started(self) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, __file__],
            cwd=ROOT,
            env=self._environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def run(
        self,
        tests: dict[str, float],
        limit_s: float,
        *,
        jit: bool,
        spark: bool = False,
        but: Collection[str] = (),
    ) -> Run:
        """Run tests in their order until one fails.

        Parameters
        ----------
        tests : dict
            How many seconds each may take, by name; of a file, each of its tests.
        limit_s : float
            No test begins after so many seconds of computing, or three times as many in all: a busy
            machine must not leave tests out.
        jit : bool
            Whether kernels are compiled.
        spark : bool
            Whether they need a session: it is the JVM that computes, so that the limit is by the clock;
            and no test that is marked `thorough` runs, which takes most of it.
        but : collection of str
            Tests of a file in `tests` that are left out.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        asked = {"tests": tests, "limit_s": limit_s, "jit": jit, "spark": spark, "but": list(but)}
        self._process.stdin.write(json.dumps(asked) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:  # somebody ended the process: another one takes its place
            self.close()
            self._process = self._started()
            return Run("not run", evidence="the process that forks has ended")
        return Run(**json.loads(answer))

    def close(self) -> None:
        """End the process, and whatever it runs."""
        self._process.terminate()
        self._process.communicate()


# --- The process that forks ---------------------------------------------------------------------------


class Watcher:
    """Gives pytest its tests in order, and keeps what the first failure was."""

    def __init__(
        self, tests: dict[str, float], but: Collection[str], limit_s: float, most_s: float
    ) -> None:
        self._tests, self._but, self._limit_s, self._most_s = tests, but, limit_s, most_s
        self._began_s, self._computed_s = time.monotonic(), time.process_time()
        self.found: dict[str, Any] = {"outcome": "not run", "tests": 0}

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Leave the tests that were asked for, shortest first."""
        by_name: dict[str, list[pytest.Item]] = {}
        for item in items:
            if item.nodeid in self._but:
                continue
            for name in (item.nodeid, item.nodeid.partition("::")[0]):
                by_name.setdefault(name, []).append(item)
        items.clear()
        for name, limit_s in self._tests.items():
            for item in by_name.get(name, ()):
                item.add_marker(pytest.mark.timeout(limit_s), append=False)
                items.append(item)

    def pytest_runtest_setup(self, item: Any) -> None:
        """Begin no test after the limit."""
        computed_s = time.process_time() - self._computed_s
        if computed_s > self._limit_s or time.monotonic() - self._began_s > self._most_s:
            item.session.shouldstop = "the limit"

    def pytest_collectreport(self, report: Any) -> None:
        """Keep why a file of tests could not be loaded."""
        if report.failed:
            said = str(report.longrepr).strip().splitlines()
            self._fail(report.nodeid, "at import", said[-1] if said else "", at_once=True)

    def pytest_runtest_makereport(self, item: Any, call: Any) -> None:
        """Keep what a test failed with."""
        if call.excinfo is None:
            if call.when == "call":
                self.found["tests"] += 1
                if self.found["outcome"] == "not run":
                    self.found["outcome"] = "survived"
        elif not call.excinfo.errisinstance(pytest.skip.Exception):
            name = call.excinfo.type.__name__
            self._fail(item.nodeid, name, call.excinfo.exconly(), at_once=name in AT_ONCE)

    def _fail(self, by: str, kind: str, said: str, *, at_once: bool) -> None:
        if self.found["outcome"] not in ("killed", "timed out"):
            outcome = "timed out" if kind == "Failed" and "Timeout" in said else "killed"
            evidence = said if said.startswith(kind) else f"{kind}: {said}"
            self.found.update(outcome=outcome, by=by, at_once=at_once, evidence=evidence[:300])


def _in_fork(asked: dict[str, Any], out: int) -> None:
    os.setsid()
    os.environ["HEADGATE_JIT"] = str(int(asked["jit"]))
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nothing, stream)
    watcher = Watcher(asked["tests"], asked["but"], asked["limit_s"], _most_s(asked))
    files = list(dict.fromkeys(name.partition("::")[0] for name in asked["tests"]))
    arguments = [
        *([] if asked["spark"] else ["--thorough"]),
        "-x",
        "-q",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:xdist",
        *files,
    ]
    # hypothesis is loaded, and nobody needs its assertions rewritten
    arguments += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]
    try:
        said = f"pytest ended with {pytest.main(arguments, plugins=[watcher])!r}"
    except BaseException as error:
        said = repr(error)
    if watcher.found["outcome"] == "not run" and "ExitCode" not in said:
        watcher.found.update(outcome="killed", at_once=True, evidence=said)
    os.write(out, json.dumps(watcher.found).encode())
    os._exit(0)


def _most_s(asked: dict[str, Any]) -> float:
    """Return by how many seconds of the clock a run begins no more test."""
    most_s: float = asked["limit_s"] * (1 if asked["spark"] else _WAITING)
    return most_s


def _forked(asked: dict[str, Any]) -> dict[str, Any]:
    read, write = os.pipe()
    child = os.fork()
    if not child:
        os.close(read)
        _in_fork(asked, write)
    os.close(write)
    _children.add(child)
    # a test that hangs ends by its own limit, unless it hangs in a library
    end_s = _most_s(asked) + max(asked["tests"].values()) + GRACE_S
    try:
        ready, _, _ = select.select([read], [], [], end_s)
        said = os.read(read, 65536) if ready else b""
    finally:
        os.close(read)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)
        os.waitpid(child, 0)
        _children.discard(child)
    if not ready:
        return {"outcome": "timed out", "evidence": "no end"}
    if not said:
        return {"outcome": "killed", "at_once": True, "evidence": "the process ended"}
    answer: dict[str, Any] = json.loads(said)
    return answer


_children: set[int] = set()


def _end(*_: object) -> None:
    for child in _children:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)
    os._exit(0)


def _requests() -> Iterator[dict[str, Any]]:
    for line in sys.stdin:
        yield json.loads(line)


def main() -> None:
    """Import what all tests need, then run those that are asked for, one line each."""
    import hypothesis  # noqa: F401
    import numba  # noqa: F401
    import numpy  # noqa: F401
    import pyarrow.ipc  # noqa: F401
    import pyspark.sql  # noqa: F401

    sys.path.remove(str(Path(__file__).parent))
    signal.signal(signal.SIGTERM, _end)
    for asked in _requests():
        print(json.dumps(_forked(asked)), flush=True)
    _end()


if __name__ == "__main__":
    main()
