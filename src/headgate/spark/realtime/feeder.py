"""Feeds records of a source into the pipe, in a Python worker that stays."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark import TaskContext

from headgate.core.errors import EngineError
from headgate.spark.job.columns import MARKER_TO, MARKER_TOKEN
from headgate.spark.realtime import words
from headgate.spark.realtime.channels import Channel
from headgate.spark.realtime.feed import BranchTasks, Reader, SourceFeed
from headgate.spark.realtime.router import as_bytes
from headgate.spark.worker.payloads import read_table

_BUSY_S, _IDLE_S = 0.002, 0.02
"""How long a poll waits for records, and how long if none came for a second, in seconds: a cut waits as
long, and longer polls cost fewer wake-ups. Chosen."""

_IDLE_AFTER_S = 1.0
_ROWS_AHEAD = 200_000
"""Records behind a cut at which a feeder waits for the next cut, or an epoch outgrows memory. Chosen."""


@dataclass(frozen=True)
class Feeder:
    """The function that `mapInArrow` runs; a task is a reader.

    Attributes
    ----------
    meeting : words.Meeting
    feed : SourceFeed
    branch : BranchTasks
        Of the source, and its place among those of the pipe.
    schema : pyarrow.Schema
        Of its records.
    padding : int
        Marker rows behind a cut, which push what is before them through the pipe.
    """

    meeting: words.Meeting
    feed: SourceFeed
    branch: BranchTasks
    schema: pa.Schema
    padding: int

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Pass records on until the driver says that it is over."""
        for _ in batches:
            pass
        context = TaskContext.get()
        assert context is not None
        branch, task = self.branch, context.partitionId()
        number = task - branch.first
        try:
            if branch.copies_of is not None:
                yield from self._copied(task)
                return
            with self.meeting.connect(self.meeting.driver) as driver:
                driver.send((words.FEEDER, branch.reader + number, os.getpid()))
                word, start, addresses = driver.recv()
                assert word == words.BEGIN
                reader = self.feed.reader(json.loads(start)[branch.source], number, branch.count)
                with contextlib.ExitStack() as held:
                    held.callback(reader.close)
                    copies = [
                        held.enter_context(self.meeting.connect(addresses[first + number]))
                        for first in branch.copied_to
                    ]
                    for batch in self._flow(driver, reader):
                        for copy in copies:
                            copy.send_bytes(as_bytes(pa.Table.from_batches([batch])))
                        yield batch
        except (OSError, EOFError) as error:
            msg = "a feeder has lost its driver; the pipe starts again."
            raise EngineError(msg, transient=True) from error

    def _copied(self, task: int) -> Iterator[pa.RecordBatch]:
        """Pass on what another task reads and says."""
        with (
            self.meeting.connect(self.meeting.driver) as driver,
            self.meeting.door(f"copy-{task}", driver) as door,
        ):
            driver.send((words.COPY, task, door.address))
            with door.accept() as reader:
                while True:
                    try:
                        data = reader.recv_bytes()
                    except EOFError:
                        return
                    yield from read_table(data).to_batches()

    def _flow(self, driver: Channel, reader: Reader) -> Iterator[pa.RecordBatch]:
        still, behind_cut, read_s = True, 0, time.monotonic()
        while True:
            while still or behind_cut > _ROWS_AHEAD or driver.poll(0):
                word, *said = driver.recv()
                if word == words.END:
                    return
                if word == words.GO:
                    still = False
                    yield from self._marker(json.dumps(said[0]))
                elif word == words.CUT:
                    epoch, still, routes = said
                    driver.send((words.CUT, epoch, reader.offsets()))
                    behind_cut = 0
                    yield from self._marker(json.dumps({words.EPOCH: epoch, **routes}))
            idle = time.monotonic() - read_s > _IDLE_AFTER_S
            records = reader.poll(_IDLE_S if idle else _BUSY_S)
            if records is None:
                continue
            read_s = time.monotonic()
            if not behind_cut:
                driver.send((words.RECORDS_WAIT, time.time() * 1e3))
            behind_cut += records.num_rows
            yield self._records(records)

    def _records(self, records: pa.RecordBatch) -> pa.RecordBatch:
        rows = records.num_rows
        columns = [*records.columns, pa.nulls(rows, pa.int32()), pa.nulls(rows, pa.string())]
        return pa.RecordBatch.from_arrays(columns, names=self._names)

    def _marker(self, text: str) -> Iterator[pa.RecordBatch]:
        """Yield a word for the routers, and padding behind it.

        The last row goes alone: PySpark keeps the last bytes of a batch until the next one.
        """
        rows = self.padding + 1
        columns = [pa.nulls(rows, field.type) for field in self.schema]
        columns += [pa.array([0] * rows, pa.int32()), pa.array([text] + [None] * self.padding)]
        made = pa.RecordBatch.from_arrays(columns, names=self._names)
        yield made
        yield made.slice(self.padding)

    @property
    def _names(self) -> list[str]:
        return [*self.schema.names, MARKER_TO, MARKER_TOKEN]
