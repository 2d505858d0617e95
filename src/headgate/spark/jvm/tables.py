"""Tables of Iceberg and Delta: which of the two one is, and what its commits say of who made them."""

from __future__ import annotations

from dataclasses import dataclass

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from headgate.spark.jvm.formats import NamedTable
from headgate.spark.jvm.gateway import Jvm, jvm

LOOK_BACK = 10_000
"""Commits of others that are looked through for the last one of ours. Chosen, not tuned."""

STREAM = ("spark.sql.streaming.queryId", "spark.sql.streaming.epochId")
"""What Iceberg's own streaming writer puts into a commit: whose it is, and the number of the output."""


@dataclass(frozen=True)
class LastCommit:
    """Holds a table's record of one writer.

    Attributes
    ----------
    number : int or None
        Of the newest output that is in the table, None if none was found.
    complete : bool
        Whether the table's commits were looked through to the first one.
    """

    number: int | None
    complete: bool


def kind(table: Jvm) -> str | None:
    """Return iceberg or delta, None for a table of anything else."""
    name = str(table.getClass().getName())
    if name.startswith("org.apache.iceberg."):
        return "iceberg"
    if name.startswith(("org.apache.spark.sql.delta.", "io.delta.")):
        return "delta"
    return None


def kind_of_name(spark: SparkSession, name: str) -> str | None:
    """Return the kind of a table by its name; raises what Spark has against the name."""
    return kind(NamedTable(spark, name).loaded())


def identity(spark: SparkSession, name: str) -> str | None:
    """Return what tells the table of a name from one that is made anew.

    None where there is no table; nothing (an empty text) where that cannot be told.
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
        # the session may keep a table that is gone, or was made anew, for half a minute
        catalog, identifier = named.at
        spelt = jvm(spark).org.apache.iceberg.spark.Spark3Util.identifierToTableIdentifier
        catalog.icebergCatalog().invalidateTable(spelt(identifier))
        table = named.loaded().table()
    return str(table.uuid())


def delta_identity(spark: SparkSession, path: str) -> str:
    """Return what tells the Delta table in a directory from one that is made anew."""
    return str(_snapshot(spark, path).metadata().id())


def last_commit(table: Jvm, writer: str, keys: tuple[str, str]) -> LastCommit:
    """Return what an Iceberg table knows of a writer.

    Parameters
    ----------
    table : Jvm
        As a catalog of Iceberg's gives it.
    keys : (str, str)
        Of the properties of a snapshot that hold the writer and the number.
    """
    whose, which = keys
    inner = table.table()
    inner.refresh()
    snapshot = inner.currentSnapshot()
    for _ in range(LOOK_BACK):
        if snapshot is None:
            return LastCommit(None, complete=True)
        summary = snapshot.summary()
        if summary is not None and summary.get(whose) == writer:
            return LastCommit(int(summary.get(which)), complete=True)
        parent = snapshot.parentId()
        if parent is None:
            return LastCommit(None, complete=True)
        snapshot = inner.snapshot(parent)
        if snapshot is None:  # expired
            return LastCommit(None, complete=False)
    return LastCommit(None, complete=False)


def last_merge(spark: SparkSession, name: str, writer: str, keys: tuple[str, str]) -> LastCommit:
    """Return what the Iceberg table of a name knows of a writer."""
    return last_commit(NamedTable(spark, name).loaded(), writer, keys)


def commit_setting(spark: SparkSession) -> str | None:
    """Return what settings begin with that Iceberg writes into the commits of a session's SQL.

    None of an Iceberg that does not, so that a ``MERGE INTO`` bears no mark of ours.
    """
    try:
        prefix = jvm(spark).org.apache.iceberg.spark.SparkSQLProperties.SNAPSHOT_PROPERTY_PREFIX
    except Py4JError:
        return None
    return str(prefix).removesuffix(".") + "."


def last_transaction(spark: SparkSession, path: str, writer: str) -> LastCommit:
    """Return what the Delta table in a directory knows of a writer."""
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
