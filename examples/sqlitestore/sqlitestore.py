"""A store for checkpoints in databases of SQLite: ``sqlite://name/key`` is in ``name.db``."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

import headgate as hg
from headgate.checkpoint import CheckpointStore


class SqliteStore(CheckpointStore):
    """Keeps files as rows; for hosts that share option ``headgate.store.directory``."""

    option_names = ("directory",)

    def __init__(self, url: str, options: Mapping[str, str]) -> None:
        super().__init__(url, options)
        if "directory" not in options:
            msg = "a store sqlite:// needs option headgate.store.directory; add it."
            raise hg.ConfigError(msg)
        name, _, self._key = url.removeprefix("sqlite://").partition("/")
        self._path = Path(options["directory"]) / f"{name}.db"

    def read(self, name: str) -> bytes | None:
        """Return the data of a row."""
        with self._transaction() as database:
            found = database.execute(
                "SELECT data FROM files WHERE name = ?", (self._full(name),)
            ).fetchone()
        return None if found is None else bytes(found[0])

    def write(self, name: str, data: bytes) -> None:
        """Insert a row, or replace it."""
        with self._transaction() as database:
            database.execute("REPLACE INTO files VALUES (?, ?)", (self._full(name), data))

    def write_new(self, name: str, data: bytes) -> bool:
        """Insert a row, which the primary key lets through once."""
        with self._transaction() as database:
            said = database.execute(
                "INSERT INTO files VALUES (?, ?) ON CONFLICT DO NOTHING", (self._full(name), data)
            )
        return said.rowcount == 1

    def sizes(self, directory: str) -> Mapping[str, int]:
        """Return the rows whose names begin with the directory's."""
        begin = self._full(f"{directory}/")
        with self._transaction() as database:
            found = database.execute(
                "SELECT substr(name, ?), length(data) FROM files WHERE substr(name, 1, ?) = ?",
                (len(begin) + 1, len(begin), begin),
            ).fetchall()
        return dict(found)

    def delete(self, names: Sequence[str]) -> None:
        """Delete rows."""
        with self._transaction() as database:
            database.executemany(
                "DELETE FROM files WHERE name = ?", [(self._full(name),) for name in names]
            )

    def _full(self, name: str) -> str:
        return f"{self._key}/{name}"

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with closing(sqlite3.connect(self._path, timeout=60)) as database, database:
            database.execute("CREATE TABLE IF NOT EXISTS files (name PRIMARY KEY, data)")
            yield database
