"""Runs PySpark's worker daemon with the slots' imports done before it forks.

A new Python worker then costs a fork instead of a second of imports. When the workers have ended, the
daemon removes their arenas, even if their driver was killed. `headgate.session` sets this daemon.
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
    # in real time a lost pipe gets new workers, and has no output until they have started
    "headgate.spark.realtime.in_run",
    "headgate.spark.realtime.clocked",
    "headgate.spark.realtime.kafka_feed",
    "confluent_kafka.admin",
)

_SOURCE_RUNNER = "pyspark.sql.streaming.python_streaming_source_runner"
_SOCKET_DIRECTORY = "PYTHON_WORKER_FACTORY_SOCK_DIR"
_WORKERS_END_S = 5.0
"""Longest time that the daemon waits for its workers to end, when it ends itself. Not tuned."""


def preload() -> None:
    """Import what slot tasks need; a missing module fails in the task, with its reason."""
    for name in _PRELOAD:
        try:
            importlib.import_module(name)
        except ImportError:
            continue


def forget_archives() -> None:
    """Keep workers from reading the lists of files of archives again, such as Spark's ``pyspark.zip``.

    A new worker adds a directory to the path, and PySpark then invalidates Python's caches of all others.
    Python 3.11 then reads an archive once for each package that was imported from it: 0.25 s for Spark's.
    Without finders Python reads nothing; the next import makes a finder from the cached list of files.
    """
    for path, finder in list(sys.path_importer_cache.items()):
        if isinstance(finder, zipimporter):
            del sys.path_importer_cache[path]


def quiet(worker: Callable[..., int]) -> Callable[..., int]:
    """Return PySpark's worker loop without tracebacks about sockets that the JVM has closed.

    A stopped job, or a session that ends, closes its sockets while a worker still writes. PySpark's
    daemon would print a traceback for each worker, which helps nobody.
    """

    def run(*args: Any) -> int:
        try:
            return worker(*args)
        except BrokenPipeError:
            return 1

    return run


def quiet_here() -> None:
    """Suppress the same tracebacks in this process, if it is a worker that reads a Python source.

    Spark starts such workers with its own daemon, whatever daemon module is set, or without a daemon.
    Python sources therefore call this function when a worker imports them.
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
    """Put the daemon's socket into a directory that only this user can enter, whatever the umask.

    Spark trusts every process that reaches the socket, and puts it into the temporary directory.

    `undo`: gets a callback that removes the directory.
    """
    if os.environ.get("PYTHON_UNIX_DOMAIN_ENABLED", "false").lower() == "true":
        parent = os.environ.get(_SOCKET_DIRECTORY)
        made = tempfile.mkdtemp(
            prefix=".", dir=parent if parent and os.path.isdir(parent) else None
        )
        undo.callback(shutil.rmtree, made, ignore_errors=True)
        os.environ[_SOCKET_DIRECTORY] = made


def clear_away() -> None:
    """Wait until the workers have ended, then remove the run directories that no process uses."""
    arena = importlib.import_module("headgate.tables.arena")
    errors = importlib.import_module("headgate.core.errors")
    deadline = time.monotonic() + _WORKERS_END_S
    while _has_children() and time.monotonic() < deadline:
        time.sleep(0.01)
    # for a directory that cannot be used, the worker that needed it has raised an error
    with contextlib.suppress(errors.HeadgateError, OSError):
        arena.sweep(arena.arena_root())
        if arena.spill_path().is_dir():
            arena.sweep(arena.spill_path())


def _has_children() -> bool:
    # PySpark has the kernel reap children, so after the last one there is none to wait for
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
