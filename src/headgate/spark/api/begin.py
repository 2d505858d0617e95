"""Starts a streaming query whose sources may be Python data sources, each with its own Python process.

Spark waits 10 s for such a process, which is too short on a busy machine, and then ends the query. That
query has read and written nothing, so it can start again.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from headgate.spark.jvm.gateway import class_name, each
from headgate.spark.jvm.plans import analysed
from headgate.spark.worker.failure import is_lost_worker

_STARTS = 3
_POLL_S = 0.05
_WAIT_S = 60.0
"""Longest wait for the sources' first offsets, in seconds; their processes start sooner."""

_READ = ("Waiting", "Processing")
"""First words of Spark's status after all sources have answered."""


def begin(
    start: Callable[[], StreamingQuery], frame: DataFrame, begun: Callable[[], bool]
) -> StreamingQuery:
    """Start a query; start it again if Spark gave up waiting for the Python process of a source.

    `frame`: the query's input; the function waits only if this has a Python source. `begun`: returns
    whether a batch has begun.
    """
    inner = start()
    if not reads_python(frame):
        return inner
    for _ in range(_STARTS - 1):
        until_s = time.monotonic() + _WAIT_S
        while inner.isActive and not begun() and time.monotonic() < until_s:
            if str(inner.status["message"]).startswith(_READ):
                return inner
            time.sleep(_POLL_S)
        failure = None if inner.isActive else inner.exception()
        if failure is None or begun() or not is_lost_worker(failure):
            return inner
        inner = start()
    return inner


def reads_python(frame: DataFrame) -> bool:
    """Return whether a source of a streaming DataFrame is a Python data source."""
    leaves = each(analysed(frame).collectLeaves())
    streams = [leaf for leaf in leaves if class_name(leaf) == "StreamingRelationV2"]
    return any(class_name(stream.table()) == "PythonTable" for stream in streams)
