"""Many sections of one slot task as one blob: two Arrow IPC streams, one after the other.

The first stream holds the rows of all key groups, one fixed-size list of int64 each; the second
the bytes of their new strings. Which rows are whose stands in `SectionRef`s, kept in the manifest,
so that 128 groups cost no more Arrow objects than one. Nothing in a blob is ever executed.
"""

from __future__ import annotations

import io
import mmap
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headgate.core.errors import CheckpointError
from headgate.state.ports import I64, U8, Section

Word = TypeVar("Word", np.int64, np.uint8)


@dataclass(frozen=True)
class SectionRef:
    """Where in its blob a section lies.

    Parameters
    ----------
    row_start, row_count : int          In rows of the blob.
    string_start, string_count : int    In strings of the blob.
    first_string : int                  Id of the first string; see `Section`.
    full : bool
    previous, token : str               See `Section`.
    """

    row_start: int
    row_count: int
    string_start: int
    string_count: int
    first_string: int
    full: bool
    previous: str
    token: str


@dataclass(frozen=True)
class Blob:
    """A changelog blob, opened.

    Parameters
    ----------
    rows : int64[n, width]
    string_offsets : int64[m + 1]
    string_bytes : uint8[]
    """

    rows: I64
    string_offsets: I64
    string_bytes: U8


def encode(sections: Mapping[int, Section]) -> tuple[bytes, dict[int, SectionRef]]:
    """Pack the sections of one slot task.

    Parameters
    ----------
    sections : mapping of key group -> Section    At least one; all of one layout.

    Returns
    -------
    (bytes, dict of key group -> SectionRef)
    """
    refs = {}
    row_at = string_at = 0
    for group, section in sections.items():
        rows, strings = len(section.rows), len(section.string_offsets) - 1
        refs[group] = SectionRef(
            row_at, rows, string_at, strings,
            section.first_string, section.full, section.previous, section.token,
        )  # fmt: skip
        row_at += rows
        string_at += strings
    every = list(sections.values())
    offsets = np.zeros(string_at + 1, dtype=np.int64)
    lengths = [np.diff(section.string_offsets) for section in every]
    np.cumsum(np.concatenate(lengths), out=offsets[1:])
    data = np.concatenate([section.string_bytes for section in every])
    return _pack(np.concatenate([section.rows for section in every]), offsets, data), refs


def _pack(rows: I64, offsets: I64, data: U8) -> bytes:
    # From buffers: `pa.array` imports pandas, half a second in each worker, and then asks it.
    words = [None, pa.py_buffer(np.ascontiguousarray(rows))]
    flat = pa.Array.from_buffers(pa.int64(), rows.size, words)
    cells = pa.FixedSizeListArray.from_arrays(flat, rows.shape[1])
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    strings = pa.Array.from_buffers(pa.large_binary(), len(offsets) - 1, buffers)
    sink = io.BytesIO()
    for name, column in (("rows", cells), ("strings", strings)):
        batch = pa.record_batch([column], names=[name])
        with pa.ipc.new_stream(sink, batch.schema) as writer:
            writer.write_batch(batch)
    return sink.getvalue()


def open_blob(blob: bytes | mmap.mmap) -> Blob:
    """Read a blob, without copying it.

    Raises
    ------
    CheckpointError    It is not what `encode` writes.
    """
    try:
        source = pa.BufferReader(blob)
        rows, strings = _only_column(source), _only_column(source)
        if rows.values.type != pa.int64() or strings.type != pa.large_binary() or source.read(1):
            raise _damaged("unexpected columns")
        width, count = rows.type.list_size, len(strings)
        words = _view(rows.values.buffers()[1], np.int64, len(rows) * width)
        offsets, data = strings.buffers()[1:]
        known = _view(offsets, np.int64, count + 1)
        return Blob(words.reshape(len(rows), width), known, _view(data, np.uint8, int(known[-1])))
    except (pa.ArrowException, AttributeError, ValueError, TypeError, OSError) as error:
        raise _damaged(str(error).splitlines()[0] if str(error) else "unreadable") from error


def _view(buffer: pa.Buffer | None, dtype: type[Word], count: int) -> npt.NDArray[Word]:
    if buffer is None or count == 0:
        return np.zeros(count, dtype=dtype)
    return np.frombuffer(buffer, dtype=dtype, count=count)


def _only_column(source: pa.NativeFile) -> pa.Array:
    with pa.ipc.open_stream(source) as reader:
        batch = reader.read_next_batch()
        more = next(iter(reader), None)
    if more is not None or batch.num_columns != 1:
        raise _damaged("unexpected batches")
    column = batch.column(0)
    column.validate(full=True)
    if column.null_count or column.offset:
        raise _damaged("nulls")
    return column


def decode(blob: bytes | Blob, ref: SectionRef) -> Section:
    """Return one section of a blob; its arrays are views.

    Raises
    ------
    CheckpointError    The blob is damaged, or the reference points outside it.
    """
    opened = blob if isinstance(blob, Blob) else open_blob(blob)
    rows_end, strings_end = ref.row_start + ref.row_count, ref.string_start + ref.string_count
    inside = 0 <= ref.row_start <= rows_end <= len(opened.rows)
    if not inside or not 0 <= ref.string_start <= strings_end < len(opened.string_offsets):
        raise _damaged(f"rows up to {rows_end} and strings up to {strings_end} are not in it")
    offsets = opened.string_offsets[ref.string_start : strings_end + 1]
    return Section(
        token=ref.token,
        previous=ref.previous,
        full=ref.full,
        rows=opened.rows[ref.row_start : rows_end],
        string_offsets=offsets - offsets[0],
        string_bytes=opened.string_bytes[int(offsets[0]) : int(offsets[-1])],
        first_string=ref.first_string,
    )


def _damaged(why: str) -> CheckpointError:
    return CheckpointError(f"a changelog blob is damaged ({why}): see `headgate inspect --verify`")
