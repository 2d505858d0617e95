"""Workers of a host share files of state, bounded or not: all files after each event, as recorded.

Every worker has mappings and locks of its own. The content of a table is compared with a mapping.
"""

from __future__ import annotations

import errno
import fcntl
import os
import random
import re
import shutil
import types
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headgate.core.errors import HeadgateError
from headgate.tables import arena, arena_file, room, tiers
from headgate.tables.arena import ArenaStore
from headgate.tables.ports import EMPTY_TOKEN
from headgate.tables.tiers import MemoryBound, Tiers
from headgate_lab.testing.descriptors import held
from headgate_lab.testing.stores import (
    LAYOUT,
    Change,
    History,
    Model,
    apply_changes,
    apply_to_model,
    contents,
)

Recorded = Callable[[str, Iterable[str]], None]
GROUPS = (0, 1, 2, 12)
TABLE = 4360
"""Bytes of a small table; what undoes its last step takes 3,088 more."""


class Host:
    """A host with three workers, of which one does something at a time."""

    def __init__(
        self, root: Path, bound: int | None, seed: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.root, self.bound, self.dice, self.patch = root, bound, random.Random(seed), monkeypatch
        for name in ("arena", "spill", "arena/op", "arena/other", "spill/other"):
            (root / name).mkdir(mode=0o700)
        self.known: list[dict[str, Any]] = [{}, {}, {}]
        self.stores = [self.store() for _ in self.known]
        self.held: dict[int, Any] = {}
        self.histories = {group: History() for group in GROUPS}
        self.models: dict[int, Model] = {group: {} for group in GROUPS}
        self.tokens, self.step, self.full = 0, 0, ""
        numbers, clock = random.Random(seed), iter(np.arange(0.0, 99.0, 0.004).tolist())
        monkeypatch.setattr(
            arena_file, "secrets", types.SimpleNamespace(randbits=numbers.getrandbits)
        )
        for module in (arena, tiers):
            monkeypatch.setattr(
                module, "time", types.SimpleNamespace(perf_counter=lambda: next(clock))
            )
        real = room.allocate
        monkeypatch.setattr(room, "allocate", lambda *more: self.allocate(real, *more))
        monkeypatch.setattr(arena_file, "allocate", lambda *more: self.allocate(real, *more))

    def allocate(self, real: Any, descriptor: int, byte_count: int) -> None:
        if self.full and re.search(self.full, os.readlink(f"/proc/self/fd/{descriptor}")):
            raise OSError(errno.ENOSPC, "No space left on device")
        real(descriptor, byte_count)

    def store(self) -> ArenaStore:
        directory = self.root / "arena" / "op"
        if self.bound is None:
            return ArenaStore(directory, LAYOUT)
        bounded = Tiers(directory, self.root / "spill" / "op", MemoryBound(self.bound, 8))
        return ArenaStore(directory, LAYOUT, bounded)

    def token(self) -> str:
        self.tokens += 1
        return f"{self.tokens:032x}"

    def changes(self) -> list[Change]:
        count = self.dice.choice([0, 1, 4, 4, 30, 50, 110])
        return [
            (f"w{self.dice.randrange(40)}", self.dice.randrange(5), self.dice.randrange(4))
            for _ in range(count)
        ]

    # Events of a worker.

    def serve(self, worker: int, group: int, end: str = "taken") -> str:
        store, history = self.stores[worker], self.histories[group]
        table = store.acquire(group, history.token, history.chain)
        try:
            assert contents(table) == self.models[group]
            table.begin()
            changes = self.changes()
            if end == "killed":
                apply_changes(table, changes[:1])
                return self.kill(worker)
            apply_changes(table, changes)
            section = table.section(self.token(), full=self.dice.random() < 0.2)
            if end != "no commit":
                store.commit(group, section.token)
            undo = table.can_roll_back()  # type: ignore[attr-defined]
            if end == "taken":
                history.sections.append(section)
                self.models[group] = apply_to_model(self.models[group], changes)
        finally:
            if group in store._held:
                store.release(group)
        return f"{len(changes)} changes{', all written' if section.full else ''}, undo {undo}"

    def read(self, worker: int, group: int) -> str:
        store, history = self.stores[worker], self.histories[group]
        table = store.acquire(group, history.token, history.chain)
        assert contents(table) == self.models[group]
        store.release(group)
        return f"{len(self.models[group])} rows"

    def hold(self, worker: int, group: int) -> str:
        store, history = self.stores[worker], self.histories[group]
        if worker in self.held:
            store.release(self.held.pop(worker))
            return "released"
        store.acquire(group, history.token, history.chain)
        self.held[worker] = group
        return "held"

    def balance(self, worker: int, group: int) -> str:
        self.step += self.dice.choice([0, 1, 1, 3])
        tokens = {g: history.token for g, history in self.histories.items()}
        own = dict(list(tokens.items())[group % 2 :])
        if self.dice.random() < 0.2:
            own[GROUPS[-1]] = "e" * 32
        self.stores[worker].balance(own, self.step, moving=self.dice.random() < 0.8)
        return f"step {self.step}"

    def move(self, worker: int, group: int) -> str:
        if self.bound is None:
            return "nowhere"
        token = self.dice.choice([self.histories[group].token] * 5 + ["e" * 32])
        inwards = self.dice.random() < 0.5
        return f"{inwards} {self.stores[worker]._move(group, token, inwards=inwards)}"

    def kill(self, worker: int) -> str:
        """End a worker as the kernel does: its locks go, its files stay."""
        store = self.stores[worker]
        for file in set(self.known[worker].values()) | set(store._held.values()):
            fcntl.flock(file._descriptor, fcntl.LOCK_UN)  # a mapping keeps it otherwise
            os.close(file._descriptor)
        self.known[worker].clear()
        store._held.clear()
        self.held.pop(worker, None)
        self.stores[worker] = self.store()
        return "a new one"

    def close(self, worker: int, group: int) -> str:
        self.held.pop(worker, None)
        self.stores[worker].close()
        return "closed"

    def damage(self, worker: int, group: int) -> str:
        places = [p for p in (self.root / "arena/op", self.root / "spill/op") if p.exists()]
        path = self.dice.choice(places) / f"g{group}"
        what = self.dice.choice(["cut", "bit", "gone", "readable", "stray", "older", "link"])
        if what == "stray":
            left = [f"{path.name}.{7:016x}.tmp", f"{path.name}.{8:016x}.undo", "gx", "g123456"]
            for name in left:
                (path.parent / name).touch(mode=0o600)
        elif not path.exists():
            return f"{what}, nothing there"
        elif what == "cut":
            path.write_bytes(path.read_bytes()[:511])
        elif what == "bit":
            raw = bytearray(path.read_bytes())
            raw[self.dice.choice([0, 40, 72, 80, 200, 510])] ^= 1
            fresh = path.with_name("fresh")
            fresh.write_bytes(raw)
            fresh.chmod(0o600)
            fresh.rename(path)
        elif what == "older":
            other = places[-1] / path.name if path.parent == places[0] else places[0] / path.name
            if other != path:
                shutil.copy(path, other)
        elif what == "link":
            path.rename(path.with_name("elsewhere"))
            path.symlink_to("elsewhere")
        elif what == "readable":
            path.chmod(0o644)
        else:
            path.unlink()
        return f"{what} in {path.parent.parent.name}"

    def without_room(self, worker: int, group: int) -> str:
        self.full = self.dice.choice(["/arena/", "undo", "/g", "/spill/"])
        try:
            return f"{self.full}: {self.serve(worker, group)}"
        finally:
            self.full = ""

    def other_operator(self, worker: int, group: int) -> str:
        size = self.dice.choice([0, TABLE, 3 * TABLE])
        path = self.root / self.dice.choice(["arena", "spill"]) / "other" / f"g{group}"
        path.write_bytes(bytes(size))
        np.array([[self.dice.choice([0.0, 5.0, 500.0]), self.step]] * 8).tofile(
            self.root / "spill/other/heat"
        )
        return f"{size} in {path.parent.parent.name}"

    # What is there.

    def shown(self) -> list[str]:
        files = [
            f"{path.parent.parent.name[0]}/{re.sub('[0-9a-f]{12}[.]', '.', path.name)}"
            f"{'->' if path.is_symlink() else ''} {path.lstat().st_size} "
            f"{path.lstat().st_mode & 0o77:o}"
            for top in ("arena/op", "spill/op")
            for path in sorted((self.root / top).glob("*"))
            if path.name != "heat"
        ]
        known = [
            sorted(f"{p.split('/')[-3][0]}{Path(p).name}{'*' * f.held}" for p, f in known.items())
            for known in self.known
        ]
        asked = [t.lstrip("0") for h in self.histories.values() for t in h.asked]
        for history in self.histories.values():
            history.asked.clear()
        lines = [f"  {', '.join(files)}", f"  {known} {held(self.root)} open, asked {asked}"]
        for store in self.stores:
            if store._tiers is not None and (self.step + len(files)) % 3 == 0:
                told = store.tiering()
                lines.append(f"  {vars(told) | {'ms': round(told.ms, 6)}} {store._tiers._used}")
        heat = self.root / "spill/op/heat"
        if heat.exists():
            lines.append(f"  heat {np.fromfile(heat).reshape(-1, 2).round(4).tolist()[:3]}")
        return lines


EVENTS = ("serve",) * 8 + ("read",) * 4 + ("balance",) * 5 + (
    "hold", "hold", "move", "move", "undone", "undone", "lost", "kill", "killed", "forget",
    "damage", "damage", "without room", "other", "close",
)  # fmt: skip


@pytest.mark.parametrize(
    ("name", "bound", "seed"),
    [("all", None, 41), ("three", 3 * (TABLE + 3088), 45), ("wide", 1 << 30, 43), ("none", 1, 44)],
)
def test_files_of_a_host_are_as_recorded(
    name: str, bound: int | None, seed: int,
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recorded: Recorded,
) -> None:  # fmt: skip
    host, lines, before = Host(tmp_path, bound, seed, monkeypatch), [], []
    for number in range(140):
        event, worker = host.dice.choice(EVENTS), host.dice.randrange(3)
        group = host.dice.choice(GROUPS)
        acts: dict[str, Callable[[int, int], str]] = {
            "serve": host.serve, "read": host.read, "move": host.move,
            "balance": host.balance, "hold": host.hold,
            "undone": lambda w, g: host.serve(w, g, "undone"),
            "lost": lambda w, g: host.serve(w, g, "no commit"),
            "killed": lambda w, g: host.serve(w, g, "killed"),
            "kill": lambda w, _: host.kill(w),
            "forget": lambda w, g: str(host.stores[w].forget(g)),
            "damage": host.damage, "without room": host.without_room,
            "other": host.other_operator, "close": host.close,
        }  # fmt: skip
        monkeypatch.setattr(arena_file, "_known", host.known[worker])
        try:
            said = acts[event](worker, group)
        except HeadgateError as error:
            said = re.sub(r"has \d+ bytes", "has n bytes", str(error)).replace(str(tmp_path), "")
        lines.append(f"{number} {worker} {event} {group}: {said}")
        shown = host.shown()
        lines += [line for line in shown if line not in before]
        before = shown
    for worker in range(3):
        monkeypatch.setattr(arena_file, "_known", host.known[worker])
        host.stores[worker].close()
    lines += host.shown()
    recorded(f"host-{name}", lines)
    assert EMPTY_TOKEN not in {history.token for history in host.histories.values()}


@pytest.mark.parametrize("bound", [None, 1 << 30])
def test_a_worker_finds_the_new_file_of_a_table_whose_old_file_is_held(
    bound: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = Host(tmp_path, bound, 46, monkeypatch)

    def by(worker: int, act: Callable[[int, int], str]) -> list[str]:
        host.histories[0].asked.clear()
        monkeypatch.setattr(arena_file, "_known", host.known[worker])
        act(worker, 0)
        return host.histories[0].asked

    by(0, host.serve)
    assert by(1, host.hold) == [], "it takes the file that is there"
    assert by(2, host.read) == [EMPTY_TOKEN], "that one is held: it builds another"
    for _ in range(2):
        assert by(0, host.read) == [], "and who has mapped the first one finds the second"
    path = f"{tmp_path}/arena/op/g0"
    assert [path in known and known[path].is_current() for known in host.known] == [
        True,
        False,
        True,
    ]
    assert held(tmp_path) == 3
    by(1, host.hold)
    for worker in range(3):
        by(worker, host.close)
    assert held(tmp_path) == 0
