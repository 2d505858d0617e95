"""Files of a checkpoint and directories of an arena: what is read, what is on disk, who may look."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from headgate.checkpoint.files import read_bytes, write_bytes
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
