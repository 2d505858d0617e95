"""Draw lines of headgate by lot, change each, and see whether a test notices.

    python tests/mutants/run.py --drawn 200 --seed 7            any line of the product
    python tests/mutants/run.py --drawn 20 --seed 7 --only step lines of files whose name has this word

The tests that run a line are known by measuring (`covering`); they run in a fork of a warm process
(`forked`), shortest first, for at most a minute, and those on Spark for at most two and a half. A
change that makes a test fail is *killed*; *at once* if headgate cannot be imported or the failure says
that the code makes no sense, which needs no good test. One that no test can tell apart from the code
stands in equivalent.toml with the reason, and is counted apart.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import shutil
import sys
import tempfile
import time
import tomllib
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from changes import Change, draw, sources
from covering import Covering, Recordings, record
from forked import Forks, Run

from mutants import SOURCES

ROOT = Path(__file__).resolve().parents[2]
EQUIVALENT = Path(__file__).with_name("equivalent.toml")
UNIT_LIMIT_S = 60
SPARK_LIMIT_S = 150
_NEAR_FILES = 4
"""Files of tests that are asked first."""
NAMED_LIMIT_S = 15
"""Where tests are chosen by name, in each run of CI."""
ANY_NUMBER = "any number"
WANTED = 0.95
"""Share of the changes that can be noticed, of which a test must notice as many."""


@dataclass(frozen=True)
class Drawn:
    """A change, and what became of it."""

    change: Change
    old: str
    new: str
    run: Run
    of_tests: int
    """How many tests could have noticed."""
    equivalent: str
    """Why no test can notice it, if so."""
    seconds: float

    @property
    def room(self) -> str:
        """The room that the change is in."""
        *folders, _ = self.change.file.split("/")
        if not folders:
            return "headgate"
        return ".".join(folders[:2] if folders[0] == "spark" else folders[:1])

    @property
    def outcome(self) -> str:
        """What became of it; ``equivalent`` if nothing could."""
        return (
            "equivalent" if self.equivalent and self.run.outcome != "killed" else self.run.outcome
        )


def equivalents(path: Path = EQUIVALENT) -> dict[tuple[str, str, str], str]:
    """Return the reasons of changes that no test can notice, by file, old lines and new lines.

    New lines are `ANY_NUMBER` where no number in the line's place can be noticed.
    """
    return {
        (file, entry["old"], entry.get("new", ANY_NUMBER)): entry["reason"]
        for file, entries in tomllib.loads(path.read_text(encoding="utf-8")).items()
        for entry in entries
    }


class Trials:
    """Tries changes on copies of the sources."""

    def __init__(self, below: Path, jobs: int, texts: dict[str, str], *, by_name: bool) -> None:
        self._covering = Covering(texts)
        self._by_name = by_name
        self._texts = texts
        self._equivalents = equivalents()
        self._fit: set[str] = set()
        self._unfit: set[str] = set()
        self._free: queue.Queue[tuple[Path, Forks]] = queue.Queue()
        self._all: list[Forks] = []
        for number in range(jobs):
            copy = below / str(number)
            for top in SOURCES.values():  # with their times, so that compiled kernels stay valid
                shutil.copytree(ROOT / top, copy, dirs_exist_ok=True)
            self._all.append(Forks(copy))
            self._free.put((copy, self._all[-1]))

    def try_out(self, change: Change, until_s: float) -> Drawn | None:
        """Run the tests without a JVM that should notice a change; None after `until_s`."""
        began = time.monotonic()
        if began >= until_s:
            return None
        jit = not self._covering.as_python(change)
        limit_s = UNIT_LIMIT_S if jit else 2 * UNIT_LIMIT_S
        on_spark = change.file.startswith("spark/")
        named = self._covering.tests("unit", change)
        named += self._covering.importing(change) if on_spark else []
        took_s = {name: self._covering.seconds("unit", name) for name in named}
        tests = {
            name: min(max(30.0, 6 * seconds), limit_s)
            for name, seconds in took_s.items()
            if seconds < UNIT_LIMIT_S / 3  # a longer one would be the only one
        }
        # no name says which tests of the rooms that know Spark need no session
        if self._by_name or not (tests or on_spark):
            tests = dict.fromkeys(self._covering.named(change, on_spark=False), 30.0)
            limit_s = NAMED_LIMIT_S if self._by_name else UNIT_LIMIT_S
        run = Run("not run")
        for batch in _near_first(change.file, tests):
            before, run = run, self._confirmed(change, batch, limit_s, jit=jit)
            run = replace(run, tests=before.tests + run.tests)
            if run.outcome not in ("survived", "not run"):
                break
            run = before if run.outcome == "not run" else run
        old, new = change.diff(self._texts[change.file])
        reason = self._equivalents.get((change.file, old, new), "")
        if change.kind in ("constant", "arithmetic"):
            reason = reason or self._equivalents.get((change.file, old, ANY_NUMBER), "")
        return Drawn(change, old, new, run, len(tests), reason, time.monotonic() - began)

    def try_on_spark(self, drawn: Drawn, until_s: float) -> Drawn | None:
        """Run the tests on Spark that should notice a change that the others did not."""
        began, change = time.monotonic(), drawn.change
        if began >= until_s:
            return None
        tests = {
            name: max(120.0, 3 * self._covering.longest_s("spark", name))
            for name in self._covering.tests("spark", change)
        }
        if not tests:
            tests = dict.fromkeys(self._covering.named(change, on_spark=True), SPARK_LIMIT_S)
        run = self._confirmed(change, tests, SPARK_LIMIT_S, jit=True, spark=True)
        run = (
            drawn.run
            if run.outcome == "not run"
            else replace(run, tests=run.tests + drawn.run.tests)
        )
        seconds = drawn.seconds + time.monotonic() - began
        return replace(drawn, run=run, of_tests=drawn.of_tests + len(tests), seconds=seconds)

    def _confirmed(
        self,
        change: Change,
        tests: dict[str, float],
        limit_s: float,
        *,
        jit: bool,
        spark: bool = False,
    ) -> Run:
        """Run tests on a change; one that fails must pass on the code as it is, or does not count."""
        copy, forks = self._free.get()
        try:
            path, how = copy / "headgate" / change.file, {"jit": jit, "spark": spark}
            return self._run(change, path, forks, tests, limit_s, how)
        finally:
            self._free.put((copy, forks))

    def _run(
        self,
        change: Change,
        path: Path,
        forks: Forks,
        tests: dict[str, float],
        limit_s: float,
        how: dict[str, bool],
    ) -> Run:
        until_s = time.monotonic() + limit_s
        while tests := {name: s for name, s in tests.items() if name not in self._unfit}:
            left_s = until_s - time.monotonic()
            if left_s <= 0:
                break  # tests that fail on the code as it is have taken the time
            with _changed(path, change.applied(self._texts[change.file])):
                run = forks.run(tests, left_s, **how, but=self._unfit)
            at_import = bool(run.by) and "::" not in run.by
            if run.outcome in ("survived", "not run") or at_import or run.by in self._fit:
                return run
            again = {run.by: tests.get(run.by, limit_s)} if run.by else tests
            if forks.run(again, limit_s, **how).outcome == "survived":
                self._fit.add(run.by or "the process")
                return run
            note(f"does not count, since it fails on the code as it is: {run.by or list(tests)}")
            self._unfit.update(again)
            if not run.by:
                break  # all that was asked
        return Run("not run")

    def close(self) -> None:
        """End the processes."""
        for forks in self._all:
            forks.close()


def _near_first(file: str, tests: dict[str, float]) -> list[dict[str, float]]:
    """Return tests in two parts, since loading many files takes longer than many tests.

    First come those of a file that has the changed file's name, then the recordings of its room, which
    notice most, then the room's others.
    """
    folder, stem = f"tests/{file.partition('/')[0]}/", Path(file).stem
    files: dict[str, list[str]] = {}
    for name in tests:
        files.setdefault(name.partition("::")[0], []).append(name)

    def distance(name: str) -> tuple[bool, bool, bool]:
        own, is_recorded = name.startswith(folder), name.endswith("recorded.py")
        return stem not in Path(name).stem, not own, not is_recorded

    near = sorted(files, key=distance)[:_NEAR_FILES]
    first = {name: tests[name] for file in near for name in files[file]}
    rest = {name: limit_s for name, limit_s in tests.items() if name not in first}
    return [part for part in (first, rest) if part]


@contextlib.contextmanager
def _changed(path: Path, text: str) -> Iterator[None]:
    original, stat = path.read_bytes(), path.stat()
    path.write_text(text, encoding="utf-8")
    try:
        yield
    finally:
        path.write_bytes(original)
        os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))


def main(  # noqa: PLR0913 - options of the command, by name
    count: int,
    seed: int,
    *,
    only: str,
    jobs: int,
    spark: bool,
    sessions: bool,
    record_spark: bool,
    within_s: float | None,
    as_json: bool,
) -> int:
    """Draw, try and report; return 1 if too little was noticed, where all was tried.

    Parameters
    ----------
    only : str
        Draws from files whose name has this word.
    spark : bool
        Whether lines of `spark` are drawn.
    sessions : bool
        Whether the tests on Spark run for those lines of `spark` that no other test noticed; the share
        that is noticed without a session shows whether a change of these rooms is noticed in seconds.
    within_s : float or None
        Begins no trial after so many seconds, chooses tests by name if there is no recording, and only
        reports: a line that was drawn is nearly always somebody else's.
    """
    texts = sources(ROOT)
    missing = len(Recordings("unit").missing)
    if missing and within_s is None:
        note(f"recording which tests run which lines, of {missing} files of tests")
        record("unit", jobs)
    if record_spark:
        record("spark", min(jobs, 2))  # each has a JVM
    chosen = {
        file: text
        for file, text in texts.items()
        if only in file and (spark or not file.startswith("spark/"))
    }
    drawn = draw(chosen, count, seed)
    note(f"{len(drawn)} lines drawn with seed {seed}")
    outcomes: list[Drawn] = []
    until_s = time.monotonic() + (within_s or float("inf"))
    with tempfile.TemporaryDirectory(prefix="headgate-drawn-") as below:
        by_name = bool(missing) and within_s is not None
        trials = Trials(Path(below), jobs, texts, by_name=by_name)
        pool = ThreadPoolExecutor(jobs)
        try:
            left: list[Drawn] = []
            work = [pool.submit(trials.try_out, change, until_s) for change in drawn]
            for outcome in (done.result() for done in as_completed(work)):
                if outcome is None:
                    continue
                on_spark = outcome.change.file.startswith("spark/")
                later = sessions and on_spark and outcome.outcome in ("survived", "not run")
                (left if later else outcomes).append(outcome)
                note(_line(outcome, len(outcomes) + len(left), len(drawn), later=later))
            work = [pool.submit(trials.try_on_spark, outcome, until_s) for outcome in left]
            for number, outcome in enumerate((done.result() for done in as_completed(work)), 1):
                if outcome is None:
                    continue
                outcomes.append(outcome)
                note(_line(outcome, number, len(left)))
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
            trials.close()
    outcomes.sort(key=lambda drawn: (drawn.change.file, drawn.change.line))
    if as_json:
        print(json.dumps([_as_dict(drawn) for drawn in outcomes], indent=1))
    note(report(outcomes))
    share = noticed(outcomes)
    return int(within_s is None and share is not None and share < WANTED)


def noticed(outcomes: Sequence[Drawn], *, without_at_once: bool = False) -> float | None:
    """Return the share of changes that a test noticed, of those that can be noticed; None of none."""
    counted = [
        drawn
        for drawn in outcomes
        if drawn.outcome != "equivalent" and not (without_at_once and drawn.run.at_once)
    ]
    killed = sum(drawn.outcome in ("killed", "timed out") for drawn in counted)
    return killed / len(counted) if counted else None


def report(outcomes: Sequence[Drawn]) -> str:
    """Return the table by room, and the diff of each change that nobody noticed."""
    columns = ("killed", "timed out", "survived", "not run", "equivalent")
    head = f"{'room':<18}{'drawn':>7}" + "".join(f"{c:>11}" for c in columns)
    lines = [head + f"{'noticed':>10}{'without those at once':>23}"]
    rooms = sorted({drawn.room for drawn in outcomes})
    for room in [*rooms, ""]:
        here = [drawn for drawn in outcomes if room in ("", drawn.room)]
        counts = Counter(drawn.outcome for drawn in here)
        line = f"{room or 'all':<18}{len(here):>7}" + "".join(f"{counts[c]:>11}" for c in columns)
        lines.append(
            line
            + f"{_percent(noticed(here)):>10}{_percent(noticed(here, without_at_once=True)):>23}"
        )
    for drawn in outcomes:
        if drawn.outcome in ("survived", "not run"):
            change, run = drawn.change, drawn.run
            lines.append(
                f"\n{drawn.outcome}: src/headgate/{change.file}:{change.line} ({change.kind};"
                f" {run.tests} of {drawn.of_tests} tests ran)"
            )
            lines += [f"  - {line}" for line in drawn.old.splitlines()]
            lines += [f"  + {line}" for line in drawn.new.splitlines()]
    return "\n".join(lines)


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.0f} %"


def _line(drawn: Drawn, number: int, of: int, *, later: bool = False) -> str:
    said = drawn.outcome + (", at once" if drawn.run.at_once else "")
    said += ", to be tried on Spark" if later else ""
    place = f"{drawn.change.file}:{drawn.change.line} {drawn.change.kind}"
    return f"[{number}/{of}] {said}, {drawn.seconds:.1f} s: {place}  {drawn.run.by}"


def _as_dict(drawn: Drawn) -> dict[str, object]:
    known = asdict(drawn)
    change, run = known.pop("change"), known.pop("run")
    return change | run | known | {"room": drawn.room, "outcome": drawn.outcome}


def note(text: str) -> None:
    """Say something beside the answer."""
    print(text, file=sys.stderr, flush=True)
