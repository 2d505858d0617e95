"""Accesses Spark's session, its context and the JVM behind them, where PySpark has no public way."""

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
    """Start this process's JVM with settings that it needs at its start, unless it has a JVM."""
    conf = SparkConf(loadDefaults=False).setAll(list(settings.items()))
    SparkContext._ensure_initialized(conf=conf)


def jvm_alone() -> Jvm:
    """Return the entry to the classes of this process's JVM without a context; start it if needed."""
    start_jvm({})
    return SparkContext._jvm


def driver_conf(spark: SparkSession) -> Jvm:
    """Return the settings of the Spark context, which the driver reads; a session has a copy."""
    return spark.sparkContext._jsc.sc().conf()


PIPELINED = "spark.python.udf.pipelined.enabled"
"""Spark's setting: whether tasks read results of Python functions while they wait for further input."""

_pipelining, _before, _lock = 0, "false", threading.Lock()
"""Number of open `pipelined_python` contexts, and the setting before the first of them."""


@contextmanager
def pipelined_python(spark: SparkSession) -> Iterator[None]:
    """Set `PIPELINED` to true in this process within the context.

    Without the setting, a row or an error stays in Python until the next row comes. The setting belongs
    to the application; the end of the last context restores the former value. Executors in other
    processes read the setting once, at their start.
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
    """Return whether tasks on executors pipeline Python functions: the application has the setting."""
    return str(driver_conf(spark).get(PIPELINED, "false")).lower() == "true"


def ships_modules(spark: SparkSession) -> bool:
    """Return whether Spark sends the user's Python modules to its workers."""
    return bool(spark.sparkContext._python_includes)


_SESSIONS = "org.apache.spark.sql.classic.SparkSession"


def make_active(session: SparkSession) -> None:
    """Make a session the active session of this thread."""
    java_class(session, _SESSIONS).setActiveSession(session._jsparkSession)


@contextmanager
def active(session: SparkSession) -> Iterator[None]:
    """Make a session the active session of this thread within the context."""
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

    PySpark's method makes the session the result of `SparkSession.active` in all threads of Python, also
    for functions of other queries. This function does not change that result.
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
    java.sessionState().catalog()  # the first access copies views and database
    return SparkSession(spark.sparkContext, java)


_ADAPTIVE = "spark.sql.adaptive.enabled"
_OF_BATCHES = (
    _ADAPTIVE,
    "spark.sql.cbo.enabled",
    "spark.sql.requireAllClusterKeysForDistribution",
    "spark.sql.shuffle.partitions",
)
"""Settings that Spark changes in the session of a query's batches; the last changes after a restart."""


def set_as_for_batches(session: SparkSession, batches: SparkSession, *, stateful: bool) -> None:
    """Copy Spark's settings of the session of batches to the session of a query's results.

    `stateful`: whether the user's query has stateful operators, for which Spark switches adaptive
    execution off.
    """
    for key in _OF_BATCHES:
        session.conf.set(key, str(batches.conf.get(key)))
    if stateful:
        session.conf.set(_ADAPTIVE, "false")
