"""Memory with a bound: what lies where, what moves, and that answers do not depend on it."""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from headgate.core.errors import StateError
from headgate.tables import arena_file, runs
from headgate.tables.arena import ArenaStore, join_run, open_run, spill_root
from headgate.tables.ports import EMPTY_TOKEN, Chain, Store, Table, TableLayout
from headgate.tables.tiers import STICKY, MemoryBound, Tiering, Tiers, wanted
from headgate_lab.testing.stores import (
    LAYOUT,
    History,
    StoreContract,
    apply_changes,
    contents,
    fresh_token,
)

TABLE = 4360
"""Bytes of a small table of `LAYOUT`; what undoes its last step takes 3,088 more."""


def bounded(directory: Path, byte_count: int, layout: TableLayout = LAYOUT) -> ArenaStore:
    """Return a store of a run's operator that may have so many bytes of memory."""
    for one in (directory, directory / "arena", directory / "spill"):
        one.mkdir(mode=0o700, exist_ok=True)
    tiers = Tiers(
        directory / "arena" / "op", directory / "spill" / "op", MemoryBound(byte_count, 64)
    )
    return ArenaStore(directory / "arena" / "op", layout, tiers)


class _Groups:
    """Key groups of one store, each with its history, served in turn as slots do."""

    def __init__(self, store: ArenaStore, rows: int = 20) -> None:
        self.store, self.rows, self.step = store, rows, 0
        self.histories: dict[int, History] = {}

    def serve(self, groups: Sequence[int], rows: int | None = None) -> Tiering:
        """Do one step in which records of some groups come."""
        self.step += 1
        tokens = {group: one.token for group, one in self.histories.items()}
        self.store.balance(tokens, self.step)
        for group in groups:
            history = self.histories.setdefault(group, History())
            table = self.store.acquire(group, history.token, history.chain)
            table.begin()
            apply_changes(table, [(f"w{i}", i, 1) for i in range(rows or self.rows)])
            history.sections.append(table.section(fresh_token()))
            self.store.commit(group, history.token)
            self.store.release(group)
        found = self.store.tiering()
        assert found is not None
        return found

    def counts(self, group: int) -> set[int]:
        """Return how often the rows of a group were counted, and that no chain was asked for."""

        def never(token: str) -> list[object]:
            msg = "built anew"
            raise AssertionError(msg)

        table = self.store.acquire(group, self.histories[group].token, never)  # type: ignore[arg-type]
        found = {count for count, _ in contents(table).values()}
        self.store.release(group)
        return found


def names(directory: Path) -> set[str]:
    return {
        path.name for path in directory.iterdir() if "." not in path.name and path.name != "heat"
    }


def memory(directory: Path) -> int:
    return sum(path.stat().st_size for path in (directory / "arena" / "op").iterdir())


# -- the policy --------------------------------------------------------------------------------


def keeps(sizes: list[float], density: list[float], inside: list[bool], bound: int) -> list[bool]:
    found: list[bool] = wanted(
        np.array(sizes, float), np.array(density, float), np.array(inside, bool), bound
    ).tolist()
    return found


@pytest.mark.parametrize(
    ("sizes", "density", "inside", "bound", "kept"),
    [
        # what fits stays, touched or not; what nobody touches does not come back
        ([5, 5, 5], [0, 1, 0], [True, True, False], 20, [True, True, False]),
        # what is touched comes back where there is room
        ([5, 5, 5], [0, 1, 1], [True, True, False], 15, [True, True, True]),
        # and else in the place of what is not
        ([5, 5, 5], [0, 1, 1], [True, True, False], 10, [False, True, True]),
        # but not of what is nearly as hot
        ([5, 5], [1, STICKY * 0.9], [True, False], 5, [True, False]),
        ([5, 5], [1, STICKY * 1.1], [True, False], 5, [False, True]),
        # one that does not fit beside a hotter one leaves its place to a smaller one
        ([8, 5, 2], [3, 2, 1], [True, True, True], 10, [True, False, True]),
        # one larger than all memory stays on disk
        ([50, 5], [9, 1], [False, True], 10, [False, True]),
        ([], [], [], 10, []),
    ],
)
def test_what_is_touched_most_for_its_size_is_kept(
    sizes: list[float], density: list[float], inside: list[bool], bound: int, kept: list[bool]
):
    assert keeps(sizes, density, inside, bound) == kept


def test_what_is_kept_always_fits_and_leaves_no_room_for_another_that_may_stay():
    rng = random.Random(1)
    for _ in range(300):
        n = rng.randrange(1, 12)
        sizes = [rng.randrange(1, 40) for _ in range(n)]
        inside = [rng.random() < 0.5 for _ in range(n)]
        bound = rng.randrange(1, 120)
        kept = keeps(sizes, [rng.choice([0.0, 0.1, 1.0, 3.0]) for _ in range(n)], inside, bound)
        used = sum(size for size, keep in zip(sizes, kept, strict=True) if keep)
        assert used <= bound
        for size, was, keep in zip(sizes, inside, kept, strict=True):
            assert keep or not was or used + size > bound


# -- the store ---------------------------------------------------------------------------------


class TestAllOnDisk(StoreContract):
    """A store without any memory is a store."""

    def open_store(self, directory: Path, layout: TableLayout) -> Store:
        return bounded(directory, 1, layout)


class _Restless(ArenaStore):
    """Moves a group at every chance, one way and back."""

    def acquire(self, group: int, token: str, chain: Chain) -> Table:
        for inwards in (True, False):
            if self._move(group, token, inwards=inwards):
                break
        return super().acquire(group, token, chain)


class TestAlwaysMoving(StoreContract):
    """Nor does it matter what is moved when."""

    def open_store(self, directory: Path, layout: TableLayout) -> Store:
        made = bounded(directory, 1 << 30, layout)
        return _Restless(directory / "arena" / "op", layout, made._tiers)


@pytest.mark.parametrize("bound", [1, 5, 1000])
def test_the_bytes_that_are_told_are_those_of_the_files(tmp_path: Path, bound: int):
    jobs = _Groups(bounded(tmp_path, bound * TABLE))
    for _ in range(2):
        found = jobs.serve(range(8))
    spilled = [path for path in (tmp_path / "spill" / "op").iterdir() if path.name != "heat"]
    assert found.memory_bytes == memory(tmp_path)
    assert found.cold_bytes == sum(path.stat().st_size for path in spilled)


def test_memory_stays_within_its_bound_and_what_has_no_room_is_on_disk(tmp_path: Path):
    bound = 12 * TABLE
    jobs = _Groups(bounded(tmp_path, bound))
    for _ in range(3):
        jobs.serve(range(16))
        assert 0 < memory(tmp_path) - _undo(tmp_path) <= bound
    told = jobs.serve(range(16))
    assert told.memory_bytes == memory(tmp_path) > 0
    assert told.cold_bytes > 0
    assert told.cold == len(names(tmp_path / "spill" / "op")) > 0
    assert names(tmp_path / "arena" / "op") | names(tmp_path / "spill" / "op") == {
        f"g{group}" for group in range(16)
    }
    assert all(jobs.counts(group) == {4} for group in range(16))


def _undo(directory: Path) -> int:
    return sum(path.stat().st_size for path in (directory / "arena" / "op").glob("*.undo"))


def test_hot_groups_come_back_and_cold_ones_make_room(tmp_path: Path):
    jobs = _Groups(bounded(tmp_path, 20 * TABLE))
    jobs.serve(range(32), rows=4)
    cold = sorted(int(name[1:]) for name in names(tmp_path / "spill" / "op"))
    assert 4 < len(cold) < 32
    hot = cold[:4]
    back = away = 0
    for _ in range(12):
        told = jobs.serve(hot, rows=4)
        back, away = back + told.back, away + told.away
    assert names(tmp_path / "arena" / "op") >= {f"g{group}" for group in hot}
    assert back >= 4
    assert away > 0
    assert told.cold == told.back == told.away == 0, "nothing moves that need not"
    assert all(jobs.counts(group) == {13} for group in hot)
    assert all(jobs.counts(group) == {1} for group in set(range(32)) - set(hot))


def test_groups_that_are_touched_alike_are_not_moved_about(tmp_path: Path):
    jobs, moved = _Groups(bounded(tmp_path, 40 * TABLE)), 0
    rng = random.Random(3)
    for step in range(30):
        told = jobs.serve(range(32), rows=rng.randrange(8, 12))
        moved += (told.back + told.away) * (step > 5)
    assert moved == 0


def test_another_process_finds_what_was_moved(tmp_path: Path):
    jobs = _Groups(bounded(tmp_path, 1 << 30))
    jobs.serve([1, 2])
    other = _Groups(bounded(tmp_path, 1 << 30))
    other.histories = jobs.histories
    assert other.counts(1) == {1}
    assert jobs.store._move(1, jobs.histories[1].token, inwards=False)
    # the other's mapping is of a file whose memory was given back
    assert other.counts(1) == {1}
    assert names(tmp_path / "spill" / "op") == {"g1"}
    assert jobs.store._move(1, jobs.histories[1].token, inwards=True)
    assert jobs.counts(1) == other.counts(1) == {1}
    assert names(tmp_path / "spill" / "op") == set()


def test_the_memory_of_what_was_moved_is_given_back_at_once(tmp_path: Path):
    jobs = _Groups(bounded(tmp_path, 1 << 30))
    jobs.serve([1])
    other = _Groups(bounded(tmp_path, 1 << 30))
    other.histories = jobs.histories
    other.counts(1)
    mapped = arena_file._known[f"{tmp_path}/arena/op/g1"]
    with open(f"{tmp_path}/arena/op/g1", "rb") as kept_open:
        jobs.store._move(1, jobs.histories[1].token, inwards=False)
        if os.uname().sysname == "Linux":
            assert os.fstat(kept_open.fileno()).st_blocks == 0
    assert mapped.path not in arena_file._known


def test_what_was_not_committed_or_is_held_is_not_moved(tmp_path: Path):
    jobs = _Groups(bounded(tmp_path, 1 << 30))
    jobs.serve([1])
    history = jobs.histories[1]
    assert not jobs.store._move(1, fresh_token(), inwards=False)
    assert not jobs.store._move(9, EMPTY_TOKEN, inwards=False)
    jobs.store.acquire(1, history.token, history.chain)
    assert not jobs.store._move(1, history.token, inwards=False)
    other = bounded(tmp_path, 1 << 30)
    assert not other._move(1, history.token, inwards=False)
    jobs.store.release(1)
    assert other._move(1, history.token, inwards=False)


@pytest.mark.parametrize("inwards", [False, True])
@pytest.mark.parametrize("where", ["copy", "publish", "unlink"])
def test_killed_in_the_middle_of_a_move_nothing_is_lost(tmp_path: Path, where: str, inwards: bool):
    jobs = _Groups(bounded(tmp_path, 1 << 30))
    jobs.serve([1])
    history = jobs.histories[1]
    if inwards:
        assert jobs.store._move(1, history.token, inwards=False)
    if (child := os.fork()) == 0:  # pragma: no cover -- ends itself
        step = {"copy": "_write", "publish": "publish", "unlink": "_unlink"}[where]
        setattr(arena_file.ArenaFile, step, lambda *_: os._exit(9))
        jobs.store._move(1, history.token, inwards=inwards)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    after = _Groups(bounded(tmp_path, 1 << 30))
    after.histories = jobs.histories
    assert after.counts(1) == {1}
    after.serve([1])
    assert after.store._move(1, history.token, inwards=False)
    assert not list(tmp_path.rglob("*.tmp"))
    assert after.counts(1) == {2}
    assert names(tmp_path / "arena" / "op") == set()


def test_a_stale_copy_is_brought_up_and_not_believed(tmp_path: Path):
    jobs = _Groups(bounded(tmp_path, 1 << 30))
    jobs.serve([1])
    stale = Path(f"{tmp_path}/arena/op/g1").read_bytes()
    jobs.serve([1])
    left = tmp_path / "spill" / "op" / "g1"
    left.write_bytes(stale)
    left.chmod(0o600)
    assert jobs.counts(1) == {2}
    jobs.store.close()
    Path(f"{tmp_path}/arena/op/g1").unlink()
    history = jobs.histories[1]
    table = jobs.store.acquire(1, history.token, history.chain)
    assert {count for count, _ in contents(table).values()} == {2}
    jobs.store.release(1)


def test_what_is_of_no_use_does_not_keep_memory(tmp_path: Path):
    jobs = _Groups(bounded(tmp_path, 1 << 30))
    jobs.serve([1])
    good = Path(f"{tmp_path}/arena/op/g1").read_bytes()
    jobs.store._move(1, jobs.histories[1].token, inwards=False)
    # what a worker that was killed in the middle of its writes leaves, and one in the middle of a copy
    for name, data in (
        ("g1", good[:80] + bytes(512) + good[592:]),
        ("g1.00000000000000ab.tmp", good),
    ):
        left = tmp_path / "arena" / "op" / name
        left.write_bytes(data)
        left.chmod(0o600)
    jobs.store.balance({1: jobs.histories[1].token}, 2, moving=False)
    assert jobs.counts(1) == {1}
    assert memory(tmp_path) == 0


def test_a_group_that_leaves_the_host_leaves_both_places(tmp_path: Path):
    jobs = _Groups(bounded(tmp_path, 1 << 30))
    jobs.serve([1, 2])
    jobs.store._move(1, jobs.histories[1].token, inwards=False)
    for group in (1, 2):
        jobs.store.forget(group)
    assert names(tmp_path / "arena" / "op") == names(tmp_path / "spill" / "op") == set()


def _full(at: str) -> Callable[[int, int, int], None]:
    real = os.posix_fallocate

    def allocate(descriptor: int, offset: int, length: int) -> None:
        if at in os.readlink(f"/proc/self/fd/{descriptor}"):
            raise OSError(errno.ENOSPC, "No space left on device")
        real(descriptor, offset, length)

    return allocate


@pytest.mark.skipif(not os.path.exists("/proc/self/fd"), reason="wants Linux's /proc")
def test_full_memory_is_no_failure_and_a_full_disk_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    jobs = _Groups(bounded(tmp_path, 1 << 30))
    jobs.serve([1])
    monkeypatch.setattr(os, "posix_fallocate", _full("/arena/"))
    jobs.serve([1, 2], rows=400)
    assert names(tmp_path / "spill" / "op") == {"g1", "g2"}
    monkeypatch.setattr(os, "posix_fallocate", _full(str(tmp_path)))
    with pytest.raises(StateError, match=f"{tmp_path}/spill/op has .* HEADGATE_SPILL_DIR"):
        jobs.serve([3])
    monkeypatch.undo()
    jobs.serve([1, 2, 3])
    assert jobs.counts(1) == {1, 3}, "rows of two steps, and of all three"
    monkeypatch.setattr(os, "posix_fallocate", _full(str(tmp_path)))
    with pytest.raises(StateError, match=f"{tmp_path}/spill/op has .* HEADGATE_SPILL_DIR"):
        jobs.serve([1], rows=5000)  # a group that is there, and grows


def test_a_file_system_without_room_for_one_more_file_is_full_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    jobs, real = _Groups(bounded(tmp_path, 1 << 30)), os.open

    def full(path: str, flags: int, *more: int) -> int:
        if "/arena/" in str(path) and flags & os.O_EXCL:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(path, flags, *more)

    monkeypatch.setattr(os, "open", full)
    jobs.serve([1])
    assert names(tmp_path / "spill" / "op") == {"g1"}


def test_heat_that_cannot_be_kept_costs_nothing_but_the_choice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    store = bounded(tmp_path, 1 << 30)
    monkeypatch.undo()
    _Groups(store).serve([1, 2])


# -- directories -------------------------------------------------------------------------------


def test_a_runs_spill_directory_shares_its_fate(tmp_path: Path):
    for name in ("arena", "spill"):
        (tmp_path / name).mkdir(mode=0o700)
    run = open_run(tmp_path / "arena", tmp_path / "spill")
    joined = join_run(tmp_path / "arena", run.run_id, tmp_path / "spill")
    assert joined.spill is not None
    joined.close()
    assert (tmp_path / "spill" / run.run_id).is_dir()
    run.end()
    run.close()
    assert list((tmp_path / "spill").iterdir()) == list((tmp_path / "arena").iterdir()) == []


def test_a_spill_directory_that_is_memory_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    chosen = tmp_path / "here"
    monkeypatch.setenv("HEADGATE_SPILL_DIR", str(chosen))
    monkeypatch.setattr(runs, "in_memory", lambda _: True)
    assert spill_root() == chosen, "who names a directory knows best"
    assert chosen.stat().st_mode & 0o777 == 0o700
    monkeypatch.delenv("HEADGATE_SPILL_DIR")
    with pytest.raises(StateError, match=r"is memory.* HEADGATE_SPILL_DIR"):
        spill_root()
    monkeypatch.setenv("HEADGATE_SPILL_DIR", str(tmp_path / "no" / "such"))
    with pytest.raises(StateError, match=r"cannot be used .* HEADGATE_SPILL_DIR"):
        spill_root()


def test_where_memory_is_mounted_is_known():
    if Path("/proc/mounts").exists():
        assert not runs.in_memory(Path("/proc"))
    if os.path.ismount("/dev/shm"):
        assert runs.in_memory(Path("/dev/shm"))
