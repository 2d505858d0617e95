"""Lists the executors of an application, requests more, and ends some."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pyspark.sql import SparkSession

from headgate.spark.jvm.gateway import Jvm, each, java_class, seq


@dataclass(frozen=True, order=True)
class Executor:
    """Describes a JVM process that runs tasks."""

    id: str
    host: str
    """`id`, `host`: as Spark names them."""
    cores: int
    """Number of tasks that it runs at the same time."""


class ExecutorPool:
    """Accesses the executors of one application through Spark's developer interface.

    Attributes
    ----------
    local : bool    Whether all tasks run on this machine, where no executor can be requested.
    in_driver : bool
        Whether tasks run in the driver's own process. With ``local-cluster`` they do not: executors can
        be lost, but they share this machine's cores and memory, so they are one host.
    """

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._context: Jvm = spark.sparkContext._jsc.sc()
        master = str(spark.sparkContext.master)
        self.local = master.startswith("local")
        self.in_driver = self.local and not master.startswith("local-cluster")

    @property
    def managed_by_spark(self) -> bool:
        """Return whether Spark's own dynamic allocation sets the number of executors."""
        return bool(self._context.conf().getBoolean("spark.dynamicAllocation.enabled", False))

    @property
    def configured(self) -> int | None:
        """Return the number that the user set; None if the cluster manager decides."""
        number = self._context.conf().getInt("spark.executor.instances", 0)
        return int(number) or None

    @property
    def cores(self) -> int:
        """Cores that tasks can use at present."""
        if self.local:
            return int(self._spark.sparkContext.defaultParallelism)
        return sum(executor.cores for executor in self.living())  # Spark's own figure is at least 2

    def living(self) -> list[Executor]:
        """Return the registered executors without the driver, sorted by id."""
        executors = (
            Executor(
                str(executor.id()),
                str(executor.hostPort()).rpartition(":")[0],
                int(executor.totalCores()),
            )
            for executor in each(self._context.statusStore().executorList(True))
        )
        return sorted(executor for executor in executors if executor.id != "driver")

    def request(self, total: int) -> bool:
        """Request `total` executors in all from the cluster manager; False if it takes no requests."""
        nothing = java_class(self._spark, "scala.collection.immutable.Map$.MODULE$").empty()
        return bool(self._context.requestTotalExecutors(total, 0, nothing))

    def give_back(self, executors: Sequence[Executor]) -> bool:
        """End these executors, and lower the requested number; False if the cluster manager refused."""
        return bool(
            self._context.killExecutors(seq(self._spark, [executor.id for executor in executors]))
        )

    def kill(self, executor: Executor) -> bool:
        """Kill an executor as if its host had failed; the cluster manager starts another executor."""
        return bool(self._context.killAndReplaceExecutor(executor.id))


def living_executors(spark: SparkSession) -> Callable[[], frozenset[str]]:
    """Return a function that returns the ids of registered executors; no ids in local mode."""
    pool = ExecutorPool(spark)
    if pool.in_driver:
        return frozenset
    return lambda: frozenset(executor.id for executor in pool.living())
