"""Python workers made ready before a batch needs them."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pyspark.sql import SparkSession

from headgate.operators.build import Spec
from headgate.operators.warm import warm
from headgate.spark.jvm.plans import computed_rows
from headgate.spark.worker import slot
from headgate.spark.worker.failure import is_lost_worker

_HOLD_S = 0.15
"""How long each task holds its core, so that every core gets a worker of its own. Chosen, not tuned."""


def warm_workers(spark: SparkSession, specs: Sequence[Spec]) -> None:
    """Start a Python worker per core, with the slots' code and kernels loaded.

    A worker that starts in a batch costs that batch half a second or more. The driver compiles what is
    not in the cache yet, so that the workers only load. A worker that dies, or that a busy machine is too
    slow to start, is left to the batches: they have attempts.
    """
    for spec in specs:
        warm(spec)
    context = spark.sparkContext
    cores = max(1, context.defaultParallelism)
    frame = spark.range(0, cores, 1, cores)
    loading = computed_rows(frame.mapInArrow(_Load(tuple(specs)), "ready int"))
    try:
        loading.count()
    except Exception as error:
        if not is_lost_worker(error):
            raise


@dataclass(frozen=True)
class _Load:
    specs: tuple[Spec, ...]

    def __call__(self, batches: Iterator[object]) -> Iterator[object]:
        for _ in batches:
            pass
        for spec in self.specs:
            warm(spec)
        time.sleep(_HOLD_S)
        slot.freeze_once()
        return iter(())
