"""The steps of a running query, seen from the driver: intent, run, manifest (the commit point), sink.

One machine for all kinds of query; what a step computes is its `Work`: stateful operators (`stateful`) or
pools of replicas (`pools`). `StepMachine.process` is what Spark calls for each micro-batch; it owns the
retries, since in ``local[N]`` a single failed task fails the job and an exception out of ``foreachBatch``
ends the query.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Generic, Protocol, TypeVar

from pyspark.sql import DataFrame, SparkSession

from headgate.checkpoint.checkpoint import Checkpoint
from headgate.checkpoint.manifest import DELIVERED, REAL_TIME, Manifest
from headgate.checkpoint.spark_log import FIELD
from headgate.checkpoint.traffic import Traffic
from headgate.core.errors import AnotherDriver, CheckpointError, EngineError, without_panics
from headgate.core.frames import frames_of, users_place
from headgate.spark.job.faults import crash_point
from headgate.spark.job.phases import Beside, Phases
from headgate.spark.job.ports import Ports
from headgate.spark.jvm.sparklog import SparkLog
from headgate.spark.sinks.sinks import Sink
from headgate.spark.step.batch_thread import BatchThreads, BrokenOff
from headgate.spark.step.begun import Begun
from headgate.spark.step.carried import CarriedLog
from headgate.spark.step.commit import delivers
from headgate.spark.step.intake import Intake
from headgate.spark.step.log_keeper import LogKeeper
from headgate.spark.step.outcome import Outcome
from headgate.spark.step.output import Outputs
from headgate.spark.step.recovery import (
    COLUMNS,
    check_begins,
    check_columns,
    check_continues,
    check_has_state,
    check_same_data,
)
from headgate.spark.worker.failure import is_final, processor_error

_FAR_US = 2**62
"""A time by which all that will ever be due is due, in microseconds."""

_QUIET_S = 0.8
"""How long waiting records are served between two ticks."""


R = TypeVar("R")
"""What the tasks of a kind of work report."""


class Work(Protocol[R]):
    """Does the steps of one kind of query."""

    @property
    def intake(self) -> Intake:
        """Return the source of batches."""

    @property
    def has_steps(self) -> bool:
        """Return whether there is anything to compute; else batches go to the sink as they are."""

    @property
    def columns(self) -> Mapping[str, str]:
        """Columns of rows that wait or are put out, where a start may change them; by operator."""

    @property
    def attempts(self) -> int:
        """Executions of a step before the query fails."""

    @property
    def changing(self) -> bool:
        """Return whether something changes at the next step, so that it must come."""

    @property
    def waits(self) -> bool:
        """Return whether records wait that the next step would serve."""

    def waiting_rows(self) -> int:
        """Return how many rows wait to be served."""

    def settle_in(self, batch: DataFrame) -> None:
        """Take the session that batches come with."""

    def arrived(self) -> None:
        """Take note of a batch, of which it is not yet known whether there is anything to do."""

    def due(self, watermark_us: int, clock_ms: float) -> bool:
        """Return whether there is work without any new record."""

    def quiet(self, watermark_us: int, read_ms: float, clock_ms: float) -> bool:
        """Note a batch with nothing to do; return whether it gets a step nevertheless."""

    def last_watermark_us(self, latest: Manifest, log: SparkLog) -> int:
        """Return the watermark up to which everything is due once the sources have ended."""

    def prepare(self, begun: Begun) -> dict[str, Any]:
        """Put in force what was asked for; return what the step's intent says of it."""

    def compute(self, batch: DataFrame, begun: Begun, attempt: int, clock: Phases) -> list[R]:
        """Run the step's tasks; return one report of each, such that they agree."""

    def manifest(self, begun: Begun, reports: list[R]) -> Manifest:
        """Return the manifest that commits the step, and take over what its tasks did."""

    def committed(self, step: int) -> None:
        """Take note that a step is final."""

    def result(self, outputs: Outputs) -> DataFrame:
        """Return the DataFrame of a step's outputs for the sink."""

    def done(self, outcome: Outcome[R], begun: Begun) -> None:
        """Write down a step that is out, and tell those who watch."""

    def retry(self, step: int, attempt: int, error: Exception) -> None:
        """Write down that an attempt failed and the step runs again."""

    def passed_on(self, batch_id: int, phases_ms: dict[str, float]) -> None:
        """Write down a batch that went to the sink as it is."""


class StepMachine(Generic[R]):
    """Does the steps of one query; each exactly once, as its sink sees it.

    Parameters
    ----------
    spark : SparkSession    The session that the query was started in.
    checkpoint : Checkpoint    Opened.
    latest : Manifest or None    What the checkpoint has.
    held : bool
        Whether due work waits for a batch with new records; waiting records are served in any case.

    Attributes
    ----------
    latest : Manifest or None    Manifest of the newest committed step.
    batches_begun, settled_batch : int
        Batches begun so far, and the last one of them that had nothing to do.
    awaited : int    How many wait for batches.
    stopping, interrupted, idle : Event
        Set where no batch shall be done any more; where the one under way is broken off; while none is.
    threads : BatchThreads    Those that do batches and deliveries.
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
        self.latest = latest
        self.sink = sink
        self._commands = ports.commands
        if latest is None and work.has_steps:
            check_has_state(checkpoint.location, checkpoint.path)
        if latest is not None and work.waits:
            check_columns(checkpoint.location, latest, work.columns, "rows that wait")
        self._carried = CarriedLog(checkpoint) if checkpoint.files.shared else None
        step = -1 if latest is None else latest.step
        self._keeper = None if checkpoint.files.shared else LogKeeper(checkpoint, step)
        self._log_note: dict[str, Any] = {}
        self.log = SparkLog(spark)
        self.stopping, self.interrupted = threading.Event(), threading.Event()
        self.threads = BatchThreads()
        self.idle = self.threads.idle
        self._drains = False
        self._failed: Exception | None = None
        self.batches_begun = 0
        self.settled_batch = 0
        self.awaited = 0
        self._intents, self._garbage = Beside("headgate-intents"), Beside("headgate-garbage")
        self._recovering = latest is not None
        self._noted = -1
        self._followed_us = -_FAR_US
        """The watermark of the last batch that another was to follow at once."""
        self._held = held
        self._sources: list[str] | None = latest.engine["sources"] if held and latest else None
        self._read_ms = time.time() * 1e3
        self._timestamp_ms = 0
        self._traffic = Traffic()

    # -- batches ----------------------------------------------------------------------------------

    def _due(self, watermark_us: int, clock_ms: float) -> bool:
        """Return whether there is work without any new record."""
        return self.work.waits if self._held else self.work.due(watermark_us, clock_ms)

    def process(self, batch: DataFrame, batch_id: int) -> None:
        """Do one micro-batch; Spark's ``foreachBatch`` function."""
        self.batches_begun += 1
        with self._under_way():
            if self._keeper is not None:
                self._keeper.begun(batch_id)
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
        """Commit the step of an epoch, of which Spark knows nothing, as of a drain.

        Who calls delivers its output, and says so to `note_delivered`.

        Parameters
        ----------
        batch_id : int    The number that a batch of Spark's would have.
        sources : list of str    Offsets of the sources at the end of the epoch.
        clock : Phases    Times the epoch's phases.
        read_ms : float    When the first of its records was read, since 1970.
        """
        self.batches_begun += 1
        with self._under_way():
            self._sources, self._read_ms = sources, read_ms
            begun = self._begun(batch_id, watermark_us, started_ms=time.time() * 1e3, drain=True)
            # its records are with the slots already; the stream stands for a batch of them
            manifest, reports, attempts = self._commit(
                self.work.intake.stream, begun, clock, is_epoch=True
            )
            emitted = Outputs.read(manifest).rows
            outcome = Outcome(manifest, reports, clock.phases_ms, attempts, emitted)
            self.work.done(outcome, begun)
        return manifest

    def run_commands(self) -> None:
        """Carry out what control files ask for."""
        self._commands.poll()

    def note_delivered(self, manifests: Sequence[Manifest]) -> None:
        """Note that the outputs of committed epochs are out, and remove what no restart needs."""
        for manifest in manifests:
            crash_point("after-sink", manifest.step)
        step = manifests[-1].step
        self.checkpoint.write_intent(step, {"step": step, "delivered": True})
        for manifest in manifests:
            self._collect(manifest)

    def _collect(self, manifest: Manifest) -> None:
        self._garbage.do(lambda: self.checkpoint.collect_garbage(manifest))

    @contextmanager
    def _under_way(self) -> Iterator[None]:
        """Let others know, while a batch is done, in which thread it is."""
        self.threads.begin()
        try:
            with self.threads.working():
                yield
        except BaseException:
            if not self.is_broken_off:
                raise
            # to Spark, too, it is no failure
            self.log.refuse_batch()
        finally:
            self.threads.end()

    @property
    def is_broken_off(self) -> bool:
        """Return whether the query was stopped within a batch, perhaps by Spark's own handle."""
        try:
            return self.interrupted.is_set() or not (self._drains or self.log.active)
        except Exception:  # the JVM is gone, or no batch has begun
            return False

    @property
    def is_of_this_thread(self) -> bool:
        """Return whether this thread does the batch under way."""
        return self.threads.is_this

    def cancel(self, run: str, *, raising: bool) -> None:
        """Cancel the jobs of a run of Spark's query; if `raising`, raise from its user's code."""
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
            # Spark hands on its text only; of what is no Exception it would never hear
            failed = self.note_failure(error if isinstance(error, Exception) else _left(error))
            if failed is error:
                raise
            raise failed from error

    def note_failure(self, error: Exception) -> Exception:
        """Take note of what makes the query fail; return why that came."""
        self._failed = self._reason(error)
        return self._failed

    def _reason(self, error: Exception) -> Exception:
        """Return why a batch failed: perhaps another driver has gone on, and removed what it needed."""
        if self.latest is not None and not isinstance(error, CheckpointError):
            try:
                self.checkpoint.refuse_after_another(self.latest.step)
            except AnotherDriver as another:
                return another
            except CheckpointError:  # a store that is away, too, says nothing of drivers
                return error
        return error

    def _refuse_while_stopping(self) -> None:
        """Leave a batch that Spark began after `stop` was asked to the next start."""
        self.idle.set()  # this batch has begun nothing, and `stop` waits for that
        self.log.refuse_batch()

    def _process(self, batch: DataFrame, batch_id: int) -> None:
        work = self.work
        work.settle_in(batch)
        arrived_ms = time.time() * 1000
        log = self.log.batch(batch_id)
        watermark_us, sources = log.watermark_us, log.offsets
        self._read_ms = log.begun_ms
        if self.latest is None:
            check_begins(self.checkpoint.location, batch_id)
        elif self._recovering:
            self._recovering = False
            if self._delivered_again(self.latest, batch, batch_id, sources):
                self._sources = sources
                work.intake.go_on_soon()
                return
        quiet = sources == self._sources
        self._sources = sources
        work.arrived()
        if quiet and not self._due(watermark_us, arrived_ms) and not work.changing:
            wanted = work.quiet(watermark_us, self._read_ms, arrived_ms)
            self.settled_batch = self.batches_begun
            if not wanted:
                self._note_delivered()
                return
        if quiet and self._held and self.latest is not None:
            watermark_us = self.latest.watermarks.get("evict_us", 0)
        self._step(batch, batch_id, watermark_us, started_ms=arrived_ms)
        if quiet:
            self._serve_backlog(batch_id, watermark_us)
        # a batch without input follows itself only if it has brought the watermark on: what is due and
        # stays so, as behind another operator's watermark, waits for ticks, as a clock and a backlog do
        follows = not quiet or watermark_us > self._followed_us
        if follows and self._due(_FAR_US, 0) and not (work.waits or self.stopping.is_set()):
            # by the watermark after this batch, as Spark's batches without data
            self._followed_us = watermark_us
            work.intake.go_on_soon()

    @property
    def settled(self) -> bool:
        """Return whether the last batch had nothing to do, and nobody and no clock needs another."""
        quiet = self.idle.is_set() and self.settled_batch == self.batches_begun
        return quiet and not self.awaited and not self._due(-_FAR_US, _FAR_US / 1e3)

    def _delivered_again(
        self, latest: Manifest, batch: DataFrame, batch_id: int, sources: list[str]
    ) -> bool:
        """After a restart: deliver what was committed, its output perhaps not; the same bytes."""
        path = self.checkpoint.location
        if latest.spark_batch != batch_id:
            check_continues(path, latest, batch_id, self.log)
            return False
        check_same_data(path, latest, batch_id, sources)
        self._deliver_again(latest)
        self.work.intake.look_through(batch)
        return True

    def _note_delivered(self) -> None:
        """Note once that the newest step is out: this batch begins behind Spark's commit of it.

        Its manifest was there before, and while the source is quiet no other follows that would say so.
        """
        latest, carried = self.latest, self._carried
        if carried is None or latest is None or latest.step == self._noted or drained(latest):
            return
        self._noted = latest.step
        self._intents.do(lambda: carried.note_delivered(latest))

    def _serve_backlog(self, batch_id: int, watermark_us: int) -> None:
        """Serve waiting records while the source is quiet: the next batch only comes with a tick."""
        until = time.monotonic() + _QUIET_S
        while time.monotonic() < until and not self.stopping.is_set():
            if not self.work.changing and not self.work.waits:
                return
            nothing = self.work.intake.nothing()
            self._step(nothing, batch_id, watermark_us, started_ms=time.time() * 1e3)

    def drain(self, run: str) -> None:
        """After the last batch: serve the backlog and emit what its watermark allows.

        Spark runs one more batch for its own stateful operators when a query with
        ``trigger(availableNow=True)`` ends; to Spark this query is stateless.

        `run`: of Spark's query: its jobs are called so.
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
            self._step(work.intake.nothing(), batch_id, watermark_us, started_ms=now_ms, drain=True)

    @property
    def failed(self) -> Exception | None:
        """Return the error that made the query fail: the last batch's, or another driver's going on.

        Two queries on one log of Spark's also fail in Spark itself, which knows nothing of drivers.
        """
        if self._failed is None and self.latest is not None:
            try:
                self.checkpoint.refuse_after_another(self.latest.step)
            except CheckpointError as error:
                return error
        return self._failed

    def give_up(self) -> None:
        """Do no batch any more, and wait for one that is under way."""
        self.stopping.set()
        self.idle.wait()

    def close(self) -> None:
        """Finish what goes on beside the batches; there will be none any more."""
        self.work.intake.close()
        self._intents.close()
        if self._keeper is not None:
            self._keeper.close()
        if self._carried is not None:
            with contextlib.suppress(CheckpointError):  # then the last output is delivered again
                self._carried.note_commit(self.latest)
        self._garbage.close()

    def redeliver_drained(self) -> None:
        """At the start: deliver what drains and epochs had committed, and no sink has got."""
        latest = self.latest
        if latest is None or not drained(latest):
            return
        first = latest.engine.get(REAL_TIME, {}).get(DELIVERED, latest.step - 1) + 1
        open_: list[Manifest] = []
        for step in range(latest.step, first - 1, -1):
            if (self.checkpoint.read_intent(step) or {}).get("delivered"):
                break  # and all before it
            open_.insert(0, latest if step == latest.step else self.checkpoint.read(step))
        for manifest in open_:
            self._deliver_again(manifest, again=manifest is not latest)

    def _deliver_again(self, latest: Manifest, *, again: bool = False) -> None:
        path, columns = self.checkpoint.location, self.work.columns
        check_columns(path, latest, columns, "an output that is not delivered yet")
        self._deliver(latest, again=again)

    # -- a step -----------------------------------------------------------------------------------

    def _step(
        self,
        batch: DataFrame,
        batch_id: int,
        watermark_us: int,
        *,
        started_ms: float,
        drain: bool = False,
    ) -> None:
        begun = self._begun(batch_id, watermark_us, started_ms=started_ms, drain=drain)
        clock = Phases()
        manifest, reports, attempts = self._commit(batch, begun, clock)
        step = begun.number
        emitted = self._deliver(manifest)
        if drain:
            # Spark has no batch of its own for a drain whose commit would say so
            self.checkpoint.write_intent(step, {"step": step, "delivered": True})
        crash_point("after-sink", step)
        clock.lap("sink")
        outcome = Outcome(
            manifest, reports, clock.phases_ms, attempts, emitted, self._traffic_since()
        )
        self.work.done(outcome, begun)
        self._collect(manifest)

    def _commit(
        self, batch: DataFrame, begun: Begun, clock: Phases, *, is_epoch: bool = False
    ) -> tuple[Manifest, list[R], int]:
        """Run a step's tasks and write its manifest; return that, the reports and the attempts."""
        step = begun.number
        more = self.work.prepare(begun)
        intent = {"step": step, "spark_batch": begun.spark_batch, **more}
        if not (is_epoch and self._log_note):  # of epochs Spark's log knows nothing: a note will do
            self._intents.do(lambda: self._begin_on_store(step, intent))
        crash_point("after-intent", step)
        clock.lap("plan")
        reports, attempts = self._attempts(batch, begun, clock)
        clock.lap("slots")
        crash_point("before-manifest", step)
        self._intents.wait()
        manifest = self.work.manifest(begun, reports)
        engine = {**manifest.engine, COLUMNS: dict(self.work.columns)}
        manifest = replace(manifest, engine=engine)
        if self._carried is not None:
            manifest = self._carried.into(manifest)
        else:
            manifest = replace(manifest, engine={**manifest.engine, FIELD: self._log_note})
        manifest = self.latest = self.checkpoint.commit(manifest)
        self.work.committed(step)
        if self._keeper is not None:
            self._keeper.committed(step)
        crash_point("after-manifest", step)
        clock.lap("manifest")
        return manifest, reports, attempts

    def _traffic_since(self) -> Traffic | None:
        """Return the requests to the checkpoint's store since the last call."""
        now = self.checkpoint.files.traffic()
        if now is None:
            return None
        before, self._traffic = self._traffic, now
        return now.since(before)

    def _begin_on_store(self, step: int, intent: dict[str, Any]) -> None:
        """Write, while the slots work, what must be there before the manifest is."""
        if self._keeper is not None:
            self._log_note = self._keeper.note()
            intent = {**intent, FIELD: self._log_note}
        self.checkpoint.write_intent(step, intent)
        if self._carried is not None:
            self._carried.read_log(intent["spark_batch"])

    def _begun(self, batch_id: int, watermark_us: int, *, started_ms: float, drain: bool) -> Begun:
        latest = self.latest
        if latest is not None:
            watermark_us = max(watermark_us, latest.watermarks.get("evict_us", 0))
        # a clock that is put back does not put timers back
        self._timestamp_ms = max(self._timestamp_ms, int(started_ms))
        return Begun(
            number=0 if latest is None else latest.step + 1,
            spark_batch=batch_id,
            watermark_us=watermark_us,
            sources=self._sources,
            read_ms=self._read_ms,
            started_ms=started_ms,
            timestamp_ms=self._timestamp_ms,
            drain=drain,
            latest=latest,
        )

    def _attempts(self, batch: DataFrame, begun: Begun, clock: Phases) -> tuple[list[R], int]:
        attempt = 0
        while True:
            attempt += 1
            try:
                return self.work.compute(batch, begun, attempt, clock), attempt
            except Exception as error:
                failed = processor_error(error)
                if failed is not None:
                    raise failed from None  # it would fail again, and its trace says no more
                last = attempt >= self.work.attempts or is_final(error)
                if last or self.stopping.is_set() or self.is_broken_off:
                    raise
                self.work.retry(begun.number, attempt, error)

    def _deliver(self, manifest: Manifest, *, again: bool = False) -> int:
        """Give a committed step's output to the sink; return its rows before the user's filters.

        `again` where the sink may have later steps already.
        """
        outputs = Outputs.read(manifest)
        has = getattr(self.sink, "has", None) if again else None
        if delivers(manifest) and not (has is not None and has(manifest.engine["sink_batch"])):
            try:
                self.sink.write(manifest.engine["sink_batch"], self.work.result(outputs))
            except Exception:
                # perhaps another driver has gone on meanwhile and written there: then that is why
                self.checkpoint.refuse_after_another(manifest.step)
                raise
        return outputs.rows

    def _pass_on(self, batch: DataFrame, batch_id: int) -> None:
        clock = Phases()
        self.sink.write(batch_id, batch)
        clock.lap("sink")
        self.work.passed_on(batch_id, clock.phases_ms)


def _left(error: BaseException) -> EngineError:
    """Return the error for a query's function that ended with ``sys.exit`` or the like."""
    place = users_place(frames_of(error.__traceback__))
    msg = (
        f"the query's own function ended with {type(error).__name__}{place and f' {place}'}; call the "
        "query's stop() to end it."
    )
    return EngineError(msg)


def drained(manifest: Manifest) -> bool:
    """Return whether a step was none of Spark's batches, as an epoch; pools have a word of their own."""
    return bool(manifest.engine.get("drain") or manifest.engine.get("rest"))
