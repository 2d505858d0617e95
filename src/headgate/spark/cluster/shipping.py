"""Ships the functions and classes of a user's module that executors cannot import."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from headgate.spark.jvm.executors import ExecutorPool
from headgate.spark.jvm.userfunctions import send_by_value


def ship(spark: SparkSession, function: Callable[..., Any]) -> None:
    """Have functions and classes of the module of `function` sent to executors by value, not by name.

    Does so only if executors are separate processes and the module is in the driver's working directory:
    executors have installed modules, too.
    """
    module = sys.modules.get(getattr(function, "__module__", ""))
    file = getattr(module, "__file__", None)
    if module is None or file is None or ExecutorPool(spark).in_driver:
        return
    if Path(file).resolve().is_relative_to(Path.cwd()) and "site-packages" not in file:
        send_by_value(module)
