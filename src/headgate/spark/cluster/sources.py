"""Makes the Python sources of other distributions known to a Spark session."""

from __future__ import annotations

from pyspark.sql import SparkSession

from headgate.core.installed import SOURCES, installed
from headgate.spark.jvm.sessions import driver_conf

_UNIX_SOCKETS = "spark.python.unix.domain.socket.enabled"


def register_installed(spark: SparkSession) -> None:
    """Register the sources of the entry point group ``headgate.sources``; may be called again.

    Spark then asks a Python worker for all installed sources, and closes the worker a minute later. On a
    Unix socket the worker would print a traceback when it is closed, so it gets a TCP socket.
    """
    sources = [plugin.load() for plugin in installed(SOURCES).values()]
    conf = driver_conf(spark)
    chosen = conf.get(_UNIX_SOCKETS, "false")
    conf.set(_UNIX_SOCKETS, "false")
    try:
        for source in sources:
            spark.dataSource.register(source)
    finally:
        conf.set(_UNIX_SOCKETS, chosen)
