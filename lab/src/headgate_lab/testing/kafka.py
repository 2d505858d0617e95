"""A real Kafka for tests: a broker, and its connector in a session that runs already.

A test that asks for them is skipped where their jars cannot be had.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from headgate.core.errors import HeadgateError
from headgate.spark.jvm.gateway import jvm
from headgate.spark.workloads.broker import Broker
from headgate.spark.workloads.clicks import connector


def add_connector(spark: SparkSession) -> None:
    """Give a local session the connector, as if it had been started with it; skips the test without."""
    try:
        found = connector()
    except HeadgateError as error:
        pytest.skip(str(error))
    # in local mode all of Spark's threads take classes from the loader that spark-submit made
    loader = jvm(spark).java.lang.Thread.currentThread().getContextClassLoader()
    known = {str(url.getFile()) for url in loader.getURLs()}
    for jar in found:
        if str(jar) not in known:
            loader.addURL(jvm(spark).java.io.File(str(jar)).toURI().toURL())


@contextmanager
def broker(directory: Path | None = None) -> Iterator[Broker]:
    """Yield a running broker; skips the test where there is none."""
    try:
        made = Broker(directory)
    except HeadgateError as error:
        pytest.skip(str(error))
    with made:
        yield made
