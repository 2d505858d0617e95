"""Joins a query to the executors of its application, so that they follow its slots."""

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
"""What the queries of each application of this process need together."""


class Following(Executors, Protocol):
    """Executors that know when a query has ended."""

    def leave(self) -> None:
        """Take note that it has, so that what only it needed goes."""


def follow_slots(
    spark: SparkSession,
    specs: Sequence[Spec],
    run: str,
    write: Callable[[Event], None],
    choice: str,
) -> Following:
    """Let executors follow the slots of a query that is about to start.

    Nothing is asked for in ``local`` mode, nor where Spark's dynamic allocation decides. Raises
    `ConfigError`: `choice` is neither.

    Parameters
    ----------
    specs : sequence of Spec    Specs of the query's operators.
    run : str    Unique within the application.
    choice : str    ``follow``, or ``keep`` for leaving executors alone.
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
    """Executors that follow a query's slots."""

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
