"""The steps of a query in real time: what its slots do in an epoch, and what commits it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame

from headgate.checkpoint.manifest import DELIVERED, NEXT_WATERMARK_US, REAL_TIME, Manifest
from headgate.spark.job.phases import Phases
from headgate.spark.job.reports import Report
from headgate.spark.jvm.narrow import NarrowPlan
from headgate.spark.jvm.plans import physical
from headgate.spark.realtime.feed import SourceFeed
from headgate.spark.realtime.job import SparkJob
from headgate.spark.realtime.pipe import Pipe
from headgate.spark.realtime.plan import PipePlan
from headgate.spark.realtime.recording import EpochRecorder
from headgate.spark.sinks.kafka_sink import KafkaSink
from headgate.spark.sinks.sinks import Sink
from headgate.spark.step.begun import Begun
from headgate.spark.step.commit import delivers
from headgate.spark.step.output import Outputs
from headgate.spark.step.stateful import StatefulWork


class RealTimeWork(StatefulWork):
    """Does the steps of epochs; a `Work`.

    Attributes
    ----------
    feed : SourceFeed
    pipe : Pipe
    next_us : int
        The watermark of the next epoch.
    delivered : int
        The newest step whose output is out, and all before it.
    before_commit : callable
        Called with a manifest that will be committed.
    """

    has_batches = False

    feed: SourceFeed
    pipe: Pipe
    next_us: int
    delivered: int
    before_commit: Callable[[Manifest], None]

    def begin(self, plan: PipePlan, feed: SourceFeed, next_us: int) -> None:
        """Make the pipe, which nothing flows through yet.

        Parameters
        ----------
        plan : PipePlan
        feed : SourceFeed
        next_us : int
            The watermark to begin with.
        """
        (operator,) = self.query.operators
        self.feed = feed
        assert isinstance(self.recorder, EpochRecorder)
        self._lines = self.recorder
        self._delay_ms = plan.delay_ms
        task = replace(self._tasks[operator.id], sender=None)
        job = SparkJob(self.spark, plan, feed, self.config.name)
        self.pipe = Pipe(job, feed, task, self.config.name)
        self.next_us = next_us
        self.delivered = -1 if self.job.latest is None else self.job.latest.step

    @property
    def attempts(self) -> int:
        """One: records that were under way must be read again, which the loop of epochs does."""
        return 1

    @property
    def allowed_failures(self) -> int:
        """Executions of an epoch before the query fails."""
        return self.config.attempts

    def write_to(self, sink: Sink) -> None:
        """Take the sink, and make the plan of its rows; to be called before the first delivery."""
        self._sink = sink
        self.before_commit = lambda _: None
        self._narrow: NarrowPlan | None = None
        if isinstance(sink, KafkaSink):
            self._narrow = self._results.narrow(sink.in_columns)

    @property
    def delivers_together(self) -> bool:
        """Return whether the outputs of several epochs go out as one."""
        return self._narrow is not None

    def deliver(self, manifests: Sequence[Manifest]) -> None:
        """Give the outputs of epochs to the sink, in their order, and together where it takes them so."""
        open_ = [manifest for manifest in manifests if delivers(manifest)]
        sink, narrow = self._sink, self._narrow
        if narrow is None or not isinstance(sink, KafkaSink):
            for manifest in open_:
                sink.write(manifest.engine["sink_batch"], self.result(Outputs.read(manifest)))
                self.recorder.progress.observe(manifest.spark_batch, self._results.observed())
            return
        found = [Outputs.read(manifest).table(self.checkpoint) for manifest in open_]
        tables = [table for table in found if table is not None]
        if tables:
            rows = narrow.rows(pa.concat_tables(tables))
            sink.write_table(open_[-1].engine["sink_batch"], rows)

    def record(self, took_ms: Callable[[], float]) -> None:
        """Begin to sum epochs for the journal; `took_ms` says how long deliveries took."""
        self._lines.follow(self.states, took_ms)

    def look(self, *, quiet: bool) -> None:
        """Write the journal's line where it is time for it; `quiet` where no record waits."""
        self._lines.look()
        if quiet:
            self._observer.quiet(time.time() * 1e3)

    def rehearse(self) -> None:
        """Plan an empty result, and run it not."""
        physical(self._results.stored(Outputs(), self.checkpoint))

    def _take_wanted(self, step: int) -> None:
        """Leave assignments as they are: the records of the epoch are routed already."""

    @property
    def wanted_slots(self) -> int:
        """Return the number of slots that there shall be."""
        (name,) = self.states
        return self.changes.newest(name).slots

    def change(self, step: int) -> None:
        """Put assignments in force that were asked for, while no record is under way."""
        self._lines.flush()
        super()._take_wanted(step)

    def compute(self, batch: DataFrame, begun: Begun, attempt: int, clock: Phases) -> list[Report]:
        """Have the slots serve an epoch; return one report of each."""
        del batch
        (operator,) = self.query.operators
        facts = self._facts(operator, begun, attempt, begun.watermark_us)
        clock.lap("plan")
        reports = self.pipe.serve(facts)
        clock.lap("slots")
        newest_us = self.pipe.newest_us
        if newest_us is not None and self._delay_ms is not None:
            # in milliseconds, as Spark has it
            self.next_us = max(self.next_us, (newest_us // 1000 - self._delay_ms) * 1000)
        return reports

    def result(self, outputs: Outputs) -> DataFrame:
        """Return what the user's plan makes of what slots put out, which is little."""
        return self._results.at_hand(outputs, self.checkpoint)

    def manifest(self, begun: Begun, reports: list[Report]) -> Manifest:
        """Return the manifest that commits the epoch, and take over what its slots did."""
        made = super().manifest(begun, reports)
        facts: dict[str, Any] = {NEXT_WATERMARK_US: self.next_us, DELIVERED: self.delivered}
        made = replace(made, engine={**made.engine, REAL_TIME: facts})
        self.before_commit(made)
        return made
