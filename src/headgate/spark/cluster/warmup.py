"""Starts Python workers, and loads their code, before a batch needs them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass

from pyspark.sql import SparkSession

from headgate.core.errors import ConfigError
from headgate.operators.build import Spec
from headgate.operators.warm import warm
from headgate.spark.cluster.interpreter import check_interpreter
from headgate.spark.jvm.plans import computed_rows
from headgate.spark.worker import slot
from headgate.spark.worker.failure import is_lost_worker

_HOLD_S = 0.15
"""How long each task holds its core, so that every core gets a worker of its own. Chosen, not tuned."""


class Warming:
    """Starts Python workers while the driver does what else a start takes: planning, mostly.

    The first of them takes seconds, for it loads NumPy, Arrow and Numba.
    """

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark

        def load_the_first() -> None:
            # output of another program would be read as a worker's address, and can end the JVM
            check_interpreter(spark)
            _load(spark, (), 1)

        self._last = _beside(load_the_first)

    def load(self, specs: Sequence[Spec]) -> None:
        """Have the workers load the kernels of operators, which the driver compiles here and now."""
        for spec in specs:
            warm(spec)
        spark, first = self._spark, self._last

        def load_when_they_are_there() -> None:
            if isinstance(first.exception(), ConfigError):
                first.result()
            _load(spark, specs, _cores(spark))

        self._last = _beside(load_when_they_are_there)

    def wait(self) -> None:
        """Wait until they are ready; raises what a load failed with, but the loss of a worker."""
        self._last.result()


def _beside(work: Callable[[], None]) -> Future[None]:
    """Do `work` in a thread whose Spark job no end of the program waits for."""
    done: Future[None] = Future()

    def run() -> None:
        try:
            work()
        except BaseException as error:  # whoever waits gets it
            done.set_exception(error)
        else:
            done.set_result(None)

    threading.Thread(target=run, name="headgate-warming", daemon=True).start()
    return done


def warm_workers(spark: SparkSession, specs: Sequence[Spec]) -> None:
    """Start a Python worker per core, with the slots' code and kernels loaded.

    A worker that starts in a batch costs that batch half a second or more. The driver compiles what is
    not in the cache yet, so that the workers only load. A worker that dies, or that a busy machine is too
    slow to start, is left to the batches: they have attempts.
    """
    for spec in specs:
        warm(spec)
    _load(spark, specs, _cores(spark))


def _cores(spark: SparkSession) -> int:
    return max(1, spark.sparkContext.defaultParallelism)


def _load(spark: SparkSession, specs: Sequence[Spec], tasks: int) -> None:
    """Run so many tasks that load what slots need, at once."""
    frame = spark.range(0, tasks, 1, tasks)
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
