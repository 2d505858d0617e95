"""Starts a query in real time, and the handle of one that runs."""

from __future__ import annotations

import datetime
import json
import time
from dataclasses import dataclass
from typing import Any, cast

from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import StreamingQueryProgress
from pyspark.sql.streaming.query import StreamingQuery

from headgate.checkpoint.epochs import next_watermark_us, write_identity
from headgate.checkpoint.spark_log import newest_batch
from headgate.core.errors import ConfigError, HeadgateError, UnsupportedQuery
from headgate.spark.api.query import Query
from headgate.spark.job.reports import Report
from headgate.spark.read.plan import PlannedQuery
from headgate.spark.realtime.epochs import Epochs
from headgate.spark.realtime.feed import SourceFeed, feed_of
from headgate.spark.realtime.plan import PipePlan
from headgate.spark.realtime.work import RealTimeWork
from headgate.spark.settings import options as own
from headgate.spark.settings.query_settings import QuerySettings
from headgate.spark.sinks.kafka_sink import KafkaSink
from headgate.spark.sinks.sinks import Sink
from headgate.spark.step.machine import StepMachine
from headgate.spark.step.stateful import StatefulWork

_FORMATS = ("memory", "console", "noop", "kafka")
_POLL_S = 0.01
_LEAVE_OUT = "leave out trigger(realTime=...)"


@dataclass(frozen=True)
class RealTimeFlow:
    """A query that can run in real time.

    Attributes
    ----------
    plan : PipePlan
    feed : SourceFeed
    """

    plan: PipePlan
    feed: SourceFeed

    def begin_sink(self, sink: Sink, settings: QuerySettings) -> None:
        """Have a sink write in real time, before it begins."""
        if isinstance(sink, KafkaSink):
            sink.hurry()
            if own.RELEASE.of(settings.options) == own.EARLY:
                sink.write_early()

    def begin(
        self, machine: StepMachine[Report], work: StatefulWork, settings: QuerySettings
    ) -> StreamingQuery:
        """Start the loop of a query's epochs, behind its newest manifest; it stands for Spark's query."""
        assert isinstance(work, RealTimeWork)
        log, latest = machine.checkpoint.path, machine.latest
        write_identity(log)
        work.begin(self.plan, self.feed, next_watermark_us(log, latest))
        work.write_to(machine.sink)
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
        return cast(StreamingQuery, epochs)


def flow_of(spark: SparkSession, settings: QuerySettings, query: PlannedQuery) -> RealTimeFlow:
    """Return a query as it runs in real time.

    Raises
    ------
    UnsupportedQuery
        A part of it cannot run so.
    ConfigError
        The session is of several hosts, or has too few cores.
    """
    flow = flow_below(spark, query, settings.key_groups)
    master, cores = str(spark.sparkContext.master), int(spark.sparkContext.defaultParallelism)
    if not master.startswith("local[") or cores <= flow.feed.readers:
        msg = (
            f"master {master} cannot run a query in real time, which runs on one host and needs a core "
            f'more than the pipe; use master "local[{flow.feed.readers + 1}]" or more, or {_LEAVE_OUT}.'
        )
        raise ConfigError(msg)
    return flow


def flow_below(spark: SparkSession, query: PlannedQuery, key_groups: int = 128) -> RealTimeFlow:
    """Return what feeds the only operator of a query, if all of that can run in real time.

    Raises
    ------
    UnsupportedQuery
    """
    if len(query.operators) != 1 or query.operators[0].aggregate is None:
        what = " and ".join(op.what for op in query.operators) or "nothing that keeps state"
        msg = (
            f"a query with {what} cannot run in real time, which runs one aggregate; {_LEAVE_OUT}."
        )
        raise UnsupportedQuery(msg)
    plan = PipePlan.of(spark, query.operators[0], key_groups)
    return RealTimeFlow(plan, feed_of(plan.leaf))


def check_settings(settings: QuerySettings) -> None:
    """Refuse settings that have no meaning in real time.

    Raises
    ------
    UnsupportedQuery, ConfigError
    """
    if not own.REAL_TIME.of(settings.options):
        msg = (
            "trigger(realTime=...) is experimental; try it with "
            f'.option("{own.REAL_TIME.key}", "true"), or use processingTime.'
        )
        raise ConfigError(msg)
    name = (settings.format or "").lower()
    sink = settings.table or (None if settings.function else settings.format or "parquet")
    refused = {
        'output mode "complete"': settings.mode == "complete",
        "foreach": settings.row_function is not None,
        f'a result to "{sink}"': settings.function is None and name not in _FORMATS,
        ".policy() of replicas": settings.replica_policy is not None,
        ".migration()": bool(settings.migration),
        own.SLOT_RATE.key: own.SLOT_RATE.of(settings.options) is not None,
        own.MEMORY_MAX.key: own.MEMORY_MAX.of(settings.options) is not None,
        f'{own.DELIVERY.key}="{own.AT_LEAST_ONCE}"': name == "kafka"
        and own.DELIVERY.of(settings.options) == own.AT_LEAST_ONCE,
    }
    for what, is_asked in refused.items():
        if is_asked:
            msg = f"{what} is not supported in real time yet; leave that out, or {_LEAVE_OUT}."
            raise UnsupportedQuery(msg)


class RealTimeQuery(Query):
    """A query whose steps are epochs; Spark's ``spark.streams`` and listeners do not know it."""

    @property
    def _epochs(self) -> Epochs:
        return cast(Epochs, self._inner)

    def _show_progress(self) -> None:
        """Do nothing: Spark makes no progress of it."""

    @property
    def processes(self) -> dict[str, int]:
        """Process ids on this host, as ``feeder 0``, ``slot 0``."""
        return self._epochs.processes

    def _await_settled(self, timeout_s: float | None) -> None:
        """Wait until all that the source has now is out, and what is due by it."""
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
        """The newest second of epochs, in the form of Spark's progress; ours under ``headgate``."""
        latest, last = self._machine.latest, self._work.recorder.last
        if latest is None or last is None:
            return None
        figures = self._recorder.progress
        own_figures = figures.own(last.spark_batch)
        seconds = max(own_figures.get("duration_ms", 0.0) / 1e3, 1e-3)
        arrived = int(own_figures.get("arrived", 0))
        now = datetime.datetime.now(datetime.UTC)
        at = datetime.datetime.fromtimestamp(latest.watermarks["evict_us"] / 1e6, datetime.UTC)
        source = {
            "description": type(self._epochs.feed).__name__,
            "startOffset": None,
            "endOffset": json.loads(latest.engine["sources"][0]),
            "latestOffset": None,
            "numInputRows": arrived,
            "inputRowsPerSecond": arrived / seconds,
            "processedRowsPerSecond": arrived / seconds,
        }
        found: dict[str, Any] = {
            "id": self.id,
            "runId": self.runId,
            "name": self.name,
            "timestamp": now.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "batchId": last.spark_batch,
            "batchDuration": int(seconds * 1e3),
            "durationMs": {"triggerExecution": int(seconds * 1e3)},
            "eventTime": {
                "watermark": at.isoformat(timespec="milliseconds").replace("+00:00", "Z")
            },
            "stateOperators": [],
            # the last source is taken for the tick
            "sources": [source, source],
            "sink": {"description": figures.sink, "numOutputRows": -1},
        }
        made = StreamingQueryProgress.fromJson(figures.filled(found))
        made["headgate"] = own_figures
        return made

    @property
    def recentProgress(self) -> list[StreamingQueryProgress]:
        """The newest second alone."""
        last = self.lastProgress
        return [] if last is None else [last]
