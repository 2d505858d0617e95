"""Adds headgate's metrics to Spark's `StreamingQueryProgress`.

Spark sees a stateless query with an additional source, the tick, and a ``foreachBatch`` sink. The driver
knows the figures of a batch's slots before Spark makes the batch's progress;
`headgate.spark.jvm.completing` adds the figures to it.
"""

from __future__ import annotations

import dataclasses
import json
import threading
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import StreamingQueryProgress

from headgate.journal.schema import Batch
from headgate.spark.sinks.ports import Sink

_OBSERVED_KEPT = 100
"""Batches whose observed metrics are kept for a late listener. Chosen, not tuned."""
_KEPT = "spark.sql.streaming.numRecentProgressUpdates"
_TOTALS = ("numInputRows", "inputRowsPerSecond", "processedRowsPerSecond")
_OF_BATCH = (
    "numRowsUpdated",
    "allUpdatesTimeMs",
    "numRowsRemoved",
    "allRemovalsTimeMs",
    "commitTimeMs",
    "numRowsDroppedByWatermark",
)
"""Metrics of a stateful operator that count one batch; the others describe its current state."""

_NOTHING_DONE = Batch(-1, -1, 0, 0, 0.0, {}, 0, 0, 0, 0, 0, 0)


@dataclasses.dataclass(frozen=True)
class _Done:
    """Holds the work of one of Spark's batches; a batch may have several steps."""

    batch: int
    operators: tuple[Mapping[str, Any], ...]
    own: Batch
    emitted: int | None

    def and_then(self, other: _Done) -> _Done:
        """Return the sum of this step and a later step of the same batch."""
        by_name = {operator["operatorName"]: operator for operator in self.operators}
        operators = tuple(
            {**new, **{key: new[key] + by_name[new["operatorName"]][key] for key in _OF_BATCH}}
            for new in other.operators
        )
        counted = ("duration_ms", "arrived", "served", "emitted", "late", "changelog_bytes")
        together: dict[str, Any] = {
            key: getattr(self.own, key) + getattr(other.own, key) for key in counted
        }
        dropped = Counter(self.own.dropped) + Counter(other.own.dropped)
        together["dropped"] = dict(dropped)
        emitted = None if other.emitted is None else (self.emitted or 0) + other.emitted
        return _Done(other.batch, operators, dataclasses.replace(other.own, **together), emitted)

    def quiet(self, batch: int) -> _Done:
        """Return the figures of a later batch without a step."""
        nothing = dict.fromkeys(_OF_BATCH, 0)
        own = dataclasses.replace(
            _NOTHING_DONE,
            step=self.own.step,
            spark_batch=batch,
            epoch=self.own.epoch,
            slots=self.own.slots,
            backlog=self.own.backlog,
            backlog_bytes=self.own.backlog_bytes,
            watermark_us=self.own.watermark_us,
            state_rows=self.own.state_rows,
            state_bytes=self.own.state_bytes,
            slo=self.own.slo,
        )
        emitted = None if self.emitted is None else 0
        return _Done(
            batch, tuple({**operator, **nothing} for operator in self.operators), own, emitted
        )


class Progress:
    """Keeps the figures of a query's last batches by Spark's batch number; safe for several threads.

    Attributes
    ----------
    sink : str    Description of the sink in a progress.
    """

    def __init__(self) -> None:
        self.sink = ""
        self._lock = threading.Lock()
        self._done: deque[_Done] = deque(maxlen=100)
        self._sources = 0
        self._observed: dict[int, Any] = {}
        self._lag: tuple[int, dict[str, int]] = (-1, {})
        self._rows_per_offset = 1.0
        self._newest: Callable[[], StreamingQueryProgress | None] | None = None

    def observe(self, batch: int, counts: Any) -> None:
        """Keep the metrics of ``observe()`` above the operators in a batch; None without metrics."""
        # Spark posts a batch's progress in another thread, perhaps after the next batch
        self._observed = dict([*self._observed.items(), (batch, counts)][-_OBSERVED_KEPT:])

    def observed(self, batch: int) -> Any:
        """Return the metrics counted in a batch, as a JVM object; None without metrics."""
        return self._observed.get(batch)

    def begin(
        self,
        spark: SparkSession,
        sink: Sink,
        operators: Sequence[Mapping[str, Any]] = (),
        *,
        counted: bool = True,
    ) -> None:
        """Take note of a query that starts.

        `operators`: state at the start, in the form of Spark's ``stateOperators``. `counted`: whether
        the output's rows are counted.
        """
        self.sink = sink.description
        count = max(1, int(spark.conf.get(_KEPT, "100") or 100))
        before = _Done(-1, tuple(operators), _NOTHING_DONE, 0 if counted else None)
        self._done = deque([before], maxlen=count + 1)

    def add(
        self, own: Batch, operators: Sequence[Mapping[str, Any]], *, emitted: int | None
    ) -> None:
        """Take note of a step; `emitted` is None if the output's rows are not counted."""
        done = _Done(own.spark_batch, tuple(operators), own, emitted)
        with self._lock:
            if self._done and self._done[-1].batch == done.batch:
                done = self._done.pop().and_then(done)
            self._done.append(done)

    def _of(self, batch: int) -> _Done:
        """Return the figures of a batch; if the batch had no step, the work in them is 0."""
        with self._lock:
            before = [done for done in self._done if done.batch <= batch]
        if not before:
            return _Done(batch, (), _NOTHING_DONE, None)
        return before[-1] if before[-1].batch == batch else before[-1].quiet(batch)

    def follow(self, newest: Callable[[], StreamingQueryProgress | None]) -> None:
        """Set the function that returns Spark's newest progress, once the query runs."""
        self._newest = newest

    @property
    def lag(self) -> dict[str, int]:
        """Records by topic and partition that Kafka had, unread, in the newest batch with a progress."""
        newest = None if self._newest is None else self._newest()
        if newest is not None:
            progress = json.loads(newest.json)
            self._take_lag(progress)
            # a batch repeated after a restart has end offsets, but no newest offsets
            if not _between(progress["sources"], "endOffset", "endOffset"):
                self._newest = None  # no source has offsets by topic and partition: ask no more
        return self._lag[1]

    @property
    def unread(self) -> float:
        """Estimated rows in the sources that no batch has read, a lower bound.

        The estimate is the lag of the newest progress times the rows per offset of its batch, less the
        rows of later batches.
        """
        told_of, lag = self._lag
        rows = sum(lag.values()) * self._rows_per_offset
        with self._lock:
            return max(0.0, rows - sum(d.own.arrived for d in self._done if d.batch > told_of))

    def _take_lag(self, progress: Mapping[str, Any]) -> None:
        batch = progress["batchId"]
        if batch < self._lag[0]:
            return
        read = sum(_between(progress["sources"], "startOffset", "endOffset").values())
        if read:
            self._rows_per_offset = self._of(batch).own.arrived / read
        self._lag = (batch, lag_of(progress["sources"]))

    def own(self, batch: int) -> dict[str, Any]:
        """Return headgate's own figures of a batch; empty before the first step."""
        own = self._of(batch).own
        if own.step < 0:
            return {}
        told_of, lag = self._lag
        return dataclasses.asdict(own) | ({"lag": lag} if told_of == batch else {})

    def filled(self, progress: Mapping[str, Any]) -> dict[str, Any]:
        """Return a progress with its batch's figures, and without the tick, which is the last source.

        `progress`: Spark's JSON of a progress; an earlier call may have completed it.
        """
        done = self._of(progress["batchId"])
        sources = list(progress["sources"])
        self._take_lag(progress)
        # a progress that is not completed yet has all sources, and so one more
        self._sources = max(self._sources, len(sources))
        if len(sources) == self._sources:
            sources = sources[:-1]
        totals = {
            key: sum(source[key] for source in sources if key in source)
            for key in _TOTALS
            if any(key in source for source in sources)
        }
        sink = {**progress["sink"], "description": self.sink}
        if done.emitted is not None:
            sink["numOutputRows"] = done.emitted
        rest = {key: value for key, value in progress.items() if key not in _TOTALS}
        operators = [dict(operator) for operator in done.operators]
        return {**rest, **totals, "stateOperators": operators, "sources": sources, "sink": sink}


def lag_of(sources: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """Return the number of unread records in Kafka by topic and partition.

    `sources`: the sources of a progress, each with its batch's end offset and the newest offset at
    planning. Sources without offsets by topic and partition are left out.
    """
    return _between(sources, "endOffset", "latestOffset")


def _between(sources: Sequence[Mapping[str, Any]], read_to: str, up_to: str) -> dict[str, int]:
    """Return the records between two offsets of each source of a progress, by topic and partition."""
    counts: dict[str, int] = {}
    for source in sources:
        newest, read = source.get(up_to), source.get(read_to)
        if not (isinstance(newest, Mapping) and isinstance(read, Mapping)):
            continue
        for topic, partitions in newest.items():
            ends = read.get(topic)
            if not (isinstance(partitions, Mapping) and isinstance(ends, Mapping)):
                continue
            for number, offset in partitions.items():
                counts[f"{topic}-{number}"] = max(0, int(offset) - int(ends.get(number, offset)))
    return counts
