"""Defines the sinks of the killed job: starts its query, reads its output, finds the newest output."""

from __future__ import annotations

import importlib
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from pyspark.sql import DataFrame, SparkSession

from headgate.core.errors import ConfigError, nearest
from headgate.spark.sinks.jdbc_merge import STEPS
from headgate_lab.testing import connectors, postgres

TABLE = "kills"
COLUMNS = "start timestamp, end timestamp, auction bigint, bids bigint, total bigint"
_SEEN = "seen"
"""Column with the number of times a row was merged; more than 1 is a duplicate delivery."""


class KillSink(Protocol):
    """Defines the interface of a sink of the killed job."""

    def __init__(self, table: str = TABLE) -> None:
        """Take the table's name."""

    def settings(self, work: Path) -> dict[str, str]:
        """Return the session's settings for this sink."""

    def prepare(self, spark: SparkSession) -> None:
        """Make the table, unless it exists."""

    def start(self, writer: Any, work: Path) -> Any:
        """Start the query of a writer, PySpark's or headgate's."""

    def read(self, spark: SparkSession, work: Path) -> DataFrame:
        """Return the rows that a reader of the sink sees."""

    def doubled(self, spark: SparkSession, work: Path) -> int:
        """Return the number of rows that were merged more than once, which `read` shows as one row."""

    def newest(self, work: Path) -> int:
        """Return the number of the newest output in the sink, found without Spark; -1 for none."""


class IntoFiles:
    """Writes with Spark's own file sink.

    Parameters
    ----------
    table : str
        Name of the directory or table.
    """

    def __init__(self, table: str = TABLE) -> None:
        self._table = table

    def settings(self, work: Path) -> dict[str, str]:
        """Return no settings."""
        return {}

    def prepare(self, spark: SparkSession) -> None:
        """Do nothing; the sink makes its directory."""

    def start(self, writer: Any, work: Path) -> Any:
        """Start into a directory."""
        return writer.format("parquet").option("path", self._path(work)).start()

    def read(self, spark: SparkSession, work: Path) -> DataFrame:
        """Return what is in the directory."""
        return spark.read.parquet(self._path(work))

    def doubled(self, spark: SparkSession, work: Path) -> int:
        """Return 0, since `read` shows each written row."""
        return 0

    def newest(self, work: Path) -> int:
        """Return the newest batch number in the sink's log."""
        log = Path(self._path(work)) / "_spark_metadata"
        found = (path.name.removesuffix(".compact") for path in log.glob("[0-9]*"))
        return max(map(int, found), default=-1)

    def _path(self, work: Path) -> str:
        return str(work / self._table)


class IntoDelta(IntoFiles):
    """Writes a Delta table in a directory."""

    def settings(self, work: Path) -> dict[str, str]:
        """Return what the session needs."""
        return connectors.settings(["delta"], work / "warehouse")

    def start(self, writer: Any, work: Path) -> Any:
        """Start into a directory."""
        return writer.format("delta").option("path", self._path(work)).start()

    def read(self, spark: SparkSession, work: Path) -> DataFrame:
        """Return what is in the table."""
        return spark.read.format("delta").load(self._path(work))

    def newest(self, work: Path) -> int:
        """Return the last number of a transaction in Delta's log."""
        return _newest_transaction(Path(self._path(work)))


class IntoIceberg(IntoFiles):
    """Writes an Iceberg table."""

    @property
    def _name(self) -> str:
        return f"{connectors.CATALOG}.db.{self._table}"

    def settings(self, work: Path) -> dict[str, str]:
        """Return what the session needs."""
        return connectors.settings(["iceberg"], work / "warehouse")

    def prepare(self, spark: SparkSession) -> None:
        """Make the table."""
        spark.sql(f"CREATE TABLE IF NOT EXISTS {self._name} ({COLUMNS}) USING iceberg")

    def start(self, writer: Any, work: Path) -> Any:
        """Start into the table."""
        return writer.format("iceberg").toTable(self._name)

    def read(self, spark: SparkSession, work: Path) -> DataFrame:
        """Return what is in the table."""
        # another session of this process may have written newer rows than this one caches
        spark.catalog.refreshTable(self._name)
        return spark.table(self._name)

    def newest(self, work: Path) -> int:
        """Return the last number in the snapshots."""
        return _newest_snapshot(work, self._table, "spark.sql.streaming.epochId")


class _Merged(IntoFiles):
    """Merges into a table; each row counts how often it was merged."""

    quote = "`"

    @property
    def table(self) -> str:
        """Name of the table in SQL."""
        return self._table

    def merge(self) -> Any:
        """Return headgate's merge function."""
        hg = importlib.import_module("headgate")
        names = [column.split()[0] for column in COLUMNS.split(", ")]
        fresh = {name: f"source.{self.quote}{name}{self.quote}" for name in names} | {_SEEN: "1"}
        made = hg.merge(self.table, on=["start", "auction"], **self.connection())
        again = {_SEEN: f"target.{_SEEN} + 1"}
        return made.whenMatchedUpdate(set=again).whenNotMatchedInsert(values=fresh)

    def connection(self) -> Mapping[str, Any]:
        """Return the connection's arguments; none for a table of Spark's catalog."""
        return {}

    def start(self, writer: Any, work: Path) -> Any:
        """Start into the table."""
        return writer.foreachBatch(self.merge()).start()

    def read(self, spark: SparkSession, work: Path) -> DataFrame:
        """Return what is in the table."""
        return spark.table(self.table).drop(_SEEN)

    def doubled(self, spark: SparkSession, work: Path) -> int:
        """Return how many rows were merged more than once."""
        return spark.table(self.table).where(f"{_SEEN} > 1").count()


class MergedDelta(_Merged):
    """Merges into a Delta table."""

    def settings(self, work: Path) -> dict[str, str]:
        """Return what the session needs."""
        return connectors.settings(["delta"], work / "warehouse")

    def prepare(self, spark: SparkSession) -> None:
        """Make the table with its location, which a catalog in memory forgets."""
        place = f"{spark.conf.get('spark.sql.warehouse.dir')}/{self._table}"
        columns = f"{COLUMNS}, {_SEEN} int"
        made = f"CREATE TABLE IF NOT EXISTS {self._table} ({columns}) USING delta"
        spark.sql(f"{made} LOCATION '{place}'")

    def newest(self, work: Path) -> int:
        """Return the last number of a transaction in Delta's log."""
        return _newest_transaction(work / "warehouse" / self._table)


class MergedIceberg(_Merged):
    """Merges into an Iceberg table."""

    @property
    def table(self) -> str:
        """Name of the table in SQL."""
        return f"{connectors.CATALOG}.db.{self._table}"

    def settings(self, work: Path) -> dict[str, str]:
        """Return what the session needs."""
        return connectors.settings(["iceberg"], work / "warehouse")

    def prepare(self, spark: SparkSession) -> None:
        """Make the table."""
        columns = f"{COLUMNS}, {_SEEN} int"
        spark.sql(f"CREATE TABLE IF NOT EXISTS {self.table} ({columns}) USING iceberg")

    def newest(self, work: Path) -> int:
        """Return the last number in the snapshots."""
        return _newest_snapshot(work, self._table, "headgate-step")


class MergedPostgres(_Merged):
    """Merges into a table of PostgreSQL, whose URL is in the environment."""

    quote = '"'
    ADDRESS = "HEADGATE_KILL_POSTGRES"
    """Environment variable with the JDBC URL."""

    def settings(self, work: Path) -> dict[str, str]:
        """Return what the session needs."""
        return connectors.settings(["postgres"], work / "warehouse")

    def connection(self) -> Mapping[str, Any]:
        """Return the JDBC URL and the driver."""
        driver = {"driver": "org.postgresql.Driver"}
        return {"url": os.environ[self.ADDRESS], "properties": driver}

    def read(self, spark: SparkSession, work: Path) -> DataFrame:
        """Return what is in the table."""
        return self._all(spark).drop(_SEEN)

    def doubled(self, spark: SparkSession, work: Path) -> int:
        """Return how many rows were merged more than once."""
        return self._all(spark).where(f"{_SEEN} > 1").count()

    def _all(self, spark: SparkSession) -> DataFrame:
        given = self.connection()
        return spark.read.jdbc(given["url"], self._table, properties=given["properties"])

    def newest(self, work: Path) -> int:
        """Return the newest step in the database, of any writer."""
        url = os.environ[self.ADDRESS]
        ((there,),) = postgres.run(url, f"SELECT to_regclass('{STEPS}') IS NOT NULL")
        if there != "t":
            return -1
        ((step,),) = postgres.run(url, f"SELECT coalesce(max(step), -1) FROM {STEPS}")
        return int(step)


class AppendedDelta(IntoDelta):
    """Appends to a Delta table by a function for ``foreachBatch``, as users write it."""

    def start(self, writer: Any, work: Path) -> Any:
        """Start into a directory."""
        path = self._path(work)

        def append(frame: DataFrame, _batch: int) -> None:
            frame.write.format("delta").mode("append").save(path)

        return writer.foreachBatch(append).start()

    def newest(self, work: Path) -> int:
        """Return -1: nothing in the table tells."""
        return -1


class AppendedIceberg(IntoIceberg):
    """Appends to an Iceberg table by a function for ``foreachBatch``."""

    def start(self, writer: Any, work: Path) -> Any:
        """Start into the table."""

        def append(frame: DataFrame, _batch: int) -> None:
            frame.writeTo(self._name).append()

        return writer.foreachBatch(append).start()

    def newest(self, work: Path) -> int:
        """Return -1: nothing in the table tells."""
        return -1


class MergedByHand(MergedDelta):
    """Merges into a Delta table by a user's ``MERGE`` statement in a function for ``foreachBatch``."""

    def start(self, writer: Any, work: Path) -> Any:
        """Start into the table."""

        def merge(frame: DataFrame, _batch: int) -> None:
            view = f"rows_of_{self._table}"
            frame.createOrReplaceTempView(view)
            frame.sparkSession.sql(
                f"MERGE INTO {self._table} t USING {view} s "
                "ON t.start = s.start AND t.auction = s.auction "
                f"WHEN MATCHED THEN UPDATE SET {_SEEN} = t.{_SEEN} + 1 "
                "WHEN NOT MATCHED THEN INSERT (start, end, auction, bids, total, "
                f"{_SEEN}) VALUES (s.start, s.end, s.auction, s.bids, s.total, 1)"
            )

        return writer.foreachBatch(merge).start()

    def newest(self, work: Path) -> int:
        """Return -1: nothing in the table tells."""
        return -1


@contextmanager
def server_of(name: str, table: str = TABLE) -> Iterator[None]:
    """Run the server that a sink needs, if it needs one."""
    if SINKS.get(name) is not MergedPostgres:
        yield
        return
    columns = COLUMNS.replace("timestamp", "timestamptz").replace("end ", '"end" ')
    with postgres.server() as url:
        made = f"CREATE TABLE {table} ({columns}, {_SEEN} int, UNIQUE (start, auction))"
        postgres.run(url, made)
        os.environ[MergedPostgres.ADDRESS] = url
        yield


SINKS: Mapping[str, type[KillSink]] = {
    "files": IntoFiles,
    "delta": IntoDelta,
    "iceberg": IntoIceberg,
    "merge-delta": MergedDelta,
    "merge-iceberg": MergedIceberg,
    "merge-postgres": MergedPostgres,
}
"""Sinks by the name for ``--option sink=``."""

TABLES = tuple(name for name in SINKS if name != "files")
"""Names of the sinks that are tables."""

PLAIN: Mapping[str, type[KillSink]] = {
    "spark-delta": IntoDelta,
    "spark-iceberg": IntoIceberg,
    "spark-append-delta": AppendedDelta,
    "spark-append-iceberg": AppendedIceberg,
    "spark-merge-delta": MergedByHand,
}
"""Sinks of plain Spark for comparison: its own sinks of tables, and functions for ``foreachBatch``."""


def sink(name: str) -> KillSink:
    """Return the sink with a name.

    Raises
    ------
    ConfigError
        The name is unknown.
    """
    if name not in SINKS:
        msg = f'sink "{name}" of kill is unknown{nearest(name, SINKS) or "; use " + ", ".join(SINKS)}.'
        raise ConfigError(msg)
    return SINKS[name]()


def _newest_transaction(table: Path) -> int:
    versions = [-1]
    for file in sorted((table / "_delta_log").glob("*.json"))[-20:]:
        for line in file.read_text().splitlines():
            versions += [json.loads(line)["txn"]["version"]] if line.startswith('{"txn"') else []
    return max(versions)


def _newest_snapshot(work: Path, table: str, key: str) -> int:
    folder = work / "warehouse" / "iceberg" / "db" / table / "metadata"
    files = sorted(folder.glob("v*.metadata.json"), key=lambda p: int(p.name[1:].split(".")[0]))
    if not files:
        return -1
    snapshots = json.loads(files[-1].read_text())["snapshots"]
    return max((int(one["summary"].get(key, -1)) for one in snapshots), default=-1)
