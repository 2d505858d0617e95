"""Stores tables in the process's own memory: the reference for every other store."""

from __future__ import annotations

import numpy as np

from headgate.core.errors import StateError
from headgate.tables import kernels
from headgate.tables.lineage import bring, build
from headgate.tables.ports import U8, Chain, Store, Table, TableLayout
from headgate.tables.table import BufferTable, initial_bytes


class HeapMemory:
    """Supplies NumPy buffers for a table.

    `byte_count`: size of the first buffer.
    """

    def __init__(self, byte_count: int) -> None:
        self.buffer: U8 = np.zeros(byte_count, dtype=np.uint8)
        self._next = self.buffer
        self._undo: U8 = np.zeros(0, dtype=np.uint8)

    def enlarge(self, byte_count: int) -> U8:
        """Return a zeroed buffer; see `headgate.tables.table.Memory`."""
        self._next = np.zeros(byte_count, dtype=np.uint8)
        return self._next

    def switch(self) -> None:
        """Replace the present buffer by the enlarged one."""
        self.buffer = self._next

    def undo(self, byte_count: int, *, create: bool) -> U8 | None:
        """Return the undo buffer, enlarged to `byte_count` bytes if need be."""
        if self._undo.size < byte_count:
            if not create:
                return None
            larger = np.zeros(byte_count, dtype=np.uint8)
            larger[: self._undo.size] = self._undo
            self._undo = larger
        return self._undo


class HeapStore(Store):
    """Stores one operator's tables in process memory."""

    def __init__(self, layout: TableLayout) -> None:
        self._layout = layout
        self._tables: dict[int, BufferTable] = {}
        self._held: set[int] = set()

    def acquire(self, group: int, token: str, chain: Chain) -> Table:
        """Return the group's table at `token`; a dirty one is replaced, never repaired."""
        if group in self._held:
            msg = f"key group {group} is held already: release it first"
            raise StateError(msg)
        table = self._tables.pop(group, None)
        if table is None or not table.trusted() or not bring(table, token, chain):
            table = BufferTable.create(HeapMemory(initial_bytes(self._layout)), self._layout)
            build(table, group, token, chain)
        self._tables[group] = table
        self._held.add(group)
        return table

    def commit(self, group: int, token: str) -> None:
        """Give the state since `begin` its token."""
        self._table(group).commit(token)

    def release(self, group: int) -> None:
        """Release the group; without a commit its table stays dirty, and is not used again."""
        self._table(group)
        self._held.discard(group)

    def close(self) -> None:
        """Forget all tables."""
        self._tables.clear()
        self._held.clear()

    def _table(self, group: int) -> BufferTable:
        if group not in self._held:
            msg = f"key group {group} is not held: acquire it first"
            raise StateError(msg)
        return self._tables[group]


def warm() -> None:
    """Compile every kernel of a table, or load it from numba's cache, so that no batch waits for it.

    The rows and strings are so many that the table grows.
    """
    layout = TableLayout(1, (0,))
    table = BufferTable.create(HeapMemory(initial_bytes(layout)), layout)
    table.begin()
    ids = table.intern(np.arange(100), np.arange(99, dtype=np.uint8))
    rows = table.upsert(ids[:, None])
    table.commit("1" * 32)
    table.begin()
    table.intern(np.array([0, 2]), np.zeros(2, dtype=np.uint8))
    table.delete(rows)
    table.commit("2" * 32)
    table.roll_back()
    table.begin()
    table.compact(())
    kernels.bounds(table.rows)
    table.least(1)
