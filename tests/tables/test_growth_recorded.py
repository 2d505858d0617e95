"""Tables that grow exactly at their bounds, and memory that is mapped and given back."""

from __future__ import annotations

import gc
import os
import random
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headgate.core.errors import StateError
from headgate.tables import arena_file, kernels, mapping, runs
from headgate.tables.arena_file import ArenaFile
from headgate.tables.header import Geometry
from headgate.tables.heap import HeapMemory
from headgate.tables.kernels import UNDO_VALID
from headgate.tables.ports import TableLayout
from headgate.tables.table import BufferTable, _plain, _plain_bytes, initial_bytes
from headgate_lab.testing.stores import LAYOUT

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
Recorded = Callable[[str, Iterable[str]], None]
SMALL = TableLayout(1, (7,))


def keys(start: int, stop: int) -> Any:
    return np.arange(start, stop, dtype=np.int64).reshape(-1, 1)


def sizes(table: BufferTable) -> str:
    made = table._geometry
    parts = (made.capacity, made.limit, made.index_size, made.string_limit, made.heap_bytes)
    places = (made.rows_at, made.index_at, made.offsets_at, made.heap_at, made.total_bytes)
    assert made == table.header.geometry()
    assert made.total_bytes == table._memory.buffer.size
    undo = len(table._undo) if table._counts[UNDO_VALID] else None
    return f"{parts} at {places}, undo {undo}, {table.live_count} rows"


def test_rows_make_a_table_grow_at_its_bound_as_recorded(recorded: Recorded) -> None:
    """Filled up to the limit nothing happens; with one row more the table grows; by how much depends."""
    lines: list[str] = []
    for words in (1, 3):
        layout = TableLayout(words, (7,) * words)
        table = BufferTable.create(HeapMemory(initial_bytes(layout)), layout)
        token = 0
        for _ in range(6):
            limit = table._geometry.limit
            for count in (limit, limit + 1):
                table.begin()
                new = np.repeat(keys(table.live_count, count), words, axis=1)
                table.upsert(np.ascontiguousarray(new))
                lines.append(sizes(table))
                token += 1
                table.commit(f"{token:032x}")
        assert (np.sort(table.rows[table.live(), 1]) == np.arange(table.live_count)).all()
    recorded("growth-of-rows", lines)


def test_strings_make_a_table_grow_at_their_bounds_as_recorded(recorded: Recorded) -> None:
    lines: list[str] = []
    for length in (1, 2, 16, 100):
        table = BufferTable.create(HeapMemory(initial_bytes(SMALL)), SMALL)
        table.begin()
        table.upsert(keys(0, 5))
        before = ""
        for number in range(300):
            word = bytes([number % 256] * length)
            if length > 2:
                word = f"{number:0{length}d}".encode()
            table.intern(np.array([0, len(word)]), np.frombuffer(word, np.uint8))
            if (now := sizes(table)) != before:
                lines.append(f"{length}: {number} strings {now}")
            before = now
        assert table.rows[table.live(), 2].tolist() == [7] * 5
    recorded("growth-of-strings", lines)


@pytest.mark.parametrize("room", [True, False])
def test_a_log_of_changes_grows_with_what_a_step_touches(room: bool, recorded: Recorded) -> None:
    """Where it has no room to grow the step goes on, and cannot be undone."""

    class Memory(HeapMemory):
        """Has room for a log of 64 rows, or for any."""

        def undo(self, byte_count: int, *, create: bool) -> Any:
            if not room and byte_count > 16 + 64 * 32:
                return None
            return super().undo(byte_count, create=create)

    lines: list[str] = []
    table = BufferTable.create(Memory(initial_bytes(SMALL)), SMALL)
    table.begin()
    index = table.upsert(keys(0, 600))
    table.commit("1" * 32)
    for number, count in enumerate((63, 64, 65, 257, 600), 2):
        table.begin()
        if number % 2:
            table.upsert(keys(0, count))
        else:
            index = table.find(keys(0, count))
            table.rows[table.upsert(keys(0, count)), 2] = number
        lines.append(
            f"{count}: {sizes(table)} {len(table.changed())} {sorted(table.changed())[:9]}"
        )
        table.commit(f"{number}" * 32)
        lines.append(f"  {table.can_roll_back()} {table.touched_since(-1)} {len(index)}")
        if number == 4 and table.can_roll_back():
            table.roll_back()
            lines.append(f"  {sorted(set(table.rows[table.live(), 2].tolist()))} {sizes(table)}")
    recorded(f"growth-of-logs-{room}", lines)


def test_dead_rows_are_cleared_before_a_table_grows(recorded: Recorded) -> None:
    """As many as half of the limit live, or one more; some died in this very step."""
    lines: list[str] = []
    limit = Geometry(SMALL.width).limit
    for living in (limit // 2 - 1, limit // 2, limit // 2 + 1):
        for now in (0, 1, 5):
            table = BufferTable.create(HeapMemory(initial_bytes(SMALL)), SMALL)
            table.begin()
            rows = table.upsert(keys(0, limit))
            table.commit("1" * 32)
            table.begin()
            table.delete(rows[living:])
            table.commit("2" * 32)
            table.begin()
            table.delete(rows[:now])
            # a key that finds an empty row at once, and no dead one
            empty = table.rows[kernels.hash_words(keys(1000, 1200)) & 63, 0] == 0
            table.upsert(keys(1000, 1200)[empty][:1])
            lines.append(f"{living} {now}: {sizes(table)} {len(table.changed())}")
    recorded("growth-after-deaths", lines)


class Places:
    """Open addressing in Python: a list of (key, step that touched it last, whether it is there)."""

    def __init__(self, capacity: int) -> None:
        self.rows: list[Any] = [None] * capacity
        self.step = 0

    def put(self, key: int, at: int) -> int:
        """Return where a key is or comes: over the first dead row of an earlier step, or at the end."""
        spare = None
        for number in (n % len(self.rows) for n in range(at, at + len(self.rows))):
            row = self.rows[number]
            if row is not None and row[0] == key:
                spare = number
                break
            if spare is None and (row is None or (not row[2] and row[1] != self.step)):
                spare = number
            if row is None:
                break
        assert spare is not None
        self.rows[spare] = (key, self.step, True)
        return spare

    def remove(self, number: int) -> None:
        key, _, there = self.rows[number]
        if there:
            self.rows[number] = (key, self.step, False)


@pytest.mark.parametrize("seed", range(4))
def test_rows_lie_where_open_addressing_puts_them(seed: int) -> None:
    """Keys that meet each other, die and come again, in one step and over several."""
    dice = random.Random(seed)
    table = BufferTable.create(HeapMemory(initial_bytes(SMALL)), SMALL)
    follower = BufferTable.create(HeapMemory(initial_bytes(SMALL)), SMALL)
    hashes = kernels.hash_words(keys(0, 3000)) & 63
    near = [int(k) for k in np.flatnonzero((hashes >= 60) | (hashes < 3))[:30]]
    model = Places(64)
    for step in range(40):
        table.begin()
        model.step = int(table.stamp)
        for _ in range(dice.randint(0, 12)):
            key = dice.choice(near)
            (number,) = table.upsert(np.array([[key]])).tolist()
            assert number == model.put(key, int(hashes[key]))
            if dice.random() < 0.6:
                table.delete(np.array([number]))
                model.remove(number)
        shown = [
            (row[0] >> 1, row[0] & 1, row[1]) if row[0] else None for row in table.rows.tolist()
        ]
        assert shown == [
            None if row is None else (row[1], int(row[2]), row[0]) for row in model.rows
        ]
        changed = {
            n for n, row in enumerate(model.rows) if row is not None and row[1] == model.step
        }
        assert set(table.changed().tolist()) == changed
        section = table.section(f"{step + 1:032x}")
        table.commit(section.token)
        follower.catch_up([section])
        there = [sorted(t.rows[t.live(), 1].tolist()) for t in (table, follower)]
        assert there[0] == there[1] == sorted(r[0] for r in model.rows if r is not None and r[2])
        assert table.live_count == len(there[0])


def test_two_tables_with_the_same_steps_are_the_same_wherever_they_lie(tmp_path: Path) -> None:
    """In a file, and in the heap."""
    dice = random.Random(91)
    file = ArenaFile.create([str(tmp_path / "g1")], initial_bytes(LAYOUT), 5)
    tables = [
        BufferTable.create(memory, LAYOUT, 5)
        for memory in (file, HeapMemory(initial_bytes(LAYOUT)))
    ]
    for step in range(25):
        drawn = [[dice.randrange(90), dice.randrange(3)] for _ in range(dice.choice([0, 3, 80]))]
        for table in tables:
            table.begin()
            index = table.upsert(np.array(drawn, dtype=np.int64).reshape(-1, 2))
            table.rows[index, 3] = step
            table.delete(index[: len(index) // 3])
            table.commit(f"{step + 1:032x}")
            if step % 4 == 3 and table.can_roll_back():
                table.roll_back()
        first, second = (table._memory.buffer.tobytes() for table in tables)
        assert first == second
    file.discard()


@pytest.mark.parametrize("more", [0, 5, 8, 24, 100])
def test_a_log_of_any_length_undoes_its_step(more: int, tmp_path: Path) -> None:
    """Its file may be longer than it must be, and by no whole row."""
    path = str(tmp_path / "g1")
    file = ArenaFile.create([path], initial_bytes(SMALL), 5)
    table = BufferTable.create(file, SMALL, 5)
    file.publish()
    for number in (1, 2):
        table.begin()
        table.rows[table.upsert(keys(0, 9)), 2] = number
        table.commit(f"{number}" * 32)
    file.drop()
    with open(f"{path}.{5:016x}.undo", "ab") as log:
        log.write(bytes(more))
    again = ArenaFile.open(path)
    assert again is not None
    again.nonce = 5
    table = BufferTable.attach(again, SMALL)
    assert table.can_roll_back()
    assert len(table._undo) == 64 + more // 32
    table.roll_back()
    assert (table.token, table.rows[table.live(), 2].tolist()) == ("1" * 32, [1] * 9)
    again.drop()


def test_kernels_get_arrays_of_one_form() -> None:
    whole = np.arange(12, dtype=np.int64).reshape(3, 4)
    frozen = whole.copy()
    frozen.flags.writeable = False
    for made in (whole.astype(np.int32), whole.T, whole[:, ::2], frozen, whole.astype(np.uint8)):
        for plain, kind in ((_plain, np.int64), (_plain_bytes, np.uint8)):
            found = plain(made)  # type: ignore[arg-type]
            assert (found.dtype, found.flags.carray) == (kind, True)
            assert found.tolist() == made.tolist()
    data = np.arange(4, dtype=np.uint8)
    assert _plain(whole) is whole
    assert _plain_bytes(data) is data


# --- Mappings -------------------------------------------------------------------------------------------


def mapped(path: Path) -> int:
    gc.collect()
    return Path("/proc/self/maps").read_text().count(str(path))


def test_memory_is_mapped_as_long_as_somebody_looks_at_it(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"abc" + bytes(5000))
    with open(path, "r+b") as file:
        whole = mapping.map_file(file.fileno(), 5003)
    assert whole.tobytes() == path.read_bytes()
    whole[1] = ord("x")
    assert path.read_bytes()[:3] == b"axc", "shared, and writable"
    part = whole[2:3]
    del whole
    assert mapped(path) == 1
    assert part.tobytes() == b"c"
    del part
    assert mapped(path) == 0


def test_a_file_of_many_gigabytes_is_mapped_to_its_end(tmp_path: Path) -> None:
    size = (5 << 30) + 7
    path = tmp_path / "large"
    path.touch()
    os.truncate(path, size)
    with open(path, "r+b") as file:
        whole = mapping.map_file(file.fileno(), size)
        assert whole.size == size
        assert whole[-1] == 0
        whole[-1] = 5
        assert os.pread(file.fileno(), 9, size - 1) == b"\x05"
    del whole
    assert mapped(path) == 0


def test_a_child_has_no_file_of_its_parents(tmp_path: Path) -> None:
    path = str(tmp_path / "g1")
    file = ArenaFile.create([path], initial_bytes(SMALL), 5)
    file.publish()
    arena_file.remember(file)
    if (child := os.fork()) == 0:  # pragma: no cover -- ends itself
        held = [os.readlink(f"/proc/self/fd/{n}") for n in os.listdir("/proc/self/fd")
                if os.path.exists(f"/proc/self/fd/{n}")]  # fmt: skip
        os._exit(int(path in held) + 2 * bool(arena_file._known))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert arena_file._known.pop(path) is file
    other = ArenaFile.open(path)
    assert other is not None
    assert not other.lock(), "the child's end has not unlocked it"
    other.leave()
    file.drop()


def test_what_cannot_be_mapped_is_one_sentence(tmp_path: Path) -> None:
    reading = os.open(tmp_path, os.O_RDONLY)
    with pytest.raises(
        StateError, match=r"^4096 bytes of state cannot be mapped \(.*\): raise or "
    ):
        mapping.map_file(reading, 4096)
    os.close(reading)


def test_a_file_that_grows_and_moves_keeps_no_memory_of_the_one_before(tmp_path: Path) -> None:
    path = tmp_path / "g1"
    file = ArenaFile.create([str(path)], initial_bytes(SMALL), 5)
    table = BufferTable.create(file, SMALL, 5)
    file.publish()
    table.begin()
    table.upsert(keys(0, 300))
    table.commit("1" * 32)
    assert mapped(path) == 2, "the table, and what undoes its step"
    table.begin()
    assert mapped(path) == 2
    log = file.undo(16, create=False)
    assert log is not None
    assert file.undo(log.size, create=False) is log
    larger = file.undo(log.size + 1, create=True)
    assert larger is not None
    assert larger is not log
    assert larger.size == log.size + 1
    del table, log, larger
    file.table = None
    file.drop()
    del file
    assert mapped(path) == 0


def test_a_store_that_closes_and_one_that_cleans_keep_the_files_of_others(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir(mode=0o700)
    files = {}
    for name in ("a/g1", "a/g2", "b/g1", "b/g2"):
        file = ArenaFile.create([str(tmp_path / name)], initial_bytes(SMALL), 5)
        file.publish()
        arena_file.remember(file)
        if name.endswith("1"):
            file.unlock()
        files[name] = file
    known = arena_file._known
    arena_file.forget_directory(f"{tmp_path}/a/")
    left = {n: known.get(str(tmp_path / n)) is file for n, file in files.items()}
    assert left == {"a/g1": False, "a/g2": True, "b/g1": True, "b/g2": True}, "one is held"
    for name in ("a/g2", "b/g1", "b/g2"):
        (tmp_path / name).unlink()
    arena_file.forget_replaced(f"{tmp_path}/a/")
    assert known.get(str(tmp_path / "b/g1")) is files["b/g1"]
    arena_file.forget_replaced(f"{tmp_path}/b/")
    left = {n: known.get(str(tmp_path / n)) is file for n, file in files.items()}
    assert left == {"a/g1": False, "a/g2": True, "b/g1": False, "b/g2": True}
    for name in ("a/g2", "b/g2"):
        files[name].drop()


def test_a_table_of_another_user_is_not_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "g1"
    path.write_bytes(bytes(600))
    path.chmod(0o600)
    file = ArenaFile.open(str(path))
    assert file is not None
    file.drop()
    monkeypatch.setattr(arena_file.os, "geteuid", lambda: 4242)
    assert ArenaFile.open(str(path)) is None


def test_what_cannot_be_removed_keeps_nothing_else_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tmp_path.chmod(0o700)
    run = runs.open_run(tmp_path)
    for name in ("a", "b"):
        (run.path / name / "below").mkdir(parents=True)
    remove = os.rmdir

    def busy(path: Any, **more: Any) -> None:
        if str(path).endswith("a"):
            raise OSError(16, "busy")
        remove(path, **more)

    with monkeypatch.context() as patch:
        patch.setattr(os, "rmdir", busy)
        run.end()
    assert [path.name for path in run.path.iterdir()] == ["a"]
    run.close()
    assert not run.path.exists()
