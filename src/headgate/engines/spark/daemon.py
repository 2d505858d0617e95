"""PySpark's worker daemon with the slots' imports done before it forks.

A new Python worker then costs a fork instead of a second of imports. Set by `headgate.session`.
"""

from __future__ import annotations

import importlib
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


if __name__ == "__main__":
    preload()
    from pyspark import daemon

    daemon.worker = quiet(daemon.worker)
    daemon.manager()
