"""Reads Iceberg and Delta tables: the kind of a table, and the writers named in its commits."""

from __future__ import annotations

from dataclasses import dataclass

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from headgate.spark.jvm.formats import NamedTable
from headgate.spark.jvm.gateway import Jvm, jvm

LOOK_BACK = 10_000
"""Commits that are searched, newest first, for a writer's last commit. Chosen, not tuned."""

STREAM = ("spark.sql.streaming.queryId", "spark.sql.streaming.epochId")
"""Properties of a commit by Iceberg's own streaming writer: the query's id, the output's number."""


@dataclass(frozen=True)
class LastCommit:
    """Holds a writer's last commit in a table."""

    number: int | None
    """Number of the writer's newest output in the table; None if there is none."""
    complete: bool
    """Whether the search reached the table's first commit, or found the writer."""


def kind(table: Jvm) -> str | None:
    """Return iceberg or delta; None for a table of another format."""
    name = str(table.getClass().getName())
    if name.startswith("org.apache.iceberg."):
        return "iceberg"
    if name.startswith(("org.apache.spark.sql.delta.", "io.delta.")):
        return "delta"
    return None


def kind_of_name(spark: SparkSession, name: str) -> str | None:
    """Return the kind of a table by its name; raises Spark's errors about the name."""
    return kind(NamedTable(spark, name).loaded())


def identity(spark: SparkSession, name: str) -> str | None:
    """Return the unique id of the table with a name, which changes if the table is created again.

    None if there is no table; "" if the id cannot be read.
    """
    named = NamedTable(spark, name)
    try:
        table = named.loaded()
        if kind(table) == "iceberg":
            return _iceberg_identity(spark, named, table.table())
        none = jvm(spark).scala.Option.empty()
        return str(table.deltaLog().update(False, none, none).metadata().id())
    except (PySparkException, Py4JError):
        return "" if named.exists else None


def _iceberg_identity(spark: SparkSession, named: NamedTable, table: Jvm) -> str:
    try:
        table.refresh()
    except Py4JError:
        # the session may cache a table for half a minute after it was dropped or created again
        catalog, identifier = named.at
        spelt = jvm(spark).org.apache.iceberg.spark.Spark3Util.identifierToTableIdentifier
        catalog.icebergCatalog().invalidateTable(spelt(identifier))
        table = named.loaded().table()
    return str(table.uuid())


def delta_identity(spark: SparkSession, path: str) -> str:
    """Return the unique id of the Delta table in a directory."""
    return str(_snapshot(spark, path).metadata().id())


def last_commit(table: Jvm, writer: str, keys: tuple[str, str]) -> LastCommit:
    """Return a writer's last commit in an Iceberg table.

    `table`: a table as an Iceberg catalog loads it. `keys`: names of the snapshot's properties that
    hold the writer and the output's number.
    """
    writer_key, number_key = keys
    inner = table.table()
    inner.refresh()
    snapshot = inner.currentSnapshot()
    for _ in range(LOOK_BACK):
        if snapshot is None:
            return LastCommit(None, complete=True)
        summary = snapshot.summary()
        if summary is not None and summary.get(writer_key) == writer:
            return LastCommit(int(summary.get(number_key)), complete=True)
        parent = snapshot.parentId()
        if parent is None:
            return LastCommit(None, complete=True)
        snapshot = inner.snapshot(parent)
        if snapshot is None:  # expired
            return LastCommit(None, complete=False)
    return LastCommit(None, complete=False)


def last_merge(spark: SparkSession, name: str, writer: str, keys: tuple[str, str]) -> LastCommit:
    """Return a writer's last commit in the Iceberg table with a name."""
    return last_commit(NamedTable(spark, name).loaded(), writer, keys)


def commit_setting(spark: SparkSession) -> str | None:
    """Return the prefix of the settings that Iceberg copies into the commits of a session's SQL.

    None for an Iceberg without such settings, in which a ``MERGE INTO`` cannot be marked.
    """
    try:
        prefix = jvm(spark).org.apache.iceberg.spark.SparkSQLProperties.SNAPSHOT_PROPERTY_PREFIX
    except Py4JError:
        return None
    return str(prefix).removesuffix(".") + "."


def last_transaction(spark: SparkSession, path: str, writer: str) -> LastCommit:
    """Return a writer's last commit in the Delta table in a directory."""
    version = _snapshot(spark, path).transactions().get(writer)
    return LastCommit(int(version.get()) if version.isDefined() else None, complete=True)


def delta_columns(spark: SparkSession, path: str) -> list[str]:
    """Return the names of a Delta table's columns."""
    return list(_snapshot(spark, path).schema().fieldNames())


def _snapshot(spark: SparkSession, path: str) -> Jvm:
    java = jvm(spark)
    log = java.org.apache.spark.sql.delta.DeltaLog.forTable(
        spark._jsparkSession, java.org.apache.hadoop.fs.Path(path)
    )
    none = java.scala.Option.empty()
    return log.update(False, none, none)
