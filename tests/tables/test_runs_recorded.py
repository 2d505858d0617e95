"""Directories of runs, and groups in tiers, by drawn courses of events: what is there, as recorded."""

from __future__ import annotations

import errno
import os
import random
import types
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headgate.core.errors import HeadgateError
from headgate.tables import room, runs, tiers
from headgate.tables.runs import RunDirectory, join_run, open_run, private_directory, sweep
from headgate.tables.tiers import MemoryBound, Tiers
from headgate_lab.testing.descriptors import held

Recorded = Callable[[str, Iterable[str]], None]


def told(do: Callable[[], Any], place: Path) -> str:
    try:
        return str(do()).replace(str(place), "")
    except (HeadgateError, OSError) as error:
        return f"{type(error).__name__}: {error}".replace(str(place), "")


def tree(root: Path) -> list[str]:
    """Return what is below a directory; a plus says that others may look into it."""
    return [
        f"{path.relative_to(root)}{'+' * bool(path.lstat().st_mode & 0o77)}"
        for path in sorted(root.rglob("*"))
    ]


@pytest.fixture(autouse=True)
def _usual_modes() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


# --- Runs ---------------------------------------------------------------------------------------------


class Site:
    """Two hosts, of which the second has a spill directory, and the drivers and workers on them."""

    def __init__(self, root: Path, dice: random.Random) -> None:
        self.dice, self.root = dice, root
        self.roots, self.spills = [root / "a", root / "b"], [None, root / "b-spill"]
        for directory in (*self.roots, root / "b-spill"):
            directory.mkdir(mode=0o700)
        self.open: list[RunDirectory] = []

    def opened(self, host: int) -> str:
        self.open.append(open_run(self.roots[host], self.spills[host]))
        return self.open[-1].run_id[-4:]

    def joined(self, host: int, run_id: str) -> str:
        self.open.append(join_run(self.roots[host], run_id, self.spills[host]))
        return self.open[-1].run_id[-4:]

    def killed(self, run: RunDirectory) -> str:
        for part in (run, run.spill):
            if part is not None and part.descriptor is not None:
                os.close(part.descriptor)
        self.open.remove(run)
        return "its locks are free"

    def closed(self, run: RunDirectory, *, remove: bool) -> str:
        run.close(remove=remove)
        if self.dice.random() < 0.5:
            self.open.remove(run)
        return "closed"

    def ended(self, run: RunDirectory) -> str:
        run.end()
        return f"ended: {run.ended}"

    def cluttered(self, root: Path, run: RunDirectory | None) -> str:
        """Leave something in a host's directory, or in that of a run."""
        what = self.dice.choice(
            ["no run", "file", "table", "link", "a lock of another kind", "half"]
        )
        name = "c" * 31 + self.dice.choice("0123")
        if what == "no run":
            (root / name[1:]).mkdir(exist_ok=True)
        elif what == "file":
            (root / ("d" * 32)).touch()
        elif what == "link" and not (root / ("e" * 32)).is_symlink():
            (root / ("e" * 32)).symlink_to(root)
        elif what == "table" and run is not None and run.path.exists():
            (run.path / "op").mkdir(exist_ok=True)
            (run.path / "op" / "g1").touch()
            (run.path / f"link{self.dice.randrange(9)}").symlink_to("/nowhere")
        elif what == "half":
            (root / f"{name}.new").mkdir(exist_ok=True)
        elif what == "a lock of another kind":
            (root / name / "lock").mkdir(parents=True, exist_ok=True)
        return what

    def acts(self, host: int, run: RunDirectory | None) -> dict[str, Callable[[], Any]]:
        """Return what may happen on a host, and to a run."""
        root = self.roots[host]
        happen: dict[str, Callable[[], Any]] = {
            "sweep": lambda: sweep(root),
            **{f"clutter{n}": lambda: self.cluttered(root, run) for n in range(3)},
            "join nothing": lambda: join_run(
                root, self.dice.choice(["x", "g" * 32, "../" + "a" * 29, "a" * 33])
            ),
        }  # fmt: skip
        if run is not None:
            happen |= {
                "join": lambda: self.joined(host, run.run_id), "kill": lambda: self.killed(run),
                "close": lambda: self.closed(run, remove=True),
                "leave": lambda: self.closed(run, remove=False), "end": lambda: self.ended(run),
                "arena": lambda: run.arena[-4:] + (run.arena == run.arena) * ", as before",
            }  # fmt: skip
        if len(self.open) > 5:
            happen = {"kill": happen["kill"], "close": happen["close"], "end": happen["end"]}
        elif len(self.open) < 4:
            happen |= {f"open{n}": lambda: self.opened(host) for n in range(3)}
        return happen


def test_runs_begin_end_and_are_killed_as_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recorded: Recorded
) -> None:
    """Killed drivers and workers leave what they have, and somebody sweeps it."""
    dice, lines, names = random.Random(51), [], iter(f"{n:032x}" for n in range(1, 999))
    monkeypatch.setattr(runs, "secrets", types.SimpleNamespace(token_hex=lambda _: next(names)))
    site = Site(tmp_path, dice)
    for number in range(120):
        host, run = dice.randrange(2), dice.choice(site.open) if site.open else None
        acts = site.acts(host, run)
        act = dice.choice(sorted(acts))
        said = told(acts[act], tmp_path)
        lines.append(f"{number} {act} {'ab'[host]} {run and run.run_id[-4:]}: {said[-150:]}")
        here = [
            line.replace("0" * 28, "").replace("c" * 28, "")
            for line in tree(tmp_path)
            if "/" in line and not line.endswith("lock")
        ]
        lines.append(f"  {', '.join(here)}")
        over = "".join("ne"[run.ended] for run in site.open)
        lines.append(f"  {len(list(tmp_path.rglob('lock')))} locks, {held(site.root)} held, {over}")
    for run in list(site.open):
        run.close()
    lines += tree(tmp_path)
    recorded("runs", lines)


def test_directories_that_cannot_be_used_are_told_as_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recorded: Recorded
) -> None:
    lines = []
    for mode in (0o700, 0o500, 0o710, 0o701, 0o777):
        (tmp_path / f"{mode:o}").mkdir()
        (tmp_path / f"{mode:o}").chmod(mode)
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to(tmp_path / "700")
    for name in ("700", "500", "710", "701", "777", "file", "link", "new", "no/new"):
        made = told(lambda name=name: private_directory(tmp_path / name, "THE_SETTING"), tmp_path)
        lines.append(f"{name}: {made}")
    monkeypatch.setattr(os, "geteuid", lambda: 4242)
    mine = f"belongs to user {(tmp_path / '700').stat().st_uid}"
    lines.append(
        told(lambda: private_directory(tmp_path / "700"), tmp_path).replace(mine, "is another's")
    )
    for name in ("a" * 32, "b" * 32):
        (tmp_path / "700" / name).mkdir()
    lines.append(f"swept of another's: {sweep(tmp_path / '700')}")
    monkeypatch.undo()
    (tmp_path / "700" / ("a" * 32) / "lock").mkdir()
    lines.append(f"swept: {sweep(tmp_path / '700')}")
    lines.append(told(lambda: join_run(tmp_path / "700", "a" * 32), tmp_path))
    mounts = (
        "a / ext4 rw\nb /mnt tmpfs rw\nc /mnt/disk ext4 rw\nd /mnt/disk/r ramfs\ne /mnt/di tmpfs"
    )
    monkeypatch.setattr(runs, "Path", lambda _: types.SimpleNamespace(read_text=lambda **_: mounts))
    monkeypatch.setattr(os.path, "realpath", str)
    disks = ("/mnt/disk", "/mnt/disk/q", "/mnt/disk/r/x", "/mnt/di/x")
    for path in ("/", "/mnt", "/mntx", "/mnt/x", *disks):
        lines.append(f"{path} is memory: {runs.in_memory(Path(path))}")
    recorded("directories", lines)


@pytest.mark.parametrize("system", ["one call", "piece by piece"])
def test_files_get_their_bytes_at_once(
    system: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recorded: Recorded
) -> None:
    """With the one call that Linux has, and by writing zeros."""
    if system != "one call":
        monkeypatch.delattr(os, "posix_fallocate")
    lines: list[str] = []
    for count in (1, 4096, (1 << 20) - 1, 1 << 20, (5 << 19) + 3):
        descriptor = room.created(str(tmp_path / f"{count}"), count)
        status = os.fstat(descriptor)
        assert (status.st_size, status.st_mode & 0o777) == (count, 0o600)
        assert os.pread(descriptor, count + 1, 0) == bytes(count)
        assert status.st_blocks * 512 >= count, "no hole"
        os.pwrite(descriptor, b"abc", 0)
        room.allocate(descriptor, count + 100)
        assert os.pread(descriptor, count + 101, 0) == b"abc"[: count + 100] + bytes(count + 97)
        room.allocate(descriptor, count)
        assert os.fstat(descriptor).st_size == count + 100
        os.close(descriptor)
    before = held(tmp_path)
    for code in (errno.ENOSPC, errno.EIO, errno.EDQUOT):

        def refuse(*_: Any, code: int = code) -> None:
            raise OSError(code, os.strerror(code))

        for name in ("allocate", "open"):
            with monkeypatch.context() as patch:
                patch.setattr(room if name == "allocate" else os, name, refuse)
                patch.setattr(room.shutil, "disk_usage", lambda _: types.SimpleNamespace(free=77))
                lines.append(told(lambda: room.created(f"{tmp_path}/new", 9, "do so"), tmp_path))
                lines.append(told(lambda: room.created(f"{tmp_path}/new", 9), tmp_path))
    lines.append(told(lambda: room.created(f"{tmp_path}/4096", 9), tmp_path))
    assert held(tmp_path) == before
    assert not (tmp_path / "new").exists()
    recorded("room", lines)


# --- Tiers --------------------------------------------------------------------------------------------


def greedy(sizes: Any, density: Any, inside: Any, bound: int) -> list[bool]:
    """Take groups, the densest first, as long as they fit."""
    order = sorted(
        (i for i in range(len(sizes)) if sizes[i] <= bound and (inside[i] or density[i] > 0)),
        key=lambda i: (-density[i] * (2.0 if inside[i] else 1.0), not inside[i]),
    )
    used, chosen = 0, [False] * len(sizes)
    for i in order:
        if used + sizes[i] <= bound:
            used, chosen[i] = used + sizes[i], True
    return chosen


def test_the_densest_groups_that_fit_are_wanted() -> None:
    dice = random.Random(52)
    for _ in range(400):
        count = dice.randint(0, 9)
        sizes = np.array([float(dice.choice([0, 1, 4, 8, 9, 30])) for _ in range(count)])
        density = np.array([dice.choice([0.0, 0.5, 1.0, 2.0, 3.0]) for _ in range(count)])
        inside = np.array([dice.random() < 0.5 for _ in range(count)], dtype=bool)
        bound = dice.choice([0, 1, 8, 20, 1000])
        found = tiers.wanted(sizes, density, inside, bound)
        assert found.tolist() == greedy(sizes, density, inside, bound)


def test_moves_between_tiers_are_planned_as_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recorded: Recorded
) -> None:
    """Files of drawn sizes; groups of two operators, touched now and then, some of them big."""
    dice, lines = random.Random(53), []
    clock = iter(np.arange(0.0, 99.0, 0.25).tolist())
    monkeypatch.setattr(tiers, "time", types.SimpleNamespace(perf_counter=lambda: next(clock)))
    for name in ("arena", "spill", "arena/op", "arena/other", "spill/other"):
        (tmp_path / name).mkdir(mode=0o700)
    (tmp_path / "arena" / "file").touch()
    made = Tiers(tmp_path / "arena/op", tmp_path / "spill/op", MemoryBound(64_000, 6))
    lines.append(f"{made.figures} {[str(p)[len(str(tmp_path)) :] for p in made.paths(3)]}")

    def resize(path: Path, size: int) -> None:
        path.touch(mode=0o600)
        os.truncate(path, size)

    for step in range(0, 200, 2):
        for _ in range(dice.randint(0, 3)):
            top, operator = dice.choice(["arena", "spill"]), dice.choice(["op", "op", "other"])
            name = f"g{dice.randrange(7)}" + dice.choice(["", "", "", f".{9:016x}.undo"])
            resize(
                tmp_path / top / operator / name, dice.choice([0, 1000, 1999, 2000, 8000, 30_000])
            )
        for _ in range(dice.randint(0, 2)):
            at = dice.choice([step, step, step - 3])
            touched = (dice.randrange(8), dice.choice([0, 1, 50, 900]), at)
            made.touched(*touched, cold=dice.random() < 0.3)
            lines.append(f"{step} touched {touched}")
        if dice.random() < 0.3:
            for path in list((tmp_path / "arena").rglob("g*"))[:2]:
                path.unlink()
        if dice.random() < 0.2:
            heat = np.array([[dice.choice([0.0, 0.4, 60.0]), step]] * dice.randint(0, 7))
            heat.tofile(tmp_path / "spill/other/heat")
        own = set(dice.sample(range(7), dice.choice([3, 7])))
        for size in dice.sample([1000, 20_000, 64_000, 64_001, (1 << 20) - 1, 1 << 20], 2):
            found = [path[len(str(tmp_path)) + 1 :] for path in made.places(1, size)]
            lines.append(f"{step} {size} bytes in {' or '.join(found)}, {made._used} used")
        out, back = made.plan(own, step)
        lines.append(f"{step} {sorted(own)} out {out} back {back} {made._used} used")
        names, sizes, inside, density = made._seen(step)
        seen = [
            names,
            sizes.tolist(),
            inside.astype(int).tolist(),
            (1e3 * density).round(3).tolist(),
        ]
        lines.append(f"  {seen}")
        if step % 10 == 0:
            made.moved(back=len(back), away=len(out), began=next(clock))
            lines.append(f"  {made.told()}")
            lines.append(f"  {made.figures == tiers.Tiering()} {made._heat.round(3).tolist()}")
    recorded("tiers", lines)
