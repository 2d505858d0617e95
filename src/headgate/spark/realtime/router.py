"""Routes what comes out of the pipe to the slots, in a Python worker that stays."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from multiprocessing.connection import Connection

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext

from headgate.core.errors import EngineError
from headgate.operators.step import GROUP
from headgate.spark.job.columns import MARKER_TO, MARKER_TOKEN, MARKER_US
from headgate.spark.realtime import words

DROPPED = -1
"""In the marker's column: a row that a filter above the watermark has dropped; its time still counts."""

_FLUSH_ROWS = 8192
"""Rows that a router keeps together at the most before it sends them on. Chosen."""

_OURS = (MARKER_TO, MARKER_TOKEN, MARKER_US)


@dataclass(frozen=True)
class Router:
    """The function that `mapInArrow` runs; a task is a router.

    Attributes
    ----------
    meeting : words.Meeting
    """

    meeting: words.Meeting

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Route until the feeder has ended."""
        context = TaskContext.get()
        assert context is not None
        routing = _Routing(self.meeting, context.partitionId())
        try:
            for batch in batches:
                routing.take(batch)
        except (OSError, EOFError) as error:
            msg = "a router has lost a slot; the pipe starts again."
            raise EngineError(msg, transient=True) from error
        finally:
            routing.close()
        yield from ()


@dataclass
class _Routing:
    """The state of a router between two Arrow batches."""

    meeting: words.Meeting
    number: int
    slots: list[Connection] = field(default_factory=list)
    addresses: list[str] = field(default_factory=list)
    slot_of: np.ndarray | None = None
    waiting: list[pa.RecordBatch] = field(default_factory=list)
    rows: int = 0
    newest_us: int | None = None

    def take(self, batch: pa.RecordBatch) -> None:
        token = batch.column(batch.schema.get_field_index(MARKER_TOKEN))
        start = 0
        if token.null_count < batch.num_rows:
            for at in np.flatnonzero(token.is_valid().to_numpy(zero_copy_only=False)).tolist():
                self._add(batch.slice(start, at - start))
                self._heed(json.loads(token[at].as_py()))
                start = at + 1
        self._add(batch.slice(start))

    def _heed(self, said: dict[str, object]) -> None:
        self._flush()
        if words.EPOCH in said:
            for slot in self.slots:
                slot.send((words.EPOCH, said[words.EPOCH], self.newest_us))
            self.newest_us = None
            return
        addresses: list[str] = said["slots"]  # type: ignore[assignment]
        for gone in self.slots[len(addresses) :]:
            gone.close()
        self.slots = self.slots[: len(addresses)]
        for address in addresses[len(self.slots) :]:
            slot = self.meeting.connect(address)
            slot.send(self.number)
            self.slots.append(slot)
        self.slot_of = np.array(said["slot_of"], dtype=np.int32)

    def _add(self, batch: pa.RecordBatch) -> None:
        if batch.num_rows == 0:
            return
        to = batch.column(batch.schema.get_field_index(MARKER_TO))
        if MARKER_US in batch.schema.names:
            newest = pc.max(batch.column(batch.schema.get_field_index(MARKER_US))).as_py()
            if newest is not None:
                self.newest_us = newest if self.newest_us is None else max(newest, self.newest_us)
        if to.null_count < batch.num_rows:
            batch = batch.filter(to.is_null())
        if batch.num_rows:
            kept = [name for name in batch.schema.names if name not in _OURS]
            self.waiting.append(batch.select(kept))
            self.rows += batch.num_rows
            if self.rows >= _FLUSH_ROWS:
                self._flush()

    def _flush(self) -> None:
        if not self.waiting:
            return
        table = pa.Table.from_batches(self.waiting).combine_chunks()
        self.waiting, self.rows = [], 0
        assert self.slot_of is not None
        if len(self.slots) == 1:
            self.slots[0].send((words.RECORDS, _bytes(table)))
            return
        to = self.slot_of[table.column(GROUP).to_numpy()]
        for number, slot in enumerate(self.slots):
            mine = np.flatnonzero(to == number)
            if len(mine):
                slot.send((words.RECORDS, _bytes(table.take(pa.array(mine)))))

    def close(self) -> None:
        for slot in self.slots:
            slot.close()


def _bytes(table: pa.Table) -> bytes:
    stream = pa.BufferOutputStream()
    with pa.ipc.new_stream(stream, table.schema) as writer:
        writer.write_table(table)
    found: bytes = stream.getvalue().to_pybytes()
    return found
