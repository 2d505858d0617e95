"""Joins a query to the executors of its application, so that they follow its slots."""

from __future__ import annotations

from collections.abc import Callable

from pyspark.sql import SparkSession

from headgate.core.errors import ConfigError
from headgate.journal.schema import Event
from headgate.spark.cluster.following import ExecutorFollower, SharedNeeds
from headgate.spark.jvm.executors import ExecutorPool
from headgate.spark.step.driver import BatchDriver
from headgate.spark.step.warmup import warm_workers

_needs: dict[str, SharedNeeds] = {}
"""What the queries of each application of this process need together."""


def follow_slots(
    spark: SparkSession, driver: BatchDriver, write: Callable[[Event], None], choice: str
) -> Callable[[], None]:
    """Let executors follow the slots of a query that is about to start.

    Nothing is asked for in ``local`` mode, nor where Spark's dynamic allocation decides.

    Parameters
    ----------
    choice : str
        ``follow``, or ``keep`` for leaving executors alone.

    Returns
    -------
    callable
        Call it when the query has ended.

    Raises
    ------
    ConfigError
        `choice` is neither.
    """
    if choice not in ("follow", "keep"):
        msg = f'headgate.executors="{choice}" is not known; use follow or keep.'
        raise ConfigError(msg)
    pool = ExecutorPool(spark)
    if choice == "keep" or pool.local or pool.managed_by_spark or not driver.states:
        return lambda: None

    def grown() -> None:
        warm_workers(spark, [op.spec for op in driver.query.operators])
        driver.set_cores(pool.cores)

    needs = _needs.setdefault(str(spark.sparkContext.applicationId), SharedNeeds(pool.configured))
    follower = ExecutorFollower(pool, needs, driver.run.run_id, write, grown)

    def after_step() -> None:
        follower.settled(
            max(driver.slots_in_use(name) for name in driver.states), driver.hosts_in_use
        )

    driver.changes.ready = follower.ready
    driver.after_step = after_step
    return follower.leave
