"""Writes the SQL statement of a merge in the dialect of a database."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from headgate.core.errors import ConfigError, nearest


@dataclass(frozen=True)
class Clause:
    """Holds one clause of a merge: a condition on rows, and the action for them."""

    matched: bool
    """Whether the clause is for rows whose key the table has."""
    action: str
    """update, insert or delete."""
    condition: str | None = None
    """SQL over ``source`` and ``target``."""
    values: Mapping[str, str] | None = None
    """SQL by column of the table; None for all columns that table and rows share."""

    @property
    def texts(self) -> list[str]:
        """All SQL texts of the clause."""
        conditions = [] if self.condition is None else [self.condition]
        return [*conditions, *(self.values or {}).values()]


_UPSERT = (Clause(matched=True, action="update"), Clause(matched=False, action="insert"))


@dataclass(frozen=True)
class MergeSpec:
    """Describes a merge: the rows of a table that a step's rows change, and the change."""

    table: str
    on: tuple[str, ...]
    """Columns of a row's key."""
    latest: str | None
    name: str | None
    url: str | None = field(repr=False)
    properties: Mapping[str, str] = field(repr=False)
    clauses: tuple[Clause, ...] = ()
    """The first clause whose condition holds is applied; without clauses the merge is an upsert."""

    @property
    def all_clauses(self) -> tuple[Clause, ...]:
        """The clauses, or those of an upsert."""
        return self.clauses or _UPSERT

    def statement(self, into: Dialect, table: str, rows: str, columns: MergedColumns) -> str:
        """Return the SQL of a step.

        `table`, `rows`: as SQL names them. Raises `ConfigError`: a column is missing.
        """
        keys = [(columns.of_table(key, "on"), columns.of_rows(key, "on")) for key in self.on]
        known = set(self.on)
        for clause in self.all_clauses:
            known |= {name for name in columns.rows if _mentions(clause.texts, name)}
        both = columns.both(known)
        on = " AND ".join(
            into.same(f"target.{into.quoted(t)}", f"source.{into.quoted(r)}") for t, r in keys
        )
        said = [
            _when(clause, into, columns, both, {t for t, _ in keys}) for clause in self.all_clauses
        ]
        lines = [f"MERGE INTO {table} AS target USING {rows} AS source ON {on}", *said]
        return "\n".join(lines)


@dataclass(frozen=True)
class Dialect:
    """Holds the dialect of a database."""

    quote: str
    """The character around a name."""
    equals: str
    """The operator that compares two keys."""

    def quoted(self, name: str) -> str:
        """Return a name quoted for SQL."""
        return self.quote + name.replace(self.quote, self.quote * 2) + self.quote

    def same(self, name: str, other: str) -> str:
        """Return the condition that two keys are the same."""
        return f"{name} {self.equals} {other}"


SPARK = Dialect("`", "<=>")


@dataclass(frozen=True)
class MergedColumns:
    """Matches the columns of a table and of the rows merged into it; ignores case if need be."""

    table: str
    """Name of the table, for messages."""
    there: tuple[str, ...]
    rows: tuple[str, ...]

    def of_table(self, name: str, what: str) -> str:
        """Return a column as the table spells it."""
        return _spelt(name, self.there, what, f"table {self.table}")

    def of_rows(self, name: str, what: str) -> str:
        """Return a column as the rows spell it."""
        return _spelt(name, self.rows, what, "the result")

    def both(self, known: set[str]) -> dict[str, str]:
        """Return the rows' columns by the table's columns, for the columns that both have.

        `known`: columns that clauses name. Raises `ConfigError`: the table lacks a column that no
        clause names, so the column's values would be lost.
        """
        there = {name.lower(): name for name in self.there}
        for name in self.rows:
            if name.lower() not in there and name not in known:
                msg = (
                    f"table {self.table} has no column {name}, which the result has; add it to the table "
                    "with ALTER TABLE, or drop it from the result."
                )
                raise ConfigError(msg)
        return {there[name.lower()]: name for name in self.rows if name.lower() in there}


def _mentions(texts: Sequence[str], name: str) -> bool:
    said = re.compile(rf"source\s*\.\s*[`\"]?{re.escape(name)}\b", re.IGNORECASE)
    return any(said.search(text) for text in texts)


def _spelt(name: str, known: Sequence[str], what: str, where: str) -> str:
    matches = [column for column in known if column == name] or [
        column for column in known if column.lower() == name.lower()
    ]
    if not matches:
        msg = f'{what} names column "{name}", which {where} does not have{nearest(name, known) or "."}'
        raise ConfigError(msg)
    return matches[0]


def _when(
    clause: Clause, into: Dialect, columns: MergedColumns, both: Mapping[str, str], keys: set[str]
) -> str:
    said = "WHEN MATCHED" if clause.matched else "WHEN NOT MATCHED"
    if clause.condition is not None:
        said += f" AND ({clause.condition})"
    if clause.action == "delete":
        return f"{said} THEN DELETE"
    if clause.values is None:
        values = {name: f"source.{into.quoted(row)}" for name, row in both.items()}
    else:
        spelt: Callable[[str], str] = partial(columns.of_table, what=clause.action)
        values = {spelt(name): text for name, text in clause.values.items()}
    names = [into.quoted(name) for name in values]
    if clause.action == "insert":
        return f"{said} THEN INSERT ({', '.join(names)}) VALUES ({', '.join(values.values())})"
    if clause.values is None:  # key columns are equal already, and stay only if there are no others
        values = {name: text for name, text in values.items() if name not in keys} or values
    changed = ", ".join(f"{into.quoted(name)} = {text}" for name, text in values.items())
    return f"{said} THEN UPDATE SET {changed}"
