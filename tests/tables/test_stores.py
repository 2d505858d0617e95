"""The contract suite over both stores."""

from __future__ import annotations

from pathlib import Path

from headgate.tables.arena import ArenaStore
from headgate.tables.heap import HeapStore
from headgate.tables.ports import Store, TableLayout
from headgate_lab.testing.stores import StoreContract


class TestHeapStore(StoreContract):
    def open_store(self, directory: Path, layout: TableLayout) -> Store:
        return HeapStore(layout)


class TestArenaStore(StoreContract):
    def open_store(self, directory: Path, layout: TableLayout) -> Store:
        return ArenaStore(directory, layout)
