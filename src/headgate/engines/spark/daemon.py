"""PySpark's worker daemon with the slots' imports done before it forks.

A new Python worker then costs a fork instead of a second of imports. And it removes the arenas of its
workers once they have ended, also where their driver was killed. Set by `headgate.session`.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import time
from collections.abc import Callable
from typing import Any

_PRELOAD = (
    "numpy",
    "pyarrow",
    "pyarrow.ipc",
    "pandas",  # not ours: PySpark's Arrow path and pyarrow's NumPy conversion import it
    "pyspark.sql.pandas.serializers",
    "headgate.engines.spark.slot",
)

_WORKERS_END_S = 5.0
"""Workers are told to end before their daemon does; one that stands still is not waited for longer."""


def preload() -> None:
    """Import what slot tasks need; a missing module fails in the task, with its reason."""
    for name in _PRELOAD:
        try:
            importlib.import_module(name)
        except ImportError:
            continue


def quiet(worker: Callable[..., int]) -> Callable[..., int]:
    """Return PySpark's worker loop, silent about a JVM that no longer listens.

    A job that is stopped, and a session that ends, close their sockets while a worker still writes:
    PySpark's daemon prints a traceback for each, which tells nobody anything.
    """

    def run(*args: Any) -> int:
        try:
            return worker(*args)
        except BrokenPipeError:
            return 1

    return run


def clear_away() -> None:
    """Remove the run directories that nobody uses any more, when the workers have ended."""
    arena = importlib.import_module("headgate.state.arena")
    errors = importlib.import_module("headgate.core.errors")
    deadline = time.monotonic() + _WORKERS_END_S
    while _has_children() and time.monotonic() < deadline:
        time.sleep(0.01)
    # a directory that cannot be used was refused by whoever wanted to use it
    with contextlib.suppress(errors.HeadgateError, OSError):
        arena.sweep(arena.arena_root())


def _has_children() -> bool:
    # PySpark has the kernel reap them, so there is nothing to wait for once all have ended
    try:
        os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        return False
    return True


if __name__ == "__main__":
    preload()
    from pyspark import daemon

    daemon.worker = quiet(daemon.worker)
    try:
        daemon.manager()
    finally:
        clear_away()
