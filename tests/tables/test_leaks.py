"""Files and descriptors of state: what fails leaves none of them, and nobody else may look into them."""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headgate.core.errors import ArenaFull, StateError
from headgate.tables import arena_file, kernels, room, runs
from headgate.tables.arena import ArenaStore
from headgate.tables.arena_file import ArenaFile
from headgate.tables.header import HEADER_BYTES
from headgate.tables.heap import HeapStore
from headgate.tables.ports import EMPTY_TOKEN
from headgate.tables.table import initial_bytes
from headgate.tables.tiers import _heat_file, _heat_seen, _sizes
from headgate_lab.testing.descriptors import held
from headgate_lab.testing.stores import GROUP, LAYOUT, History, step

BYTES = initial_bytes(LAYOUT)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    tmp_path.chmod(0o700)
    return tmp_path


def refuse(*_: Any, **__: Any) -> Any:
    raise OSError(13, "refused")


@pytest.mark.parametrize(
    "act",
    [
        lambda path: ArenaFile.create([path], BYTES),
        lambda path: ArenaFile.create([f"{path}-other", path], BYTES),
    ],
)
@pytest.mark.parametrize("what", ["flock", "map_file", "allocate"])
def test_a_file_that_cannot_be_made_leaves_nothing(
    place: Path, monkeypatch: pytest.MonkeyPatch, act: Callable[[str], object], what: str
) -> None:
    before = held(place)
    if what == "flock":
        monkeypatch.setattr(fcntl, "flock", refuse)
    else:
        monkeypatch.setattr(room if what == "allocate" else arena_file, what, refuse)
    with pytest.raises((OSError, StateError), match="refused"):
        act(str(place / "g1"))
    assert held(place) == before
    assert list(place.iterdir()) == []


def test_a_file_without_room_is_made_at_the_next_place(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[str] = []
    created = arena_file.created

    def first_is_full(path: str, byte_count: int, remedy: str) -> int:
        made.append(Path(path).name.partition(".")[0])
        if made[-1] != "c":
            raise ArenaFull("it is full")
        return created(path, byte_count, remedy)

    monkeypatch.setattr(arena_file, "created", first_is_full)
    file = ArenaFile.create([str(place / name) for name in "abc"], BYTES)
    assert (made, file.path) == (["a", "b", "c"], str(place / "c"))
    with pytest.raises(ArenaFull):
        ArenaFile.create([str(place / name) for name in "ab"], BYTES)
    file.discard()


def test_a_file_that_cannot_be_mapped_is_closed(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (place / "g1").write_bytes(bytes(BYTES))
    (place / "g1").chmod(0o600)
    before = held(place)
    monkeypatch.setattr(arena_file, "map_file", refuse)
    with pytest.raises(OSError, match="refused"):
        ArenaFile.open(str(place / "g1"))
    assert held(place) == before


@pytest.mark.parametrize("why", ["short", "open to others", "a link", "a directory", "missing"])
def test_what_is_no_table_is_closed_and_not_mapped(place: Path, why: str) -> None:
    path = place / "g1"
    if why == "a directory":
        path.mkdir()
    elif why == "a link":
        (place / "other").write_bytes(bytes(BYTES))
        (place / "other").chmod(0o600)
        path.symlink_to(place / "other")
    elif why != "missing":
        path.write_bytes(bytes(HEADER_BYTES - 1 if why == "short" else BYTES))
        path.chmod(0o640 if why == "open to others" else 0o600)
    before = held(place)
    assert ArenaFile.open(str(path)) is None
    assert held(place) == before
    if why == "short":
        path.write_bytes(bytes(HEADER_BYTES))
        file = ArenaFile.open(str(path))
        assert file is not None
        file.drop()
        assert held(place) == before


def test_what_is_discarded_is_gone_and_dropped(place: Path) -> None:
    before = held(place)
    file = ArenaFile.create([str(place / "g1")], BYTES, 5)
    assert (file.nonce, file.held, len(list(place.iterdir()))) == (5, True, 1)
    file.discard()
    assert list(place.iterdir()) == []
    assert (file.held, held(place)) == (False, before)
    published = ArenaFile.create([str(place / "g1")], BYTES)
    assert published.publish() is False
    published.discard()
    assert [one.name for one in place.iterdir()] == ["g1"], "its name is no temporary one any more"


def test_each_new_file_has_a_name_of_its_own(place: Path) -> None:
    made = [ArenaFile.create([str(place / "g1")], BYTES) for _ in range(4)]
    assert len({file.nonce for file in made}) == 4
    assert all(0 <= file.nonce < 1 << 63 for file in made)
    for file in made:
        file.discard()


def test_a_table_that_replaces_another_removes_what_undid_the_others_steps(place: Path) -> None:
    directory, history = place / "operator", History()
    store = ArenaStore(directory, LAYOUT)
    history.sections.append(step(store, history, [("a", 1, 1)]))
    history.sections.append(step(store, history, [("a", 1, 1)]))
    store.close()
    (undo,) = directory.glob("*.undo")
    assert f"{arena_file._read_nonce(str(directory / f'g{GROUP}')):016x}" in undo.name
    other = ArenaFile.create([str(directory / f"g{GROUP}")], BYTES)
    assert other.publish() is True
    assert not undo.exists()
    other.drop()
    assert arena_file._read_nonce(str(place / "none")) is None
    (place / "short").write_bytes(b"x")
    assert arena_file._read_nonce(str(place / "short")) == 0
    (place / "wild").write_bytes(b"\xff" * HEADER_BYTES)
    assert arena_file._read_nonce(str(place / "wild")) == (1 << 63) - 1


def test_a_file_that_grew_elsewhere_is_forgotten_once_it_is_given_up(place: Path) -> None:
    before = held(place)
    file = ArenaFile.create([str(place / "g1")], BYTES)
    file.publish()
    arena_file.remember(file)
    file.places = lambda byte_count: [str(place / "g1-elsewhere")]
    file.enlarge(2 * BYTES)
    file.switch()
    assert (file.path, held(place)) == (str(place / "g1-elsewhere"), before + 1)
    assert [one.name for one in place.iterdir()] == ["g1-elsewhere"]
    file.unlock()
    assert file.path not in arena_file._known
    assert str(place / "g1") not in arena_file._known
    assert held(place) == before


def test_a_step_without_moves_removes_halves_of_tables_and_keeps_what_undoes(place: Path) -> None:
    class Bounded:
        """Tiers that lie in one directory, and move nothing."""

        memory = spill = place / "operator"

        def paths(self, group: int) -> tuple[str, ...]:
            return (str(self.memory / f"g{group}"),)

    store = ArenaStore(place / "operator", LAYOUT, Bounded())  # type: ignore[arg-type]
    half = place / "operator" / f"g{GROUP}.{1:016x}.tmp"
    undo = place / "operator" / f"g{GROUP}.{2:016x}.undo"
    others = place / "operator" / f"g{GROUP + 1}.{1:016x}.tmp"
    for file in (half, undo, others):
        file.touch(mode=0o600)
    store.balance({GROUP: EMPTY_TOKEN}, 1, moving=False)
    assert (half.exists(), undo.exists(), others.exists()) == (False, True, True)


def test_sizes_are_those_of_tables_and_never_of_what_a_link_leads_to(place: Path) -> None:
    (place / "long").write_bytes(b"x" * 10_000)
    (place / "g1").write_bytes(b"x" * 10)
    (place / f"g1.{7:016x}.undo").write_bytes(b"x" * 5)
    (place / f"g2.{7:016x}.undo").write_bytes(b"x" * 3)
    (place / "g3").symlink_to(place / "long")
    tables: set[int] = set()
    assert _sizes(place, tables) == {1: 15, 2: 3, 3: len(str(place / "long"))}
    assert tables == {1, 3}
    assert _sizes(place / "none") == {}


def test_the_heat_of_groups_is_private_and_shared_by_its_path(place: Path) -> None:
    before = held(place)
    heat = _heat_file(place / "heat", 3)
    heat[1] = (5.0, 2.0)
    assert (place / "heat").stat().st_mode & 0o777 == 0o600
    assert _heat_file(place / "heat", 3).tolist() == [[0.0, 0.0], [5.0, 2.0], [0.0, 0.0]]
    assert _heat_seen(place / "heat").tolist() == heat.tolist()
    assert held(place) == before
    assert _heat_file(place / "none" / "heat", 2).tolist() == [[0.0, 0.0]] * 2
    assert _heat_seen(place / "none").shape == (0, 2)
    (place / "cut").write_bytes(bytes(20))
    assert _heat_seen(place / "cut").shape == (1, 2)


def test_without_shared_memory_state_lies_in_the_temporary_directory(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HEADGATE_ARENA_DIR", raising=False)
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(place))
    found = runs.arena_root()
    assert found == place / f"headgate-{os.geteuid()}"
    assert found.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("length", [1, 513, 3000, 5001])
def test_room_for_strings_at_least_doubles(length: int) -> None:
    table: Any = HeapStore(LAYOUT).acquire(0, EMPTY_TOKEN, lambda _: [])
    table.begin()
    first = table._geometry.heap_bytes
    table.intern(np.array([0, length]), np.full(length, 65, dtype=np.uint8))
    wanted = first if length <= first else max(2 * length, 2 * first)
    assert table._geometry.heap_bytes == -(-wanted // 8) * 8
    table.intern(np.array([0, first]), np.full(first, 66, dtype=np.uint8))
    assert table._geometry.heap_bytes >= length + first


def test_a_table_half_of_whose_rows_are_gone_is_cleared_and_does_not_grow() -> None:
    for spare, grows in ((0, False), (1, True)):
        store = HeapStore(LAYOUT)
        table: Any = store.acquire(0, EMPTY_TOKEN, lambda _: [])
        limit, capacity = table._geometry.limit, table._geometry.capacity
        keys = np.arange(2 * limit * LAYOUT.key_words).reshape(-1, LAYOUT.key_words)
        table.begin()
        rows = table.upsert(keys[:limit])
        store.commit(0, "1" * 32)
        table.begin()
        table.delete(rows[: limit - limit // 2 - spare])
        store.commit(0, "2" * 32)
        table.begin()
        table.upsert(keys[limit : limit + 1])
        assert (table._geometry.capacity > capacity) is grows
        assert table.live_count == limit // 2 + spare + 1


def test_a_kernel_says_how_far_it_came() -> None:
    index, known, heap = np.zeros(8, np.int64), np.zeros(5, np.int64), np.zeros(64, np.uint8)
    counts, out = np.zeros(7, np.int64), np.full(4, -1)
    offsets = np.array([0, 1, 2, 3, 4])
    data = np.frombuffer(b"abca", dtype=np.uint8).copy()
    assert kernels.intern(index, known, heap, offsets, data, 0, counts, out) == (4, kernels.DONE)
    assert out.tolist() == [0, 1, 2, 0]
    more = np.frombuffer(b"de", dtype=np.uint8).copy()
    found = kernels.intern(index, known, heap, offsets[:3], more, 0, counts, out)
    assert found == (1, kernels.STRINGS_FULL), "an index of eight has room for four"
    assert counts[kernels.STRINGS] == 4


def test_a_file_that_is_no_longer_under_its_name_is_left_there_by_a_move(place: Path) -> None:
    file = ArenaFile.create([str(place / "g1")], BYTES)
    file.publish()
    (place / "g1").unlink()
    (place / "g1").write_bytes(b"another's")
    file.move(str(place / "moved"))
    assert (place / "g1").read_bytes() == b"another's"
    assert (place / "moved").stat().st_size >= BYTES
