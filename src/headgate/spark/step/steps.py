"""Runs the steps of a query one after another: intent, tasks, manifest (the commit point), sink.

A `Computation` computes each step. This module repeats failed attempts, because in ``local[N]`` one
failed task fails the job, and an exception from ``foreachBatch`` ends the query.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Generic

from pyspark.sql import DataFrame

from headgate.checkpoint.checkpoint import Checkpoint
from headgate.checkpoint.manifest import DELIVERED, REAL_TIME, Manifest
from headgate.checkpoint.spark_log import FIELD, newest_commit
from headgate.checkpoint.traffic import Traffic
from headgate.core.errors import CheckpointError
from headgate.spark.job.faults import crash_point
from headgate.spark.job.phases import Beside, Phases
from headgate.spark.sinks.ports import Sink
from headgate.spark.step.begun import Begun
from headgate.spark.step.carried import CarriedLog
from headgate.spark.step.commit import delivers
from headgate.spark.step.log_keeper import LogKeeper
from headgate.spark.step.outcome import Outcome
from headgate.spark.step.output import Outputs
from headgate.spark.step.recovery import COLUMNS, check_columns
from headgate.spark.step.work_ports import Computation, R, StepNotes
from headgate.spark.worker.failure import is_final, processor_error


class Steps(Generic[R]):
    """Runs steps; the sink sees each step exactly once.

    `ends`: returns whether the query stops; then a failed attempt is not repeated.

    Attributes
    ----------
    latest : Manifest or None    Manifest of the newest committed step.
    sources : list of str or None    Offsets of the sources at the end of the newest batch.
    read_ms : float    Time at which the newest batch began to be read, since 1970.
    """

    def __init__(
        self,
        computation: Computation[R],
        notes: StepNotes[R],
        checkpoint: Checkpoint,
        latest: Manifest | None,
        sink: Sink,
        ends: Callable[[], bool],
    ) -> None:
        self.computation = computation
        self._notes = notes
        self._checkpoint = checkpoint
        self.latest = latest
        self.sink = sink
        self._ends = ends
        self._carried = CarriedLog(checkpoint) if checkpoint.files.shared else None
        step = -1 if latest is None else latest.step
        self._keeper = None if checkpoint.files.shared else LogKeeper(checkpoint, step)
        self._log_note: dict[str, Any] = {}
        self._has_begun = False
        self._intents, self._garbage = Beside("headgate-intents"), Beside("headgate-garbage")
        self._noted = -1
        self.sources: list[str] | None = None
        self.read_ms = time.time() * 1e3
        self._timestamp_ms = 0
        self._traffic = Traffic()

    def begin_batch(self, batch_id: int) -> None:
        """Take note of a batch that Spark has begun."""
        if self._keeper is not None:
            self._keeper.begun(batch_id)

    def run(
        self,
        batch: DataFrame,
        batch_id: int,
        watermark_us: int,
        *,
        started_ms: float,
        drain: bool = False,
    ) -> None:
        """Compute, commit and deliver a step."""
        begun = self._begun(batch_id, watermark_us, started_ms=started_ms, drain=drain)
        clock = Phases()
        manifest, reports, attempts = self._commit(batch, begun, clock)
        step = begun.number
        emitted = self._deliver(manifest)
        if drain:
            # Spark has no batch for a drain, whose commit would note the delivery
            self._checkpoint.write_intent(step, {"step": step, "delivered": True})
        crash_point("after-sink", step)
        clock.lap("sink")
        outcome = Outcome(
            manifest, reports, clock.phases_ms, attempts, emitted, self._traffic_since()
        )
        self._notes.done(outcome, begun)
        self._collect(manifest)

    def commit_epoch(
        self, batch: DataFrame, batch_id: int, watermark_us: int, clock: Phases
    ) -> Manifest:
        """Compute and commit an epoch of real time as a step; Spark has no batch for it."""
        begun = self._begun(batch_id, watermark_us, started_ms=time.time() * 1e3, drain=True)
        manifest, reports, attempts = self._commit(batch, begun, clock, is_epoch=True)
        emitted = Outputs.read(manifest).rows
        outcome = Outcome(
            manifest, reports, clock.phases_ms, attempts, emitted, self._traffic_since()
        )
        self._notes.done(outcome, begun)
        return manifest

    def _begun(self, batch_id: int, watermark_us: int, *, started_ms: float, drain: bool) -> Begun:
        latest = self.latest
        if latest is not None:
            watermark_us = max(watermark_us, latest.watermarks.get("evict_us", 0))
        # processing time never goes back, even if the clock does
        self._timestamp_ms = max(self._timestamp_ms, int(started_ms))
        return Begun(
            number=0 if latest is None else latest.step + 1,
            spark_batch=batch_id,
            watermark_us=watermark_us,
            sources=self.sources,
            read_ms=self.read_ms,
            started_ms=started_ms,
            timestamp_ms=self._timestamp_ms,
            drain=drain,
            latest=latest,
        )

    def _commit(
        self, batch: DataFrame, begun: Begun, clock: Phases, *, is_epoch: bool = False
    ) -> tuple[Manifest, list[R], int]:
        """Run a step's tasks and write its manifest; return manifest, reports and attempts."""
        step = begun.number
        more = self.computation.prepare(begun)
        intent = {"step": step, "spark_batch": begun.spark_batch, **more}
        if not (is_epoch and self._has_begun):  # Spark's log has no epochs, so one intent is enough
            self._intents.do(lambda: self._begin_on_store(step, intent))
        crash_point("after-intent", step)
        clock.lap("plan")
        reports, attempts = self._attempts(batch, begun, clock)
        clock.lap("slots")
        crash_point("before-manifest", step)
        self._intents.wait()
        manifest = self.computation.manifest(begun, reports)
        engine = {**manifest.engine, COLUMNS: dict(self.computation.columns)}
        manifest = replace(manifest, engine=engine)
        if self._carried is not None:
            manifest = self._carried.into(manifest)
        else:
            manifest = replace(manifest, engine={**manifest.engine, FIELD: self._log_note})
        manifest = self.latest = self._checkpoint.commit(manifest)
        self.computation.committed(step)
        if self._keeper is not None:
            self._keeper.committed(step)
        crash_point("after-manifest", step)
        clock.lap("manifest")
        return manifest, reports, attempts

    def _begin_on_store(self, step: int, intent: dict[str, Any]) -> None:
        """Write the intent, and files of Spark's log, while the slots work; the manifest waits for it."""
        if self._keeper is not None:
            self._log_note = self._keeper.note()
            intent = {**intent, FIELD: self._log_note}
        self._checkpoint.write_intent(step, intent)
        if self._carried is not None:
            self._carried.read_log(intent["spark_batch"])
        self._has_begun = True

    def _attempts(self, batch: DataFrame, begun: Begun, clock: Phases) -> tuple[list[R], int]:
        attempt = 0
        while True:
            attempt += 1
            try:
                return self.computation.compute(batch, begun, attempt, clock), attempt
            except Exception as error:
                failed = processor_error(error)
                if failed is not None:
                    raise failed from None  # a retry would fail again, and the trace adds nothing
                last = attempt >= self.computation.attempts or is_final(error)
                if last or self._ends():
                    raise
                self._notes.retry(begun.number, attempt, error)

    def _traffic_since(self) -> Traffic | None:
        """Return the requests to the checkpoint's store since the last call."""
        now = self._checkpoint.files.traffic()
        if now is None:
            return None
        before, self._traffic = self._traffic, now
        return now.since(before)

    # -- delivery ---------------------------------------------------------------------------------

    def _deliver(self, manifest: Manifest, *, again: bool = False) -> int:
        """Write a committed step's output to the sink; return its rows before the user's filters.

        `again`: the sink may have this and later steps already.
        """
        outputs = Outputs.read(manifest)
        has = getattr(self.sink, "has", None) if again else None
        if delivers(manifest) and not (has is not None and has(manifest.engine["sink_batch"])):
            try:
                self.sink.write(manifest.engine["sink_batch"], self.computation.result(outputs))
            except Exception:
                # if another driver has committed and written meanwhile, that is the cause
                self._checkpoint.refuse_after_another(manifest.step)
                raise
        return outputs.rows

    def deliver_again(self, manifest: Manifest, *, again: bool = False) -> None:
        """Deliver the output of a step of an earlier run, with the same bytes."""
        path, columns = self._checkpoint.location, self.computation.columns
        check_columns(path, manifest, columns, "an output that is not delivered yet")
        self._deliver(manifest, again=again)

    def redeliver_drained(self) -> None:
        """Deliver at the start the outputs of drains and epochs that may not be delivered yet."""
        latest = self.latest
        if latest is None or not drained(latest):
            return
        for manifest in _open_steps(self._checkpoint, latest):
            self.deliver_again(manifest, again=manifest is not latest)

    def note_delivered(self, manifests: Sequence[Manifest]) -> None:
        """Note that the outputs of committed epochs are delivered, and remove files no restart needs."""
        for manifest in manifests:
            crash_point("after-sink", manifest.step)
        step = manifests[-1].step
        self._checkpoint.write_intent(step, {"step": step, "delivered": True})
        for manifest in manifests:
            self._collect(manifest)

    def note_quiet(self) -> None:
        """Note once, in a quiet batch on a store, that Spark has committed the newest step's batch.

        The step's manifest came before that commit, and a quiet source brings no further manifest.
        """
        latest, carried = self.latest, self._carried
        if carried is None or latest is None or latest.step == self._noted or drained(latest):
            return
        self._noted = latest.step
        self._intents.do(lambda: carried.note_delivered(latest))

    def _collect(self, manifest: Manifest) -> None:
        self._garbage.do(lambda: self._checkpoint.collect_garbage(manifest))

    def close(self) -> None:
        """Finish the work beside the steps, after the last step."""
        self._intents.close()
        if self._keeper is not None:
            self._keeper.close()
        if self._carried is not None:
            with contextlib.suppress(CheckpointError):  # then a restart delivers the output again
                self._carried.note_commit(self.latest)
        self._garbage.close()


def delivered_output(checkpoint: Checkpoint, latest: Manifest, log: Path) -> int:
    """Return the sink's number of the newest output that no start delivers again, -1 for none.

    `latest`: the newest manifest. `log`: directory of Spark's log.
    """
    if drained(latest):
        open_ = _open_steps(checkpoint, latest)
    else:
        open_ = [] if newest_commit(log) >= latest.spark_batch else [latest]
    return int(latest.engine["sink_batch"]) - sum(delivers(manifest) for manifest in open_)


def _open_steps(checkpoint: Checkpoint, latest: Manifest) -> list[Manifest]:
    """Return the newest drains or epochs without a note of delivery, in ascending order."""
    first = latest.engine.get(REAL_TIME, {}).get(DELIVERED, latest.step - 1) + 1
    found: list[Manifest] = []
    for step in range(latest.step, first - 1, -1):
        if (checkpoint.read_intent(step) or {}).get("delivered"):
            break  # a note of delivery covers all earlier steps
        found.insert(0, latest if step == latest.step else checkpoint.read(step))
    return found


def drained(manifest: Manifest) -> bool:
    """Return whether a step was a drain or an epoch, not a batch of Spark's; pools write ``rest``."""
    return bool(manifest.engine.get("drain") or manifest.engine.get("rest"))
