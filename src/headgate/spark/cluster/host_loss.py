"""Kills an executor on purpose: a fault for experiments."""

from __future__ import annotations

from pyspark.sql import SparkSession

from headgate.core.errors import ConfigError
from headgate.spark.jvm.executors import ExecutorPool


def kill_executor(spark: SparkSession) -> str:
    """Kill the executor with the highest id, which Spark replaces; return its id and host.

    Its Python workers die with it, and the state in their memory is lost. Raises `ConfigError`: there
    is no executor, as with a local master, or the cluster manager did not kill it.
    """
    pool = ExecutorPool(spark)
    living = pool.living()
    if not living:
        msg = (
            "there is no executor to kill; with a local master tasks run in the driver's own process: "
            "set SPARK_MASTER=local-cluster[2,1,1024], or name a cluster."
        )
        raise ConfigError(msg)
    victim = max(living, key=lambda executor: (len(executor.id), executor.id))
    if not pool.kill(victim):
        msg = f"the cluster manager did not kill executor {victim.id}; kill its process there."
        raise ConfigError(msg)
    return f"executor {victim.id} on {victim.host}"
