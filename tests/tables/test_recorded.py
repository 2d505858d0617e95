"""A table's words and bytes over made-up steps, as recorded, and each misuse that is refused."""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from headgate.core.errors import StateError
from headgate.tables.header import (
    AT_BEGUN,
    AT_CAPACITY,
    AT_COUNTS,
    AT_HEAP,
    AT_INDEX,
    AT_MAGIC,
    AT_STRINGS,
    AT_VERSION,
    AT_WIDTH,
    Geometry,
    Header,
)
from headgate.tables.heap import HeapMemory, HeapStore
from headgate.tables.kernels import LIVE, STRING_BYTES, STRINGS, UNDO_COUNT, USED
from headgate.tables.ports import EMPTY_TOKEN, TableLayout
from headgate.tables.table import BufferTable, initial_bytes
from headgate_lab.testing.stores import LAYOUT, apply_changes, strings

Recorded = Callable[[str, Iterable[str]], None]


def new_table(layout: TableLayout = LAYOUT) -> BufferTable:
    return BufferTable.create(HeapMemory(initial_bytes(layout)), layout, nonce=9)


def shown(table: BufferTable) -> str:
    words = table.header.words
    geometry = table.header.geometry()
    live = table.rows[table.live()]
    sums = [int(x) for x in live.sum(axis=0)] if len(live) else []
    sizes = (geometry.capacity, geometry.index_size, geometry.string_limit, geometry.heap_bytes)
    digest = zlib.crc32(table._memory.buffer[512:].tobytes())
    counts, begun = (
        words[AT_COUNTS : AT_COUNTS + 7].tolist(),
        words[AT_BEGUN : AT_BEGUN + 4].tolist(),
    )
    known = (table.live_count, table.stamp, table.can_roll_back(), table.trusted())
    return f"{sizes} {counts} {begun} {known} {sums} {digest:08x}"


def changes(dice: random.Random, step: int) -> list[tuple[str, int, int]]:
    count = dice.choice([0, 1, 5, 40, 120 if step == 12 else 3])
    words = ["", "a", "ü" * 9, "\0", *(f"word {n}" * (n % 4) for n in range(60))]
    return [
        (dice.choice(words), dice.randint(-2, 12), dice.choice([0, 1, 2, 7])) for _ in range(count)
    ]


def test_words_and_bytes_are_as_recorded(recorded: Recorded) -> None:
    dice, table, lines = random.Random(5), new_table(), []
    follower = new_table()
    for step in range(40):
        before = table.stamp
        table.begin()
        apply_changes(table, changes(dice, step))
        if compacted := step % 9 == 8:
            table.compact((1,))
        token = f"{step + 1:032x}"
        section = table.section(token, full=compacted or step % 7 == 6)
        lines.append(f"{step}: changed {sorted(table.changed().tolist())[:20]}")
        lines.append(f"    {shown(table)}")
        table.commit(token)
        lines.append(f"    {shown(table)} {table.touched_since(before)} {table.touched_since(-1)}")
        rows = [int(x) for x in section.rows.sum(axis=0)]
        offsets = section.string_offsets.tolist()
        part = (
            section.full,
            section.first_string,
            len(section.rows),
            rows,
            offsets[-1],
            len(offsets),
        )
        lines.append(f"    section {part} after {section.previous[-4:]}")
        if section.full:
            follower = new_table()
        follower.catch_up([section])
        lines.append(f"    follower {shown(follower)}")
        assert follower.live_count == table.live_count
        if step % 5 == 3 and table.can_roll_back() and not section.full:
            table.roll_back()
            lines.append(f"    back to {table.token[-4:]}: {shown(table)}")
            table.catch_up([section])
            lines.append(f"    again: {shown(table)}")
    recorded("table", lines)


def test_a_table_refuses_what_makes_no_sense() -> None:
    table = new_table()

    def refused(says: str, do: Callable[[], Any]) -> None:
        before = table._memory.buffer.copy()
        with pytest.raises(StateError, match=says):
            do()
        # it is as it was; a section or an undo that does not fit may be half applied to a dirty table
        assert np.array_equal(table._memory.buffer, before) or "fit its table" in says

    keys = np.zeros((1, 2), dtype=np.int64)
    refused("call begin first", lambda: table.upsert(keys))
    refused("call begin first", lambda: table.delete(np.zeros(1, dtype=np.int64)))
    refused("call begin first", lambda: table.intern(*strings(["a"])))
    refused("call begin first", lambda: table.section("1" * 32))
    refused("call begin first", lambda: table.commit("1" * 32))
    refused("call begin first", lambda: table.compact((1,)))
    table.begin()
    refused("release and acquire it", table.begin)
    refused("keys of shape", lambda: table.upsert(np.zeros((1, 3), dtype=np.int64)))
    refused("keys of shape", lambda: table.upsert(np.zeros(2, dtype=np.int64)))
    for index in (-1, 64):
        refused("deleted from a table of 64", lambda index=index: table.delete(np.array([index])))
    data = np.zeros(2, dtype=np.uint8)
    for offsets in ([-1, 1], [0, 3], [1, 0], [0, 2, 1]):
        refused("do not lie in their 2 bytes", lambda o=offsets: table.intern(np.array(o), data))
    for token in ("x", "0" * 32, "1" * 31, "G" * 32):
        refused("cannot name a state", lambda token=token: table.commit(token))
    apply_changes(table, [("a", 1, 1), ("b", 2, 1)])
    refused(r"a row names string 100 of 2: is \[4\] right\?", lambda: table.compact((4,)))
    table.compact((1,))
    refused("its section must be full", lambda: table.section("1" * 32))
    section = table.section("1" * 32, full=True)
    table.commit("1" * 32)
    refused("call begin first", lambda: table.compact((1,)))
    other = new_table()
    narrow = replace(section, rows=section.rows[:, :4])
    refused("a section of shape", lambda: other.catch_up([narrow]))
    other = new_table()
    refused("a section's strings start at 5, the table has 0",
            lambda: other.catch_up([replace(section, first_string=5)]))  # fmt: skip
    twice = replace(section, string_bytes=np.zeros_like(section.string_bytes))
    other = new_table()
    refused("a section's strings start at 0, the table has 0", lambda: other.catch_up([twice]))
    table.begin()
    apply_changes(table, [("a", 1, 1), ("c", 3, 1)])
    table.commit("2" * 32)
    table._undo[0, 0] = 10**6
    refused("the undo log does not fit its table", table.roll_back)


WORDS = {
    "magic": (AT_MAGIC, 5, "not a table of this version"),
    "version": (AT_VERSION, 2, "not a table of this version"),
    "width": (AT_WIDTH, 6, "a table of 6 words per row where 5 are wanted"),
    "capacity, no power": (AT_CAPACITY, 63, "header is damaged"),
    "capacity, small": (AT_CAPACITY, 4, "header is damaged"),
    "index, no power": (AT_INDEX, 65, "header is damaged"),
    "strings": (AT_STRINGS, 0, "header is damaged"),
    "strings, many": (AT_STRINGS, (1 << 40) + 1, "header is damaged"),
    "heap": (AT_HEAP, 0, "header is damaged"),
    "heap, of another size": (AT_HEAP, 520, "header is damaged"),
    "live": (AT_COUNTS + LIVE, 3, "header is damaged"),
    "live, below 0": (AT_COUNTS + LIVE, -1, "header is damaged"),
    "used": (AT_COUNTS + USED, 65, "header is damaged"),
    "undo": (AT_COUNTS + UNDO_COUNT, 65, "header is damaged"),
    "strings there": (AT_COUNTS + STRINGS, 33, "header is damaged"),
    "bytes there": (AT_COUNTS + STRING_BYTES, 513, "header is damaged"),
    "begun": (AT_BEGUN, -1, "header is damaged"),
    "begun with strings": (AT_BEGUN + 2, 1, "header is damaged"),
    "begun with bytes": (AT_BEGUN + 3, 1, "header is damaged"),
}
GOOD = {
    "used": (AT_COUNTS + USED, 64),
    "undo": (AT_COUNTS + UNDO_COUNT, 64),
    "strings there": (AT_COUNTS + STRINGS, 32),
    "bytes there": (AT_COUNTS + STRING_BYTES, 512),
}


@pytest.mark.parametrize("name", WORDS)
def test_a_header_whose_words_do_not_fit_is_not_believed(name: str) -> None:
    at, value, says = WORDS[name]
    buffer = np.zeros(initial_bytes(LAYOUT), dtype=np.uint8)
    header = Header(buffer)
    header.write_geometry(Geometry(LAYOUT.width), LAYOUT, nonce=7)
    header.words[AT_COUNTS + USED] = 2
    header.words[at] = value
    header.seal("1" * 32, EMPTY_TOKEN)  # with a checksum that is right
    with pytest.raises(StateError, match=says):
        header.check(LAYOUT, buffer.size)
    with pytest.raises(StateError, match=says):
        BufferTable.attach(Memory(buffer), LAYOUT)


class Memory(HeapMemory):
    """The memory of a table that is there."""

    def __init__(self, buffer: Any) -> None:
        super().__init__(0)
        self.buffer = buffer


@pytest.mark.parametrize("name", GOOD)
def test_a_header_is_believed_up_to_the_ends(name: str) -> None:
    at, value = GOOD[name]
    buffer = np.zeros(initial_bytes(LAYOUT), dtype=np.uint8)
    header = Header(buffer)
    header.write_geometry(Geometry(LAYOUT.width), LAYOUT, nonce=7)
    header.words[at] = value
    header.seal("1" * 32, EMPTY_TOKEN)
    assert header.check(LAYOUT, buffer.size) == Geometry(LAYOUT.width)
    assert BufferTable.attach(Memory(buffer), LAYOUT).token == "1" * 32


def test_a_store_refuses_a_group_that_is_held_and_a_chain_that_leads_elsewhere() -> None:
    store = HeapStore(LAYOUT)
    store.acquire(3, EMPTY_TOKEN, lambda token: [])
    with pytest.raises(StateError, match="key group 3 is held already"):
        store.acquire(3, EMPTY_TOKEN, lambda token: [])
    with pytest.raises(StateError):
        store.acquire(4, "5" * 32, lambda token: [])
