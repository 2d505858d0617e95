"""Writes Spark's own log files on a local disk without checksum files and without processes.

Hadoop's local file system writes a ``.crc`` beside each file and sets each one's mode by running
``chmod``: six processes for the three small files of a batch. Its raw form does neither.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.sql import DataFrame, SparkSession

from headgate.spark.jvm.expressions import tree_patterns
from headgate.spark.jvm.plans import analysed

_RAW = {
    "fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem",
    # Hadoop keeps one file system per scheme, whatever class is asked for afterwards
    "fs.file.impl.disable.cache": "true",
}
_CLASS = "fs.file.impl"


def limits(stream: DataFrame) -> bool:
    """Return whether Spark itself keeps state for a stream: how many rows of a limit have come.

    Its RocksDB store takes local files through the class that writes checksums, and no other.
    """
    (limit,) = tree_patterns(stream.sparkSession, ["LIMIT"])
    return bool(analysed(stream).containsPattern(limit))


@contextmanager
def raw_local_files(spark: SparkSession) -> Iterator[None]:
    """Let a query that starts meanwhile open its logs on the raw local file system.

    A query opens its logs when it is made, and copies the session's settings: they are as before
    afterwards. A user who has chosen a class for local files keeps it.
    """
    context = spark.sparkContext._jsc
    assert context is not None
    chosen = spark.conf.get(_CLASS, None) or context.hadoopConfiguration().get(_CLASS)
    if chosen:
        yield
        return
    for key, value in _RAW.items():
        spark.conf.set(key, value)
    try:
        yield
    finally:
        forget_raw_files(spark)


def forget_raw_files(session: SparkSession) -> None:
    """Give a query's own session, which its batches and their sinks run in, the user's files again."""
    if session.conf.get(_CLASS, None) == _RAW[_CLASS]:
        for key in _RAW:
            session.conf.unset(key)
