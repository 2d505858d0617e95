"""Provides a source of nothing, once a second, and after a batch that may have made something due.

``foreachBatch`` is not called while a source is quiet, so windows would stay open and backlog would
wait for ever. The offset of this source moves once a second and brings no rows: Spark starts a batch,
and neither watermark nor counts are touched. It is part of every query from its first start, since a
source that comes later breaks a checkpoint, and its last source: what reads Spark's log leaves it out.

It is Spark's own ``MemoryStream``, to which a thread of this process adds nothing: there is no Python
process, and no clock that could be put back.
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
"""What a memory stream takes for no offset at all."""

_LONG = re.compile(r"[0-9]{1,18}")
"""A number that Java holds in 64 bits."""


class Tick:
    """The tick of one query.

    `spark`: the session that the query is started in. `checkpoint`: the query's checkpoint; offsets
    are read, and those of an older headgate's tick rewritten, so the checkpoint's lock must be
    held.
    """

    def __init__(self, spark: SparkSession, checkpoint: Path) -> None:
        streaming = "org.apache.spark.sql.execution.streaming.runtime"
        made = java_class(spark, f"{streaming}.MemoryStream$.MODULE$")
        numbers = java_class(spark, "org.apache.spark.sql.Encoders").LONG()
        # no partition: a batch has not even an empty task for it
        self._stream: Jvm = made.apply(spark._jsparkSession, 0, numbers)
        # it lives in the JVM only; going on from the log, its offsets never go back
        last = java_class(spark, f"{streaming}.LongOffset")(_last_offset(checkpoint / "offsets"))
        getattr(self._stream, "currentOffset_$eq")(last)
        self._nothing = seq(spark, [])
        self._ended = threading.Event()
        self._rests: Callable[[], bool] = lambda: False
        self._thread: threading.Thread | None = None
        self.frame = DataFrame(self._stream.toDF(), spark)
        self._tick()  # the first batch comes at once, whatever the sources have

    def start(self, rests: Callable[[], bool]) -> None:
        """Tick once a second from now on; never called for a query that is to end by itself.

        `rests`: whether Spark shall find nothing new once before the next tick.
        """
        # Spark 4.3 asks a memory stream for its newest offset under availableNow, too: it would not end
        self._rests = rests
        self._thread = threading.Thread(target=self._run, name="headgate-tick", daemon=True)
        self._thread.start()

    def soon(self) -> None:
        """Begin a batch right after the one under way.

        Under availableNow, too, where Spark lets a memory stream move (4.3): its last batch is then that
        in which the final watermark counts, as plain Spark's is.
        """
        if not self._ended.is_set():
            self._tick()

    def stop(self) -> None:
        """Tick no more."""
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
    """Return the tick's newest offset in Spark's log, in a form that a memory stream reads."""
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
        return _NEVER  # of a batch of long ago, which nobody reads: else the start was refused
    if _LONG.fullmatch(offset):
        return int(offset)
    if not _is_python_tick(offset):
        return _NEVER  # Spark says what is wrong with such a log
    # in this order: without a checksum Spark reads the file as it is, with a wrong one it does not
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
