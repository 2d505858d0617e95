"""Break one line of headgate at a time and see that the test named for it fails.

    python tests/mutants/run.py               all of them
    python tests/mutants/run.py --part        the twentieth of this commit: what CI runs
    python tests/mutants/run.py --only drrs   those whose file, test or text has this word
    python tests/mutants/run.py --drawn 200   lines drawn by lot in place of the lists, see drawn.py

The lists beside this file say what is broken, and by which test that must be noticed. A mutant is
*killed* if that test fails. It is *broken* itself if the test could not even begin: a name that is not
there, a fixture that failed, no such test; that is an error of the list and never counts as killed.
A test that hangs counts only where the list says that it would.

mutmut and cosmic-ray were looked at first. Both make all mutants of a source by fixed operators and run
one test command, or the tests that cover a line; neither takes a list of changes by hand with a test
for each, mutmut leaves decorated functions alone, so every kernel, and cosmic-ray writes into the
checkout. What is left of them for us would be less than this file.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import contextlib
import json
import os
import queue
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from mutants import PARTS, SOURCES, Mutant, applied, number_of_commit, parts, read

ROOT = Path(__file__).resolve().parents[2]
TIME_LIMIT_S = 300
"""Of one test on a mutant; the busiest machines need a minute to start Spark."""

_NOT_THE_LINES_FAULT = re.compile(
    r"\b(ImportError|ModuleNotFoundError|SyntaxError|IndentationError|NameError)\b"
)


@dataclass(frozen=True)
class Outcome:
    """What became of one mutant: killed, survived, hung or broken, and how we know."""

    name: str
    file: str
    test: str
    outcome: str
    evidence: str
    expected: bool
    seconds: float


class Copies:
    """Copies of the sources, one for each mutant at work; compiled kernels are copied with them."""

    def __init__(self, below: Path, count: int) -> None:
        self._free: queue.Queue[Path] = queue.Queue()
        for number in range(count):
            # Times of change are kept, so that numba still takes the code it compiled for the original.
            for sources in SOURCES.values():
                shutil.copytree(ROOT / sources, below / str(number), dirs_exist_ok=True)
            self._free.put(below / str(number))
        self._spark = threading.Lock()

    def try_out(self, mutant: Mutant) -> Outcome:
        """Run the mutant's test with the mutant in place."""
        if mutant.spark:
            with self._spark:  # one JVM at a time
                return self._try_out(mutant)
        return self._try_out(mutant)

    def _try_out(self, mutant: Mutant) -> Outcome:
        began = time.monotonic()
        source = self._free.get()
        changed = source / mutant.path
        original = changed.read_text(encoding="utf-8")
        stat = changed.stat()
        try:
            changed.write_text(applied(mutant, original), encoding="utf-8")
            arguments = [mutant.test, "-x"]
            if "@jit" in original:
                # Compiled code remembers what it called, so a changed kernel runs as plain Python.
                arguments.append("--jit=0")
            code, said = pytest(source, arguments)
        finally:
            changed.write_text(original, encoding="utf-8")
            os.utime(changed, ns=(stat.st_atime_ns, stat.st_mtime_ns))
            self._free.put(source)
        outcome, evidence = judged(code, said)
        wanted = (
            ("survived",)
            if mutant.survives
            else ("killed", "hung")
            if mutant.hangs
            else ("killed",)
        )
        seconds = round(time.monotonic() - began, 1)
        return Outcome(
            mutant.name, mutant.file, mutant.test, outcome, evidence, outcome in wanted, seconds
        )


def pytest(
    source: Path, arguments: Sequence[str], limit_s: float = TIME_LIMIT_S
) -> tuple[int | None, str]:
    """Run pytest on the sources in `source`; return its exit code, None if it hung, and its output."""
    # Of one second a mutant and the original may have the same size: no bytecode is trusted or left.
    environment = os.environ | {
        "PYTHONPATH": str(source),
        "PYTHONDONTWRITEBYTECODE": "1",
        "HYPOTHESIS_PROFILE": "mutants",
    }
    command = [sys.executable, "-m", "pytest", "-q", "--tb=short", "-rfE", "--thorough"]
    command += ["-p", "no:cacheprovider", "-p", "no:xdist", *arguments]
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    _running.add(process.pid)
    try:
        said, _ = process.communicate(timeout=limit_s)
        return process.returncode, said
    except subprocess.TimeoutExpired:
        return None, "no end"
    finally:
        _running.discard(process.pid)
        end(process.pid)
        process.communicate()


_running: set[int] = set()
"""Leaders of the groups of processes at work."""


def end(group: int) -> None:
    """End a test and whatever it started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)


def judged(code: int | None, said: str) -> tuple[str, str]:
    """Return what pytest's exit code and output say of a mutant, and the line that shows it."""
    lines = said.splitlines()
    failures = [line for line in lines if line.startswith("FAILED ")]
    # of pytest's summary; a log record that was captured has its level padded
    errors = [line for line in lines if re.match(r"ERROR \S", line)]
    raised = [line for line in lines if re.match(r"E   +\S", line)]
    if code is None or any("Failed: Timeout" in line for line in failures):
        return "hung", "\n".join(lines[-3:])
    if code == 0:
        return ("survived", "") if re.search(r"\b\d+ passed", said) else ("broken", lines[-1])
    if code != 1 or errors or not failures:
        return "broken", "\n".join(errors or lines[-5:])
    if any(_NOT_THE_LINES_FAULT.search(line) for line in [*failures, *raised]):
        return "broken", "\n".join(raised or failures)
    return "killed", raised[0].removeprefix("E").strip() if raised else failures[0]


def main() -> int:
    """Try the chosen mutants; return 0 if all that must be killed were."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--part", nargs="?", type=int, const=-1, help="0 to 19; empty: this commit's"
    )
    parser.add_argument(
        "--only", metavar="WORD", help="mutants whose file, test or text has this word"
    )
    parser.add_argument("--drawn", type=int, metavar="N", help="N lines drawn by lot, any of them")
    parser.add_argument("--seed", type=int, help="of the draw; empty: the number of this commit")
    parser.add_argument(
        "--no-spark", action="store_true", help="draw none that only Spark can show"
    )
    parser.add_argument(
        "--no-session",
        action="store_true",
        help="run none of the tests that need a session of Spark",
    )
    parser.add_argument(
        "--record-spark", action="store_true", help="first record the tests on Spark: very long"
    )
    parser.add_argument(
        "--within", type=float, metavar="S", help="of those drawn, begin none after so many seconds"
    )
    parser.add_argument("--jobs", type=int, default=min(os.cpu_count() or 1, 8))
    parser.add_argument("--json", action="store_true", help="print outcomes as JSON")
    options = parser.parse_args()

    if options.drawn is not None:
        # Only where it is asked for: the lists need no coverage.
        import drawn

        return drawn.main(
            options.drawn,
            number_of_commit(ROOT)[0] if options.seed is None else options.seed,
            only=options.only or "",
            jobs=options.jobs,
            spark=not options.no_spark,
            sessions=not options.no_session,
            record_spark=options.record_spark,
            within_s=options.within,
            as_json=options.json,
        )
    listed = read()
    chosen = listed
    if options.part is not None:
        asked = (options.part, "as asked")
        number, why = number_of_commit(ROOT) if options.part < 0 else asked
        number %= PARTS
        chosen = parts(listed)[number]
        note(f"part {number} of 0 to {PARTS - 1} ({why}): {len(chosen)} of {len(listed)} mutants")
    if options.only:
        chosen = [
            mutant
            for mutant in chosen
            if options.only in " ".join(map(str, asdict(mutant).values()))
        ]
    if not chosen:
        note("no such mutant")
        return 2

    with tempfile.TemporaryDirectory(prefix="headgate-mutants-") as below:
        copies = Copies(Path(below), options.jobs)
        tests = sorted({mutant.test for mutant in chosen})
        note(f"first their {len(tests)} tests on the code as it is")
        code, said = pytest(Path(below) / "0", tests, TIME_LIMIT_S * len(tests))
        if code != 0:
            note(f"{said}\nthe tests of these mutants must pass on the code as it is")
            return 2
        outcomes = tried(copies, chosen, options.jobs)
    if options.json:
        print(json.dumps([asdict(outcome) for outcome in outcomes], indent=1))
    return summed_up(outcomes, {m.name: m.survives for m in chosen})


def tried(copies: Copies, chosen: Sequence[Mutant], jobs: int) -> list[Outcome]:
    """Try mutants side by side, saying what became of each."""
    outcomes: list[Outcome] = []
    # Those on Spark take longest, so they begin.
    order = sorted(chosen, key=lambda mutant: not mutant.spark)
    pool = concurrent.futures.ThreadPoolExecutor(jobs)
    work = [pool.submit(copies.try_out, mutant) for mutant in order]
    try:
        for done in concurrent.futures.as_completed(work):
            outcome = done.result()
            outcomes.append(outcome)
            mark = "" if outcome.expected else "  <-- not as listed"
            said = f"[{len(outcomes)}/{len(order)}] {outcome.outcome:8} {outcome.seconds:5.1f} s"
            note(f"{said}  {outcome.name}{mark}")
    finally:  # also of an interrupt
        pool.shutdown(wait=False, cancel_futures=True)
        for group in list(_running):
            end(group)
        pool.shutdown()
    return outcomes


def summed_up(outcomes: Sequence[Outcome], reasons: dict[str, str]) -> int:
    """Say how many were killed and why the others were not; return the exit code."""
    killed = sum(outcome.outcome in ("killed", "hung") for outcome in outcomes)
    note(f"killed {killed} of {len(outcomes)} ({100 * killed / len(outcomes):.1f} %)")
    for outcome in outcomes:
        if outcome.expected and outcome.outcome == "survived":
            note(f"survives, as listed: {outcome.name}: {reasons[outcome.name]}")
    wrong = [outcome for outcome in outcomes if not outcome.expected]
    for outcome in wrong:
        note(
            f"NOT AS LISTED, {outcome.outcome}: {outcome.name}\n    {outcome.test}\n"
            f"    {outcome.evidence}"
        )
    return 1 if wrong else 0


def note(text: str) -> None:
    """Say something beside the answer."""
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    sys.exit(main())
