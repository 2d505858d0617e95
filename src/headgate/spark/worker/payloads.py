"""Tables on their way from a task to the checkpoint: inside the task's report, or in a file."""

from __future__ import annotations

import io
import zlib

import pyarrow as pa

from headgate.spark.job.reports import Payload
from headgate.state.checkpoint import Checkpoint

INLINE_BYTES = 256 * 1024
"""Up to here bytes travel in the report, and the driver writes one bundle for all slots."""


def payload(
    checkpoint: Checkpoint, kind: str, token: str, data: bytes, *, inline: bool = True
) -> Payload:
    """Return bytes as a report carries them: themselves, or the name of the file they went to."""
    crc32 = zlib.crc32(data)
    if inline and len(data) < INLINE_BYTES:
        return Payload(data, None, len(data), crc32)
    checkpoint.write_file(kind, token, data)
    return Payload(None, token, len(data), crc32)


def table_payload(
    checkpoint: Checkpoint,
    kind: str,
    token: str,
    table: pa.Table | pa.RecordBatch | None,
    *,
    inline: bool = True,
) -> Payload | None:
    """Return a table as a report carries it; None for one without rows."""
    if table is None or table.num_rows == 0:
        return None
    stream = io.BytesIO()
    with pa.ipc.new_stream(stream, table.schema) as writer:
        writer.write(table)
    return payload(checkpoint, kind, token, stream.getvalue(), inline=inline)


def read_table(data: bytes) -> pa.Table:
    """Return the table that a task wrote."""
    with pa.ipc.open_stream(data) as reader:
        return reader.read_all()
