"""Writes the progress of Spark's tasks to stderr while a call waits for them."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from pyspark.sql import SparkSession

_EVERY_S = 10.0
"""Seconds between two lines; work that ends before the first one writes none. Chosen."""


@contextmanager
def report_progress(
    spark: SparkSession, what: str, tell: Callable[[str], object] | None
) -> Iterator[None]:
    """Write a line every ten seconds with the done tasks of Spark's running stages, within the context.

    `what`: the work that is waited for, for the line. `tell`: takes a line; default: writes it on
    stderr.
    """
    over = threading.Event()
    say = tell or _on_stderr
    began_s = time.monotonic()

    def run() -> None:
        while not over.wait(_EVERY_S):
            with suppress(
                Exception
            ):  # a session that ends meanwhile is the waiting thread's matter
                say(f"{what}: {time.monotonic() - began_s:.0f} s, {_tasks(spark)}")

    thread = threading.Thread(target=run, name="headgate-progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _tasks(spark: SparkSession) -> str:
    tracker = spark.sparkContext.statusTracker()
    stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
    done = sum(stage.numCompletedTasks for stage in stages if stage is not None)
    tasks = sum(stage.numTasks for stage in stages if stage is not None)
    return f"{done:,} of {tasks:,} tasks done" if tasks else "Spark plans"


def _on_stderr(line: str) -> None:
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()
