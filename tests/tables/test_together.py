"""Many tables in one call: byte by byte what each of them does by itself."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from headgate.tables import together
from headgate.tables.heap import HeapMemory
from headgate.tables.kernels import STRINGS, UNDO_VALID
from headgate.tables.table import BufferTable, initial_bytes
from headgate_lab.testing.addresses import serve_together
from headgate_lab.testing.stores import LAYOUT, strings

TABLES = 4
FRESH = np.array(LAYOUT.fresh, dtype=np.int64)
STRING_WORDS = np.array([1], dtype=np.int64)


@pytest.fixture(autouse=True)
def _without_a_compiler_too(monkeypatch: pytest.MonkeyPatch) -> None:
    serve_together(monkeypatch)


def new_tables() -> list[BufferTable]:
    return [
        BufferTable.create(HeapMemory(initial_bytes(LAYOUT)), LAYOUT, number)
        for number in range(TABLES)
    ]


def intern_together(tables: list[BufferTable], spans: Any, offsets: Any, data: Any) -> Any:
    """Intern strings of each table, and let a table without room do the rest by itself."""
    out, at, done = np.full(len(offsets) - 1, -7), together.places(tables), 0
    while (done := together.intern_each(at, done, spans, offsets, data, out)) < len(tables):
        start, stop = spans[done].tolist()
        out[start:stop] = tables[done].intern(offsets[start : stop + 1], data)
        at, done = together.places(tables), done + 1
    return out


def upsert_together(tables: list[BufferTable], spans: Any, keys: Any) -> Any:
    out, at, done = np.full(len(keys), -7), together.places(tables), 0
    while (done := together.upsert_each(at, done, spans, FRESH, keys, out)) < len(tables):
        start, stop = spans[done].tolist()
        out[start:stop] = tables[done].upsert(keys[start:stop])
        at, done = together.places(tables), done + 1
    return out


def written(tables: list[BufferTable]) -> list[bytes]:
    return [t._memory.buffer.tobytes() + t._undo.tobytes() for t in tables]


def resolved(rows: Any, offsets: Any, data: Any) -> list[tuple[Any, ...]]:
    """Return rows with their string in the place of its number; a null is None."""
    raw = np.asarray(data).tobytes()
    return [
        (m, raw[offsets[s - 1] : offsets[s]] if s else None, *rest) for m, s, *rest in rows.tolist()
    ]


@pytest.mark.parametrize("seed", range(3))
def test_tables_in_one_call_are_as_each_by_itself(seed: int) -> None:
    """Some steps are of a few records, some make tables grow, and some have none for a table."""
    dice, ones, alone = random.Random(seed), new_tables(), new_tables()
    words = ["", "a", "ü" * 9, "\0", *(f"word {n}" * (n % 5) for n in range(90))]
    for step in range(30):
        for table in (*ones, *alone):
            table.begin()
        counts = [dice.choice([0, 1, 3, 9, 50 if step % 5 == 4 else 2]) for _ in ones]
        ends = np.cumsum([0, *counts])
        spans = np.column_stack([ends[:-1], ends[1:]])
        said = [dice.choice(words) for _ in range(ends[-1])]
        numbers = np.array([dice.randint(-2, 9) for _ in said], dtype=np.int64)
        null = np.array([dice.random() < 0.2 for _ in said], dtype=bool)
        offsets, data = strings(said)
        data = data.copy()
        ids = intern_together(ones, spans, offsets, data)
        keys = np.column_stack([np.where(null, 0, ids + 1), numbers])
        index = upsert_together(ones, spans, keys)
        for table, twin, (start, stop) in zip(ones, alone, spans.tolist(), strict=True):
            assert twin.intern(offsets[start : stop + 1], data).tolist() == ids[start:stop].tolist()
            assert twin.upsert(keys[start:stop]).tolist() == index[start:stop].tolist()
            for one in (table, twin):
                one.rows[index[start:stop], 3] = numbers[start:stop] - 5
                if step % 7 == 6:
                    one.delete(index[start:stop][:1])
        assert written(ones) == written(alone)
        check_changes(ones)
        there = [table for table in ones if table.live_count]
        if there:
            leasts = together.least_each(together.places(there), 3).tolist()
            assert leasts == [int(t.rows[t.live(), 3].min()) for t in there]
        for table in (*ones, *alone):
            table.commit(f"{step + 1:032x}")


def check_changes(tables: list[BufferTable]) -> None:
    """Compare the changes of all tables with the section of each."""
    starts, rows, copied, offsets, data = together.changed_each(
        together.places(tables), STRING_WORDS
    )
    if not all(table._counts[UNDO_VALID] for table in tables):
        assert set(starts.tolist()) == {-1}
        assert (len(rows), len(offsets), len(data)) == (0, 1, 0)
        return
    sections = [table.section("f" * 32).rows for table in tables]
    assert starts.tolist() == np.cumsum([0, *map(len, sections)]).tolist()
    assert rows.tolist() == np.concatenate(sections).tolist()
    named = [row for each, t in zip(sections, tables, strict=True)
             for row in resolved(each, *t.strings())]  # fmt: skip
    assert resolved(copied, offsets, data) == named
    assert len(offsets) - 1 == np.count_nonzero(rows[:, 1]), "a string for each id, and no more"
    assert len(data) == offsets[-1]


def test_the_parts_of_a_table_are_where_it_says() -> None:
    tables = new_tables()
    tables[1].begin()
    tables[1].upsert(np.arange(200, dtype=np.int64).reshape(-1, 2))  # grows
    tables[1].intern(*strings([f"{n}" * 20 for n in range(90)]))
    at = together.places(tables)
    assert at.shape == (TABLES, 13)
    for number, table in enumerate(tables):
        assert np.shares_memory(together.rows_of(at, number), table.rows) or number != 1
        assert together.rows_of(at, number).tolist() == table.rows.tolist()
        floats = together.floats_of(at, number)
        assert floats.shape == table.rows.shape
        assert floats.tobytes() == table.rows.tobytes()
        count = int(table._counts[STRINGS])
        assert together.offsets_of(at, number)[: count + 1].tolist() == table.strings()[0].tolist()
        assert len(together.offsets_of(at, number)) == table._geometry.string_limit + 1
        heap = together.heap_of(at, number)
        assert len(heap) == table._geometry.heap_bytes
        assert heap.tobytes().startswith(table.strings()[1].tobytes())
