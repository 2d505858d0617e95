"""Feeds records of a source into the pipe, in a Python worker that stays."""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import os
import platform
import time
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, field

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
"""How long a poll waits for the first record behind a cut where the driver has asked for a cut at once
within a second, as for one that another feeder has made, and how long otherwise, in seconds. Who asks
waits as long, and longer polls cost fewer wake-ups. Chosen."""

_IDLE_AFTER_S = 1.0
_GATHERS_S = 0.01
"""How long records gather in the reader between two polls, once there are some behind a cut. Nobody
serves them before the next cut, and a poll for each few of them costs more than serving them. Chosen."""

_BATCH_ROWS = 64
"""Records that a feeder passes on before the cut; fewer go with its marker. Chosen: as many as an Arrow
batch of the pipe has."""

_ROWS_AHEAD, _BYTES_AHEAD = 200_000, 1 << 28
"""Records behind a cut, and their bytes, at which a feeder waits for the next cut, or an epoch outgrows
memory and the 2 GB of a column of Arrow. Chosen."""


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
                here = platform.node(), os.getpid()
                driver.send((words.FEEDER, branch.reader + number, here))
                word, start, addresses = driver.recv()
                assert word == words.BEGIN
                with contextlib.ExitStack() as held:
                    copies = [
                        held.enter_context(self.meeting.connect(addresses[first + number]))
                        for first in branch.copied_to
                    ]
                    for batch in self._flow(driver, number, start):
                        for copy in copies:
                            copy.send_bytes(as_bytes(pa.Table.from_batches([batch])))
                        yield batch
        except (OSError, EOFError) as error:
            msg = "a feeder has lost its driver."
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

    def _reader(self, offsets: str, number: int) -> Reader:
        return self.feed.reader(json.loads(offsets)[self.branch.source], number, self.branch.count)

    def _flow(self, driver: Channel, number: int, start: str) -> Iterator[pa.RecordBatch]:
        """Pass records on behind the offsets `start`, and from there again where slots are lost."""
        for rewound in itertools.count():
            with contextlib.closing(self._reader(start, number)) as reader:
                if rewound:
                    driver.send((words.REWIND, rewound))
                    yield from self._marked([], json.dumps({words.REWIND: rewound}))
                again = yield from self._read(driver, reader)
            if again is None:
                return
            start = again

    def _read(self, driver: Channel, reader: Reader) -> Generator[pa.RecordBatch, None, str | None]:
        """Pass records on; return the offsets to begin again from, None at the end."""
        asked: _Cut | None = None
        epoch, still, behind = -1, True, _Behind()
        is_empty, asked_s = False, time.monotonic()
        while True:
            holds = still or behind.rows > _ROWS_AHEAD or behind.byte_count > _BYTES_AHEAD
            waits_s = 0.0
            if holds or (behind.rows and is_empty):
                waits_s = asked.left_s(behind) if asked is not None else math.inf
                waits_s = waits_s if holds else min(waits_s, _GATHERS_S)
            if driver.poll(None if waits_s == math.inf else waits_s):
                word, *said = driver.recv()
                if word == words.END:
                    return None
                if word == words.REWIND:
                    offsets: str = said[0]
                    return offsets
                if word == words.GO:
                    still = False
                    yield from self._marked([], json.dumps(said[0]))
                elif said[0] > epoch:  # else it has cut that one already
                    asked = _Cut.of(*said)
                    asked_s = asked_s if asked.from_s is not None else time.monotonic()
            if asked is not None and asked.left_s(behind) <= 0:
                if not holds:
                    behind.take(reader.poll(0))
                driver.send((words.CUT, asked.epoch, reader.offsets(), behind.read_ms))
                text = json.dumps({words.EPOCH: asked.epoch, **asked.routes})
                yield from self._marked(behind.gathered, text)
                epoch, still, asked, behind = asked.epoch, asked.still, None, _Behind()
            elif not holds:
                idle = time.monotonic() - asked_s > _IDLE_AFTER_S
                first_s = _IDLE_S if idle else _BUSY_S
                is_empty = not behind.take(reader.poll(0 if behind.rows else first_s))
                if sum(one.num_rows for one in behind.gathered) >= _BATCH_ROWS:
                    yield self._batch(behind.gathered)
                    behind.gathered = []

    def _batch(self, records: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
        """Return records as one batch, in which they are no markers."""
        (data,) = pa.Table.from_batches(records).combine_chunks().to_batches()
        rows = data.num_rows
        columns = [*data.columns, pa.nulls(rows, pa.int32()), pa.nulls(rows, pa.string())]
        return pa.RecordBatch.from_arrays(columns, names=self._names)

    def _marked(self, records: Sequence[pa.RecordBatch], text: str) -> Iterator[pa.RecordBatch]:
        """Yield records, a word for the routers, and padding behind it.

        The last row goes alone: PySpark keeps the last bytes of a batch until the next one.
        """
        rows = self.padding + 1
        columns = [pa.nulls(rows, field.type) for field in self.schema]
        columns += [pa.array([0] * rows, pa.int32()), pa.array([text] + [None] * self.padding)]
        made = pa.RecordBatch.from_arrays(columns, names=self._names)
        before = [self._batch(records)] if records else []
        yield from pa.Table.from_batches([*before, made]).combine_chunks().to_batches()
        yield made.slice(self.padding)

    @property
    def _names(self) -> list[str]:
        return [*self.schema.names, MARKER_TO, MARKER_TOKEN]


@dataclass(frozen=True)
class _Cut:
    """A cut that the driver has asked for.

    Attributes
    ----------
    from_s : float or None
        Time of `time.monotonic` from which on it comes, as soon as there is a record; None for at once.
    still : bool
        Whether no record follows.
    """

    epoch: int
    from_s: float | None
    still: bool
    routes: words.Routes

    @classmethod
    def of(cls, epoch: int, after_s: float | None, still: bool, routes: words.Routes) -> _Cut:
        """Return the cut that a word of the driver's describes."""
        from_s = None if after_s is None else time.monotonic() + after_s
        return cls(epoch, from_s, still, routes)

    def left_s(self, behind: _Behind) -> float:
        """Return how long it is until the cut; without end while the reader has got no further."""
        if self.from_s is None:
            return 0.0
        return max(self.from_s - time.monotonic(), 0.0) if behind.read_ms else math.inf


@dataclass
class _Behind:
    """Records behind the last cut.

    Attributes
    ----------
    rows, byte_count : int
    read_ms : float or None
        When the first one was read, or the reader got on without any, since 1970.
    gathered : list of RecordBatch
        Those that are not passed on yet.
    """

    rows: int = 0
    byte_count: int = 0
    read_ms: float | None = None
    gathered: list[pa.RecordBatch] = field(default_factory=list)

    def take(self, records: pa.RecordBatch | None) -> bool:
        """Take what a poll has brought; return whether that is any record."""
        if records is None:
            return False
        if self.read_ms is None:
            self.read_ms = time.time() * 1e3
        self.rows += records.num_rows
        self.byte_count += records.nbytes
        if records.num_rows:
            self.gathered.append(records)
        return True
