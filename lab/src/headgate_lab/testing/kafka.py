"""Spark's Kafka connector in a session that runs already, so that tests may share it."""

from __future__ import annotations

from pyspark.sql import SparkSession

from headgate.spark.jvm.gateway import jvm
from headgate_demo.spark.clicks import connector


def add_connector(spark: SparkSession) -> None:
    """Give a local session the connector, as if it had been started with it.

    Raises
    ------
    HeadgateError
        Its jars cannot be had.
    """
    found = connector()
    # in local mode all of Spark's threads take classes from the loader that spark-submit made
    loader = jvm(spark).java.lang.Thread.currentThread().getContextClassLoader()
    known = {str(url.getFile()) for url in loader.getURLs()}
    for jar in found:
        if str(jar) not in known:
            loader.addURL(jvm(spark).java.io.File(str(jar)).toURI().toURL())
