"""Reads the metrics that ``observe()`` computes on a batch's rows."""

from __future__ import annotations

from pyspark.sql import DataFrame, SparkSession

from headgate.spark.jvm.gateway import Jvm, class_name, each, java_class, jvm


def observes(plan: Jvm) -> bool:
    """Return whether a plan has a node of ``observe()``."""
    return class_name(plan) == "CollectMetrics" or any(map(observes, each(plan.children())))


class CountedRows:
    """Holds the rows of a plan with ``observe()``, which computes metrics together with the rows.

    Attributes
    ----------
    rows : RDD    Internal rows.
    """

    def __init__(self, frame: DataFrame) -> None:
        self._spark: SparkSession = frame.sparkSession
        self._execution = frame._jdf.queryExecution()
        self.rows: Jvm = self._execution.toRdd()

    def metrics(self) -> Jvm:
        """Return the metrics so far, a JVM map from name to row."""
        converters = java_class(self._spark, "scala.jdk.javaapi.CollectionConverters")
        return converters.asJava(self._execution.observedMetrics())


def together(spark: SparkSession, first: Jvm, second: Jvm) -> Jvm:
    """Return two maps of metrics merged into one."""
    both = jvm(spark).java.util.HashMap(first)
    both.putAll(second)
    return both
