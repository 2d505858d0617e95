"""Draw lines of headgate by lot, change each, and see whether a test notices.

    python tests/mutants/run.py --drawn 200 --seed 7            any line of the product
    python tests/mutants/run.py --drawn 20 --seed 7 --only step lines of files whose name has this word

The tests that run a line are known by measuring (`covering`); they run in a fork of a warm process
(`forked`), shortest first, for at most a minute, and those on Spark for at most five. A change that makes
a test fail is *killed*; *at once* if headgate cannot be imported or the failure says that the code makes
no sense, which needs no good test. One that no test can tell apart from the code stands in
equivalent.toml with the reason, and is counted apart.
"""

from __future__ import annotations

import json
import os
import queue
import shutil
import sys
import tempfile
import threading
import time
import tomllib
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from pathlib import Path

from changes import Change, draw, sources
from covering import Covering, is_fresh, record
from forked import Forks, Run

ROOT = Path(__file__).resolve().parents[2]
EQUIVALENT = Path(__file__).with_name("equivalent.toml")
UNIT_LIMIT_S = 60
SPARK_LIMIT_S = 300
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
        return "equivalent" if self.equivalent and self.run.outcome != "killed" else self.run.outcome


def equivalents(path: Path = EQUIVALENT) -> dict[tuple[str, str, str], str]:
    """Return the reasons of changes that no test can notice, by file, old lines and new lines."""
    return {
        (file, entry["old"], entry["new"]): entry["reason"]
        for file, entries in tomllib.loads(path.read_text(encoding="utf-8")).items()
        for entry in entries
    }


class Trials:
    """Tries changes on copies of the sources."""

    def __init__(self, below: Path, jobs: int, texts: dict[str, str], *, spark: bool) -> None:
        self._covering = Covering(texts)
        self._texts = texts
        self._spark = spark
        self._one_jvm = threading.Lock()
        self._equivalents = equivalents()
        self._free: queue.Queue[tuple[Path, Forks]] = queue.Queue()
        self._all: list[Forks] = []
        for number in range(jobs):
            copy = below / str(number)
            for top in ("src", "lab/src"):  # with their times, so that compiled kernels stay valid
                shutil.copytree(ROOT / top, copy, dirs_exist_ok=True)
            self._all.append(Forks(copy))
            self._free.put((copy, self._all[-1]))

    def try_out(self, change: Change) -> Drawn:
        """Run the tests that should notice a change, with the change in place."""
        began = time.monotonic()
        text = self._texts[change.file]
        old, new = change.diff(text)
        copy, forks = self._free.get()
        path = copy / "headgate" / change.file
        original = path.read_bytes()
        stat = path.stat()
        try:
            path.write_text(change.applied(text), encoding="utf-8")
            run, count = self._run(change, forks)
        finally:
            path.write_bytes(original)
            os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
            self._free.put((copy, forks))
        reason = self._equivalents.get((change.file, old, new), "")
        return Drawn(change, old, new, run, count, reason, round(time.monotonic() - began, 1))

    def _run(self, change: Change, forks: Forks) -> tuple[Run, int]:
        slow = self._covering.as_python(change)
        names = self._covering.tests("unit", change)
        limits = {
            name: max(30.0, 20 * self._covering.seconds("unit", name)) * (4 if slow else 1)
            for name in names
        }
        run = forks.run(limits, UNIT_LIMIT_S * (2 if slow else 1), jit=not slow) if names else Run("not run")
        count = len(names)
        if run.outcome not in ("survived", "not run") or not self._spark or "spark/" not in change.file:
            return run, count
        names = self._covering.tests("spark", change)
        more = {name: max(120.0, 10 * self._covering.seconds("spark", name)) for name in names}
        if not more:
            more = {name: 300.0 for name in self._covering.named(change)}
        if more:
            with self._one_jvm:
                on_spark = forks.run(more, SPARK_LIMIT_S, jit=True)
            if on_spark.outcome != "not run":
                run = Run(**asdict(on_spark) | {"tests": on_spark.tests + run.tests})
        return run, count + len(more)

    def close(self) -> None:
        """End the processes."""
        for forks in self._all:
            forks.close()


def main(count: int, seed: int, *, only: str, jobs: int, spark: bool, as_json: bool) -> int:
    """Draw, try and report; return 0 if enough was noticed."""
    texts = sources(ROOT)
    if not is_fresh("unit"):
        note("recording which tests run which lines, once for these sources: some minutes")
        record("unit", jobs)
    chosen = {file: text for file, text in texts.items() if only in file and (spark or not file.startswith("spark/"))}
    drawn = draw(chosen, count, seed)
    note(f"{len(drawn)} lines drawn with seed {seed}")
    outcomes: list[Drawn] = []
    with tempfile.TemporaryDirectory(prefix="headgate-drawn-") as below:
        trials = Trials(Path(below), jobs, texts, spark=spark)
        pool = ThreadPoolExecutor(jobs)
        try:
            for done in as_completed([pool.submit(trials.try_out, change) for change in drawn]):
                outcomes.append(done.result())
                note(_line(outcomes[-1], f"[{len(outcomes)}/{len(drawn)}]"))
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
            trials.close()
    outcomes.sort(key=lambda d: (d.change.file, d.change.line))
    if as_json:
        print(json.dumps([_as_dict(one) for one in outcomes], indent=1))
    note(report(outcomes))
    share = noticed(outcomes)
    return 0 if share is None or share >= WANTED else 1


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
        lines.append(line + f"{_percent(noticed(here)):>10}{_percent(noticed(here, without_at_once=True)):>23}")
    for drawn in outcomes:
        if drawn.outcome in ("survived", "not run"):
            lines.append(
                f"\n{drawn.outcome}: src/headgate/{drawn.change.file}:{drawn.change.line} ({drawn.change.kind};"
                f" {drawn.run.tests} of {drawn.of_tests} tests)"
            )
            lines += [f"  - {line}" for line in drawn.old.splitlines()]
            lines += [f"  + {line}" for line in drawn.new.splitlines()]
    return "\n".join(lines)


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.0f} %"


def _line(drawn: Drawn, number: str) -> str:
    mark = " at once" if drawn.run.at_once else ""
    return (
        f"{number} {drawn.outcome}{mark} {drawn.seconds} s  {drawn.change.file}:{drawn.change.line}"
        f" {drawn.change.kind}  {drawn.run.by}"
    )


def _as_dict(drawn: Drawn) -> dict[str, object]:
    known = asdict(drawn)
    change, run = known.pop("change"), known.pop("run")
    return change | run | known | {"room": drawn.room, "outcome": drawn.outcome}


def note(text: str) -> None:
    """Say something beside the answer."""
    print(text, file=sys.stderr, flush=True)
