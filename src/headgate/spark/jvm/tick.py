"""Provides a source without rows that starts a batch once a second, or right after the current batch.

Spark does not call ``foreachBatch`` while all sources are quiet, so windows would stay open and backlog
would wait for ever. The offset of this source moves once a second without rows. So Spark starts a batch,
and watermark and counts do not change. Every query has the tick from its first start, because a later
source would break the checkpoint. The tick is the last source, and readers of Spark's log drop it.

The source is Spark's own ``MemoryStream``, to which a thread of this process adds empty data. So it needs
no Python process, and no clock that could go back.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import threading
from collections.abc import Callable
from pathlib import Path

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from headgate.core.input import open_regular, regular_bytes
from headgate.spark.jvm.gateway import Jvm, java_class, seq

_EVERY_S = 1.0
_STOP_WAIT_S = 5.0
_NEVER = -1
"""Offset of a memory stream before any data."""

_LONG = re.compile(r"[0-9]{1,18}")
"""Matches a number that fits into Java's 64 bits."""


class Tick:
    """Runs the tick of one query.

    `spark`: the session in which the query starts. `checkpoint`: the query's checkpoint, which the
    caller must have locked: the tick reads its offsets, and rewrites offsets of an older headgate's
    tick.
    """

    def __init__(self, spark: SparkSession, checkpoint: Path) -> None:
        streaming = "org.apache.spark.sql.execution.streaming.runtime"
        made = java_class(spark, f"{streaming}.MemoryStream$.MODULE$")
        numbers = java_class(spark, "org.apache.spark.sql.Encoders").LONG()
        # without partitions, so that a batch has no task for this source
        self._stream: Jvm = made.apply(spark._jsparkSession, 0, numbers)
        # the stream is only in the JVM's memory; it continues the log, so offsets never go back
        last = java_class(spark, f"{streaming}.LongOffset")(_last_offset(checkpoint / "offsets"))
        getattr(self._stream, "currentOffset_$eq")(last)
        self._nothing = seq(spark, [])
        self._ended = threading.Event()
        self._rests: Callable[[], bool] = lambda: False
        self._thread: threading.Thread | None = None
        self.frame = DataFrame(self._stream.toDF(), spark)
        self._tick()  # the first batch begins at once, even without data

    def start(self, rests: Callable[[], bool]) -> None:
        """Tick once a second from now on; not to be called for a query with ``availableNow``.

        `rests`: returns True to skip a tick, so that Spark once finds no new data.
        """
        # Spark 4.3 reads a memory stream's newest offset under availableNow, too: the query would not end
        self._rests = rests
        self._thread = threading.Thread(target=self._run, name="headgate-tick", daemon=True)
        self._thread.start()

    def soon(self) -> None:
        """Begin a batch right after the current batch.

        With Spark 4.3 this also works under ``availableNow``. So, as in plain Spark, the final watermark
        counts in the last batch.
        """
        if not self._ended.is_set():
            self._tick()

    def stop(self) -> None:
        """Stop the ticks."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join(_STOP_WAIT_S)

    def _run(self) -> None:
        while not self._ended.wait(_EVERY_S):
            try:
                if not self._rests():
                    self._tick()
            except (Py4JError, PySparkException, OSError):
                return  # the JVM is gone, and the query with it

    def _tick(self) -> None:
        self._stream.addData(self._nothing)


def _last_offset(log: Path) -> int:
    """Return the tick's newest offset in Spark's log; rewrite offsets of an older headgate's tick."""
    names = [name for name in os.listdir(log) if _LONG.fullmatch(name)] if log.is_dir() else []
    last = _NEVER
    for name in sorted(names, key=int):
        last = _offset_in(log / name)
    return last


def _offset_in(file: Path) -> int:
    """Return the tick's offset in one file of the log; a tick of an older headgate becomes 0."""
    try:
        others, _, offset = regular_bytes(file).decode(errors="replace").rpartition("\n")
    except OSError:
        return _NEVER  # an old batch that Spark does not read; other damage was refused before
    if _LONG.fullmatch(offset):
        return int(offset)
    if not _is_python_tick(offset):
        return _NEVER  # Spark itself refuses such a log
    # first the checksum file: Spark reads a file without a checksum, but not with a wrong checksum
    (file.parent / f".{file.name}.crc").unlink(missing_ok=True)
    rewritten = file.parent / f".{file.name}.{secrets.token_hex(8)}.tick.tmp"
    with os.fdopen(open_regular(rewritten, os.O_CREAT | os.O_EXCL | os.O_WRONLY), "w") as new:
        new.write(f"{others}\n0")
    rewritten.replace(file)
    return 0


def _is_python_tick(text: str) -> bool:
    try:
        content = json.loads(text)
    except (ValueError, RecursionError):
        return False
    return isinstance(content, dict) and list(content) == ["tick"]
