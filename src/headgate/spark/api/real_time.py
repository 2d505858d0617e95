"""Starts a query in real time, and implements the handle of such a query."""

from __future__ import annotations

import json
import logging
import time
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, cast

from pyspark.sql import SparkSession
from pyspark.sql import types as T
from pyspark.sql.streaming.listener import StreamingQueryProgress
from pyspark.sql.streaming.query import StreamingQuery

from headgate.checkpoint.epochs import next_watermark_us, write_identity
from headgate.checkpoint.spark_log import newest_batch
from headgate.core.errors import ConfigError, HeadgateError, UnsupportedQuery
from headgate.spark.api.query import Query
from headgate.spark.job.reports import Report
from headgate.spark.jvm.arrow import from_arrow_schema
from headgate.spark.jvm.executors import ExecutorPool
from headgate.spark.jvm.minors import adapter
from headgate.spark.jvm.plans import template
from headgate.spark.jvm.query_events import QueryEvents, timestamp
from headgate.spark.jvm.sessions import PIPELINED, pipelines_python
from headgate.spark.read.plan import PlannedQuery
from headgate.spark.realtime.epoch_lines import EpochRecorder
from headgate.spark.realtime.epochs import Epochs
from headgate.spark.realtime.feed import Feeds
from headgate.spark.realtime.markers import MARKERS
from headgate.spark.realtime.plan import PipePlan
from headgate.spark.realtime.source_feeds import feed_of
from headgate.spark.realtime.work import RealTimeWork
from headgate.spark.settings import options as own
from headgate.spark.settings.query_settings import QuerySettings
from headgate.spark.sinks.kafka_sink import KafkaSink
from headgate.spark.sinks.own_sink import OwnSink
from headgate.spark.sinks.ports import Sink
from headgate.spark.sinks.sinks import WRITES_ANY_NUMBER, FunctionSink
from headgate.spark.step.machine import StepMachine
from headgate.spark.step.stateful import StatefulWork

_POLL_S = 0.01
_log = logging.getLogger("headgate.query")

_LEAVE_OUT = 'leave out trigger(realTime=...), or add .fallback("micro-batch")'


class TooFewCores(ConfigError):
    """Reports a session that has too few cores for the tasks of a query in real time."""


@dataclass(frozen=True)
class RealTimeFlow:
    """Describes and begins a query that can run in real time."""

    plan: PipePlan
    feeds: Feeds

    def begin_sink(self, sink: Sink, settings: QuerySettings) -> None:
        """Set up a sink for real time; called before the sink's `begin`.

        Raises `ConfigError`: the sink would lose outputs that are released early.
        """
        if isinstance(sink, KafkaSink):
            sink.send_early()
        if own.RELEASE.of(settings.options) != own.EARLY:
            return
        if isinstance(sink, KafkaSink | OwnSink | FunctionSink):
            sink.write_early()
        elif not isinstance(sink, WRITES_ANY_NUMBER):
            # after a loss an epoch runs again under the same number with other records
            msg = (
                f'.release("{own.EARLY}") loses rows in {sink.description}, which skips an output '
                "whose number it has; leave it out, or write to Kafka or by foreachBatch."
            )
            raise ConfigError(msg)

    def prepare_slots(self, work: StatefulWork, undo: ExitStack) -> bool:
        """Prepare slots outside of Spark's workers; return whether this began. `undo` ends the slots."""
        assert isinstance(work, RealTimeWork)
        if not work.prepare_slots():
            return False
        undo.callback(work.close)
        return True

    def begin(
        self, machine: StepMachine[Report], work: StatefulWork, settings: QuerySettings
    ) -> StreamingQuery:
        """Start the loop of epochs after the newest manifest; its handle replaces Spark's query."""
        assert isinstance(work, RealTimeWork)
        log, latest = machine.checkpoint.path, machine.latest
        if latest is not None:
            self.feeds.check(json.dumps(latest.engine["sources"]))
        write_identity(log)
        try:
            work.begin(self.plan, self.feeds, next_watermark_us(log, latest))
            work.write_to(machine.steps.sink)
            done = -1 if latest is None else latest.spark_batch
            epochs = Epochs(
                machine,
                work,
                interval_s=own.EPOCH.of(settings.options),
                name=settings.name,
                first_batch=max(done, newest_batch(log)) + 1,
                early=own.RELEASE.of(settings.options) == own.EARLY,
            )
            epochs.start()
        except BaseException:
            work.close()
            raise
        return cast(StreamingQuery, epochs)


def flow_of(spark: SparkSession, settings: QuerySettings, query: PlannedQuery) -> RealTimeFlow:
    """Return the parts of a query that run it in real time.

    Raises
    ------
    UnsupportedQuery
        A part of the query cannot run in real time.
    TooFewCores
        The session has less than one core for each task of the pipe and one more.
    """
    flow = flow_below(spark, query, settings.key_groups)
    master, needed = str(spark.sparkContext.master), flow.feeds.tasks + 1
    pool = ExecutorPool(spark)
    if pool.local and (not pool.in_driver or pool.cores < needed):
        msg = (
            f"master {master} cannot run this query in real time, which needs a core for each of the "
            f'{needed - 1} tasks of its pipe and one more; use master "local[{needed}]" or more, or a '
            f"cluster, or {_LEAVE_OUT}."
        )
        raise TooFewCores(msg)
    if not pool.local and pool.cores < needed:
        msg = (
            f"the {pool.cores} cores of the cluster's executors cannot run this query in real time, "
            f"which needs a core for each of the {needed - 1} tasks of its pipe and one more; give it "
            f"{needed}, or {_LEAVE_OUT}."
        )
        raise TooFewCores(msg)
    return flow


def flow_below(spark: SparkSession, query: PlannedQuery, key_groups: int = 128) -> RealTimeFlow:
    """Return the plan and the feeds below the first operators of a query; checks no cores.

    Raises `UnsupportedQuery`: a part of this cannot run in real time.
    """
    plan = PipePlan.of(spark, [chain[0] for chain in query.sources], key_groups)
    has_functions = any(branch.stages for branch in plan.branches)
    if has_functions and not adapter().pipelines_python:
        msg = (
            "a Python function before the first stateful operator cannot run in real time before Spark "
            f"4.3; use that, or {_LEAVE_OUT}."
        )
        raise UnsupportedQuery(msg)
    if has_functions and not (ExecutorPool(spark).in_driver or pipelines_python(spark)):
        msg = (
            "a Python function before the first stateful operator runs in real time on a cluster only if "
            f"the application was started with {PIPELINED}=true, as hg.session() starts it; set that, or "
            f"{_LEAVE_OUT}."
        )
        raise UnsupportedQuery(msg)
    leaves = [branch.leaf for branch in plan.branches]
    feeds = tuple(feed_of(leaf) for leaf in leaves)
    same_as = tuple(
        next(n for n, other in enumerate(leaves) if other is leaf or other.equals(leaf))
        for leaf in leaves
    )
    for branch, feed in zip(plan.branches, feeds, strict=True):
        # raises UnsupportedQuery for a plan that marker rows cannot pass
        branch.over(template(spark, T.StructType([*from_arrow_schema(feed.schema), *MARKERS])))
    return RealTimeFlow(plan, Feeds(feeds, same_as))


def check_settings(settings: QuerySettings) -> None:
    """Refuse settings that have no meaning in real time.

    Raises `UnsupportedQuery`.
    """
    name = (settings.format or "").lower()
    refused = {
        'output mode "complete"': settings.mode == "complete",
        ".policy() of replicas": settings.replica_policy is not None,
        own.MEMORY_MAX.key: own.MEMORY_MAX.of(settings.options) is not None,
        f'{own.DELIVERY.key}="{own.AT_LEAST_ONCE}"': name == "kafka"
        and own.DELIVERY.of(settings.options) == own.AT_LEAST_ONCE,
    }
    for what, is_asked in refused.items():
        if is_asked:
            remedy = "use update or append" if settings.mode == "complete" else "leave that out"
            msg = f"{what} is not supported in real time yet; {remedy}, or {_LEAVE_OUT}."
            raise UnsupportedQuery(msg)


class RealTimeQuery(Query):
    """Handles a query whose steps are epochs; ``spark.streams`` does not list it."""

    @property
    def _epochs(self) -> Epochs:
        return cast(Epochs, self._inner)

    def __init__(self, inner: StreamingQuery, machine: StepMachine[Report], *more: Any, **of: Any):
        # Spark's listeners and UI get the start before the query can end
        self._events = QueryEvents(machine.spark, inner.id, inner.runId, inner.name)
        super().__init__(inner, machine, *more, **of)

    def _show_progress(self) -> None:
        """Report progress to Spark's listeners and UI after each second's line of the journal."""
        assert isinstance(self._recorder, EpochRecorder)
        self._recorder.after_line = self._tell_progress

    def _tell_progress(self) -> None:
        """Report the newest second; an error of a listener must not end the query."""
        try:
            progress = self._newest_second()
            if progress is not None:
                self._events.progress(progress)
        except Exception:
            _log.exception("no progress of %s for Spark's listeners", self.name or self.id)

    def _close(self, failure: Exception | None) -> None:
        try:
            super()._close(failure)
        finally:
            self._events.ended(failure)

    @property
    def processes(self) -> dict[str, int]:
        """Process ids on their hosts, by names such as ``feeder 0``, ``slot 0``."""
        return self._epochs.processes

    def _await_settled(self, timeout_s: float | None) -> None:
        """Wait until the results of all records that the sources have now are out."""
        wanted = self._epochs.newest()
        until_s = None if timeout_s is None else time.monotonic() + timeout_s
        while not self._epochs.settled(wanted):
            if self._end.wait(_POLL_S):
                return
            if until_s is not None and time.monotonic() > until_s:
                msg = f"not drained after {timeout_s:g} s; raise timeout_s."
                raise HeadgateError(msg)

    @property
    def lastProgress(self) -> StreamingQueryProgress | None:
        """The newest second of epochs, as Spark's progress; headgate's figures under ``headgate``."""
        progress = self._newest_second()
        if progress is None:
            return None
        made = StreamingQueryProgress.fromJson(progress)
        made["headgate"] = self._recorder.progress.own(progress["batchId"])
        return made

    def _newest_second(self) -> dict[str, Any] | None:
        latest, last = self._machine.latest, self._work.recorder.last
        if latest is None or last is None:
            return None
        figures = self._recorder.progress
        own_figures = figures.own(last.spark_batch)
        seconds = max(own_figures.get("duration_ms", 0.0) / 1e3, 1e-3)
        arrived = int(own_figures.get("arrived", 0))
        offsets = latest.engine["sources"]
        sources = [
            {
                "description": type(feed).__name__,
                "startOffset": None,
                "endOffset": json.loads(end),
                "latestOffset": None,
                # the rows of all sources, counted at the first source
                "numInputRows": rows,
                "inputRowsPerSecond": rows / seconds,
                "processedRowsPerSecond": rows / seconds,
            }
            for feed, end, rows in zip(
                self._epochs.feeds.feeds, offsets, [arrived] + [0] * len(offsets), strict=False
            )
        ]
        found: dict[str, Any] = {
            "id": self.id,
            "runId": self.runId,
            "name": self.name,
            "timestamp": timestamp(time.time() * 1e6),
            "batchId": last.spark_batch,
            "batchDuration": int(seconds * 1e3),
            "durationMs": {"triggerExecution": int(seconds * 1e3)},
            "eventTime": {"watermark": timestamp(latest.watermarks["evict_us"])},
            "stateOperators": [],
            # `filled` takes the last source for the tick and drops it
            "sources": [*sources, sources[0]],
            "sink": {"description": figures.sink, "numOutputRows": -1},
        }
        return figures.filled(found)

    @property
    def recentProgress(self) -> list[StreamingQueryProgress]:
        """Only the newest second."""
        last = self.lastProgress
        return [] if last is None else [last]
