"""Provides functions for all benchmarks: seeded input, exact answers, child processes, the machine."""

from __future__ import annotations

import importlib.metadata
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from headgate.core.errors import ConfigError, EngineError, HeadgateError, nearest
from headgate.core.input import checked_text, finite, shown

I64 = npt.NDArray[np.int64]
P = TypeVar("P")

VALUES = 1_000
"""Values are integers in [0, VALUES), so that sums do not depend on the order of addition. Chosen."""

ROW_GROUPS = 4
"""Row groups per Parquet file, so that two to four tasks can read one file. Chosen, not tuned."""

_TAIL_LINES = 5
_LINE_LENGTH = 400
_UNCOMMITTED = "unknown"

_PROGRESS_FD = "HEADGATE_PROGRESS_FD"
"""Environment variable of a child: the file descriptor to which it writes its progress."""


class WrongAnswer(HeadgateError):
    """Reports that an engine's answer differs from the exact one, so that its times mean nothing."""


@dataclass(frozen=True)
class Input:
    """Generates the rows that all engines read: `batches` files of random keys and values.

    Attributes
    ----------
    rows_per_batch, batches : int    Rows per file, and number of files; > 0.
    keys : int    Distinct keys, drawn evenly; > 0.
    seed : int    The same seed gives the same rows.
    """

    rows_per_batch: int
    batches: int
    keys: int
    seed: int

    def batch(self, index: int) -> tuple[I64, I64]:
        """Return the keys and values of one file."""
        random = np.random.default_rng([self.seed, self.keys, index])
        keys = random.integers(0, self.keys, self.rows_per_batch, dtype=np.int64)
        return keys, random.integers(0, VALUES, self.rows_per_batch, dtype=np.int64)

    def write(self, directory: Path, suffix: str = "parquet", batches: int | None = None) -> Path:
        """Write the first `batches` files (default all) as Parquet or CSV; return the folder."""
        directory.mkdir(parents=True)
        for index in range(self.batches if batches is None else batches):
            keys, values = self.batch(index)
            table = pa.table({"k": keys, "v": values})
            path = directory / f"batch-{index:05d}.{suffix}"
            if suffix == "csv":
                pa.csv.write_csv(table, path, pa.csv.WriteOptions(include_header=False))
            else:
                rows = max(1, -(-self.rows_per_batch // ROW_GROUPS))
                pa.parquet.write_table(table, path, row_group_size=rows)
        return directory

    def answer(self) -> Answer:
        """Return the exact count and sum of every key after all files."""
        counts, sums = np.zeros(self.keys, np.int64), np.zeros(self.keys, np.int64)
        for index in range(self.batches):
            keys, values = self.batch(index)
            counts += np.bincount(keys, minlength=self.keys)
            np.add.at(sums, keys, values)
        (seen,) = np.nonzero(counts)
        return Answer(seen.astype(np.int64), counts[seen], sums[seen])


@dataclass(frozen=True)
class Answer:
    """Holds count and sum per key, sorted by key; arrays of equal length."""

    keys: I64
    counts: I64
    sums: I64

    @classmethod
    def of_updates(cls, updates: Sequence[tuple[I64, I64, I64]]) -> Answer:
        """Return the last update of every key, from (keys, counts, sums) in their sequence."""
        if not updates:
            nothing = np.zeros(0, np.int64)
            return cls(nothing, nothing, nothing)
        keys, counts, sums = (np.concatenate(column)[::-1] for column in zip(*updates, strict=True))
        last, first_index = np.unique(keys, return_index=True)
        return cls(last, counts[first_index], sums[first_index])

    @classmethod
    def load(cls, path: Path) -> Answer:
        """Return the answer that `save` wrote."""
        with np.load(path) as file:
            return cls(file["keys"], file["counts"], file["sums"])

    def save(self, path: Path) -> None:
        """Write the answer, for a check in another process."""
        np.savez(path, keys=self.keys, counts=self.counts, sums=self.sums)

    def totals(self) -> dict[str, int]:
        """Return the checksum for a result: number of keys, total count, total sum."""
        return {
            "keys": len(self.keys),
            "count": int(self.counts.sum()),
            "sum": int(self.sums.sum()),
        }

    def check(self, got: Answer, engine: str) -> dict[str, int]:
        """Compare every key of `got` with this exact answer and return the checksum.

        Raises
        ------
        WrongAnswer    A key is missing or extra, or its count or sum differs.
        """
        if not np.array_equal(self.keys, got.keys):
            odd = np.setxor1d(self.keys, got.keys)
            msg = f"{engine} has {len(odd)} keys too few or too many, the first is {odd[0]}."
            raise WrongAnswer(msg)
        wrong = np.nonzero((self.counts != got.counts) | (self.sums != got.sums))[0]
        if len(wrong):
            at = wrong[0]
            msg = (
                f"{engine} is wrong on {len(wrong)} of {len(self.keys)} keys; key {self.keys[at]} "
                f"has count {got.counts[at]} and sum {got.sums[at]}, exact are "
                f"{self.counts[at]} and {self.sums[at]}."
            )
            raise WrongAnswer(msg)
        return self.totals()


def parameters(kind: type[P], given: Mapping[str, Any]) -> P:
    """Return a `kind` with the parameters `given`; text is parsed where a parameter is a number.

    Raises
    ------
    ConfigError
        A name is unknown (the message has the nearest one), or a value has the wrong type or range.
    """
    defaults = {field.name: field.default for field in fields(kind)}  # type: ignore[arg-type]
    for name in given:
        if name not in defaults:
            hint = nearest(name, defaults) or f"; there are {', '.join(defaults)}."
            msg = f'the benchmark has no parameter "{shown(name, 60)}"{hint}'
            raise ConfigError(msg)
    values = {name: _typed(name, value, defaults[name]) for name, value in given.items()}
    try:
        return kind(**values)
    except (TypeError, ValueError, AttributeError) as error:  # of the class's own checks
        msg = f"{', '.join(values)} do not fit the benchmark: {shown(error)}; see docs/cli.md."
        raise ConfigError(msg) from error


def _typed(name: str, value: Any, default: Any) -> Any:
    """Return a value with the type of `default`, parsed if the value is text.

    Raises
    ------
    ConfigError
        The value has another type, or is out of range for any benchmark.
    """
    if isinstance(default, tuple) and default:
        items = value.split(",") if isinstance(value, str) else value
        items = items if isinstance(items, list | tuple) else [items]
        return tuple(_typed(name, item, default[0]) for item in items)
    if isinstance(default, str) and isinstance(value, int | float):
        value = str(value).lower()  # the command line turned a text such as "1" into a number
    if isinstance(value, str) and isinstance(default, int | float):
        value = _read(name, value, default)
    if isinstance(value, int | float):
        finite(value, name, -_MOST, _MOST)
    if isinstance(value, str):
        checked_text(value, name)
    fits = _FITTING.get(type(default))
    if fits is not None and not (
        isinstance(value, fits) and isinstance(value, bool) <= isinstance(default, bool)
    ):
        what = {bool: "true or false", int: "a whole number", str: "a text"}.get(type(default))
        msg = f"{name}={shown(value, 60)} is not {what or 'a number'}; write {name}={default}."
        raise ConfigError(msg)
    return value


_MOST = 1e9
"""Largest absolute value of a number. Chosen: no benchmark can serve more rows, keys or seconds."""

_FITTING: Mapping[type, type | tuple[type, ...]] = {
    bool: bool,
    int: int,
    float: (int, float),
    str: (str, tuple, list),
}


def _read(name: str, text: str, default: float) -> Any:
    if isinstance(default, bool):
        return {"true": True, "false": False}.get(text.lower(), text)
    try:
        return type(default)(text)
    except ValueError:
        what = "a whole number" if isinstance(default, int) else "a number"
        msg = f"{name}={shown(text, 60)} is not {what}; write for example {name}={default}."
        raise ConfigError(msg) from None


def require(condition: bool, message: str) -> None:
    """Raise `ConfigError` with `message` unless `condition`."""
    if not condition:
        raise ConfigError(message)


def progress(line: str) -> None:
    """Print a line of progress to stderr, since stdout carries the result.

    A `child` prints to its parent's stderr, since its own is only shown if it fails.
    """
    parents = os.environ.get(_PROGRESS_FD)
    if parents is None:
        print(line, file=sys.stderr, flush=True)
    else:
        os.write(int(parents), f"{line}\n".encode())


def spread(values: Iterable[float]) -> dict[str, float] | None:
    """Return min, quartiles, median and max; None if there are no values."""
    found = sorted(values)
    if not found:
        return None
    quarter, median, three = (
        statistics.quantiles(found, n=4, method="inclusive") if len(found) > 1 else found * 3
    )
    return {
        "min": found[0],
        "p25": quarter,
        "median": median,
        "p75": three,
        "max": found[-1],
    }


def medians(rows: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the median of every name over the `rows` that have it."""
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: statistics.median(r[name] for r in rows if name in r) for name in names}


def child(command: Sequence[str], env: Mapping[str, str], timeout_s: float) -> dict[str, Any]:
    """Run a process whose last line on stdout is JSON, and return that object.

    The process has its own group, which is killed at the end, since RocksDB can keep a JVM from exiting.

    Raises
    ------
    EngineError    The process failed (the message has the end of its output), or took too long.
    """
    with (
        tempfile.TemporaryFile() as out,
        tempfile.TemporaryFile() as said,
        terminate_as_exit(),
        _progress_fd() as told,
    ):
        process = subprocess.Popen(
            command,
            env={**env, _PROGRESS_FD: str(told)},
            stdout=out,
            stderr=said,
            start_new_session=True,
            pass_fds=(told,),
        )
        try:
            # do not wait for the end of the output: a JVM that outlives the process keeps it open
            process.wait(timeout_s)
        except subprocess.TimeoutExpired as error:
            msg = f"{' '.join(command[:4])} ... took longer than {timeout_s:g} s"
            raise EngineError(msg) from error
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        if process.returncode != 0:
            said.seek(0)
            msg = f"exit code {process.returncode}: {_reason(said.read().decode(errors='replace'))}"
            raise EngineError(msg)
        out.seek(0)
        lines = out.read().decode().splitlines()
    result: dict[str, Any] = json.loads(lines[-1])
    return result


@contextmanager
def _progress_fd() -> Iterator[int]:
    """Yield a descriptor of this process's progress output, for a child to inherit."""
    told = os.dup(int(os.environ.get(_PROGRESS_FD, sys.__stderr__.fileno())))  # type: ignore[union-attr]
    try:
        yield told
    finally:
        os.close(told)


@contextmanager
def terminate_as_exit() -> Iterator[None]:
    """Turn SIGTERM into `SystemExit`, so that `child` ends its process group, which gets no signal."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def leave(number: int, _frame: object) -> None:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _reason(said: str) -> str:
    """Return the causes that a failed process names, and its last lines."""
    lines = [line[:_LINE_LENGTH] for line in said.splitlines() if line.strip()]
    # Spark's output ends with the query's plan; the cause stands far above
    causes = [line for line in lines if line.startswith("Caused by:")]
    return "\n".join([*dict.fromkeys(causes), *lines[-_TAIL_LINES:]])


def spark_env() -> dict[str, str]:
    """Return the environment of a child that starts Spark, whose workers run this Python."""
    return os.environ | {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}


def machine() -> dict[str, Any]:
    """Return a description of the machine with its load, and the versions of the software."""
    with_versions = ("pyspark", "pyarrow", "numpy", "numba", "pandas", "protobuf")
    return {
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None,
        "cores_of_host": os.cpu_count(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "load_1_min": os.getloadavg()[0],
        "python": sys.version.split()[0],
        "java": _first_line(["java", "-version"]),
        "commit": _first_line(["git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"]),
        **{name: _version(name) for name in with_versions},
    }


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _first_line(command: Sequence[str]) -> str:
    try:
        ran = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return _UNCOMMITTED
    return (ran.stdout or ran.stderr).partition("\n")[0].strip()


def descendants(process: int) -> list[int]:
    """Return the current descendants of a process, from /proc."""
    parents = {}
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            # the name, in parentheses before the fields, may contain blanks and parentheses
            parents[int(status.parent.name)] = int(status.read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue  # it ended meanwhile
    found = [process]
    for one in found:
        found.extend(child for child, parent in parents.items() if parent == one)
    return found[1:]
