"""Lists the hosts of executors, and gives partitions a preferred host.

Spark places a task by the preferred locations of its input. So headgate makes a partition-wise union of
the rows with two empty RDDs that have the location: two votes win against one of a shuffle.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import DataFrame, SparkSession

from headgate.spark.jvm.gateway import Jvm, java_class, seq
from headgate.spark.jvm.plans import computed_rows

_UNION = "org.apache.spark.rdd.SQLPartitioningAwareUnionRDD"

THIS_HOST = "reflect('org.apache.spark.util.Utils', 'localHostName')"
"""SQL: the executor's host, as Spark names it; a Python worker does not know this name."""


def living_hosts(spark: SparkSession) -> list[str]:
    """Return the sorted hosts of executors, the driver's only without others; empty in local mode."""
    if str(spark.sparkContext.master).startswith("local"):
        return []
    context: Jvm = spark.sparkContext._jsc.sc()
    driver: str = context.conf().get("spark.driver.host")
    port: str = context.conf().get("spark.driver.port")
    infos = context.statusTracker().getExecutorInfos()
    living = {i.host() for i in infos if (i.host(), str(i.port())) != (driver, port)}
    return sorted(living - {driver}) or sorted(living)


def pinned(frame: DataFrame, hosts: Sequence[str]) -> DataFrame:
    """Return `frame` with ``hosts[i]`` as the preferred host of partition i."""
    spark = frame.sparkSession
    together = pinned_rows(spark, computed_rows(frame), hosts)
    made = spark._jsparkSession.internalCreateDataFrame(together, frame._jdf.schema(), False)
    return DataFrame(made, spark)


def pinned_rows(spark: SparkSession, rows: Jvm, hosts: Sequence[str]) -> Jvm:
    """Return the RDD `rows` with ``hosts[i]`` as the preferred host of partition i."""
    context: Jvm = spark.sparkContext._jsc.sc()
    tag = java_class(spark, "scala.reflect.ClassTag$.MODULE$").Any()
    pair = java_class(spark, "scala.Tuple2")
    wishes = [pair(str(i), seq(spark, [host])) for i, host in enumerate(hosts)]
    empty = context.makeRDD(seq(spark, wishes), tag).sample(False, 0.0, 1)
    union = java_class(spark, _UNION)
    return union(context, seq(spark, [empty, empty, rows]), len(hosts), tag)
