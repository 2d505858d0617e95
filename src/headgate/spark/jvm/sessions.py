"""Reaches Spark's session, its context and the JVM behind them, where PySpark has no public way."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from pyspark import SparkConf, SparkContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.conversion import SparkConversionMixin
from pyspark.sql.types import StructType

from headgate.spark.jvm.gateway import Jvm, java_class


def has_jvm() -> bool:
    """Return whether this process has a JVM already."""
    return SparkContext._gateway is not None


def is_running() -> bool:
    """Return whether this process has a Spark context already."""
    return SparkContext._active_spark_context is not None


def start_jvm(settings: Mapping[str, str]) -> None:
    """Start this process's JVM with what it must know from the start; nothing if there is one."""
    conf = SparkConf(loadDefaults=False).setAll(list(settings.items()))
    SparkContext._ensure_initialized(conf=conf)


def jvm_alone() -> Jvm:
    """Return the entry to the classes of this process's JVM, started if need be, without a context."""
    start_jvm({})
    return SparkContext._jvm


def driver_conf(spark: SparkSession) -> Jvm:
    """Return the settings that the driver itself reads, of which a session has a copy."""
    return spark.sparkContext._jsc.sc().conf()


PIPELINED = "spark.python.udf.pipelined.enabled"
"""Whether tasks read what comes back from Python while they wait for more to send there."""

_pipelining, _before, _lock = 0, "false", threading.Lock()
"""How many want Python functions pipelined now, and the setting before the first of them."""


@contextmanager
def pipelined_python(spark: SparkSession) -> Iterator[None]:
    """Have tasks in this process read what comes back from Python while they wait for more to send.

    Without it a row, or an error, stays in Python until the next row comes. It is a setting of the
    application, which has its former value again when the last who wanted it is done. Executors that are
    processes of their own read it once, when they start.
    """
    global _pipelining, _before  # noqa: PLW0603 -- of the application, of which a process has one
    conf = driver_conf(spark)
    with _lock:
        if _pipelining == 0:
            _before = conf.get(PIPELINED, "false")
        _pipelining += 1
        conf.set(PIPELINED, "true")
    try:
        yield
    finally:
        with _lock:
            _pipelining -= 1
            if _pipelining == 0:
                conf.set(PIPELINED, _before)


def pipelines_python(spark: SparkSession) -> bool:
    """Return whether tasks on executors pipeline Python functions: they started with that setting."""
    return str(driver_conf(spark).get(PIPELINED, "false")).lower() == "true"


def ships_modules(spark: SparkSession) -> bool:
    """Return whether Spark brings Python modules of the user's to its workers."""
    return bool(spark.sparkContext._python_includes)


_SESSIONS = "org.apache.spark.sql.classic.SparkSession"


def make_active(session: SparkSession) -> None:
    """Make a session that of this thread, as Spark's own threads have theirs."""
    java_class(session, _SESSIONS).setActiveSession(session._jsparkSession)


@contextmanager
def active(session: SparkSession) -> Iterator[None]:
    """Make a session that of this thread meanwhile, as Spark's is while it writes a batch."""
    sessions = java_class(session, _SESSIONS)
    before = sessions.getActiveSession()
    sessions.setActiveSession(session._jsparkSession)
    try:
        yield
    finally:
        if before.isDefined():
            sessions.setActiveSession(before.get())
        else:
            sessions.clearActiveSession()


def created(session: SparkSession, rows: Any, schema: StructType | str) -> DataFrame:
    """Return ``session.createDataFrame(rows, schema)`` of a list of rows or an Arrow table.

    PySpark's own makes the session that of `SparkSession.active` for all threads of Python: a function
    of another query would find that session there. Here the program's stays the active one throughout.
    """
    kind = StructType.fromDDL(schema) if isinstance(schema, str) else schema
    with active(session):
        if isinstance(rows, list):
            return session._create_dataframe(rows, kind, None, True)
        frame: DataFrame = SparkConversionMixin.createDataFrame(session, rows, kind)  # type: ignore[call-overload]
        return frame


def clone_of(spark: SparkSession) -> SparkSession:
    """Return a session with the settings, views, functions and database that `spark` has now."""
    java = spark._jsparkSession.cloneSession()
    java.sessionState().catalog()  # views and database are copied when they are first asked for
    return SparkSession(spark.sparkContext, java)


_ADAPTIVE = "spark.sql.adaptive.enabled"
_OF_BATCHES = (
    _ADAPTIVE,
    "spark.sql.cbo.enabled",
    "spark.sql.requireAllClusterKeysForDistribution",
    "spark.sql.shuffle.partitions",
)
"""Settings that Spark changes in the session of a query's batches, the last one after a restart."""


def set_as_for_batches(session: SparkSession, batches: SparkSession, *, stateful: bool) -> None:
    """Give the session of a query's results the settings that Spark gives that of its batches.

    `stateful`: whether Spark would find stateful operators in the query, whose plans are not
    adaptive.
    """
    for key in _OF_BATCHES:
        session.conf.set(key, str(batches.conf.get(key)))
    if stateful:
        session.conf.set(_ADAPTIVE, "false")
