"""Measures the shared tuple buffer: records per second, and latency at a given rate.

This is STRETCH's operator 6 without an operator: every reader takes every record and keeps nothing, so
only the cost of sharing and ordering is measured. Each source and each reader is a process.
"""

from __future__ import annotations

import multiprocessing
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np

from headgate.core.errors import EngineError
from headgate.tables.ports import I64
from headgate_lab.tuple_buffer.backoff import Backoff
from headgate_lab.tuple_buffer.kernels import warm
from headgate_lab.tuple_buffer.layout import BufferShape
from headgate_lab.tuple_buffer.shared import SharedTupleBuffer

_END = 2**62
"""The time at which a source says that it has ended."""

_STEP_S = 0.001
"""Interval at which a paced source adds the records that are due."""


@dataclass(frozen=True)
class Load:
    """Describes the records that sources add.

    Parameters
    ----------
    sources : int             Number of source processes.
    records : int             Records of each source.
    block : int               Records per call, of sources and of readers.
    rate_per_s : float or None    Of all sources together, kept to a fixed schedule; None: as fast as
                              there is room.
    capacity : int            Records per source by which the slowest reader may lag.
    shared : bool             Whether all readers share one buffer; otherwise each has its own, and
                              sources copy every record into all of them, as shared-nothing must.
    timeout_s : float         Longest wait for a record.
    """

    sources: int = 2
    records: int = 1_000_000
    block: int = 4096
    rate_per_s: float | None = None
    capacity: int = 65_536
    shared: bool = True
    timeout_s: float = 60.0


@dataclass(frozen=True)
class Measured:
    """Holds the results of one run.

    Parameters
    ----------
    records_per_s : float     Records that every reader got, per second between the first record's due
                              time and the last reader's end.
    latency_ms_mean, latency_ms_p50, latency_ms_p99 : float    Milliseconds from the time a record was due
                              (of an unpaced source: added) until a reader had got it.
    """

    readers: int
    records_per_s: float
    latency_ms_mean: float
    latency_ms_p50: float
    latency_ms_p99: float


def measure(directory: Path, readers: Sequence[int], load: Load) -> list[Measured]:
    """Return one result for each number of readers.

    Parameters
    ----------
    directory : path    For the buffer's file; mode 0700.
    readers : sequence of int    Number of readers of each run.

    Raises
    ------
    EngineError    A process died, or nothing came for `load.timeout_s`.
    """
    return [_measure_one(directory, count, load) for count in readers]


def _measure_one(directory: Path, readers: int, load: Load) -> Measured:
    sharing = range(readers) if load.shared else range(1)
    shape = BufferShape(
        (("sent_ns", "i8"), ("payload", "i8")),
        capacity=load.capacity,
        sources_max=load.sources,
        readers_max=len(sharing),
    )
    name = f"measure-{secrets.randbits(64):016x}"
    paths = [directory / f"{name}.{n}" for n in range(1 if load.shared else readers)]
    buffers = [
        SharedTupleBuffer.create(path, shape, range(load.sources), sharing) for path in paths
    ]
    feeders = [(_feed, paths, source) for source in range(load.sources)]
    takers = [
        (_read, paths if load.shared else [paths[reader]], reader if load.shared else 0)
        for reader in range(readers)
    ]
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])  # imports once, for all of them
    workers = []
    try:
        for target, used, number in (*takers, *feeders):
            near, far = context.Pipe()
            process = context.Process(target=target, args=(used, number, load, far))
            process.start()
            far.close()
            workers.append((process, near))
        for _, near in workers:
            _receive(near, load)  # it is ready: imports and compiling are not measured
        begin_ns = time.monotonic_ns() + 10_000_000
        for _, near in workers:
            near.send(begin_ns)
        results = [_receive(near, load) for _, near in workers][:readers]
    finally:
        for process, near in workers:
            near.close()
            process.join(1.0)
            process.kill()
            process.join()
        for buffer in buffers:
            buffer.unlink()
            buffer.close()
    end_ns = max(int(end) for end, _ in results)
    latency_ms = np.concatenate([sample for _, sample in results]) / 1e6
    return Measured(
        readers,
        load.sources * load.records * 1e9 / (end_ns - begin_ns),
        float(latency_ms.mean()),
        float(np.percentile(latency_ms, 50)),
        float(np.percentile(latency_ms, 99)),
    )


def _receive(connection: Connection, load: Load) -> tuple[int, I64]:
    msg = f"a process of the measurement died or gave nothing for {load.timeout_s} s; run it again."
    try:
        if not connection.poll(2 * load.timeout_s):
            raise EngineError(msg)
        received: tuple[int, I64] = connection.recv()
    except EOFError as error:
        raise EngineError(msg) from error
    return received


def _feed(paths: Sequence[Path], source: int, load: Load, connection: Connection) -> None:
    """Add `load.records` records to each buffer; event times are due times, in nanoseconds."""
    buffers = [SharedTupleBuffer.open(path) for path in paths]
    connection.send((0, None))
    begin_ns = connection.recv()
    time.sleep(max(0.0, (begin_ns - time.monotonic_ns()) / 1e9))
    backoff, done = Backoff(), 0
    period_ns = 0.0 if load.rate_per_s is None else 1e9 * load.sources / load.rate_per_s
    while done < load.records:
        now_ns = time.monotonic_ns()
        due = load.records if not period_ns else int((now_ns - begin_ns) / period_ns)
        count = min(due - done, load.records - done, load.block)
        if count < 1:
            time.sleep(_STEP_S)
            continue
        number = np.arange(done, done + count)
        times = begin_ns + (number * period_ns).astype(np.int64) if period_ns else None
        sent_ns = np.full(count, now_ns) if times is None else times
        columns = {"sent_ns": sent_ns, "payload": number}
        for buffer in buffers:
            _put(buffer, backoff, sent_ns, columns, source, load)
        done += count
    for buffer in buffers:
        if not backoff.until(lambda: buffer.advance(_END, source), load.timeout_s):  # noqa: B023
            raise EngineError("no reader made room for the end of a source; run it again.")
    connection.send((0, None))


def _put(
    buffer: SharedTupleBuffer,
    backoff: Backoff,
    times: I64,
    columns: dict[str, I64],
    source: int,
    load: Load,
) -> None:
    at = 0
    while at < times.size:
        rest = {name: column[at:] for name, column in columns.items()}
        added = backoff.until(lambda: buffer.add_block(times[at:], rest, source), load.timeout_s)  # noqa: B023
        if not added:
            msg = (
                f"no reader made room for {load.timeout_s} s; run it again with a larger capacity."
            )
            raise EngineError(msg)
        at += added


def _read(paths: Sequence[Path], reader: int, load: Load, connection: Connection) -> None:
    """Take all records; report when the reader ended and the age of one record in a hundred."""
    (path,) = paths
    buffer = SharedTupleBuffer.open(path)
    warm()
    connection.send((0, None))
    connection.recv()
    backoff, samples, watermark = Backoff(), [np.empty(0, dtype=np.int64)], 0
    while watermark < _END:
        block = backoff.until(lambda: buffer.get_block(reader, load.block), load.timeout_s)
        if block is None:
            msg = f"reader {reader} got nothing for {load.timeout_s} s; run it again."
            raise EngineError(msg)
        samples.append(time.monotonic_ns() - block.columns["sent_ns"][::100])
        watermark = block.watermark
    connection.send((time.monotonic_ns(), np.concatenate(samples)))
