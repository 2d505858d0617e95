"""The Flink baseline: the same job in Flink SQL, in another interpreter since its pins clash.

This one file is both sides. Imported, it is the side that asks. Run as a script by the interpreter
that `find_flink` found (which has apache-flink and no headgate), it is the job; so nothing of
headgate is imported at its top.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

VARIABLE = "HEADGATE_FLINK_PYTHON"
"""Names an interpreter that can import `pyflink`; see docs/flink.md."""

BACKENDS = {"flink-heap": "hashmap", "flink-rocksdb": "rocksdb"}

_QUERY = "SELECT k, COUNT(*) AS c, SUM(v) AS s FROM {source} GROUP BY k"
_FIND_TIMEOUT_S = 60

RUNS = 3
"""Timed runs of each kind, in turns."""

CLEAR_S = 1.0
CLEAR_NOISES = 3.0
"""A rate needs a difference of this many seconds and this many times the runs' own. Chosen."""


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
            env=_env(),
            timeout=_FIND_TIMEOUT_S,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None, f"{VARIABLE}={python} cannot import pyflink"
    return python, ran.stdout.strip()


def run(
    rows_per_batch: int = 1_000_000, batches: int = 6, keys: int = 1_000_000, **more: Any
) -> dict[str, Any]:
    """Run the Flink baseline alone and return its numbers, or ``{"skipped": reason}``.

    Parameters
    ----------
    rows_per_batch, batches, keys : int
        Size of the input; a "batch" is one file.
    **more
        Any other parameter of `aggregate.run`.
    """
    # the script side of this file runs where headgate is not installed
    from headgate.engines.spark.bench import aggregate  # noqa: PLC0415

    python, found = find_flink()
    if python is None:
        return {"skipped": found}
    sizes = {"rows_per_batch": rows_per_batch, "batches": batches, "keys": (keys,)}
    return aggregate.run(**sizes, **({"engines": tuple(BACKENDS)} | more))


def measure(python: str, name: str, request: dict[str, Any], timeout_s: float) -> dict[str, Any]:
    """Run one backend in its own process.

    Parameters
    ----------
    python : str
        From `find_flink`.
    name : str
        A key of `BACKENDS`.
    request : dict
        ``check``, ``part``, ``all``: folders of CSV files (the small input whose answer is
        checked; the files that are left out of the rate; all files); ``directory``: where the
        job may write; ``parallelism``.
    timeout_s : float
        After this the process is stopped.

    Returns
    -------
    dict
        ``updates`` (columns k, c, s: the last update per key), lists ``part_s`` and
        ``all_s``; ``scan_s``.

    Raises
    ------
    EngineError    The process failed.
    """
    from headgate.engines.spark.bench.common import child  # noqa: PLC0415 -- as in `run`

    asked = json.dumps(request | {"backend": BACKENDS[name]})
    return child([python, str(Path(__file__).resolve()), asked], _env(), timeout_s)


def _env() -> dict[str, str]:
    """Return our environment without what would put our packages on Flink's path."""
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
    for name in ("check", "part", "all"):
        path = Path(request[name]).resolve().as_uri()
        environment.execute_sql(
            f"CREATE TABLE {name}_rows (k BIGINT, v BIGINT) WITH "
            f"('connector'='filesystem', 'path'='{path}', 'format'='csv')"
        )
    for name, columns in (("totals", "k BIGINT, c BIGINT, s BIGINT"), ("rows_", "k BIGINT")):
        environment.execute_sql(f"CREATE TABLE {name} ({columns}) WITH ('connector'='blackhole')")
    updates = _last_updates(environment)
    into = f"INSERT INTO totals {_QUERY}"
    # once untimed, so that all timed runs find the same compiled code
    _timed(environment, into.format(source="all_rows"))
    timed: dict[str, list[float]] = {"part": [], "all": []}
    for _ in range(RUNS):
        for name, seconds in timed.items():
            seconds.append(_timed(environment, into.format(source=f"{name}_rows")))
    return {
        "updates": updates,
        "part_s": timed["part"],
        "all_s": timed["all"],
        "scan_s": _timed(environment, "INSERT INTO rows_ SELECT k FROM all_rows WHERE v >= 0"),
    }


def _last_updates(environment: Any) -> dict[str, list[int]]:
    kinds = importlib.import_module("pyflink.common").RowKind
    last: dict[int, tuple[int, int]] = {}
    with environment.execute_sql(_QUERY.format(source="check_rows")).collect() as rows:
        for row in rows:
            if row.get_row_kind() in (kinds.INSERT, kinds.UPDATE_AFTER):
                last[row[0]] = (row[1], row[2])
    return {
        "k": list(last),
        "c": [count for count, _ in last.values()],
        "s": [total for _, total in last.values()],
    }


def _timed(environment: Any, statement: str) -> float:
    started = time.perf_counter()
    environment.execute_sql(statement).wait()
    return time.perf_counter() - started


if __name__ == "__main__":
    # a script's folder leads the path, and our `common` must not be anybody else's
    sys.path.pop(0)
    print(json.dumps(_job(json.loads(sys.argv[1]))))
