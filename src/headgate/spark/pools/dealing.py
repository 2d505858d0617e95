"""Distributes rows of a stage to lanes by a Spark expression, so that Python reads no row."""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as F

from headgate.spark.job.pools import PoolConfig, PoolState, stride

_ROW_BITS = 2**33 - 1
"""The part of ``monotonically_increasing_id`` that numbers the rows within a partition."""


def lane_of_rows(state: PoolState, config: PoolConfig, rows: int | None, seed: int) -> Column:
    """Return the lane of each row of a batch by the stage's grouping.

    `rows`: number of rows of the batch, if known. `seed`: seed of grouping ``shuffle``; it must be the
    same if Spark repeats an execution.
    """
    order = state.order(config, rows)
    if state.grouping == "shuffle":
        place = f"cast(floor(rand({seed}) * {len(order)}) as int) + 1"
    else:
        begin = f"spark_partition_id() * {stride(len(order), len(state.active))}"
        row = f"(monotonically_increasing_id() & {_ROW_BITS})"
        place = f"cast(pmod({begin} + {row}, {len(order)}) as int) + 1"
    return F.expr(f"element_at(array({','.join(map(str, order))}), {place})")
