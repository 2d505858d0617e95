"""Receives the batches of a running query, in the driver, and decides which of them are steps.

The machine is the same for all kinds of query. Its `Work` computes steps: of stateful operators
(`stateful`) or pools of replicas (`pools`). Spark calls `StepMachine.process` for each micro-batch.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Generic

from pyspark.sql import DataFrame, SparkSession

from headgate.checkpoint.checkpoint import Checkpoint
from headgate.checkpoint.manifest import Manifest
from headgate.core.errors import AnotherDriver, CheckpointError, EngineError, without_panics
from headgate.core.frames import frames_of, users_place
from headgate.spark.job.phases import Phases
from headgate.spark.job.ports import Ports
from headgate.spark.jvm.sparklog import SparkLog
from headgate.spark.sinks.ports import Sink
from headgate.spark.step.batch_thread import BatchThreads, BrokenOff
from headgate.spark.step.recovery import (
    check_begins,
    check_columns,
    check_continues,
    check_has_state,
    check_same_data,
)
from headgate.spark.step.steps import Steps
from headgate.spark.step.work_ports import R, Work

_FAR_US = 2**62
"""A time later than every due time, in microseconds."""

_QUIET_S = 0.8
"""Time for serving waiting records between two ticks of a quiet source, which are 1 s apart."""


class StepMachine(Generic[R]):
    """Runs the steps of one query; its sink sees each step exactly once.

    `held`: whether due work waits for a batch with new records; the backlog is served in any case.

    Attributes
    ----------
    batches_begun, settled_batch : int
        Number of batches begun, and this number at the last batch that had nothing to do.
    awaited : int    Number of callers that wait for batches.
    stopping, interrupted, idle : Event
        Set when no further batch may run; when the current batch is stopped; while no batch runs.
    threads : BatchThreads    Threads that run batches and deliveries.
    """

    def __init__(
        self,
        spark: SparkSession,
        work: Work[R],
        checkpoint: Checkpoint,
        latest: Manifest | None,
        sink: Sink,
        ports: Ports,
        *,
        held: bool = False,
    ) -> None:
        self.spark = spark
        self.work = work
        self.checkpoint = checkpoint
        self._commands = ports.commands
        if latest is None and work.has_steps:
            check_has_state(checkpoint.location, checkpoint.path)
        if latest is not None and work.waits:
            check_columns(checkpoint.location, latest, work.columns, "rows that wait")
        self.steps = Steps(work, work, checkpoint, latest, sink, self._ends)
        self.steps.sources = latest.engine["sources"] if held and latest else None
        self.log = SparkLog(spark)
        self.stopping, self.interrupted = threading.Event(), threading.Event()
        self.threads = BatchThreads()
        self.idle = self.threads.idle
        self._drains = False
        self._failed: Exception | None = None
        self.batches_begun = 0
        self.settled_batch = 0
        self.awaited = 0
        self._recovering = latest is not None
        self._followed_us = -_FAR_US
        """Watermark of the last batch that requested a further batch at once."""
        self._held = held

    @property
    def latest(self) -> Manifest | None:
        """Manifest of the newest committed step."""
        return self.steps.latest

    def _due(self, watermark_us: int, clock_ms: float) -> bool:
        """Return whether there is work without any new record."""
        return self.work.waits if self._held else self.work.due(watermark_us, clock_ms)

    def process(self, batch: DataFrame, batch_id: int) -> None:
        """Run one micro-batch; Spark's ``foreachBatch`` function."""
        self.batches_begun += 1
        with self._under_way():
            self.steps.begin_batch(batch_id)
            self._process_or_fail(batch, batch_id)

    def epoch(
        self,
        batch_id: int,
        watermark_us: int,
        sources: list[str],
        clock: Phases,
        *,
        read_ms: float,
    ) -> Manifest:
        """Commit an epoch of real time as a step; Spark has no batch for it, as for a drain.

        The caller must deliver the output, and then call `Steps.note_delivered`.

        Parameters
        ----------
        batch_id : int    The number that a batch of Spark's would have.
        sources : list of str    Offsets of the sources at the end of the epoch.
        read_ms : float    Time at which the epoch's first record was read, since 1970.
        """
        self.batches_begun += 1
        with self._under_way():
            self.steps.sources, self.steps.read_ms = sources, read_ms
            # the slots have the records already; the stream stands in for a batch
            stream = self.work.intake.stream
            manifest = self.steps.commit_epoch(stream, batch_id, watermark_us, clock)
        return manifest

    def run_commands(self) -> None:
        """Carry out the requests in control files."""
        self._commands.poll()

    @contextmanager
    def _under_way(self) -> Iterator[None]:
        """Register this thread while it runs a batch."""
        self.threads.begin()
        try:
            with self.threads.working():
                yield
        except BaseException:
            if not self.is_broken_off:
                raise
            # the stop is no failure to Spark either
            self.log.refuse_batch()
        finally:
            self.threads.end()

    def _ends(self) -> bool:
        return self.stopping.is_set() or self.is_broken_off

    @property
    def is_broken_off(self) -> bool:
        """Return whether the query was stopped within a batch, by headgate's or Spark's handle."""
        try:
            return self.interrupted.is_set() or not (self._drains or self.log.active)
        except Exception:  # the JVM has ended, or no batch has begun
            return False

    @property
    def is_of_this_thread(self) -> bool:
        """Return whether this thread runs the current batch."""
        return self.threads.is_this

    def cancel(self, run: str, *, raising: bool) -> None:
        """Cancel the jobs of a run of Spark's query; if `raising`, raise `BrokenOff` in its threads."""
        self.spark.sparkContext.cancelJobGroup(run)
        if raising:
            self.threads.raise_in()

    def _process_or_fail(self, batch: DataFrame, batch_id: int) -> None:
        try:
            if self.stopping.is_set():
                self._refuse_while_stopping()
            self._commands.poll()
            with without_panics():
                if self.work.has_steps:
                    self._process(batch, batch_id)
                else:
                    self._pass_on(batch, batch_id)
        except BrokenOff:
            raise
        except BaseException as error:
            # Spark passes on the text only, and only of an Exception
            failed = self.note_failure(error)
            if failed is error:
                raise
            raise failed from error

    def note_failure(self, error: BaseException) -> Exception:
        """Keep the error that makes the query fail; return the error that caused it."""
        self._failed = self._reason(error if isinstance(error, Exception) else _left(error))
        return self._failed

    def _reason(self, error: Exception) -> Exception:
        """Return the cause of a failed batch: the error, or another driver that uses the checkpoint."""
        if self.latest is not None and not isinstance(error, CheckpointError):
            try:
                self.checkpoint.refuse_after_another(self.latest.step)
            except AnotherDriver as another:
                return another
            except CheckpointError:  # an unreachable store says nothing about other drivers
                return error
        return error

    def _refuse_while_stopping(self) -> None:
        """Leave a batch that Spark began after a call of `stop` to the next start."""
        self.idle.set()  # this batch has done nothing yet, and `stop` waits for `idle`
        self.log.refuse_batch()

    def _process(self, batch: DataFrame, batch_id: int) -> None:
        work = self.work
        work.settle_in(batch)
        arrived_ms = time.time() * 1000
        log = self.log.batch(batch_id)
        watermark_us, sources = log.watermark_us, log.offsets
        self.steps.read_ms = log.begun_ms
        if self.latest is None:
            check_begins(self.checkpoint.location, batch_id)
        elif self._recovering:
            self._recovering = False
            if self._delivered_again(self.latest, batch, batch_id, sources):
                self.steps.sources = sources
                work.intake.go_on_soon()
                return
        quiet = sources == self.steps.sources
        self.steps.sources = sources
        work.arrived()
        if quiet and not self._due(watermark_us, arrived_ms) and not work.changing:
            wanted = work.quiet(watermark_us, log.begun_ms, arrived_ms)
            self.settled_batch = self.batches_begun
            if not wanted:
                self.steps.note_quiet()
                return
        if quiet and self._held:
            assert self.latest is not None  # sources are quiet only after a step
            watermark_us = self.latest.watermarks.get("evict_us", 0)
        self.steps.run(batch, batch_id, watermark_us, started_ms=arrived_ms)
        if quiet:
            self._serve_backlog(batch_id, watermark_us)
        # after a batch without input another follows at once only if the watermark has advanced; other
        # work, such as timers, a backlog or results behind another operator's watermark, waits for ticks
        follows = not quiet or watermark_us > self._followed_us
        if follows and self._due(_FAR_US, 0) and not (work.waits or self.stopping.is_set()):
            # it uses the watermark after this batch, as Spark's batches without data do
            self._followed_us = watermark_us
            work.intake.go_on_soon()

    @property
    def settled(self) -> bool:
        """Return whether the last batch had nothing to do, and no caller or timer needs another batch."""
        quiet = self.idle.is_set() and self.settled_batch == self.batches_begun
        return quiet and not self.awaited and not self._due(-_FAR_US, _FAR_US / 1e3)

    def _delivered_again(
        self, latest: Manifest, batch: DataFrame, batch_id: int, sources: list[str]
    ) -> bool:
        """Deliver the newest step again after a restart; return False if `batch_id` is a later batch."""
        path = self.checkpoint.location
        if latest.spark_batch != batch_id:
            check_continues(path, latest, batch_id, self.log)
            return False
        check_same_data(path, latest, batch_id, sources)
        self.steps.deliver_again(latest)
        self.work.intake.look_through(batch)
        return True

    def _serve_backlog(self, batch_id: int, watermark_us: int) -> None:
        """Serve waiting records until about the next tick, while the source is quiet."""
        until = time.monotonic() + _QUIET_S
        while time.monotonic() < until and not self.stopping.is_set():
            if not self.work.changing and not self.work.waits:
                return
            nothing = self.work.intake.nothing()
            self.steps.run(nothing, batch_id, watermark_us, started_ms=time.time() * 1e3)

    def drain(self, run: str) -> None:
        """Serve the backlog after the last batch, and emit what the batch's watermark allows.

        Spark runs one more batch for its own stateful operators when a query with
        ``trigger(availableNow=True)`` ends; to Spark this query is stateless.

        `run`: run id of Spark's query, the job group of its jobs.
        """
        if not self.work.has_steps or self.latest is None:
            return
        self._drains = True
        self.spark.sparkContext.setJobGroup(run, "", interruptOnCancel=True)
        with self._under_way():
            self._drain(self.latest)

    def _drain(self, latest: Manifest) -> None:
        work = self.work
        watermark_us = work.last_watermark_us(latest, self.log)
        if self._held:
            watermark_us = latest.watermarks.get("evict_us", 0)
        clock_ms = time.time() * 1e3
        while self._due(watermark_us, clock_ms) and not self.stopping.is_set():
            work.intake.enter()
            batch_id, now_ms = latest.spark_batch, time.time() * 1e3
            self.steps.run(
                work.intake.nothing(), batch_id, watermark_us, started_ms=now_ms, drain=True
            )

    @property
    def failed(self) -> Exception | None:
        """Return the error that made the query fail: of the last batch, or of another driver's commit.

        Two queries on one log of Spark's also fail in Spark, with an error that names no driver.
        """
        if self._failed is None and self.latest is not None:
            try:
                self.checkpoint.refuse_after_another(self.latest.step)
            except CheckpointError as error:
                return error
        return self._failed

    def give_up(self) -> None:
        """Refuse further batches, and wait for the current batch."""
        self.stopping.set()
        self.idle.wait()

    def close(self) -> None:
        """Finish the work beside the batches, after the last batch."""
        self.work.intake.close()
        self.steps.close()

    def _pass_on(self, batch: DataFrame, batch_id: int) -> None:
        clock = Phases()
        self.steps.sink.write(batch_id, batch)
        clock.lap("sink")
        self.work.passed_on(batch_id, clock.phases_ms)


def _left(error: BaseException) -> EngineError:
    """Return the error for a user's function that ended with ``sys.exit`` or the like."""
    place = users_place(frames_of(error.__traceback__))
    msg = (
        f"the query's own function ended with {type(error).__name__}{place and f' {place}'}; call the "
        "query's stop() to end it."
    )
    return EngineError(msg)
