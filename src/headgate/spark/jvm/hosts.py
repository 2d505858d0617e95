"""Hosts: which have executors, and rows whose tasks wish to run on given ones.

Spark places a task where its input says. A partition-wise union of rows with empty RDDs that carry
location wishes says it for us: the wish twice, so that it outvotes a shuffle's own.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import DataFrame, SparkSession

from headgate.spark.jvm.gateway import Jvm, java_class, seq
from headgate.spark.jvm.plans import computed_rows

_UNION = "org.apache.spark.rdd.SQLPartitioningAwareUnionRDD"

THIS_HOST = "reflect('org.apache.spark.util.Utils', 'localHostName')"
"""SQL: the host of the executor, as Spark names it; nothing in a Python worker says it."""


def living_hosts(spark: SparkSession) -> list[str]:
    """Return the hosts of living executors, sorted, the driver's own left out; none if Spark is local."""
    if str(spark.sparkContext.master).startswith("local"):
        return []
    context: Jvm = spark.sparkContext._jsc.sc()
    driver: str = context.conf().get("spark.driver.host")
    port: str = context.conf().get("spark.driver.port")
    infos = context.statusTracker().getExecutorInfos()
    living = {i.host() for i in infos if (i.host(), str(i.port())) != (driver, port)}
    return sorted(living - {driver}) or sorted(living)


def pinned(frame: DataFrame, hosts: Sequence[str]) -> DataFrame:
    """Return `frame`, partition i of which wishes to run on ``hosts[i]``."""
    spark = frame.sparkSession
    together = pinned_rows(spark, computed_rows(frame), hosts)
    made = spark._jsparkSession.internalCreateDataFrame(together, frame._jdf.schema(), False)
    return DataFrame(made, spark)


def pinned_rows(spark: SparkSession, rows: Jvm, hosts: Sequence[str]) -> Jvm:
    """Return the RDD `rows`, partition i of which wishes to run on ``hosts[i]``."""
    context: Jvm = spark.sparkContext._jsc.sc()
    tag = java_class(spark, "scala.reflect.ClassTag$.MODULE$").Any()
    pair = java_class(spark, "scala.Tuple2")
    wishes = [pair(str(i), seq(spark, [host])) for i, host in enumerate(hosts)]
    empty = context.makeRDD(seq(spark, wishes), tag).sample(False, 0.0, 1)
    union = java_class(spark, _UNION)
    return union(context, seq(spark, [empty, empty, rows]), len(hosts), tag)
