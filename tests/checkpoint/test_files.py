"""Files of a checkpoint and directories of an arena: what is read, what is on disk, who may look."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from headgate.checkpoint.files import read_bytes, write_bytes
from headgate.checkpoint.place import PosixFiles
from headgate.core.errors import CheckpointError, StateError
from headgate.tables.runs import private_directory


def test_nothing_but_a_regular_file_is_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(CheckpointError, match="not a regular file"):
        read_bytes(tmp_path, "pipe")


def test_a_file_is_on_disk_with_its_name_where_that_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    forced: list[bool] = []
    monkeypatch.setattr(os, "fsync", lambda fd: forced.append(stat.S_ISDIR(os.fstat(fd).st_mode)))
    write_bytes(tmp_path, "kept", b"x")
    assert forced == [False, True]
    write_bytes(tmp_path, "lost", b"x", durable=False)
    assert forced == [False, True]


@pytest.mark.parametrize("mode", [0o750, 0o705, 0o770])
def test_an_arena_that_others_may_look_into_is_refused(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "arena"
    path.mkdir()
    path.chmod(mode)
    with pytest.raises(StateError, match="is open to others"):
        private_directory(path)


def test_a_directory_that_became_a_link_is_not_followed(tmp_path: Path) -> None:
    """Somebody who may write to a checkpoint puts a link to another directory in a directory's place."""
    others, files = tmp_path / "others", PosixFiles(tmp_path / "checkpoint")
    files.prepare(["intents"])
    files.put("intents/1", b"ours")
    others.mkdir()
    (others / "1").write_bytes(b"theirs")
    (tmp_path / "checkpoint" / "intents").rename(tmp_path / "old")
    (tmp_path / "checkpoint" / "intents").symlink_to(others)
    files.remove(["intents/1"])
    assert files.set_aside("intents/1") == ""
    assert files.sizes("intents") == {}
    with pytest.raises(OSError, match="intents"):
        files.names("intents")
    with pytest.raises(CheckpointError, match="intents"):
        files.put("intents/1", b"ours")
    assert [(file.name, file.read_bytes()) for file in others.iterdir()] == [("1", b"theirs")]


def test_a_link_has_its_own_size_and_not_that_of_what_it_leads_to(tmp_path: Path) -> None:
    (tmp_path / "directory").mkdir()
    (tmp_path / "long").write_bytes(b"x" * 1000)
    (tmp_path / "directory" / "link").symlink_to(tmp_path / "long")
    (tmp_path / "directory" / "file").write_bytes(b"xyz")
    sizes = PosixFiles(tmp_path).sizes("directory")
    assert sizes == {"link": len(str(tmp_path / "long")), "file": 3}
