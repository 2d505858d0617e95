"""Implements `hg.merge`: rows of a stream merged into a table by their keys, each step once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pyspark.sql import Column, DataFrame

from headgate.core.errors import ConfigError
from headgate.spark.sinks import merging
from headgate.spark.sinks.merge_statement import Clause, MergeSpec


@dataclass(frozen=True)
class Merge:
    """Merges a step's rows into a table; made by `merge`, passed to ``foreachBatch``.

    The methods have the names and parameters of Delta's ``DeltaMergeBuilder``; conditions and values are
    SQL over ``source`` and ``target``. Each method returns a new merge with one more clause. Clauses are
    tried in order. Without clauses, a row whose key the table has is updated; another row is inserted.
    """

    spec: MergeSpec

    def whenMatchedUpdateAll(self, condition: str | None = None) -> Merge:
        """Update all columns that the rows have."""
        return self._with(matched=True, action="update", condition=condition)

    def whenMatchedUpdate(
        self, condition: str | None = None, set: Mapping[str, str] | None = None
    ) -> Merge:
        """Update some columns: ``set={"n": "target.n + source.n"}``."""
        return self._with(
            matched=True, action="update", condition=condition, values=_values("set", set)
        )

    def whenMatchedDelete(self, condition: str | None = None) -> Merge:
        """Delete the table's row."""
        return self._with(matched=True, action="delete", condition=condition)

    def whenNotMatchedInsertAll(self, condition: str | None = None) -> Merge:
        """Insert all columns that the rows have."""
        return self._with(matched=False, action="insert", condition=condition)

    def whenNotMatchedInsert(
        self, condition: str | None = None, values: Mapping[str, str] | None = None
    ) -> Merge:
        """Insert some columns: ``values={"k": "source.k", "n": "source.n"}``."""
        checked = _values("values", values)
        return self._with(matched=False, action="insert", condition=condition, values=checked)

    def _with(self, **clause: Any) -> Merge:
        condition = clause.get("condition")
        if condition is not None:
            clause["condition"] = _sql("condition", condition)
        spec = replace(self.spec, clauses=(*self.spec.clauses, Clause(**clause)))
        return Merge(spec)

    def __call__(self, frame: DataFrame, batch: int) -> None:
        """Merge the rows of a batch; Spark calls this in a plain ``df.writeStream.foreachBatch``.

        The user's own function may call it to merge into several tables. It merges each batch of a query
        once; it knows the query by Spark's id.
        """
        merging.merge_of_thread(self.spec, frame, batch)


def merge(
    table: str,
    on: str | Sequence[str],
    *,
    latest: str | None = None,
    name: str | None = None,
    url: str | None = None,
    properties: Mapping[str, str] | None = None,
) -> Merge:
    """Return a function for ``foreachBatch`` that merges a stream's rows into a table.

    ::

        upsert = hg.merge("db.totals", on=["user"])
        hg.writeStream(totals).outputMode("update").foreachBatch(upsert).start()

    Updates rows whose key the table has, and inserts other rows; methods of the result choose other
    actions. A step is never merged twice: Delta and Iceberg store its number in the commit, and for
    PostgreSQL the same transaction writes it into a table.

    Parameters
    ----------
    table : str
        An existing Delta or Iceberg table, as SQL names it (``delta.`/path``` too); with `url`, an
        existing table of PostgreSQL.
    on : str or sequence of str
        Columns that are a row's key, in the table and in the rows; null is a key like any other.
    latest : str, optional
        If a step has several rows of a key, only a row with the greatest value of this column is merged.
        Without this column, several rows of a key are refused.
    name : str, optional
        Distinguishes several merges of one query into the same table; it must not change at a restart.
    url, properties : str and mapping, optional
        JDBC's, as PySpark's ``DataFrameWriter.jdbc`` takes them.

    Raises
    ------
    ConfigError
        An argument makes no sense.
    """
    for what, value in (("table", table), ("latest", latest), ("name", name), ("url", url)):
        if value is not None and not (isinstance(value, str) and value.strip()):
            msg = f"{what}={value!r} of hg.merge is not allowed; use a text."
            raise ConfigError(msg)
    keys = (on,) if isinstance(on, str) else tuple(on)
    if not keys or not all(isinstance(key, str) and key for key in keys):
        msg = f'on={on!r} of hg.merge is not allowed; use names of columns, such as ["user"].'
        raise ConfigError(msg)
    if properties and url is None:
        msg = "properties of hg.merge go with a url, as in DataFrameWriter.jdbc; add url=..."
        raise ConfigError(msg)
    if url is not None and not url.startswith("jdbc:postgresql:"):
        scheme = ":".join(
            url.split(":")[:2]
        )  # a password may stand behind it, each database's own way
        msg = f'url="{scheme}:..." of hg.merge is not of PostgreSQL; use one as jdbc:postgresql://host/name.'
        raise ConfigError(msg)
    return Merge(MergeSpec(table, keys, latest, name, url, dict(properties or {})))


def _values(what: str, values: object) -> dict[str, str]:
    if not isinstance(values, Mapping) or not values:
        msg = f'{what}={values!r} of a merge is not allowed; use SQL as in {{"n": "source.n"}}.'
        raise ConfigError(msg)
    return {str(name): _sql(f"{what} of {name}", text) for name, text in values.items()}


def _sql(what: str, text: object) -> str:
    if isinstance(text, Column):
        msg = f'{what} of a merge is a Column; write it in SQL, such as "source.n > target.n".'
        raise ConfigError(msg)
    if not isinstance(text, str) or not text.strip():
        msg = f'{what}={text!r} of a merge is not allowed; use SQL, such as "source.n > target.n".'
        raise ConfigError(msg)
    return text
