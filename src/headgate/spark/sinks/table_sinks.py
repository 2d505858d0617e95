"""Writes to Delta and Iceberg tables, and finds out which outputs a table has.

Both formats store the id of Spark's query and the number of an output in the commit of the output's rows,
and skip an output that the table has: Delta for ever, Iceberg while it keeps the snapshot. `TableSink`
refuses other cases, or warns of them, before the first write of a run.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from headgate.core.errors import CheckpointError, ConfigError, EngineError
from headgate.spark.jvm.errors import JavaError
from headgate.spark.jvm.files import HadoopPath
from headgate.spark.jvm.formats import NamedTable
from headgate.spark.jvm.gateway import Jvm
from headgate.spark.jvm.sparksinks import WrittenStream
from headgate.spark.jvm.tables import (
    STREAM,
    LastCommit,
    delta_columns,
    delta_identity,
    identity,
    kind,
    last_commit,
    last_transaction,
)
from headgate.spark.sinks.merge_rows import ahead, failing
from headgate.spark.sinks.ports import Sink, Target

_EVOLVES = ("mergeschema", "merge-schema", "overwriteschema")
_EVOLVES_ALWAYS = "spark.databricks.delta.schema.autoMerge.enabled"


def iceberg(
    spark: SparkSession, inner: Sink, table: Jvm, target: Target, plan: Jvm
) -> TableSink | None:
    """Return the sink of an Iceberg table; None for another table.

    Raises `ConfigError`: the result has a column that the table lacks.
    """
    if kind(table) != "iceberg":
        return None
    name = target.table or str(table.name())
    rows = list(plan.schema().fieldNames())
    check = partial(_check_columns, name, rows=rows, options=target.options)
    check(list(table.schema().fieldNames()))
    look = partial(last_commit, table, keys=STREAM)
    if target.table is None:
        return TableSink(inner, spark, name, target, look)
    full = NamedTable(spark, name).full  # the program may USE another database later
    known = KnownTable(
        partial(identity, spark, full), lambda: check(spark.table(full).columns), silent=False
    )
    refresh = partial(spark.catalog.refreshTable, full)
    return TableSink(inner, spark, name, target, look, known, refresh)


def delta(spark: SparkSession, inner: Sink, target: Target, plan: Jvm) -> TableSink | None:
    """Return the sink of a Delta table; None for another table.

    Raises `ConfigError`: the result has a column that the table lacks; `CheckpointError`: the table
    is gone.
    """
    path = {key.lower(): value for key, value in target.options.items()}.get("path")
    if (target.file_format or "").lower() != "delta" or path is None:
        return None
    name = target.table or path
    log = HadoopPath(spark, path, "_delta_log")

    def columns() -> None:
        may = {_EVOLVES[0]: str(spark.conf.get(_EVOLVES_ALWAYS, "false"))}
        rows = list(plan.schema().fieldNames())
        _check_columns(name, delta_columns(spark, path), rows, may | dict(target.options))

    if log.exists():
        columns()
    else:
        check_there(name, target.last_output())
    known = KnownTable(
        lambda: delta_identity(spark, path) if log.exists() else None, columns, silent=True
    )
    look = partial(last_transaction, spark, path)
    return TableSink(inner, spark, name, target, look, known)


@dataclass(frozen=True)
class KnownTable:
    """Reads identity and columns of a table, by its name or path."""

    identity: Callable[[], str | None]
    """Unique id of the table; None if there is no table."""
    columns: Callable[[], None]
    """Refuses a table that lacks columns of the result."""
    silent: bool
    """Whether a write succeeds although the table was dropped, or created again."""


def check_same(name: str, before: str | None, now: str | None, outputs: int) -> None:
    """Refuse a table that is gone, or whose id is no longer `before`.

    Raises `CheckpointError`.
    """
    if now is None:
        raise _gone(name, outputs)
    if before and now and now != before:
        msg = (
            f"table {name} was dropped and created again while this query wrote to it, so the query's "
            "rows are gone; start the query again to write to the new table, or use a new checkpoint."
        )
        raise CheckpointError(msg)


class TableSink:
    """Writes outputs to a table that stores which outputs of a query it has.

    `name`: name of the table, for messages. `look`: returns the table's last commit of a query, from the
    id of Spark's query. `refresh`: makes new rows visible to readers in the query's session.
    """

    inside = False

    def __init__(
        self,
        inner: Sink,
        spark: SparkSession,
        name: str,
        target: Target,
        look: Callable[[str], LastCommit],
        known: KnownTable | None = None,
        refresh: Callable[[], None] = lambda: None,
    ) -> None:
        self.description = inner.description
        self._inner = inner
        self._name = name
        self._last_output, self._delivered = target.last_output, target.delivered
        self._stream = WrittenStream(spark, target.checkpoint)
        self._look = look
        self._table = known
        self._refresh = refresh
        self._identity: str | None = None
        self._written = False
        self._known: int | None = None
        self._out = -1

    def begin(self) -> None:
        """Look up the newest committed output: the table can have no later output."""
        self._known, self._out = self._last_output(), self._delivered()
        self._inner.begin()

    def write(self, batch: int, frame: DataFrame) -> None:
        """Write the output, unless the table has it.

        Raises `CheckpointError`: the table is gone, was created again, has an output that the
        checkpoint lacks, or does not say whether it has this one; `ConfigError`: the table now lacks a
        column; `EngineError`: Spark or the table failed.
        """
        try:
            with failing(self._name):
                if self._written and self._table is not None and self._table.silent:
                    check_same(self._name, self._identity, self._table.identity(), batch)
                if self._written or self._wanted(batch):
                    self._inner.write(batch, frame)
                    self._note_written()
                    # Iceberg caches tables in each session for 30 s
                    self._refresh()
        except EngineError as error:
            self._say_why(batch, error)
            raise

    def _note_written(self) -> None:
        if not self._written and self._table is not None:
            self._identity = self._table.identity()
        self._written = True

    def _say_why(self, batch: int, error: EngineError) -> None:
        """Raise a clearer error than Spark's if the table was dropped, created again or altered."""
        if self._table is None:
            return
        try:
            check_same(self._name, self._identity, self._table.identity(), batch)
            self._table.columns()
        except (PySparkException, JavaError):
            return  # the table cannot be read
        except (CheckpointError, ConfigError) as better:
            raise better from error

    def _wanted(self, batch: int) -> bool:
        last = self._look(self._stream.query_id)
        if last.number is None and last.complete and self._known is not None and batch > 0:
            warnings.warn(
                f"table {self._name} has none of this query's earlier outputs; the query goes on with "
                f"output {batch}.",
                stacklevel=2,
            )
        elif last.number is not None and last.number < self._out:
            warnings.warn(
                f"table {self._name} was restored to an older version: it has this query's outputs up to "
                f"{last.number}, and had them up to {self._out}; the query goes on with output {batch}, "
                "and the outputs between are missing.",
                stacklevel=2,
            )
        return wanted(self._name, last, batch, comes_again(self._known, batch))


def comes_again(known: int | None, batch: int) -> bool | None:
    """Return whether an output may have been delivered before; None if that is not known.

    `known`: the last output of the checkpoint when the query started; None without a manifest. Then
    the query has no state, and Spark may repeat any batch.
    """
    return None if known is None else batch <= known


def wanted(name: str, last: LastCommit, batch: int, again: bool | None) -> bool:
    """Return whether an output is to be written to a table.

    Raises `CheckpointError`: the table has the output although it was never delivered, or the table
    does not say whether it has the output.
    """
    if last.number is not None and last.number >= batch:
        if again is False:
            raise ahead(name, batch)
        return False
    if last.number is None and not last.complete and again and batch > 0:
        msg = (
            f"table {name} has lost the snapshot of this query's last write, so headgate cannot tell "
            f"whether the table has output {batch}; check the table, and begin with a new checkpoint."
        )
        raise CheckpointError(msg)
    return True


def check_there(name: str, last: int | None) -> None:
    """Refuse a missing table to which the query has written; else the write would create it again.

    `last`: the number of the query's last output. Raises `CheckpointError`.
    """
    if last is not None and last >= 0:
        raise _gone(name, last + 1)


def _gone(name: str, outputs: int) -> CheckpointError:
    msg = (
        f"table {name} does not exist, but this query has written {outputs} output{'s' * (outputs != 1)} "
        "to it; restore the table, or begin with a new checkpoint."
    )
    return CheckpointError(msg)


def _check_columns(
    name: str, there: Sequence[str], rows: Sequence[str], options: Mapping[str, str]
) -> None:
    """Refuse a result with columns that the table lacks, unless the query may change the table."""
    if any(key.lower() in _EVOLVES and value == "true" for key, value in options.items()):
        return
    known = {column.lower() for column in there}
    new = [column for column in rows if column.lower() not in known]
    if new:
        msg = (
            f"table {name} has no column {', '.join(new)}, which the result has; add it to the table "
            "with ALTER TABLE, or drop it from the result."
        )
        raise ConfigError(msg)
