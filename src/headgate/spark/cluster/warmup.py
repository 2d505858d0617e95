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
"""Time that each task holds its core, so that every core gets its own worker. Chosen, not tuned."""


class Warming:
    """Starts Python workers while the driver plans the query.

    The first worker takes seconds, since it loads NumPy, Arrow and Numba.
    """

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark

        def load_the_first() -> None:
            # Spark would read another program's output as a worker's address, which can end the JVM
            check_interpreter(spark)
            _load(spark, (), 1)

        self._last = _beside(load_the_first)

    def load(self, specs: Sequence[Spec]) -> None:
        """Compile the operators' kernels in the driver; then workers load them in the background."""
        for spec in specs:
            warm(spec)
        spark, first = self._spark, self._last

        def load_when_they_are_there() -> None:
            if isinstance(first.exception(), ConfigError):
                first.result()
            _load(spark, specs, _cores(spark))

        self._last = _beside(load_when_they_are_there)

    def wait(self) -> None:
        """Wait until the workers are ready; raise the error of a load, unless a worker was lost."""
        self._last.result()


def _beside(work: Callable[[], None]) -> Future[None]:
    """Do `work` in a daemon thread, so that the program's end does not wait for its Spark job."""
    done: Future[None] = Future()

    def run() -> None:
        try:
            work()
        except BaseException as error:  # the thread that waits gets the error
            done.set_exception(error)
        else:
            done.set_result(None)

    threading.Thread(target=run, name="headgate-warming", daemon=True).start()
    return done


def warm_workers(spark: SparkSession, specs: Sequence[Spec]) -> None:
    """Start a Python worker per core, with the slots' code and kernels loaded.

    A worker that starts in a batch costs that batch half a second or more. The driver compiles kernels
    that are not cached yet, so that the workers only load them. If a worker dies or starts too late, this
    raises no error, since batches have several attempts.
    """
    for spec in specs:
        warm(spec)
    _load(spark, specs, _cores(spark))


def _cores(spark: SparkSession) -> int:
    return max(1, spark.sparkContext.defaultParallelism)


def _load(spark: SparkSession, specs: Sequence[Spec], tasks: int) -> None:
    """Run `tasks` tasks at once that load the slots' code and kernels."""
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
