"""A sink into a table of SQLite, in which each output of a query is once."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager

from pyspark.sql import DataFrame

import headgate as hg


class SqliteSink(hg.Sink):
    """Appends outputs to a table; in complete mode each one replaces the table's rows."""

    option_names = ("path", "table")
    required_options = option_names
    output_modes = ("append", "update", "complete")
    exactly_once = "an output and its number are one transaction"

    def begin(self) -> None:
        """Make the tables, unless they are there."""
        columns = ", ".join(map(_quoted, self.schema.names))
        with self._transaction() as database:
            database.execute(f"CREATE TABLE IF NOT EXISTS {self._table} ({columns})")
            database.execute(
                "CREATE TABLE IF NOT EXISTS outputs (query, number, PRIMARY KEY (query, number))"
            )

    def write(self, query: str, number: int, rows: DataFrame) -> None:
        """Insert the rows and the output's number, unless the number is there."""
        found = [tuple(row) for row in rows.collect()]
        marks = ", ".join("?" * len(self.schema.names))
        with self._transaction() as database:
            # within the transaction: another driver of this query may write the same output
            said = database.execute(
                "INSERT INTO outputs VALUES (?, ?) ON CONFLICT DO NOTHING", (query, number)
            )
            if said.rowcount == 0:
                return
            if self.mode == "complete":
                database.execute(f"DELETE FROM {self._table}")
            database.executemany(f"INSERT INTO {self._table} VALUES ({marks})", found)

    def newest(self, query: str) -> int | None:
        """Return the greatest number of the query's outputs."""
        with self._transaction() as database:
            found = database.execute("SELECT max(number) FROM outputs WHERE query = ?", (query,))
            newest: int | None = found.fetchone()[0]
        return newest

    @property
    def _table(self) -> str:
        return _quoted(self.options["table"])

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        try:
            with closing(sqlite3.connect(self.options["path"], timeout=60)) as database, database:
                yield database
        except sqlite3.OperationalError as error:
            path = self.options["path"]
            msg = f'the database "{path}" refuses to be written to ({error}); see option path.'
            raise hg.ConfigError(msg) from error


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
