"""Makes Spark write its own log files on a local disk without checksum files and without processes.

Hadoop's local file system writes a ``.crc`` beside each file, and runs ``chmod`` for the mode of both:
six processes for the three small files of a batch. Hadoop's raw local file system does neither.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.sql import DataFrame, SparkSession

from headgate.spark.jvm.expressions import tree_patterns
from headgate.spark.jvm.plans import analysed

_RAW = {
    "fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem",
    # Hadoop caches one file system per scheme, and would ignore another class afterwards
    "fs.file.impl.disable.cache": "true",
}
_CLASS = "fs.file.impl"


def limits(stream: DataFrame) -> bool:
    """Return whether Spark itself keeps state for a stream: the number of rows that a limit has passed.

    Spark's RocksDB store needs the local file system class that writes checksums.
    """
    (limit,) = tree_patterns(stream.sparkSession, ["LIMIT"])
    return bool(analysed(stream).containsPattern(limit))


@contextmanager
def raw_local_files(spark: SparkSession) -> Iterator[None]:
    """Let a query that starts within the context open its logs on the raw local file system.

    A new query opens its logs and copies the session's settings; the end of the context restores the
    settings. If the user has set a class for local files, nothing changes.
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
    """Restore the user's file system in a query's own session, the session of its batches and sinks."""
    if session.conf.get(_CLASS, None) == _RAW[_CLASS]:
        for key in _RAW:
            session.conf.unset(key)
