"""PySpark's worker daemon with the slots' imports done before it forks.

A new Python worker then costs a fork instead of a second of imports. Set by `headgate.session`.
"""

from __future__ import annotations

import importlib

_PRELOAD = (
    "numpy",
    "pyarrow",
    "pyarrow.ipc",
    "pyspark.sql.pandas.serializers",
    "headgate.engines.spark.slot",
)


def preload() -> None:
    """Import what slot tasks need; a module that is missing will fail in the task, with its reason."""
    for name in _PRELOAD:
        try:
            importlib.import_module(name)
        except ImportError:
            continue


if __name__ == "__main__":
    preload()
    from pyspark.daemon import manager

    manager()
