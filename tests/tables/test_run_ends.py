"""A run of which somebody else has removed a part is removed all the same; a host without tables."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from headgate.tables.runs import _remove, open_run, sweep
from headgate.tables.tiers import MemoryBound, Tiers


@pytest.mark.parametrize("gone", ["nothing", "the lock", "all"])
def test_a_run_ends_whatever_is_gone_already(gone: str, tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    run = open_run(tmp_path)
    (run.path / "operator").mkdir()
    (run.path / "file").touch()
    if gone != "nothing":
        (run.path / "lock").unlink()
    if gone == "all":
        (run.path / "operator").rmdir()
        (run.path / "file").unlink()
        run.path.rmdir()
    run.end()
    assert run.ended
    assert not run.path.exists()
    run.close()
    assert list(tmp_path.iterdir()) == []


def test_where_no_table_is_nothing_moves(tmp_path: Path) -> None:
    for name in ("arena", "spill", "arena/op"):
        (tmp_path / name).mkdir(mode=0o700)
    made = Tiers(tmp_path / "arena/op", tmp_path / "spill/op", MemoryBound(64_000, 6))
    assert made.plan({0, 1}, 5) == ([], [])
    assert made.plan(set(), 5) == ([], [])


@pytest.mark.parametrize(
    ("inside", "spilled", "moves"),
    [
        # a part of the bound and no more, also where more should go or come
        ({1: 2_000, 2: 2_000}, {5: 64_000}, ([1], [])),
        ({1: 1_999, 2: 2_000}, {5: 64_000}, ([1, 2], [5])),
        ({}, {5: 2_000, 6: 2_000}, ([], [6])),
        ({}, {5: 2_000, 6: 1_999}, ([], [6, 5])),
        # and more than that while memory is above the bound
        ({1: 16_000, 2: 24_000, 3: 40_000}, {5: 64_000}, ([1], [])),
        ({1: 16_000, 2: 24_000, 3: 40_001}, {5: 64_000}, ([1, 2], [])),
        # what fits to the last byte comes
        ({3: 63_000}, {6: 1_000}, ([], [6])),
    ],
)
def test_a_step_moves_groups_up_to_its_bounds(
    tmp_path: Path,
    inside: dict[int, int],
    spilled: dict[int, int],
    moves: tuple[list[int], list[int]],
) -> None:
    for name in ("arena", "spill", "arena/op"):
        (tmp_path / name).mkdir(mode=0o700)
    made = Tiers(tmp_path / "arena/op", tmp_path / "spill/op", MemoryBound(64_000, 7))
    for top, sizes in (("arena", inside), ("spill", spilled)):
        for group, size in sizes.items():
            (tmp_path / top / "op" / f"g{group}").write_bytes(bytes(size))
            # the higher its number the hotter it is, and those on disk are hot
            made.touched(group, size * group**3, 1, cold=top == "spill")
    assert made.plan(range(7), 1) == moves


def test_what_lies_behind_a_link_takes_none_of_the_bound(tmp_path: Path) -> None:
    for name in ("arena", "spill", "arena/op", "elsewhere"):
        (tmp_path / name).mkdir(mode=0o700)
    (tmp_path / "elsewhere/g1").write_bytes(bytes(60_000))
    (tmp_path / "arena/other").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "arena/op/g2").symlink_to(tmp_path / "elsewhere/g1")
    (tmp_path / "arena/file").write_bytes(bytes(60_000))
    (tmp_path / "arena/op/g3").write_bytes(bytes(4_000))
    made = Tiers(tmp_path / "arena/op", tmp_path / "spill/op", MemoryBound(64_000, 6))
    used = 4_000 + (tmp_path / "arena/op/g2").lstat().st_size
    for byte_count, places in ((64_001, 1), (64_001 - used, 1), (64_000 - used, 2)):
        assert len(made.places(0, byte_count)) == places
    assert made.told().memory_bytes == used


def test_a_directory_without_its_lock_is_removed(tmp_path: Path) -> None:
    (tmp_path / "run" / "operator").mkdir(parents=True)
    _remove(tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_what_cannot_be_removed_of_a_run_keeps_nothing_else_and_goes_with_a_later_sweep(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tmp_path.chmod(0o700)
    run = open_run(tmp_path)
    for name in ("a", "b", "c"):
        (run.path / name).mkdir()
        (run.path / name / "table").touch()
    run.close(remove=False)
    real = os.rmdir

    def stuck(path: str, *given: Any, **named: Any) -> None:
        if Path(path).name == "b":
            raise OSError(errno.EBUSY, "it is busy")
        real(path, *given, **named)

    monkeypatch.setattr(os, "rmdir", stuck)
    sweep(tmp_path)
    assert [path.name for path in run.path.iterdir()] == ["b"]
    monkeypatch.undo()
    assert sweep(tmp_path) == [run.path.name]
    assert list(tmp_path.iterdir()) == []
