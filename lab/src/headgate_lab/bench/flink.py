"""Runs the Flink baseline: the same queries in Flink SQL, in another interpreter since its pins clash.

This file has two roles. Imported, it starts the baseline. Run as a script by the interpreter that
`find_flink` found (which has apache-flink and not headgate), it is the job; so its top imports nothing
of headgate.
"""

from __future__ import annotations

import importlib
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

VARIABLE = "HEADGATE_FLINK_PYTHON"
"""Names an interpreter that can import `pyflink`; see docs/flink.md."""

BACKENDS = {"flink-heap": "hashmap", "flink-rocksdb": "rocksdb"}

_FIND_TIMEOUT_S = 60

RUNS = 3
"""Timed runs of each kind, in turns."""

CLEAR_S = 1.0
CLEAR_NOISES = 3.0
"""A rate needs a difference of at least `CLEAR_S` seconds, and of `CLEAR_NOISES` times the difference
between runs of one kind. Chosen."""


@dataclass(frozen=True)
class Select:
    """Names a query and the folders of CSV files that it reads.

    Attributes
    ----------
    sql : str
        The query; reads ``{source}``.
    check, part, all : str
        Folders of the small input whose answer is checked; the files excluded from the rate; all files.
    """

    sql: str
    check: str
    part: str
    all: str


@dataclass(frozen=True)
class Job:
    """Lists the queries that one process runs, one after the other.

    Attributes
    ----------
    columns : str
        Columns of the input, as SQL declares them.
    result : tuple of str
        Columns of every query's result, all BIGINT; the first is the key.
    scan : str
        Query that only reads ``{source}``, into one BIGINT column.
    selects : mapping of str to Select
        Queries by name.
    directory : str
        Directory to which the process may write.
    """

    columns: str
    result: tuple[str, ...]
    scan: str
    selects: Mapping[str, Select]
    directory: str
    parallelism: int


def find_flink() -> tuple[str | None, str]:
    """Return (interpreter, Flink's version), or (None, the reason why there is none)."""
    python = os.environ.get(VARIABLE)
    if not python:
        return None, f"{VARIABLE} is not set (docs/flink.md says how to install the baseline)"
    command = [python, "-c", "from pyflink.version import __version__ as v; print(v)"]
    try:
        ran = subprocess.run(
            command,
            capture_output=True,
            text=True,
            env=clean_env(),
            timeout=_FIND_TIMEOUT_S,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None, f"{VARIABLE}={python} cannot import pyflink"
    return python, ran.stdout.strip()


def measure(python: str, name: str, job: Job, timeout_s: float) -> dict[str, Any]:
    """Run one backend in its own process.

    Parameters
    ----------
    python : str
        From `find_flink`.
    name : str
        A key of `BACKENDS`.
    timeout_s : float
        Time limit; then the process is stopped.

    Returns
    -------
    dict
        Per name of a query: ``updates`` (columns of the last updates per key), lists ``part_s`` and
        ``all_s``; ``scan_s``.

    Raises
    ------
    EngineError    The process failed.
    """
    from headgate_lab.bench.common import child  # noqa: PLC0415 -- the script side runs without headgate

    asked = json.dumps(asdict(job) | {"backend": BACKENDS[name]})
    return child([python, str(Path(__file__).resolve()), asked], clean_env(), timeout_s)


def timing(said: Mapping[str, Any], version: str) -> dict[str, Any]:
    """Return a query's times from `measure` and the difference from which its rate is computed.

    Returns
    -------
    dict
        ``part_s``, ``all_s``, ``scan_s``, ``version``; ``difference_s`` of the medians; ``noise_s``, the
        largest difference between runs of one kind; ``clear``: whether the difference exceeds the noise.
    """
    more_s = statistics.median(said["all_s"]) - statistics.median(said["part_s"])
    noise_s = max(max(said[k]) - min(said[k]) for k in ("part_s", "all_s"))
    # Runs of one kind differed by up to 0.3 s on two cores. A difference of 0.2 s once gave
    # 5 M rows/s, more than Flink can read: a small difference gives no rate.
    clear = more_s >= max(CLEAR_S, CLEAR_NOISES * noise_s)
    times = {k: said[k] for k in ("part_s", "all_s", "scan_s")}
    return times | {
        "version": version,
        "difference_s": more_s,
        "noise_s": noise_s,
        "clear": clear,
    }


def clean_env() -> dict[str, str]:
    """Return this environment without PYTHONPATH, which would give Flink headgate's packages."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


# ---- below: the job, run by Flink's interpreter -------------------------------------------------


def _environment(request: dict[str, Any]) -> Any:
    table = importlib.import_module("pyflink.table")
    configuration = importlib.import_module("pyflink.common").Configuration()
    directory = Path(request["directory"]).resolve()
    settings = {
        "execution.runtime-mode": "STREAMING",
        "parallelism.default": str(request["parallelism"]),
        "taskmanager.numberOfTaskSlots": str(request["parallelism"]),
        # the default of a local cluster, 128 MB, would starve RocksDB
        "taskmanager.memory.managed.size": "1g",
        "rest.bind-port": "0",
        "table.exec.mini-batch.enabled": "true",
        "table.exec.mini-batch.allow-latency": "1 s",
        "table.exec.mini-batch.size": "50000",
        "state.backend.type": request["backend"],
        "io.tmp.dirs": str(directory / "tmp"),
    }
    if request["backend"] == "rocksdb":
        settings |= {
            "execution.checkpointing.interval": "1 s",
            "execution.checkpointing.incremental": "true",
            "execution.checkpointing.dir": (directory / "checkpoints").as_uri(),
        }
    for key, value in settings.items():
        configuration.set_string(key, value)
    made = table.EnvironmentSettings.new_instance().with_configuration(configuration).build()
    return table.TableEnvironment.create(made)


def _job(request: dict[str, Any]) -> dict[str, Any]:
    environment = _environment(request)
    result = ", ".join(f"{name} BIGINT" for name in request["result"])
    for name, columns in (("result_", result), ("scan_", "k BIGINT")):
        environment.execute_sql(f"CREATE TABLE {name} ({columns}) WITH ('connector'='blackhole')")
    return {name: _select(environment, request, one) for name, one in request["selects"].items()}


def _select(environment: Any, request: dict[str, Any], asked: dict[str, str]) -> dict[str, Any]:
    for kind in ("check", "part", "all"):
        path = Path(asked[kind]).resolve().as_uri()
        environment.execute_sql(f"DROP TABLE IF EXISTS {kind}_rows")
        environment.execute_sql(
            f"CREATE TABLE {kind}_rows ({request['columns']}) WITH "
            f"('connector'='filesystem', 'path'='{path}', 'format'='csv')"
        )
    last = _last_updates(environment, asked["sql"].format(source="check_rows"))
    into = f"INSERT INTO result_ {asked['sql']}"
    # once untimed, so that all timed runs find the same compiled code
    _timed(environment, into.format(source="all_rows"))
    timed: dict[str, list[float]] = {"part": [], "all": []}
    for _ in range(RUNS):
        for kind, seconds in timed.items():
            seconds.append(_timed(environment, into.format(source=f"{kind}_rows")))
    scan = f"INSERT INTO scan_ {request['scan']}"
    return {
        "updates": {name: [row[at] for row in last] for at, name in enumerate(request["result"])},
        "part_s": timed["part"],
        "all_s": timed["all"],
        "scan_s": _timed(environment, scan.format(source="all_rows")),
    }


def _last_updates(environment: Any, sql: str) -> list[list[int]]:
    """Return the last row of every key, which is the first column."""
    kinds = importlib.import_module("pyflink.common").RowKind
    last: dict[int, list[int]] = {}
    with environment.execute_sql(sql).collect() as rows:
        for row in rows:
            if row.get_row_kind() in (kinds.INSERT, kinds.UPDATE_AFTER):
                last[row[0]] = list(row)
    return list(last.values())


def _timed(environment: Any, statement: str) -> float:
    started = time.perf_counter()
    environment.execute_sql(statement).wait()
    return time.perf_counter() - started


if __name__ == "__main__":
    # a script's folder is first on the path, and another package might import our `common`
    sys.path.pop(0)
    print(json.dumps(_job(json.loads(sys.argv[1]))))
