"""Publishes numbers as gauges of Spark's own metric system, for all of its sinks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from pyspark.sql import SparkSession

from headgate.spark.jvm.gateway import Jvm, java_class, scala_map

_accumulators: dict[tuple[str, str], Jvm] = {}
"""Gauges by application and name: Spark registers a name once, for the life of the application."""


class Gauges:
    """Sets the gauges of one query, under names such as ``headgate.clicks.slots``."""

    def __init__(self, spark: SparkSession, prefix: str, names: Iterable[str]) -> None:
        context = spark.sparkContext
        java = context._jsc.sc()
        keys = {name: (str(context.applicationId), f"{prefix}.{name}") for name in names}
        new = {
            key[1]: java.doubleAccumulator(key[1])
            for key in keys.values()
            if key not in _accumulators
        }
        if new:
            source = "org.apache.spark.metrics.source.DoubleAccumulatorSource$.MODULE$"
            java_class(spark, source).register(java, scala_map(spark, new))
            _accumulators.update(
                {(str(context.applicationId), name): gauge for name, gauge in new.items()}
            )
        self._of = {name: _accumulators[key] for name, key in keys.items()}

    def set(self, values: Mapping[str, float]) -> None:
        """Set gauges to their newest values."""
        for name, value in values.items():
            self._of[name].setValue(float(value))
