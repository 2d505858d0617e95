"""Run headgate on every minor release of Spark that it knows: the contract, tests, a job, one checkpoint.

    python scripts/matrix.py                      # all minors
    python scripts/matrix.py --minor 4.1 --short  # the contract, a few answers and the job, on one
    python scripts/matrix.py --only test_tables   # one file; or job, or carried

The lock files ``requirements/spark-*.lock`` name the minors besides the newest, each of which is put
beside the checkout, in ``.spark``, and found before the installed one. At the end one checkpoint is
carried up through all of them.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

_ROOT = Path(__file__).resolve().parents[1]
_PLACE = _ROOT / ".spark"
_NEWEST = "newest"

_SHORT = [
    "tests/spark/test_contract.py",
    "tests/spark/unit/test_minors.py",
    "tests/spark/test_sinks.py",
    "tests/spark/unit/test_writer_surface.py",
]
_LONG = [
    *_SHORT,
    "tests/spark/test_answers.py",
    "tests/spark/unit/test_user_processor.py",
    "tests/spark/test_processor.py",
    "tests/spark/test_deduplicate.py",
    "tests/spark/test_join.py",
    "tests/spark/test_stages.py",
    "tests/spark/test_refusals.py",
    "tests/spark/test_meaning.py",
    "tests/spark/test_changed_queries.py",
    "tests/spark/test_stopping.py",
    "tests/spark/test_plain_session.py",
    "tests/spark/test_old_checkpoints.py",
    "tests/spark/test_tables.py",
    "tests/spark/test_jdbc_merge.py",
    "tests/spark/test_faults.py",
    "tests/spark/test_migration.py",
    "tests/spark/test_real_time.py",
]
_JOB = ["run", "nexmark-q5", "--rate", "2000", "--slots", "2", "--verify", "--json"]
"""The job of `make run`, on a load that leaves two cores time."""


@dataclass(frozen=True)
class Line:
    """Holds the result of one thing on one minor.

    Attributes
    ----------
    minor, what, result : str
    good : bool
    seconds : float
    """

    minor: str
    what: str
    result: str
    good: bool
    seconds: float


def main() -> None:
    """Run what is asked for, print a table, and fail if anything failed."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    known = [path.stem.removeprefix("spark-") for path in _locks()]
    parser.add_argument("--minor", action="append", choices=[*known, _NEWEST], help="repeatable")
    parser.add_argument("--short", action="store_true", help="the contract, sinks and the job only")
    parser.add_argument("--only", metavar="WORD", help="only what has this in its name")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    given = parser.parse_args()
    minors = given.minor or [*known, _NEWEST]
    lines = []
    for line in _all(minors, given.only or "", short=given.short):
        lines.append(line)
        mark = "ok  " if line.good else "FAIL"
        out = sys.stderr if given.json else sys.stdout
        text = f"{mark} {line.minor:7} {line.what:32} {line.seconds:6.0f} s  {line.result}"
        print(text, file=out, flush=True)
    if not lines:
        print(
            f"nothing that is run on these minors has {given.only!r} in its name", file=sys.stderr
        )
    if given.json:
        print(json.dumps([asdict(line) for line in lines]))
    sys.exit(0 if lines and all(line.good for line in lines) else 1)


def _all(minors: Sequence[str], only: str, *, short: bool) -> Iterator[Line]:
    for minor in minors:
        env = _environment(minor)
        if only in "job":
            yield _job(minor, env, 10, [])
        for file in _SHORT if short else _LONG:
            if only in file:
                yield _tests(minor, env, file)
    if len(minors) > 1 and only in "carried":
        with TemporaryDirectory(prefix="headgate-matrix-") as work:
            kept = ["--checkpoint", f"{work}/checkpoint", "--out", f"{work}/output"]
            for minor in minors:
                yield _job(minor, _environment(minor), 8, kept)


def _locks() -> list[Path]:
    return sorted((_ROOT / "requirements").glob("spark-*.lock"))


def _environment(minor: str) -> dict[str, str]:
    """Return the variables under which this minor is found, installed if need be."""
    env = {**os.environ, "PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
    env.pop("SPARK_HOME", None)
    if minor == _NEWEST:
        return env
    lock = _ROOT / "requirements" / f"spark-{minor}.lock"
    place, stamp = _PLACE / minor, _PLACE / f"{minor}.installed"
    if not (stamp.exists() and stamp.read_bytes() == lock.read_bytes()):
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input", "install"]
        how = ["--require-hashes", "--no-deps", "--no-build-isolation", "--use-pep517"]
        where = ["-q", "--upgrade", "--target", str(place)]
        subprocess.run([*pip, *how, *where, "-r", str(lock)], check=True)
        stamp.write_bytes(lock.read_bytes())
    return env | {"PYTHONPATH": os.pathsep.join(filter(None, [str(place), env.get("PYTHONPATH")]))}


def _tests(minor: str, env: dict[str, str], file: str) -> Line:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", file]
    found, took_s = _run(command, env)
    said = [text for text in found.stdout.splitlines() if " in " in text]
    result = said[-1].strip("= ") if said else _last(found)
    return Line(minor, Path(file).name, result, found.returncode == 0, took_s)


def _job(minor: str, env: dict[str, str], seconds: float, more: list[str]) -> Line:
    command = [sys.executable, "-m", "headgate.cli", *_JOB, "--duration", f"{seconds:g}s", *more]
    found, took_s = _run([*command, "--scale-at", f"{seconds / 2:g}s=3"], env)
    what = "one checkpoint carried up" if more else "headgate run nexmark-q5"
    if found.returncode:
        return Line(minor, what, _last(found), good=False, seconds=took_s)
    report: dict[str, Any] = json.loads(found.stdout)
    return Line(minor, what, f"verified: {report['verified']}", good=True, seconds=took_s)


def _run(command: list[str], env: dict[str, str]) -> tuple[subprocess.CompletedProcess[str], float]:
    began = time.monotonic()
    found = subprocess.run(command, cwd=_ROOT, env=env, capture_output=True, text=True, check=False)
    return found, time.monotonic() - began


def _last(found: subprocess.CompletedProcess[str]) -> str:
    said = (found.stderr or found.stdout).strip().splitlines()
    return said[-1] if said else f"exit code {found.returncode}"


if __name__ == "__main__":
    main()
