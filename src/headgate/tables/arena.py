"""Stores tables in memory-mapped files that every process of a host can open.

A store never repairs a file, and never takes a file from another process. If a file is locked, dirty,
damaged, or at a token that leads nowhere, the store builds a new file from the changelog and renames it
over the old one. A process that still writes to the old file (a paused attempt, a worker that Spark has
given up) writes to an inode that no other process will read.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from headgate.core.errors import ArenaFull, StateError
from headgate.tables.arena_file import (
    ArenaFile,
    forget_directory,
    forget_replaced,
    remember,
    take,
)
from headgate.tables.lineage import bring, build
from headgate.tables.ports import Chain, Store, Table, TableLayout
from headgate.tables.room import MAKE_ROOM
from headgate.tables.runs import (
    RunDirectory,
    arena_root,
    check_name,
    join_run,
    open_run,
    private_directory,
    spill_path,
    spill_root,
    sweep,
)
from headgate.tables.table import BufferTable, initial_bytes
from headgate.tables.tiers import Tiering, Tiers

__all__ = [
    "ArenaStore",
    "RunDirectory",
    "arena_root",
    "join_run",
    "open_run",
    "spill_path",
    "spill_root",
    "sweep",
]


class ArenaStore(Store):
    """Stores one operator's tables on this host in files.

    `directory` (path): the operator's directory in a run directory; created with mode 0700. `tiers`:
    places tables in memory or on disk; None if memory has no bound.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        layout: TableLayout,
        tiers: Tiers | None = None,
    ) -> None:
        check_name(Path(directory).name, "operator")
        self._directory = private_directory(Path(directory))
        self._prefix = f"{self._directory}/g"
        self._layout = layout
        self._held: dict[int, ArenaFile] = {}
        self._tiers = tiers
        self._step = 0
        self._stamps: dict[int, int] = {}

    def acquire(self, group: int, token: str, chain: Chain) -> Table:
        """Return the group's table at `token`, locked for this store."""
        if group in self._held:
            msg = f"key group {group} is held already: release it first"
            raise StateError(msg)
        for path in self._paths(group):
            file = take(path, self._layout)
            if file is not None:
                file.places = self._places(group)
                table = self._bring_table(file, group, token, chain)
                if table is not None:
                    self._hold(group, file)
                    self._leave_one(group, file, path)
                    return table
        return self._build(group, token, chain)

    def commit(self, group: int, token: str) -> None:
        """Give the state since `begin` its token."""
        table = self._file(group).table
        assert table is not None, "a held file has a table"
        table.commit(token)

    def release(self, group: int) -> None:
        """Unlock the group's file; without a commit the file stays dirty, and no slot uses it again."""
        file = self._file(group)
        if self._tiers is not None:
            assert file.table is not None, "a held file has a table"
            rows = file.table.touched_since(self._stamps.pop(group))
            cold = file.path != f"{self._prefix}{group}"
            self._tiers.touched(group, rows, self._step, cold=cold)
        file.unlock()
        del self._held[group]

    def forget(self, group: int) -> None:
        """Remove the group's table from this host, unless it is locked.

        A slot that opens the file meanwhile continues in a file without a name, and the next slot
        rebuilds the table: this costs time, but never changes a result.
        """
        for path in () if group in self._held else self._paths(group):
            file = take(path, self._layout)
            if file is not None:
                file.remove()

    def balance(self, groups: Mapping[int, str], step: int, *, moving: bool = True) -> None:
        """Begin a step; if memory has a bound, move the coldest tables to disk and hot ones to memory.

        Parameters
        ----------
        groups : mapping of int to str
            Key groups that the caller owns, with the tokens of their committed states. A table at another
            token stays in its place, because its undo file does not move.
        step : int    Number of the step; the heat of a group decays by step.
        moving : bool    False to move no table.
        """
        self._step = step
        tiers = self._tiers
        if tiers is None:
            return
        for directory in (tiers.memory, tiers.spill):
            forget_replaced(f"{directory}/")
        if not moving:
            # a killed worker may have left half a table, which takes room
            for group in groups:
                self._tidy(group, -1, "tmp")
            return
        began = time.perf_counter()
        out, back = tiers.plan(groups.keys(), step)
        away = [group for group in out if self._move(group, groups[group], inwards=False)]
        came = [group for group in back if self._move(group, groups[group], inwards=True)]
        tiers.moved(back=len(came), away=len(away), began=began)

    def tiering(self) -> Tiering | None:
        """Return the tiers and moves of groups since the last call; None if memory has no bound."""
        return None if self._tiers is None else self._tiers.told()

    def _move(self, group: int, token: str, *, inwards: bool) -> bool:
        """Move a group's table between memory and disk; return whether it has moved."""
        assert self._tiers is not None, "there is one place only"
        inside, outside = self._tiers.paths(group)
        source, target = (outside, inside) if inwards else (inside, outside)
        file = None if group in self._held else take(source, self._layout)
        if file is None:
            return False
        table = file.table
        if table is None or not table.trusted() or table.token != token:
            file.unlock()
            return False
        try:
            file.move(target)
        except (ArenaFull, OSError):
            file.unlock()
            return False  # the group is served in its present place
        self._tidy(group, file.nonce)
        return True

    def _paths(self, group: int) -> tuple[str, ...]:
        """Return the paths at which a group's table may lie."""
        return (f"{self._prefix}{group}",) if self._tiers is None else self._tiers.paths(group)

    def _places(self, group: int) -> Callable[[int], Sequence[str]] | None:
        """Return the function that names the paths for a group's next file; None without tiers."""
        return None if self._tiers is None else partial(self._tiers.places, group)

    def _hold(self, group: int, file: ArenaFile) -> None:
        self._held[group] = file
        if self._tiers is not None and file.table is not None:
            self._stamps[group] = file.table.stamp

    def close(self) -> None:
        """Release all groups and drop this process's mappings of the directory."""
        for group in list(self._held):
            self.release(group)
        forget_directory(f"{self._directory}/")
        if self._tiers is not None:
            forget_directory(f"{self._tiers.spill}/")

    def _file(self, group: int) -> ArenaFile:
        file = self._held.get(group)
        if file is None:
            msg = f"key group {group} is not held: acquire it first"
            raise StateError(msg)
        return file

    def _bring_table(
        self, file: ArenaFile, group: int, token: str, chain: Chain
    ) -> BufferTable | None:
        """Return the file's table at `token`; drop the file and return None if it is not usable."""
        table = file.table
        try:
            if table is not None and table.trusted() and bring(table, token, chain):
                return table
        except BaseException:
            file.drop()
            raise
        file.drop()
        return None

    def _build(self, group: int, token: str, chain: Chain) -> BufferTable:
        byte_count, places = initial_bytes(self._layout), self._places(group)
        if places is None:
            file = ArenaFile.create(self._paths(group), byte_count)
        else:
            file = ArenaFile.create(places(byte_count), byte_count, remedy=MAKE_ROOM)
        file.places = places
        try:
            table = BufferTable.create(file, self._layout, file.nonce)
            file.table = table
            build(table, group, token, chain)
            replaced = file.publish()
        except BaseException:
            file.discard()
            raise
        remember(file)
        self._hold(group, file)
        self._leave_one(group, file, None)
        if replaced:
            self._tidy(group, file.nonce)
        return table

    def _leave_one(self, group: int, file: ArenaFile, current: str | None) -> None:
        """Remove stale files of the group at the paths before `current` (None: at all paths)."""
        for path in self._paths(group):
            if path == current:
                break
            if path != file.path:
                ArenaFile.remove_stale(path)

    def _tidy(self, group: int, nonce: int, kinds: str = "tmp|undo") -> None:
        """Remove files that dead attempts on this group left: unlocked temporary files, undo files."""
        left = re.compile(rf"g{group}\.([0-9a-f]{{16}})\.({kinds})")
        for path in self._paths(group):
            directory = os.path.dirname(path)
            for name in os.listdir(directory):
                match = left.fullmatch(name)
                if match and int(match[1], 16) != nonce:
                    ArenaFile.remove_stale(f"{directory}/{name}")
