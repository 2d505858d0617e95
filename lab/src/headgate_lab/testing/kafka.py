"""Adds Spark's Kafka connector to a running session, so that tests may share the session."""

from __future__ import annotations

from pyspark.sql import SparkSession

from headgate.spark.jvm.gateway import jvm
from headgate_demo.spark.clicks import connector


def add_connector(spark: SparkSession) -> None:
    """Add the connector to a local session, as if the session had been started with it.

    Raises
    ------
    HeadgateError
        The jars cannot be fetched.
    """
    found = connector()
    # in local mode all of Spark's threads load classes from the loader that spark-submit made
    loader = jvm(spark).java.lang.Thread.currentThread().getContextClassLoader()
    known = {str(url.getFile()) for url in loader.getURLs()}
    for jar in found:
        if str(jar) not in known:
            loader.addURL(jvm(spark).java.io.File(str(jar)).toURI().toURL())
