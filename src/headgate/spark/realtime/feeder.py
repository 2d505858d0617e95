"""Feeds records of a source into the pipe, in a Python worker that lives as long as the pipe."""

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
"""Longest wait of a poll for the first record after a cut: if the driver requested an immediate cut in
the last `_IDLE_AFTER_S`, for example since another feeder had cut, and otherwise. The driver waits as
long for a cut; longer polls cost fewer wake-ups. Chosen, not tuned."""

_IDLE_AFTER_S = 1.0
_GATHERS_S = 0.01
"""Time between two polls once records have come after a cut. No slot serves them before the next cut, and
polls of few records cost more than serving them. Chosen, not tuned."""

_BATCH_ROWS = 64
"""Records that a feeder passes on before the cut; fewer go with the cut's marker. Chosen, not tuned."""

_ROWS_AHEAD, _BYTES_AHEAD = 200_000, 1 << 28
"""Records after a cut, and their bytes, at which a feeder waits for the next cut. Otherwise an epoch
could exceed memory, and the 2 GB of an Arrow column. Chosen, not tuned."""


@dataclass(frozen=True)
class Feeder:
    """Reads a share of a source in each task; the function that `mapInArrow` runs.

    Attributes
    ----------
    meeting : words.Meeting
    feed : SourceFeed
    branch : BranchTasks
        Tasks of the source's branch.
    schema : pyarrow.Schema
        Columns of the source's records.
    padding : list of str or None
        Texts of the marker rows after a cut, which push the rows before them through the pipe's buffers.
        A text is a message that says nothing, ``{}`` and blanks.
    """

    meeting: words.Meeting
    feed: SourceFeed
    branch: BranchTasks
    schema: pa.Schema
    padding: Sequence[str | None]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield records and markers until the driver ends the pipe."""
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
        """Yield the records and markers of another task."""
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
        """Yield records from the offsets `start` on; after a loss of slots, from the driver's offsets."""
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
        """Yield records and markers; return the offsets to read again from, None at the end."""
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
                elif said[0] > epoch:  # otherwise the feeder has cut that epoch already
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
        """Return records as one batch, with nulls in the markers' columns."""
        (data,) = pa.Table.from_batches(records).combine_chunks().to_batches()
        rows = data.num_rows
        columns = [*data.columns, pa.nulls(rows, pa.int32()), pa.nulls(rows, pa.string())]
        return pa.RecordBatch.from_arrays(columns, names=self._names)

    def _marked(self, records: Sequence[pa.RecordBatch], text: str) -> Iterator[pa.RecordBatch]:
        """Yield records, a marker with a message for the routers, and padding after it.

        The last row is a batch of its own: PySpark keeps the last bytes of a batch until the next one.
        """
        texts = [text, *self.padding]
        columns = [pa.nulls(len(texts), field.type) for field in self.schema]
        columns += [pa.array([0] * len(texts), pa.int32()), pa.array(texts, pa.string())]
        made = pa.RecordBatch.from_arrays(columns, names=self._names)
        before = [self._batch(records)] if records else []
        yield from pa.Table.from_batches([*before, made]).combine_chunks().to_batches()
        yield made.slice(len(self.padding))

    @property
    def _names(self) -> list[str]:
        return [*self.schema.names, MARKER_TO, MARKER_TOKEN]


@dataclass(frozen=True)
class _Cut:
    """Describes a cut that the driver has requested.

    Attributes
    ----------
    from_s : float or None
        Earliest time of the cut, of `time.monotonic`; the cut needs a record. None: cut at once.
    still : bool
        Whether the feeder sends no records after the cut until `words.GO`.
    """

    epoch: int
    from_s: float | None
    still: bool
    routes: words.Routes

    @classmethod
    def of(cls, epoch: int, after_s: float | None, still: bool, routes: words.Routes) -> _Cut:
        """Return the cut that a message of the driver describes."""
        from_s = None if after_s is None else time.monotonic() + after_s
        return cls(epoch, from_s, still, routes)

    def left_s(self, behind: _Behind) -> float:
        """Return the time until the cut; inf while the reader has not advanced since the last cut."""
        if self.from_s is None:
            return 0.0
        return max(self.from_s - time.monotonic(), 0.0) if behind.read_ms else math.inf


@dataclass
class _Behind:
    """Counts the records after the last cut.

    Attributes
    ----------
    rows, byte_count : int
    read_ms : float or None
        Time at which the reader first advanced after the cut, since 1970; None if it has not.
    gathered : list of RecordBatch
        Records that are not passed on yet.
    """

    rows: int = 0
    byte_count: int = 0
    read_ms: float | None = None
    gathered: list[pa.RecordBatch] = field(default_factory=list)

    def take(self, records: pa.RecordBatch | None) -> bool:
        """Add the result of a poll; return whether the reader has advanced."""
        if records is None:
            return False
        if self.read_ms is None:
            self.read_ms = time.time() * 1e3
        self.rows += records.num_rows
        self.byte_count += records.nbytes
        if records.num_rows:
            self.gathered.append(records)
        return True
