"""Merges the rows of each step into a table once, even if a step is delivered again.

Delta and Iceberg store the step's number in the commit of the ``MERGE INTO``; for PostgreSQL the same
transaction writes the number into a table.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Protocol

from pyspark.sql import DataFrame, SparkSession

from headgate.core.errors import ConfigError, HeadgateError
from headgate.spark.jvm import sparksinks
from headgate.spark.jvm.formats import NamedTable
from headgate.spark.jvm.plans import analysed, of_rows
from headgate.spark.jvm.sessions import clone_of
from headgate.spark.jvm.tables import commit_setting, identity, kind_of_name, last_merge
from headgate.spark.sinks.jdbc_merge import JdbcMerge
from headgate.spark.sinks.merge_rows import ahead, failing, merge_with_retries, one_row_per_key
from headgate.spark.sinks.merge_statement import SPARK, MergedColumns, MergeSpec
from headgate.spark.sinks.table_sinks import check_same, comes_again, wanted

_ROWS = "headgate_merged_rows"
_ICEBERG = ("headgate-merge", "headgate-step")
"""Properties of a snapshot: the writer's name, and the step."""
_RUNS_KEPT = 64


class Merging(Protocol):
    """Carries out the merges of one query into one table."""

    def check(self, rows: tuple[str, ...]) -> None:
        """Refuse a table that is known to be unfit before the query runs; `rows`: the rows' columns."""

    def write(self, writer: str, batch: int, frame: DataFrame, *, again: bool | None) -> None:
        """Merge a step's rows, unless the table has them.

        Parameters
        ----------
        writer : str    Name of the query's merges, which never changes.
        batch : int    The step's number; it grows with each step.
        again : bool or None
            Whether the step may have been merged before; None if that is not known.
        """


def merging_of(spark: SparkSession, spec: MergeSpec, program: SparkSession | None) -> Merging:
    """Return the object that carries out a merge.

    `spark`: the merge runs in a copy of this session. `program`: session in which the user's program
    reads the table. Raises `ConfigError`: there is no such table, or it is of another kind.
    """
    if spec.url is not None:
        return JdbcMerge(spark, spec)
    session = clone_of(spark)
    with sparksinks.refused(f"table {spec.table}"):
        kind = kind_of_name(session, spec.table)
    if kind == "delta":
        return _DeltaMerge(session, spec)
    if kind == "iceberg":
        return _IcebergMerge(session, spec, program or spark)
    msg = (
        f"table {spec.table} is neither of Delta nor of Iceberg, so nothing is merged into it; use one "
        "of them, or url= for PostgreSQL."
    )
    raise ConfigError(msg)


class MergeSink:
    """Writes a query's result by a merge.

    `columns`: columns of the result. `checkpoint`: the query's checkpoint.
    """

    inside = False

    def __init__(
        self,
        spark: SparkSession,
        spec: MergeSpec,
        columns: tuple[str, ...],
        checkpoint: Path,
        last_output: Callable[[], int | None],
    ) -> None:
        self.description = f"Merge[{spec.table}]"
        self._merging = merging_of(spark, spec, spark)
        self._merging.check(columns)
        self._stream = sparksinks.WrittenStream(spark, checkpoint)
        self._last_output = last_output
        self._name = spec.name
        self._known: int | None = None

    def begin(self) -> None:
        """Look up the newest committed step: no other step can have been merged already."""
        self._known = self._last_output()

    def write(self, batch: int, frame: DataFrame) -> None:
        """Merge the step, unless the table has it."""
        again = comes_again(self._known, batch)
        with self._stream.numbered(batch, frame):
            writer = writer_of(self._stream.query_id, self._name)
            merge_with_retries(
                lambda again: self._merging.write(writer, batch, frame, again=again), again
            )


def writer_of(query_id: str, name: str | None) -> str:
    """Return the name of a query's merges in a table."""
    return query_id if name is None else f"{query_id}/{name}"


_running: dict[tuple[str | None, ...], tuple[MergeSpec, Merging]] = {}


def merge_of_thread(spec: MergeSpec, frame: DataFrame, batch: int) -> None:
    """Merge the rows of a batch of the query that this thread works for.

    Raises `HeadgateError`: this thread belongs to no query; `ConfigError`: the query's outputs are
    released early, or another merge of the query has the same table and name, so that one of the two
    would seem to repeat the other.
    """
    if sparksinks.is_early_in_thread():
        msg = (
            f'hg.merge into {spec.table} loses rows with .release("early"), since it skips an output '
            'whose number the table has; leave out .release("early").'
        )
        raise ConfigError(msg)
    spark = frame.sparkSession
    query_id, run = sparksinks.query_of_thread(spark)
    if query_id is None:
        msg = (
            "hg.merge merges the batches of a query; give it to foreachBatch, or call it in there."
        )
        raise HeadgateError(msg)
    key = (query_id, run, spec.table, spec.name)
    if key not in _running:
        while len(_running) >= _RUNS_KEPT:
            del _running[next(iter(_running))]
        _running[key] = (spec, merging_of(spark, spec, sparksinks.program_of_thread()))
    known, merging = _running[key]
    if known != spec:
        msg = (
            f"two merges of one query go into table {spec.table}; give each a name=... of its own."
        )
        raise ConfigError(msg)
    writer = writer_of(query_id, spec.name)
    merge_with_retries(lambda again: merging.write(writer, batch, frame, again=again), None)


class _TableMerge:
    """Merges by SQL in its own session, so that no other code sees the settings and views."""

    def __init__(self, session: SparkSession, spec: MergeSpec) -> None:
        self._session = session
        self._spec = spec
        self._identity: str | None = None

    def check(self, rows: tuple[str, ...]) -> None:
        """Refuse a table that lacks a column."""
        self._statement(rows)

    def _statement(self, rows: tuple[str, ...]) -> str:
        with sparksinks.refused(f"table {self._spec.table}"):
            there = tuple(self._session.table(self._spec.table).columns)
        columns = MergedColumns(self._spec.table, there, rows)
        return self._spec.statement(SPARK, self._spec.table, _ROWS, columns)

    def _check_same(self, batch: int) -> None:
        """Refuse a table that is gone, or was created again since the last step."""
        with failing(self._spec.table):
            now = identity(self._session, self._spec.table)
        check_same(self._spec.table, self._identity, now, batch)
        self._identity = now

    def _merge(self, frame: DataFrame) -> bool:
        """Run the statement; return whether it returned rows, which a skipped statement does not."""
        rows = one_row_per_key(of_rows(self._session, analysed(frame)), self._spec)
        rows.createOrReplaceTempView(_ROWS)
        with failing(self._spec.table, self._spec.on):
            return bool(self._session.sql(self._statement(tuple(frame.columns))).collect())


class _DeltaMerge(_TableMerge):
    """Merges into a Delta table; Delta itself skips a transaction whose name and number it has."""

    def write(self, writer: str, batch: int, frame: DataFrame, *, again: bool | None) -> None:
        """Merge a step's rows, unless the table has them."""
        self._check_same(batch)
        self._session.conf.set("spark.databricks.delta.write.txnAppId", writer)
        self._session.conf.set("spark.databricks.delta.write.txnVersion", str(batch))
        if not self._merge(frame) and again is False:
            raise ahead(self._spec.table, batch)


class _IcebergMerge(_TableMerge):
    """Merges into an Iceberg table; at the first write, or if `again` is None, looks up the last step."""

    def __init__(self, session: SparkSession, spec: MergeSpec, home: SparkSession) -> None:
        super().__init__(session, spec)
        self._refresh = partial(home.catalog.refreshTable, NamedTable(session, spec.table).full)
        self._asked = False
        setting = commit_setting(session)
        if setting is None:
            msg = (
                "hg.merge needs an Iceberg that writes a session's snapshot properties into the commits "
                "of its SQL, so that no step is merged twice; use Iceberg 1.11 or newer."
            )
            raise ConfigError(msg)
        self._setting = setting

    def write(self, writer: str, batch: int, frame: DataFrame, *, again: bool | None) -> None:
        """Merge a step's rows, unless the table has them."""
        self._check_same(batch)
        if not self._asked or again is None:
            with failing(self._spec.table):
                last = last_merge(self._session, self._spec.table, writer, _ICEBERG)
            if not wanted(self._spec.table, last, batch, again):
                return
            self._asked = True
        for key, value in zip(_ICEBERG, (writer, str(batch)), strict=True):
            self._session.conf.set(f"{self._setting}{key}", value)
        self._merge(frame)
        # Iceberg caches tables in each session for 30 s
        self._refresh()
