"""Spark's session, its context and the JVM behind them, where PySpark has no public way to ask."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark import SparkConf, SparkContext
from pyspark.sql import SparkSession

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


def ships_modules(spark: SparkSession) -> bool:
    """Return whether Spark brings Python modules of the user's to its workers."""
    return bool(spark.sparkContext._python_includes)


def make_active(session: SparkSession) -> None:
    """Make a session that of this thread, as Spark's own threads have theirs."""
    sessions = java_class(session, "org.apache.spark.sql.classic.SparkSession")
    sessions.setActiveSession(session._jsparkSession)


def clone_of(spark: SparkSession) -> SparkSession:
    """Return a session with the settings, tables and functions of `spark`, as a query gets its own."""
    return SparkSession(spark.sparkContext, spark._jsparkSession.cloneSession())
