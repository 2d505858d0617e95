"""Decides which key groups' tables lie in a host's bounded memory, and which on its disk.

A table is a file, and works the same in both places. In the arena, a file is memory that the kernel
cannot reclaim; in the spill directory, the kernel keeps only the used pages of a mapped file in memory.
So a key group is served in its present place, and moves only if the move pays: hot groups move into
memory as far as the bound allows, and the coldest groups make room.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from headgate.core.input import regular_bytes
from headgate.tables.mapping import map_file
from headgate.tables.runs import private_directory

F64 = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]

KEPT = 0.9
"""Factor by which the heat of a group decays per step: half after 7 steps. Chosen, not tuned."""

STICKY = 2.0
"""Factor by which touches of a group on disk must be denser than those of the group that it replaces in
memory. A larger value moves fewer groups of about the same heat. Chosen, not tuned."""

STEP_SHARE = 32
"""Divisor of the bound: the bytes that a slot moves each way per step, but at least one group. A larger
value adapts more slowly (now in dozens of steps), and delays each step less. Chosen, not tuned."""

_TABLE = re.compile(r"g(\d{1,5})(?:\.[0-9a-f]{16}\.(?:tmp|undo))?")
_HEAT = "heat"
_ROOM_KNOWN = 1 << 20
"""Bytes; smaller files are placed by the memory use known at the step's begin: a look costs 0.3 ms."""


@dataclass(frozen=True)
class MemoryBound:
    """Holds the bound on a query's share of a host's memory."""

    byte_count: int
    """Bytes for the tables and the undo files of all operators of the query."""
    key_groups: int


@dataclass(frozen=True)
class Tiering:
    """Counts a slot's key groups by tier in a step, and their moves, if memory has a bound."""

    memory_bytes: int = 0
    cold_bytes: int = 0
    """`memory_bytes`, `cold_bytes`: bytes of the operator's tables on the host after the step, in
    memory and in the spill directory."""
    back: int = 0
    away: int = 0
    """`back`, `away`: key groups that were moved into memory, and out of it."""
    cold: int = 0
    """Key groups that were served on disk."""
    ms: float = 0.0
    """Time for decisions and moves, ms."""


def wanted(sizes: F64, density: F64, inside: Flags, bound: int) -> Flags:
    """Return a mask of the key groups that belong in memory.

    The mask (bool[n]) selects the densest groups that fit together. A group in memory counts with
    `STICKY` times its density, and precedes a group on disk that counts the same.

    Parameters
    ----------
    sizes : float64[n]    Bytes.
    density : float64[n]    Touched rows per byte, in recent steps.
    inside : bool[n]    True for groups in memory.
    bound : int    Bytes of memory.
    """
    chosen = np.zeros(len(sizes), dtype=np.bool_)
    worth = np.where(inside, STICKY * density, density)
    # a group on disk that no step touches stays there, even if memory has room
    able = (sizes <= bound) & (inside | (density > 0.0))
    order = np.lexsort((~inside, -worth))
    order = order[able[order]]
    fits = int(np.searchsorted(np.cumsum(sizes[order]), bound, side="right"))
    chosen[order[:fits]] = True
    used = float(sizes[order[:fits]].sum())
    for at in order[fits:].tolist():
        if used + sizes[at] <= bound:
            chosen[at], used = True, used + sizes[at]
    return chosen


class Tiers:
    """Places the tables of one operator on a host: in memory, or in its spill directory.

    `memory`, `spill`: the operator's directories in the run's arena, and in the run's spill
    directory.
    """

    def __init__(self, memory: Path, spill: Path, bound: MemoryBound) -> None:
        self.memory, self.spill, self._bound = memory, private_directory(spill), bound
        self._heat = _heat_file(spill / _HEAT, bound.key_groups)
        self._used = 0
        self.figures = Tiering()

    def paths(self, group: int) -> tuple[str, str]:
        """Return the paths at which a group's table may be; in memory first."""
        return f"{self.memory}/g{group}", f"{self.spill}/g{group}"

    def places(self, group: int, byte_count: int) -> tuple[str, ...]:
        """Return the paths for a table of `byte_count` bytes, the best place first.

        In memory if the bound has room, with the disk as second choice; else on disk only.
        """
        if byte_count >= _ROOM_KNOWN or self._used + byte_count > self._bound.byte_count:
            self._used = self._in_memory()
        inside, outside = self.paths(group)
        if self._used + byte_count > self._bound.byte_count:
            return (outside,)
        self._used += byte_count
        return inside, outside

    def touched(self, group: int, rows: int, step: int, *, cold: bool) -> None:
        """Add the rows that a step touched to a group's heat."""
        if group < len(self._heat):
            before, since = self._heat[group]
            self._heat[group] = before * KEPT ** max(0.0, step - since) + max(1, rows), step
        if cold:
            self.figures = _plus(self.figures, cold=1)

    def plan(self, own: Collection[int], step: int) -> tuple[list[int], list[int]]:
        """Return a slot's groups to move out of memory, and those to move into it, best first.

        The decision counts the tables of all slots of the query on this host; each slot moves only its
        own groups.
        """
        names, sizes, inside, density = self._seen(step)
        bound = self._bound.byte_count
        keep = wanted(sizes, density, inside, bound)
        own_groups = np.array([name in own for name in names], dtype=np.bool_)
        most = bound / STEP_SHARE
        used = float(sizes[inside].sum())
        out: list[int] = []
        moved = 0.0
        for at in _ordered(own_groups & inside & ~keep, density):
            if moved >= most and used <= bound:
                break
            out.append(names[at])
            moved, used = moved + sizes[at], used - sizes[at]
        back: list[int] = []
        moved = 0.0
        for at in _ordered(own_groups & ~inside & keep, -density):
            if moved >= most:
                break
            if used + sizes[at] <= bound:
                back.append(names[at])
                moved, used = moved + sizes[at], used + sizes[at]
        self._used = int(used)
        return out, back

    def moved(self, *, back: int, away: int, began: float) -> None:
        """Count the moves since `began`, a time of `time.perf_counter`."""
        ms = (time.perf_counter() - began) * 1e3
        self.figures = _plus(self.figures, back=back, away=away, ms=ms)

    def told(self) -> Tiering:
        """Return the tiers and moves of groups since the last call."""
        figures, self.figures = self.figures, Tiering()
        sizes = [sum(_sizes(directory).values()) for directory in (self.memory, self.spill)]
        return _plus(figures, memory_bytes=sizes[0], cold_bytes=sizes[1])

    def _in_memory(self) -> int:
        """Return the bytes of this host's memory that tables of all the query's operators take."""
        return sum(sum(_sizes(directory).values()) for directory in _operators(self.memory.parent))

    def _seen(self, step: int) -> tuple[list[int], F64, Flags, F64]:
        """Return groups (-1 for other operators'), bytes, whether in memory, and density of touches."""
        names: list[int] = []
        sizes: list[int] = []
        inside: list[bool] = []
        heats: list[float] = []
        for memory in _operators(self.memory.parent):
            is_own = memory == self.memory
            spill = self.spill.parent / memory.name
            heat = self._heat if is_own else _heat_seen(spill / _HEAT)
            tables: set[int] = set()
            hot, cold = _sizes(memory, tables), _sizes(spill)
            for group in sorted(hot.keys() | cold.keys()):
                names.append(group if is_own else -1)
                # a table that is in both places is served in memory
                inside.append(group in tables)
                sizes.append(hot.get(group, 0) or cold.get(group, 0))
                before, since = heat[group] if group < len(heat) else (0.0, step)
                heats.append(float(before) * KEPT ** max(0.0, step - float(since)))
        byte_counts = np.array(sizes, dtype=np.float64)
        # a heat below half a row counts as none
        heated = np.where(np.array(heats) < 0.5, 0.0, np.array(heats))  # noqa: PLR2004
        density = heated / np.maximum(byte_counts, 1.0)
        return names, byte_counts, np.array(inside, dtype=np.bool_), density


def _ordered(which: Flags, by: F64) -> list[int]:
    numbers = np.flatnonzero(which)
    ordered: list[int] = numbers[np.argsort(by[numbers], kind="stable")].tolist()
    return ordered


def _plus(tiering: Tiering, **more: float) -> Tiering:
    values: dict[str, float] = {name: getattr(tiering, name) + by for name, by in more.items()}
    return Tiering(**(tiering.__dict__ | values))


def _operators(run: Path) -> list[Path]:
    """Return the directories of operators in a run directory."""
    with os.scandir(run) as entries:
        return sorted(Path(entry.path) for entry in entries if entry.is_dir(follow_symlinks=False))


def _sizes(directory: Path, tables: set[int] | None = None) -> dict[int, int]:
    """Return the bytes of each group's files in a directory: its table, and its undo file.

    `tables` receives the groups that have a table there, not only files of a killed process.
    """
    sizes: dict[int, int] = {}
    try:
        entries = os.scandir(directory)
    except OSError:
        return sizes
    with entries:
        for entry in entries:
            match = _TABLE.fullmatch(entry.name)
            if match is None:
                continue
            try:
                size = entry.stat(follow_symlinks=False).st_size
            except OSError:
                continue  # the file has just moved or grown
            group = int(match[1])
            sizes[group] = sizes.get(group, 0) + size
            if tables is not None and "." not in entry.name:
                tables.add(group)
    return sizes


def _heat_file(path: Path, key_groups: int) -> F64:
    """Return the shared float64[key_groups, 2]: each group's heat (rows), and the step of its last touch.

    Heat only decides moves; it never changes a result.
    """
    byte_count = 16 * key_groups
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        descriptor = os.open(path, flags, 0o600)
        try:
            if os.fstat(descriptor).st_size < byte_count:
                # write zeros: on a full disk, access to a hole causes SIGBUS
                os.pwrite(descriptor, bytes(byte_count), 0)
            buffer = map_file(descriptor, byte_count)
        finally:
            os.close(descriptor)
    except OSError:
        # heat is not worth a failure; a table without room raises its own error
        return np.zeros((key_groups, 2))
    return buffer.view(np.float64).reshape(key_groups, 2)


def _heat_seen(path: Path) -> F64:
    try:
        raw = regular_bytes(path)
    except OSError:
        raw = b""
    return np.frombuffer(raw[: len(raw) // 16 * 16], dtype=np.float64).reshape(-1, 2)
