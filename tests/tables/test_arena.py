from __future__ import annotations

import errno
import fcntl
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from headgate.core.errors import StateError
from headgate.tables import arena_file
from headgate.tables.arena import ArenaStore, arena_root, join_run, open_run, sweep
from headgate_lab.testing.descriptors import held
from headgate_lab.testing.stores import (
    GROUP,
    LAYOUT,
    History,
    apply_changes,
    contents,
    fresh_token,
    read,
    step,
)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    tmp_path.chmod(0o700)
    return tmp_path / "operator"


@pytest.fixture
def history(directory: Path) -> History:
    """A history of two steps, and the files they leave."""
    history, store = History(), ArenaStore(directory, LAYOUT)
    for amount in (1, 2):
        changes = [(f"w{i}", i, amount) for i in range(20)]
        history.sections.append(step(store, history, changes))
    store.close()
    return history


WANTED = {(f"w{i}", i): (2, 103) for i in range(20)}


def main_file(directory: Path) -> Path:
    return directory / f"g{GROUP}"


def test_files_are_private(history: History, directory: Path):
    assert directory.stat().st_mode & 0o777 == 0o700
    assert [path.stat().st_mode & 0o777 for path in directory.iterdir()] == [0o600] * 2


def test_a_clean_file_is_used_as_it_is(history: History, directory: Path):
    inode = main_file(directory).stat().st_ino
    history.asked.clear()
    assert read(ArenaStore(directory, LAYOUT), history) == WANTED
    assert not history.asked
    assert main_file(directory).stat().st_ino == inode


def test_a_locked_file_is_left_to_its_holder(history: History, directory: Path):
    holder, other = ArenaStore(directory, LAYOUT), ArenaStore(directory, LAYOUT)
    table = holder.acquire(GROUP, history.token, history.chain)
    table.begin()
    assert read(other, history) == WANTED
    apply_changes(table, [(f"w{i}", i, 9) for i in range(2000)])
    holder.commit(GROUP, fresh_token())
    assert read(other, history) == WANTED
    holder.release(GROUP)
    assert read(other, history) == WANTED


def test_a_table_that_is_forgotten_is_built_anew_and_one_in_use_stays(
    history: History, directory: Path
):
    holder, other = ArenaStore(directory, LAYOUT), ArenaStore(directory, LAYOUT)
    holder.acquire(GROUP, history.token, history.chain)
    for store in (other, holder):
        store.forget(GROUP)
        assert main_file(directory).exists()
    holder.release(GROUP)
    other.forget(GROUP)
    assert list(directory.iterdir()) == []
    assert read(holder, history) == read(other, history) == WANTED


def test_a_holder_that_grows_after_it_was_replaced_takes_nothing_back(
    history: History, directory: Path
):
    holder, other = ArenaStore(directory, LAYOUT), ArenaStore(directory, LAYOUT)
    table = holder.acquire(GROUP, history.token, history.chain)
    table.begin()
    read(other, history)
    inode = main_file(directory).stat().st_ino
    apply_changes(table, [(f"x{i}", i, 9) for i in range(500)])
    assert main_file(directory).stat().st_ino == inode
    assert contents(table) == {**WANTED, **{(f"x{i}", i): (1, 109) for i in range(500)}}
    holder.close()
    assert not list(directory.glob("*.tmp"))


def test_every_flipped_bit_of_a_header_leads_to_a_rebuild_or_the_same_answer(
    history: History, directory: Path
):
    file = main_file(directory)
    good = file.read_bytes()
    for at in range(0, 512, 3):
        file.write_bytes(good[:at] + bytes([good[at] ^ 0x11]) + good[at + 1 :])
        store = ArenaStore(directory, LAYOUT)
        assert read(store, history) == WANTED
        store.close()


@pytest.mark.parametrize("damage", ["truncate", "empty", "symlink", "open to others", "directory"])
def test_a_file_that_is_no_table_is_replaced(history: History, directory: Path, damage: str):
    file = main_file(directory)
    raw = file.read_bytes()
    (undo,) = directory.glob("*.undo")
    if damage == "truncate":
        os.truncate(file, 4096)
    elif damage == "empty":
        os.truncate(file, 0)
    elif damage == "symlink":
        file.rename(directory / "elsewhere")
        file.symlink_to(directory / "elsewhere")
    elif damage == "open to others":
        file.chmod(0o644)
    else:
        file.unlink()
        file.mkdir()
        with pytest.raises(StateError, match="cannot be put in place"):
            read(ArenaStore(directory, LAYOUT), history)
        return
    assert read(ArenaStore(directory, LAYOUT), history) == WANTED
    assert not file.is_symlink()
    assert not undo.exists(), "it belongs to a file that is gone"
    if damage == "symlink":
        assert (directory / "elsewhere").read_bytes() == raw


@pytest.mark.parametrize("damage", ["missing", "truncate", "mark", "link"])
def test_undo_that_cannot_be_believed_is_not_used(history: History, directory: Path, damage: str):
    store = ArenaStore(directory, LAYOUT)
    step(store, history, [("w1", 1, 50)])
    store.close()
    (undo,) = directory.glob("*.undo")
    raw = undo.read_bytes()
    undo.unlink()
    if damage == "truncate":
        undo.write_bytes(raw[:8])
    elif damage == "mark":
        undo.write_bytes(raw[:8] + bytes(8) + raw[16:])
    elif damage == "link":
        (directory / "elsewhere").write_bytes(raw)
        undo.symlink_to(directory / "elsewhere")
    history.asked.clear()
    assert read(ArenaStore(directory, LAYOUT), history) == WANTED
    assert history.asked


def test_a_question_for_an_undo_that_is_gone_makes_no_file(history: History, directory: Path):
    next(directory.glob("*.undo")).unlink()
    store = ArenaStore(directory, LAYOUT)
    table = store.acquire(GROUP, history.token, history.chain)
    assert not table.can_roll_back()
    assert list(directory.iterdir()) == [main_file(directory)]
    store.close()


def test_a_killed_process_leaves_no_lock_and_its_dirty_file_is_replaced(
    history: History, directory: Path
):
    code = (
        "import os, signal, sys, numpy as np\n"
        "from headgate.tables.arena import ArenaStore\n"
        "from headgate_lab.testing.stores import LAYOUT, GROUP, apply_changes\n"
        "store = ArenaStore(sys.argv[1], LAYOUT)\n"
        "table = store.acquire(GROUP, sys.argv[2], lambda token: [])\n"
        "table.begin()\n"
        "apply_changes(table, [('w1', 1, 77)])\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    command = [sys.executable, "-c", code, str(directory), history.token]
    assert subprocess.run(command, check=False).returncode == -signal.SIGKILL
    before = main_file(directory).stat().st_ino
    store = ArenaStore(directory, LAYOUT)
    assert read(store, history) == WANTED
    assert main_file(directory).stat().st_ino != before
    history.sections.append(step(store, history, [("w1", 1, 1)]))
    assert len(list(directory.iterdir())) == 2


def test_a_child_cannot_use_or_release_its_parents_lock(history: History, directory: Path):
    store = ArenaStore(directory, LAYOUT)
    table = store.acquire(GROUP, history.token, history.chain)
    inode = main_file(directory).stat().st_ino
    child = os.fork()
    if child == 0:
        code = 1
        try:
            other = ArenaStore(directory, LAYOUT)
            code = int(arena_file.take(str(main_file(directory)), LAYOUT) is not None)
            other.close()
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    assert main_file(directory).stat().st_ino == inode
    assert contents(table) == WANTED


def test_a_full_disk_is_one_sentence_and_harms_nothing(
    history: History, directory: Path, monkeypatch: pytest.MonkeyPatch
):
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    store = ArenaStore(directory, LAYOUT)
    table = store.acquire(GROUP, history.token, history.chain)
    table.begin()
    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(StateError, match=f"arena {directory} has .* HEADGATE_ARENA_DIR"):
        apply_changes(table, [(f"x{i}", i, 9) for i in range(500)])
    store.release(GROUP)
    with pytest.raises(StateError, match="bytes left"):
        read(store, history)
    monkeypatch.undo()
    assert read(store, history) == WANTED
    assert not list(directory.glob("*.tmp"))


def test_without_room_for_undo_a_step_still_runs(directory: Path, monkeypatch: pytest.MonkeyPatch):
    def no_undo(*_: object, **__: object) -> None:
        return None

    monkeypatch.setattr(arena_file.ArenaFile, "undo", no_undo)
    history, store = History(), ArenaStore(directory, LAYOUT)
    history.sections.append(step(store, history, [("a", 1, 1)]))
    step(store, history, [("a", 1, 5)])
    assert read(store, history) == {("a", 1): (1, 101)}


def test_mappings_keep_one_descriptor_per_group(directory: Path):
    store = ArenaStore(directory, LAYOUT)
    before = held(directory)
    for group in range(50):
        table = store.acquire(group, "0" * 32, lambda token: [])
        table.begin()
        table.upsert(np.ones((1, 2), dtype=np.int64))
        store.commit(group, fresh_token())
        store.release(group)
    assert held(directory) == before + 50
    store.close()
    assert held(directory) == before


def test_runs_in_use_are_kept_and_others_swept(tmp_path: Path):
    tmp_path.chmod(0o700)
    kept = open_run(tmp_path)
    joined = join_run(tmp_path, kept.run_id)
    code = (
        "import os, signal, sys; from pathlib import Path\n"
        "from headgate.tables.arena import open_run\n"
        "run = open_run(Path(sys.argv[1])); os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False)
    (tmp_path / ("e" * 32)).symlink_to("/tmp")
    (tmp_path / "somebody_elses").mkdir()
    assert len(sweep(tmp_path)) == 1
    kept.close()
    assert joined.path.exists()
    joined.close()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["e" * 32, "somebody_elses"]
    with pytest.raises(StateError, match="not a run"):
        join_run(tmp_path, "../x")


def test_a_run_that_ends_leaves_nothing_though_its_workers_live_on(tmp_path: Path):
    tmp_path.chmod(0o700)
    run = open_run(tmp_path)
    worker = join_run(tmp_path, run.run_id)
    history, store = History(), ArenaStore(worker.path / "operator", LAYOUT)
    history.sections.append(step(store, history, [("w", 1, 1)]))
    run.end()
    run.close()
    assert list(tmp_path.iterdir()) == []
    assert worker.ended
    store.close()
    worker.close()


def test_a_run_that_is_closed_twice_closes_nobody_elses_file(tmp_path: Path):
    tmp_path.chmod(0o700)
    (tmp_path / "spill").mkdir(mode=0o700)
    run = open_run(tmp_path, tmp_path / "spill")
    run.close(remove=False)
    others = [os.open(tmp_path, os.O_RDONLY) for _ in range(2)]  # take the free numbers
    run.close()
    for other in others:
        os.close(other)
    assert list(tmp_path.iterdir()) == [tmp_path / "spill"]
    assert not list((tmp_path / "spill").iterdir())


def test_a_run_that_ends_takes_along_what_was_killed_since_it_began(tmp_path: Path):
    tmp_path.chmod(0o700)
    run, killed = open_run(tmp_path), open_run(tmp_path)
    killed.close(remove=False)
    run.end()
    assert list(tmp_path.iterdir()) == []
    run.close()


def test_a_run_that_begins_removes_what_killed_ones_have_spilled(tmp_path: Path):
    for name in ("killed", "here", "spill"):
        (tmp_path / name).mkdir(mode=0o700)
    open_run(tmp_path / "killed", tmp_path / "spill").close(remove=False)
    run = open_run(tmp_path / "here", tmp_path / "spill")
    assert run.spill is not None
    assert list((tmp_path / "spill").iterdir()) == [run.spill.path]
    run.close()


@pytest.mark.parametrize("name", ["a" * 32, "a" * 32 + ".new"])
@pytest.mark.parametrize("left", ["nothing", "a table"])
def test_what_was_killed_without_its_lock_is_swept(tmp_path: Path, name: str, left: str):
    """A process dies between making a run's directory and its lock, or while it removes one."""
    tmp_path.chmod(0o700)
    (tmp_path / name / "operator").mkdir(parents=True)
    if left == "nothing":
        (tmp_path / name / "operator").rmdir()
    assert sweep(tmp_path) == [name]
    assert list(tmp_path.iterdir()) == []


def test_a_run_that_is_swept_while_it_is_joined_is_made_once_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    tmp_path.chmod(0o700)
    swept: list[str] = []
    flock = fcntl.flock

    def slow(descriptor: int, how: int) -> None:
        if how == fcntl.LOCK_SH and not swept:
            swept.extend(sweep(tmp_path))
        flock(descriptor, how)

    monkeypatch.setattr(fcntl, "flock", slow)
    run = join_run(tmp_path, "a" * 32)
    assert swept == ["a" * 32]
    assert run.path.exists()
    assert sweep(tmp_path) == []
    run.close()


def test_an_arena_is_named_once_for_all_who_share_it(tmp_path: Path):
    tmp_path.chmod(0o700)
    (tmp_path / "other").mkdir(mode=0o700)
    run = open_run(tmp_path)
    joined, elsewhere = join_run(tmp_path, run.run_id), join_run(tmp_path / "other", run.run_id)
    assert run.arena == joined.arena == run.arena
    assert elsewhere.arena != run.arena
    for one in (run, joined, elsewhere):
        one.close()


def test_the_arena_root_must_be_private(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    chosen = tmp_path / "arena"
    monkeypatch.setenv("HEADGATE_ARENA_DIR", str(chosen))
    assert arena_root() == chosen
    chosen.chmod(0o755)
    with pytest.raises(StateError, match="open to others"):
        arena_root()
    chosen.rmdir()
    chosen.symlink_to(tmp_path)
    with pytest.raises(StateError, match="not a directory"):
        arena_root()
    monkeypatch.setenv("HEADGATE_ARENA_DIR", str(tmp_path / "no" / "such"))
    with pytest.raises(StateError, match="cannot be used"):
        arena_root()


def test_operator_names_must_be_names(tmp_path: Path):
    tmp_path.chmod(0o700)
    for name in ("a b", "x" * 65, "a.b"):
        with pytest.raises(StateError, match="cannot name a file"):
            ArenaStore(tmp_path / name, LAYOUT)
    assert not list(tmp_path.iterdir())
