from __future__ import annotations

import io
import itertools
import secrets
import subprocess
import sys
from dataclasses import fields, replace

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.checkpoint.changelog import decode, encode, open_blob
from headgate.core.errors import CheckpointError
from headgate.tables.ports import EMPTY_TOKEN, Section
from headgate_lab.testing.stores import strings


def section(rows: int, words: list[str], *, full: bool = False) -> Section:
    offsets, data = strings(words)
    table = np.arange(rows * 5, dtype=np.int64).reshape(rows, 5) - 7
    return Section(secrets.token_hex(16), EMPTY_TOKEN, full, table, offsets, data, 0 if full else 4)


def same(a: Section, b: Section) -> bool:
    pairs = [(getattr(a, one.name), getattr(b, one.name)) for one in fields(Section)]
    return all(np.array_equal(x, y) for x, y in pairs) and a.rows.shape == b.rows.shape


@given(
    st.dictionaries(
        st.integers(0, 127),
        st.tuples(st.integers(0, 4), st.lists(st.text(max_size=5), max_size=3), st.booleans()),
        min_size=1,
    )
)
def test_sections_come_back_as_they_went(shapes):
    sections = {group: section(n, words, full=full) for group, (n, words, full) in shapes.items()}
    blob, refs = encode(sections)
    opened = open_blob(blob)
    assert all(same(decode(opened, refs[group]), one) for group, one in sections.items())


@pytest.mark.parametrize("edge", [2**7, 2**15, 2**31])
def test_words_at_the_edges_of_narrow_integers_come_back(edge):
    table = np.array([[1, edge - 1, -edge, 0], [0, edge, -edge - 1, 0]], dtype=np.int64)
    zeros = np.zeros((1, 4), np.int64)
    for rows in (table[:1], table, zeros, table[:1] * [[1, 1, 1, 5]], np.full((1, 1), -edge)):
        one = replace(section(1, []), rows=rows)
        blob, refs = encode({0: one})
        assert same(decode(blob, refs[0]), one)


def test_rows_of_small_numbers_take_few_bytes():
    rows = np.zeros((10_000, 6), dtype=np.int64)
    rows[:, 0], rows[:, 2], rows[:, 4] = 1, np.arange(10_000), 3
    blob, _ = encode({0: replace(section(1, []), rows=rows)})
    assert len(blob) < 10_000 * 5


def test_a_blob_of_format_1_is_read():
    one = section(3, ["a", "bc"])
    _, refs = encode({7: one})
    assert same(decode(_blob_of_format_1(one), refs[7]), one)


def _blob_of_format_1(one: Section) -> bytes:
    """Rows as one column of lists of int64: what was written until checkpoints had format 2."""
    flat = pa.array(one.rows.reshape(-1))
    rows = pa.FixedSizeListArray.from_arrays(flat, one.rows.shape[1])
    edges = one.string_offsets.tolist()
    texts = [one.string_bytes[a:b].tobytes() for a, b in itertools.pairwise(edges)]
    sink = io.BytesIO()
    for name, column in (("rows", rows), ("strings", pa.array(texts, pa.large_binary()))):
        batch = pa.record_batch([column], names=[name])
        with pa.ipc.new_stream(sink, batch.schema) as writer:
            writer.write_batch(batch)
    return sink.getvalue()


def test_a_damaged_or_foreign_blob_is_refused():
    blob, refs = encode({1: section(3, ["a"]), 2: section(2, ["b", "c"])})
    for bad in (b"", blob[:40], blob[: len(blob) // 2], b"\x80\x04K\x01." * 9, blob + b"x"):
        with pytest.raises(CheckpointError, match="damaged"):
            open_blob(bad)
    outside = (
        refs[2]._replace(row_count=3),
        refs[2]._replace(row_start=-1),
        refs[2]._replace(string_count=9),
        refs[2]._replace(string_start=-2),
    )
    for ref in outside:
        with pytest.raises(CheckpointError, match="not in it"):
            decode(blob, ref)


@pytest.mark.parametrize(
    ("rows", "strings"),
    [
        (pa.array([1.5, 2.5]), pa.array([b"a"], pa.large_binary())),  # words are signed integers
        (pa.array([1, 2], pa.uint64()), pa.array([b"a"], pa.large_binary())),
        (pa.array([True, False]), pa.array([b"a"], pa.large_binary())),
        (pa.array([1, 2]), pa.array([b"a"], pa.binary())),
        (pa.array([1, 2]), pa.array(["a"])),
        (pa.array([1, None]), pa.array([b"a"], pa.large_binary())),
    ],
)
def test_columns_that_no_section_has_are_refused(rows, strings):
    def stream(column):
        sink = pa.BufferOutputStream()
        batch = pa.record_batch([column], names=["w0"])
        with pa.ipc.new_stream(sink, batch.schema) as writer:
            writer.write_batch(batch)
        return sink.getvalue().to_pybytes()

    good = stream(pa.array([1, 2])) + stream(pa.array([b"a"], pa.large_binary()))
    assert open_blob(good) is not None
    with pytest.raises(CheckpointError, match="damaged"):
        open_blob(stream(rows) + stream(strings))


def stream(*batches, names=("w0",)):
    sink = pa.BufferOutputStream()
    made = [pa.record_batch(columns, names=list(names)) for columns in batches]
    with pa.ipc.new_stream(sink, made[0].schema) as writer:
        for batch in made:
            writer.write_batch(batch)
    return sink.getvalue().to_pybytes()


TEXTS = stream([pa.array([b"a"], pa.large_binary())], names=["strings"])


@pytest.mark.parametrize(
    ("blob", "why"),
    [
        (stream([pa.array([1])], [pa.array([2])]) + TEXTS, "unexpected batches"),
        (
            stream([pa.array([1])]) + stream([pa.array([b"a"])] * 2, names="ab"),
            "unexpected columns",
        ),
        (stream([pa.array([[1]], pa.list_(pa.int32(), 1))], names=["rows"]) + TEXTS, "columns"),
        (stream([pa.array([1.5])]) + TEXTS, "unexpected columns"),
        (stream([pa.array([1, None])]) + TEXTS, "nulls"),
        (stream([pa.array([1])]), "damaged"),
    ],
)
def test_what_is_no_blob_says_why(blob, why):
    with pytest.raises(CheckpointError, match=why):
        open_blob(blob)


def test_the_widths_of_words_are_the_narrowest():
    rows = np.array([[0, -128, 127, 128, -32769, 2**31]], dtype=np.int64)
    blob, _ = encode({0: replace(section(1, []), rows=rows)})
    batch = pa.ipc.open_stream(blob).read_next_batch()
    assert [str(kind) for kind in batch.schema.types] == [
        "null", "int8", "int8", "int16", "int32", "int64",
    ]  # fmt: skip
    assert batch.schema.names == [f"w{word}" for word in range(6)]


def test_pandas_stays_unimported():
    code = (
        "import sys, numpy as np\n"
        "from headgate.checkpoint.changelog import *\n"
        "from headgate.tables.ports import Section\n"
        "s = Section('1' * 32, '0' * 32, False, np.ones((2, 3), np.int64),"
        " np.array([0, 1]), np.ones(1, np.uint8), 0)\n"
        "blob, refs = encode({0: s}); decode(blob, refs[0])\n"
        "sys.exit('pandas' in sys.modules)\n"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_an_empty_section_has_the_types_of_a_full_one():
    one = section(0, [])
    blob, refs = encode({0: one})
    opened = open_blob(blob)
    found = decode(opened, refs[0])
    assert [part.dtype for part in (found.rows, found.string_offsets, found.string_bytes)] == [
        part.dtype for part in (one.rows, one.string_offsets, one.string_bytes)
    ]
