"""Runs PySpark's worker daemon with the slots' imports done before it forks.

A new Python worker then costs a fork instead of a second of imports. And it removes the arenas of its
workers once they have ended, also where their driver was killed. Set by `headgate.session`.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any
from zipimport import zipimporter

_PRELOAD = (
    "numpy",
    "pyarrow",
    "pyarrow.ipc",
    "pandas",  # not ours: PySpark's Arrow path and pyarrow's NumPy conversion import it
    "pyspark.sql.pandas.serializers",
    "pyspark.worker",
    "headgate.spark.worker.slot",
    # in real time a pipe that is lost gets new workers, and nothing comes out until they have begun
    "headgate.spark.realtime.in_run",
    "headgate.spark.realtime.clocked",
    "headgate.spark.realtime.kafka_feed",
    "confluent_kafka.admin",
)

_SOURCE_RUNNER = "pyspark.sql.streaming.python_streaming_source_runner"
_SOCKET_DIRECTORY = "PYTHON_WORKER_FACTORY_SOCK_DIR"
_WORKERS_END_S = 5.0
"""Workers are told to end before their daemon does; one that stands still is not waited for longer."""


def preload() -> None:
    """Import what slot tasks need; a missing module fails in the task, with its reason."""
    for name in _PRELOAD:
        try:
            importlib.import_module(name)
        except ImportError:
            continue


def forget_archives() -> None:
    """Have workers not read again which files archives hold, as Spark's ``pyspark.zip``.

    A new worker gets a directory of its own on the path, and PySpark has Python look anew at all others.
    Python 3.11 then reads an archive once for each package of it that was imported, a quarter of a second
    for Spark's. Without finders there is nothing to read; the next import makes one of what is known.
    """
    for path, finder in list(sys.path_importer_cache.items()):
        if isinstance(finder, zipimporter):
            del sys.path_importer_cache[path]


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


def quiet_here() -> None:
    """Make this process silent in the same way, if it is a worker that reads a Python source.

    Spark starts those with a daemon of its own, whatever daemon module is set, or with none; what reads
    a source of headgate imports it, and so comes here.
    """
    main = sys.modules["__main__"]
    started_as = getattr(getattr(main, "__spec__", None), "name", None)
    if started_as == "pyspark.daemon":
        main.worker = quiet(main.worker)  # type: ignore[attr-defined]
    elif started_as == _SOURCE_RUNNER:
        sys.excepthook = _all_but_a_broken_pipe


def _all_but_a_broken_pipe(kind: type[BaseException], error: BaseException, trace: Any) -> None:
    if not isinstance(error, BrokenPipeError):
        sys.__excepthook__(kind, error, trace)


def own_directory(undo: ExitStack) -> None:
    """Have the daemon's socket in a directory that only this user can enter, whatever the umask.

    Spark trusts who can reach the socket, and puts it into the temporary directory.

    `undo`: gets what removes the directory.
    """
    if os.environ.get("PYTHON_UNIX_DOMAIN_ENABLED", "false").lower() == "true":
        parent = os.environ.get(_SOCKET_DIRECTORY)
        made = tempfile.mkdtemp(
            prefix=".", dir=parent if parent and os.path.isdir(parent) else None
        )
        undo.callback(shutil.rmtree, made, ignore_errors=True)
        os.environ[_SOCKET_DIRECTORY] = made


def clear_away() -> None:
    """Remove the run directories that nobody uses any more, when the workers have ended."""
    arena = importlib.import_module("headgate.tables.arena")
    errors = importlib.import_module("headgate.core.errors")
    deadline = time.monotonic() + _WORKERS_END_S
    while _has_children() and time.monotonic() < deadline:
        time.sleep(0.01)
    # a directory that cannot be used was refused by whoever wanted to use it
    with contextlib.suppress(errors.HeadgateError, OSError):
        arena.sweep(arena.arena_root())
        if arena.spill_path().is_dir():
            arena.sweep(arena.spill_path())


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
    with ExitStack() as undo:
        undo.callback(clear_away)
        own_directory(undo)
        forget_archives()
        daemon.manager()
