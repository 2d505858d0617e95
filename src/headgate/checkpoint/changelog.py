"""Packs many sections of one slot task into one blob: two Arrow IPC streams, one after the other.

The first stream holds the rows of all key groups: a column per word, in the narrowest type of integers
that fits. The second stream holds the bytes of their new strings. `SectionRef`s in the manifest locate
the rows of each group, so that 128 groups cost no more Arrow objects than one group. Nothing in a blob
is ever executed.
"""

from __future__ import annotations

import mmap
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headgate.core.errors import CheckpointError
from headgate.tables.kernels import bounds
from headgate.tables.ports import I64, U8, Section

Word = TypeVar("Word", bound=np.generic)
Words = npt.NDArray[np.signedinteger[Any]]

_WIDTHS = (np.int8, np.int16, np.int32, np.int64)


class SectionRef(NamedTuple):
    """Locates a section in its blob; a tuple, since a step reads one of each changed key group."""

    row_start: int
    row_count: int
    """`row_start`, `row_count`: first row and number of rows in the blob."""
    string_start: int
    string_count: int
    """`string_start`, `string_count`: first string and number of strings in the blob."""
    first_string: int
    """Id of the first string; see `Section`."""
    full: bool
    previous: str
    token: str
    """`previous`, `token`: see `Section`."""


@dataclass(frozen=True)
class Blob:
    """Holds an opened changelog blob."""

    words: tuple[Words | None, ...]
    """tuple of int[n] or None: one column per word of a row, of any width of integer; None for a column
    of zeros."""
    row_count: int
    """Number of rows, n."""
    string_offsets: I64
    """int64[m + 1]: offsets into `string_bytes`."""
    string_bytes: U8
    """uint8[]: bytes of all strings."""

    def rows(self, start: int, stop: int) -> I64:
        """Return rows in the form of a table: int64[stop - start, number of words]."""
        rows = np.zeros((stop - start, len(self.words)), dtype=np.int64)
        for at, column in enumerate(self.words):
            if column is not None:
                rows[:, at] = column[start:stop]
        return rows


def encode(sections: Mapping[int, Section]) -> tuple[bytes, dict[int, SectionRef]]:
    """Return a blob of the sections of one slot task, and the `SectionRef` of each key group.

    `sections`: at least one, all of one layout, by key group.
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
    # From buffers, because `pa.array` imports pandas, which takes half a second in each worker.
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    strings = pa.Array.from_buffers(pa.large_binary(), len(offsets) - 1, buffers)
    sink = pa.BufferOutputStream()
    for columns in (_columns(rows), {"strings": strings}):
        batch = pa.record_batch(list(columns.values()), names=list(columns))
        with pa.ipc.new_stream(sink, batch.schema) as writer:
            writer.write_batch(batch)
    blob: bytes = sink.getvalue().to_pybytes()
    return blob


def _columns(rows: I64) -> dict[str, pa.Array]:
    """Return the words of rows by name, each in the narrowest type of integers that fits."""
    columns = {}
    low, high = bounds(rows)
    for word, (least, most) in enumerate(zip(low.tolist(), high.tolist(), strict=True)):
        name = f"w{word}"
        if least == most == 0:
            columns[name] = pa.nulls(len(rows))
            continue
        narrow = next(t for t in _WIDTHS if np.iinfo(t).min <= least and most <= np.iinfo(t).max)
        column = rows[:, word].astype(narrow)
        kind = pa.from_numpy_dtype(column.dtype)
        columns[name] = pa.Array.from_buffers(kind, len(rows), [None, pa.py_buffer(column)])
    return columns


def open_blob(blob: bytes | mmap.mmap | memoryview) -> Blob:
    """Read a blob without a copy. Raises `CheckpointError` if `encode` has not written it."""
    try:
        source = pa.BufferReader(blob)
        rows, strings = _only_batch(source), _only_batch(source)
        if strings.schema.types != [pa.large_binary()] or source.read(1):
            raise _damaged("unexpected columns")
        offsets, data = strings.column(0).buffers()[1:]
        known = _view(offsets, np.int64, strings.num_rows + 1)
        return Blob(_words(rows), rows.num_rows, known, _view(data, np.uint8, int(known[-1])))
    except (pa.ArrowException, AttributeError, ValueError, TypeError, OSError) as error:
        raise _damaged(str(error).splitlines()[0] if str(error) else "unreadable") from error


def _words(rows: pa.RecordBatch) -> tuple[Words | None, ...]:
    count = rows.num_rows
    if rows.schema.names == ["rows"]:
        # format 1: one column of all words
        (cells,) = rows.columns
        if cells.values.type != pa.int64():
            raise _damaged("unexpected columns")
        width = cells.type.list_size
        matrix = _view(cells.values.buffers()[1], np.int64, count * width).reshape(count, width)
        return tuple(matrix.T)
    words: list[Words | None] = []
    for column in rows.columns:
        if pa.types.is_null(column.type):
            words.append(None)
        elif pa.types.is_signed_integer(column.type):
            words.append(_view(column.buffers()[1], column.type.to_pandas_dtype(), count))
        else:
            raise _damaged("unexpected columns")
    return tuple(words)


def _view(buffer: pa.Buffer | None, dtype: type[Word], count: int) -> npt.NDArray[Word]:
    if buffer is None:  # a column without values
        return np.zeros(count, dtype=dtype)
    return np.frombuffer(buffer, dtype=dtype, count=count)


def _only_batch(source: pa.NativeFile) -> pa.RecordBatch:
    with pa.ipc.open_stream(source) as reader:
        batch = reader.read_next_batch()
        more = next(iter(reader), None)
    if more is not None:
        raise _damaged("unexpected batches")
    batch.validate(full=True)
    for column in batch.columns:
        if column.offset or (column.null_count and not pa.types.is_null(column.type)):
            raise _damaged("nulls")
    return batch


def decode(blob: bytes | Blob, ref: SectionRef) -> Section:
    """Return one section of a blob; its strings are views.

    Raises `CheckpointError` if the blob is damaged, or if the reference points outside it.
    """
    opened = blob if isinstance(blob, Blob) else open_blob(blob)
    rows_end, strings_end = ref.row_start + ref.row_count, ref.string_start + ref.string_count
    inside = 0 <= ref.row_start <= rows_end <= opened.row_count
    if not inside or not 0 <= ref.string_start <= strings_end < len(opened.string_offsets):
        raise _damaged(f"rows up to {rows_end} and strings up to {strings_end} are not in it")
    offsets = opened.string_offsets[ref.string_start : strings_end + 1]
    return Section(
        token=ref.token,
        previous=ref.previous,
        full=ref.full,
        rows=opened.rows(ref.row_start, rows_end),
        string_offsets=offsets - offsets[0],
        string_bytes=opened.string_bytes[int(offsets[0]) : int(offsets[-1])],
        first_string=ref.first_string,
    )


def _damaged(why: str) -> CheckpointError:
    return CheckpointError(f"a changelog blob is damaged ({why}): see `headgate inspect --verify`")
