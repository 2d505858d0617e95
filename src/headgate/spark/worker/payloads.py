"""Passes tables from a task to the checkpoint: inside the task's report, or in a file."""

from __future__ import annotations

import io
import zlib
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Protocol

import pyarrow as pa

from headgate.checkpoint.checkpoint import Checkpoint
from headgate.spark.job.reports import Payload

INLINE_BYTES = 256 * 1024
"""Size below which data stands in the report; the driver writes one bundle for all slots."""

_BUNDLE_BYTES = 1 << 20
"""Size of a bundle on a store, where each file is a request; used if a task's share is larger than
`INLINE_BYTES`. Chosen: a restart reads the bundles of some hundred steps."""

_AT_ONCE = 4
"""The most files of a task: changelog, output, backlog and late rows."""


class TakesFiles(Protocol):
    """Takes a file: a checkpoint, or the `TaskFiles` of a task."""

    def write_file(self, kind: str, name: str, data: bytes) -> None:
        """Write a file named by a token."""


class TaskFiles:
    """Writes the files of one task, in parallel on a store, where each file is a request.

    A context manager: when it exits, all files are written, or the first failure is raised.

    `tasks`: number of tasks whose data is in one bundle.

    Attributes
    ----------
    inline_bytes : int    Size below which data stands in the report.
    """

    def __init__(self, checkpoint: Checkpoint, tasks: int) -> None:
        self._checkpoint = checkpoint
        share = _BUNDLE_BYTES // tasks if checkpoint.files.shared else 0
        self.inline_bytes = max(INLINE_BYTES, share)
        self._pool: ThreadPoolExecutor | None = None
        self._begun: list[Future[None]] = []

    def __enter__(self) -> TaskFiles:
        """Begin."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Wait until all files are written, and raise the first failure."""
        if self._pool is not None:
            self._pool.shutdown()
        if error is None:
            for writing in self._begun:
                writing.result()

    def write_file(self, kind: str, name: str, data: bytes) -> None:
        """Write a file; on a store, only begin to write it."""
        if not self._checkpoint.files.shared:
            self._checkpoint.write_file(kind, name, data)
            return
        if self._pool is None:
            self._pool = ThreadPoolExecutor(max_workers=_AT_ONCE)
        self._begun.append(self._pool.submit(self._checkpoint.write_file, kind, name, data))


def payload(
    checkpoint: TakesFiles, kind: str, token: str, data: bytes, *, inline_bytes: int = INLINE_BYTES
) -> Payload:
    """Return the payload of a report: the bytes themselves, or the name of a file with them."""
    crc32 = zlib.crc32(data)
    if len(data) < inline_bytes:
        return Payload(data, None, len(data), crc32)
    checkpoint.write_file(kind, token, data)
    return Payload(None, token, len(data), crc32)


def table_payload(
    checkpoint: TakesFiles,
    kind: str,
    token: str,
    table: pa.Table | pa.RecordBatch | None,
    *,
    inline_bytes: int = INLINE_BYTES,
) -> Payload | None:
    """Return the payload of a report for a table; None for a table without rows."""
    if table is None or table.num_rows == 0:
        return None
    stream = io.BytesIO()
    with pa.ipc.new_stream(stream, table.schema) as writer:
        writer.write(table)
    return payload(checkpoint, kind, token, stream.getvalue(), inline_bytes=inline_bytes)


def read_table(data: bytes) -> pa.Table:
    """Return the table that a task wrote."""
    with pa.ipc.open_stream(data) as reader:
        return reader.read_all()
