"""Tables in memory-mapped files that every process of a host can reach.

A file is never repaired and never taken from somebody: locked, dirty, of a foreign token or
damaged, it is left alone, and a new file is built from the changelog and renamed over it. Whoever
still writes to the old one (a paused attempt, a worker Spark has given up) writes to an inode
nobody else will read.
"""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path

from headgate.core.errors import StateError
from headgate.state.arena_file import ArenaFile, forget_directory, remember, take
from headgate.state.lineage import bring, build
from headgate.state.ports import Chain, Store, Table, TableLayout
from headgate.state.runs import (
    RunDirectory,
    arena_root,
    checked_name,
    join_run,
    open_run,
    private_directory,
    sweep,
)
from headgate.state.table import BufferTable, initial_bytes

__all__ = [
    "ArenaStore",
    "RunDirectory",
    "arena_root",
    "checked_name",
    "join_run",
    "open_run",
    "sweep",
]


class ArenaStore(Store):
    """One operator's tables on this host, in files.

    Parameters
    ----------
    directory : path    Of this operator, in a run directory; created with mode 0700.
    layout : TableLayout
    """

    def __init__(self, directory: str | os.PathLike[str], layout: TableLayout) -> None:
        checked_name(Path(directory).name, "operator")
        self._directory = private_directory(Path(directory))
        self._prefix = f"{self._directory}/g"
        self._layout = layout
        self._held: dict[int, ArenaFile] = {}

    def acquire(self, group: int, token: str, chain: Chain) -> Table:
        """Return the group's table at `token`, locked for this store."""
        if group in self._held:
            msg = f"key group {group} is held already: release it first"
            raise StateError(msg)
        file = take(f"{self._prefix}{group}", self._layout)
        if file is not None:
            table = self._brought(file, group, token, chain)
            if table is not None:
                self._held[group] = file
                return table
        return self._build(group, token, chain)

    def commit(self, group: int, token: str) -> None:
        """Name the state reached since `begin`."""
        table = self._file(group).table
        assert table is not None, "a held file has a table"
        table.commit(token)

    def release(self, group: int) -> None:
        """Unlock the group's file; without a commit it stays dirty, and is not used again."""
        self._file(group).unlock()
        del self._held[group]

    def forget(self, group: int) -> None:
        """Remove the group's table from this host; one that somebody has locked stays.

        A slot that takes it up meanwhile works on in a file without a name, and the next one builds
        it anew: that costs time, never an answer.
        """
        path = f"{self._prefix}{group}"
        file = None if group in self._held else take(path, self._layout)
        if file is not None:
            for name in (path, f"{path}.{file.nonce:016x}.undo"):
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(name)
            file.drop()

    def close(self) -> None:
        """Release everything and drop this process's mappings of the directory."""
        for group in list(self._held):
            self.release(group)
        forget_directory(f"{self._directory}/")

    def _file(self, group: int) -> ArenaFile:
        file = self._held.get(group)
        if file is None:
            msg = f"key group {group} is not held: acquire it first"
            raise StateError(msg)
        return file

    def _brought(self, file: ArenaFile, group: int, token: str, chain: Chain) -> BufferTable | None:
        """Return the file's table at `token`; None, and unlocked, if the file is of no use."""
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
        file = ArenaFile.create(f"{self._prefix}{group}", initial_bytes(self._layout))
        try:
            table = BufferTable.create(file, self._layout, file.nonce)
            file.table = table
            build(table, group, token, chain)
            replaced = file.publish()
        except BaseException:
            file.discard()
            raise
        remember(file)
        self._held[group] = file
        if replaced:
            self._tidy(group, file.nonce)
        return table

    def _tidy(self, group: int, nonce: int) -> None:
        """Remove what attempts that died left of this group: unlocked temporary files, old undo."""
        left = re.compile(rf"g{group}\.([0-9a-f]{{16}})\.(tmp|undo)")
        for name in os.listdir(self._directory):
            match = left.fullmatch(name)
            if match and int(match[1], 16) != nonce:
                ArenaFile.remove_stale(f"{self._directory}/{name}")
