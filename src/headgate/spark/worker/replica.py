"""Does one replica's work in one batch, in a Python worker."""

from __future__ import annotations

import io
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext

from headgate.checkpoint.checkpoint import Checkpoint
from headgate.journal.histogram import counts_of, sparse_of
from headgate.spark.job.reports import Payload, ReplicaReport
from headgate.spark.worker.facts import ReplicaFacts
from headgate.spark.worker.payloads import INLINE_BYTES, TakesFiles, TaskFiles, payload, read_table
from headgate.spark.worker.whereabouts import ran

Function = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]
"""A function as ``mapInArrow`` takes it."""

F64 = npt.NDArray[np.float64]

ARRIVED, ORIGIN, LANE = "headgate_arrived_ms", "headgate_origin", "headgate_lane"
"""Columns behind the user's columns; the function does not see them."""

_CHUNK_ROWS = 1024
"""Most rows in a batch that the function gets. Chosen, not tuned."""

_FIRST_ROWS, _CHUNK_SHARE = 16, 0.1
"""If time is limited (`box_s`): rows of the function's first batch, and the share of the time that each
later batch should take. Chosen, not tuned."""


@dataclass(frozen=True)
class ReplicaTask:
    """Does one replica's work, as the function of `mapInArrow`; the same object for every batch."""

    operator: str
    function: Function
    """The user's function."""
    sender: Any
    """Sends reports to the driver."""
    feeds: bool
    """Whether another stage reads the output, which then carries the rows' times of arrival."""
    store: Mapping[str, str] = field(repr=False)
    """Options of the checkpoint's store."""

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Do the work of this task's replica.

        The output goes into the report, or into a checkpoint file that the report names; the Spark plan
        gets no rows.
        """
        began_ms = time.time() * 1e3
        context = TaskContext.get()
        assert context is not None
        facts = ReplicaFacts.of(context, self.operator)
        lane = context.partitionId()
        checkpoint = Checkpoint(facts.checkpoint, self.store, known=True)
        came = [batch for batch in batches if batch.num_rows]
        origins: Counter[int] = Counter()
        for batch in came:
            for count in batch.column(ORIGIN).value_counts().to_pylist():
                origins[count["values"]] += count["counts"]
        arriving = [batch.drop_columns([ORIGIN, LANE]) for batch in came]
        waiting = _backlog(checkpoint, facts.backlog[lane], facts.waiting_crc32)
        feed = Feed(
            waiting,
            arriving,
            facts.quotas[lane],
            facts.box_s,
            facts.now_ms,
            timeout_s=facts.timeout_s,
        )
        outputs = [
            feed.dated(batch) if self.feeds else batch
            for batch in self.function(feed)
            if batch.num_rows
        ]
        left = feed.finish()
        latency_ms = feed.latency_ms
        with TaskFiles(checkpoint, len(facts.quotas)) as writes:
            output = _kept(writes, "output", outputs)
            waits = _kept(writes, "backlog", left, inline_bytes=0)
        report = ReplicaReport(
            step=facts.step,
            attempt=facts.attempt,
            operator=self.operator,
            lane=lane,
            token=uuid.uuid4().hex,
            taken=min(feed.served + feed.too_old, sum(b.num_rows for b in waiting)),
            arrived=sum(b.num_rows for b in arriving),
            served=feed.served,
            waiting_rows=sum(b.num_rows for b in left),
            output=output,
            waiting=waits,
            output_rows=sum(b.num_rows for b in outputs),
            useful_s=feed.useful_s,
            histogram=sparse_of(counts_of(latency_ms, np.ones(len(latency_ms)))),
            latency_sum_ms=float(latency_ms.sum()),
            ran=ran(began_ms),
            rows_s=feed.rows_s,
            too_old=feed.too_old,
            origins=dict(origins),
        )
        self.sender.add([report])
        return iter(())


class Feed:
    """Gives a function its rows: the backlog, then new rows, until the time or the quota is used up.

    Parameters
    ----------
    backlog, arriving : list of RecordBatch    The last column is `ARRIVED`.
    quota : int or None    The most rows that the function may get.
    box_s : float or None
        Seconds in which the function may get rows, from its first request for rows. Its set-up before
        that does not count; otherwise a function with a long set-up might never get a row.
    now_ms : float    Arrival of rows that have no time of arrival, ms since 1970.
    timeout_s : float or None
        t_out: a row that is older at its turn is dropped, and the function does not get it.

    Attributes
    ----------
    rows_s : float    Time from giving rows to the function until its next request, summed.
    """

    def __init__(
        self,
        backlog: list[pa.RecordBatch],
        arriving: list[pa.RecordBatch],
        quota: int | None,
        box_s: float | None,
        now_ms: float,
        timeout_s: float | None = None,
    ) -> None:
        self._batches = [*backlog, *arriving]
        self._backlog = len(backlog)
        self._quota = quota
        self._box_s = box_s
        self._now_ms = now_ms
        self._timeout_ms = None if timeout_s is None else timeout_s * 1e3
        self._began_s = time.perf_counter()
        self._asked_s: float | None = None
        self._given: pa.RecordBatch | None = None
        self._given_ms: pa.Array = pa.array([], pa.float64())
        self._latencies: list[F64] = []
        self._at = self._row = 0
        self._stopped = False
        self._given_s = 0.0
        self.served = self.too_old = 0
        self.rows_s = 0.0

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        return self

    def __next__(self) -> pa.RecordBatch:
        """Return more rows; a request means that the function is done with the rows before."""
        self._settle()
        while True:
            if self._at == len(self._batches):
                raise StopIteration
            if self._full():
                self._stopped = True
                raise StopIteration
            batch = self._in_time(self._next_rows())
            if batch.num_rows:
                break
        self.served += batch.num_rows
        self._given, self._given_s = batch, time.perf_counter()
        self._given_ms = batch.column(ARRIVED).fill_null(self._now_ms)
        return batch.drop_columns([ARRIVED])

    def _next_rows(self) -> pa.RecordBatch:
        """Return the next batch, with as many rows as the function may get at once."""
        batch = self._batches[self._at]
        rows = min(self._most_rows(), batch.num_rows - self._row)
        if self._quota is not None:
            rows = min(rows, self._quota - self.served)
        next_rows = batch.slice(self._row, rows)
        self._row += rows
        if self._row == batch.num_rows:
            self._at, self._row = self._at + 1, 0
        return next_rows

    def _most_rows(self) -> int:
        """Return the most rows of the next batch: few if rows are slow, so that time is not overrun."""
        if self._box_s is None:
            return _CHUNK_ROWS
        if not self.served:
            return _FIRST_ROWS
        row_s = self.rows_s / self.served
        within = int(self._box_s * _CHUNK_SHARE / row_s) if row_s > 0.0 else _CHUNK_ROWS
        return max(1, min(_CHUNK_ROWS, within))

    def _in_time(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows that are not too old, and count the others."""
        if self._timeout_ms is None:
            return rows
        since_ms = time.time() * 1e3 - self._timeout_ms
        young = pc.greater_equal(rows.column(ARRIVED).fill_null(self._now_ms), since_ms)
        kept_rows = rows.filter(young)
        self.too_old += rows.num_rows - kept_rows.num_rows
        return kept_rows

    def dated(self, output: pa.RecordBatch) -> pa.RecordBatch:
        """Return the function's output with the rows' time of arrival in the query as the last column.

        If the output has as many rows as the function's last input, each row gets the arrival of the
        input row at its place. Otherwise the origin of a row is unknown, and all rows get the newest
        arrival of the last input.
        """
        came_ms = self._given_ms
        if len(came_ms) != output.num_rows:
            newest = pc.max(came_ms).as_py() if len(came_ms) else self._now_ms
            came_ms = pa.array(np.full(output.num_rows, newest))
        return pa.RecordBatch.from_arrays(
            [*output.columns, came_ms], [*output.schema.names, ARRIVED]
        )

    def _full(self) -> bool:
        if self._quota is not None and self.served >= self._quota:
            return True
        now_s = time.perf_counter()
        self._asked_s = now_s if self._asked_s is None else self._asked_s
        return self._box_s is not None and now_s - self._asked_s >= self._box_s

    def _settle(self) -> None:
        """Record the latency of the function's last input, with which the function is done."""
        if self._given is None:
            return
        self.rows_s += time.perf_counter() - self._given_s
        arrived_ms = self._given_ms.to_numpy()
        self._latencies.append(np.maximum(time.time() * 1e3 - arrived_ms, 0.0))
        self._given = None

    def finish(self) -> list[pa.RecordBatch]:
        """Return the new rows that were not served because the quota or the time was used up.

        If neither was used up, all rows count as served, also where the function stopped reading early.
        Unserved rows of the old backlog are not returned: they stay in their files.
        """
        self._settle()
        self.useful_s = time.perf_counter() - self._began_s
        if not self._stopped:
            self.served = sum(batch.num_rows for batch in self._batches) - self.too_old
            return []
        left = []
        for number in range(max(self._at, self._backlog), len(self._batches)):
            rest = self._batches[number].slice(self._row if number == self._at else 0)
            arrived = rest.column(ARRIVED).fill_null(self._now_ms)
            left.append(rest.set_column(rest.num_columns - 1, ARRIVED, arrived))
        return left

    @property
    def latency_ms(self) -> F64:
        """Return the time from arrival to the end of the function's work, ms, of each of its rows."""
        return np.concatenate([np.zeros(0), *self._latencies])


def _backlog(
    checkpoint: Checkpoint, segments: Sequence[Sequence[Any]], crc32: Mapping[str, int]
) -> list[pa.RecordBatch]:
    """Read the backlog, oldest first, from (file, first row, rows); CheckpointError if damaged."""
    return [
        batch
        for name, start, rows in segments
        for batch in read_table(checkpoint.read_file("backlog", name, crc32=crc32[name]))
        .slice(start, rows)
        .to_batches()
    ]


def _kept(
    writes: TakesFiles,
    kind: str,
    batches: list[pa.RecordBatch],
    *,
    inline_bytes: int = INLINE_BYTES,
) -> Payload | None:
    """Return a payload with rows for the report, or write a checkpoint file; None without rows."""
    if not batches:
        return None
    stream = io.BytesIO()
    with pa.ipc.new_stream(stream, batches[0].schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return payload(writes, kind, uuid.uuid4().hex, stream.getvalue(), inline_bytes=inline_bytes)
