"""Requests executors for a query as its slots change, if the session allows that."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from pyspark.sql import SparkSession

from headgate.core.errors import ConfigError
from headgate.journal.schema import Event
from headgate.operators.build import Spec
from headgate.spark.cluster.following import ExecutorFollower, SharedNeeds
from headgate.spark.cluster.warmup import warm_workers
from headgate.spark.job.ports import Executors, SameExecutors
from headgate.spark.jvm.executors import ExecutorPool

_needs: dict[str, SharedNeeds] = {}
"""Common needs of the queries of each application in this process."""


class Following(Executors, Protocol):
    """Extends `Executors` by the end of a query."""

    def leave(self) -> None:
        """Give back executors that only this query needed, when the query has ended."""


def follow_slots(
    spark: SparkSession,
    specs: Sequence[Spec],
    run: str,
    write: Callable[[Event], None],
    choice: str,
) -> Following:
    """Let executors follow the slots of a query that is about to start.

    Requests no executors in ``local`` mode, or if Spark's dynamic allocation is on. Raises
    `ConfigError`: `choice` is another text.

    Parameters
    ----------
    specs : sequence of Spec    Specs of the query's operators.
    run : str    Name of the query's run, unique within the application.
    choice : str    ``follow``, or ``keep`` to leave the executors as they are.
    """
    if choice not in ("follow", "keep"):
        msg = f'headgate.executors="{choice}" is not known; use follow or keep.'
        raise ConfigError(msg)
    pool = ExecutorPool(spark)
    cores = max(1, int(spark.sparkContext.defaultParallelism))
    if choice == "keep" or pool.local or pool.managed_by_spark or not specs:
        return SameExecutors(cores)
    needs = _needs.setdefault(str(spark.sparkContext.applicationId), SharedNeeds(pool.configured))
    return _Followed(spark, specs, pool, needs, run, write, cores)


class _Followed:
    """Requests executors as a query's slots change."""

    def __init__(
        self,
        spark: SparkSession,
        specs: Sequence[Spec],
        pool: ExecutorPool,
        needs: SharedNeeds,
        run: str,
        write: Callable[[Event], None],
        cores: int,
    ) -> None:
        self._spark = spark
        self._specs = specs
        self._pool = pool
        self._follower = ExecutorFollower(pool, needs, run, write, self._grown)
        self.cores = cores
        self.ready = self._follower.ready
        self.need = self._follower.need
        self.settled = self._follower.settled
        self.leave = self._follower.leave

    def _grown(self) -> None:
        warm_workers(self._spark, self._specs)
        self.cores = max(1, self._pool.cores)
