"""Where the killed job writes to: how it starts, what is read back, which output the sink has."""

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
from headgate_lab.testing import connectors, postgres

TABLE = "kills"
COLUMNS = "start timestamp, end timestamp, auction bigint, bids bigint, total bigint"
_SEEN = "seen"
"""How often a row was merged; more than once is a doubled delivery."""


class KillSink(Protocol):
    """A sink of the killed job."""

    def settings(self, work: Path) -> dict[str, str]:
        """Return what the session needs."""

    def prepare(self, spark: SparkSession) -> None:
        """Make the table, if it is not there."""

    def start(self, writer: Any, work: Path) -> Any:
        """Start the query of a writer, PySpark's or headgate's."""

    def read(self, spark: SparkSession, work: Path) -> DataFrame:
        """Return the rows that a reader of the sink sees."""

    def doubled(self, spark: SparkSession, work: Path) -> int:
        """Return how many rows were written more than once and still look like one."""

    def newest(self, work: Path) -> int:
        """Return the number of the newest output in the sink, -1 for none, without Spark."""


class IntoFiles:
    """Spark's own file sink."""

    def settings(self, work: Path) -> dict[str, str]:
        """Return nothing."""
        return {}

    def prepare(self, spark: SparkSession) -> None:
        """Nothing to make."""

    def start(self, writer: Any, work: Path) -> Any:
        """Start into a directory."""
        return writer.format("parquet").option("path", str(work / "output")).start()

    def read(self, spark: SparkSession, work: Path) -> DataFrame:
        """Return what is in the directory."""
        return spark.read.parquet(str(work / "output"))

    def doubled(self, spark: SparkSession, work: Path) -> int:
        """Every row is a row."""
        return 0

    def newest(self, work: Path) -> int:
        """Return the last number of the sink's log."""
        log = work / "output" / "_spark_metadata"
        found = (path.name.removesuffix(".compact") for path in log.glob("[0-9]*"))
        return max(map(int, found), default=-1)


class IntoDelta(IntoFiles):
    """A Delta table in a directory."""

    def settings(self, work: Path) -> dict[str, str]:
        """Return what the session needs."""
        return connectors.settings(["delta"], work / "warehouse")

    def start(self, writer: Any, work: Path) -> Any:
        """Start into a directory."""
        return writer.format("delta").option("path", str(work / "output")).start()

    def read(self, spark: SparkSession, work: Path) -> DataFrame:
        """Return what is in the table."""
        return spark.read.format("delta").load(str(work / "output"))

    def newest(self, work: Path) -> int:
        """Return the last number of a transaction in Delta's log."""
        return _newest_transaction(work / "output")


class IntoIceberg(IntoFiles):
    """An Iceberg table."""

    _name = f"{connectors.CATALOG}.db.{TABLE}"

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
        return spark.table(self._name)

    def newest(self, work: Path) -> int:
        """Return the last number in the snapshots."""
        return _newest_snapshot(work, "spark.sql.streaming.epochId")


class _Merged(IntoFiles):
    """A table merged into; each row counts how often it was."""

    table: str
    quote = "`"

    def merge(self) -> Any:
        """Return the merge."""
        hg = importlib.import_module("headgate")
        names = [column.split()[0] for column in COLUMNS.split(", ")]
        fresh = {name: f"source.{self.quote}{name}{self.quote}" for name in names} | {_SEEN: "1"}
        made = hg.merge(self.table, on=["start", "auction"], **self.connection())
        again = {_SEEN: f"target.{_SEEN} + 1"}
        return made.whenMatchedUpdate(set=again).whenNotMatchedInsert(values=fresh)

    def connection(self) -> Mapping[str, Any]:
        """Return where the table is."""
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
    """A Delta table merged into."""

    table = TABLE

    def settings(self, work: Path) -> dict[str, str]:
        """Return what the session needs."""
        return connectors.settings(["delta"], work / "warehouse")

    def prepare(self, spark: SparkSession) -> None:
        """Make the table; a catalog in memory forgets where it is."""
        place = f"{spark.conf.get('spark.sql.warehouse.dir')}/{TABLE}"
        columns = f"{COLUMNS}, {_SEEN} int"
        spark.sql(f"CREATE TABLE IF NOT EXISTS {TABLE} ({columns}) USING delta LOCATION '{place}'")

    def newest(self, work: Path) -> int:
        """Return the last number of a transaction in Delta's log."""
        return _newest_transaction(work / "warehouse" / TABLE)


class MergedIceberg(_Merged):
    """An Iceberg table merged into."""

    table = f"{connectors.CATALOG}.db.{TABLE}"

    def settings(self, work: Path) -> dict[str, str]:
        """Return what the session needs."""
        return connectors.settings(["iceberg"], work / "warehouse")

    def prepare(self, spark: SparkSession) -> None:
        """Make the table."""
        columns = f"{COLUMNS}, {_SEEN} int"
        spark.sql(f"CREATE TABLE IF NOT EXISTS {self.table} ({columns}) USING iceberg")

    def newest(self, work: Path) -> int:
        """Return the last number in the snapshots."""
        return _newest_snapshot(work, "headgate-step")


class MergedPostgres(_Merged):
    """A table of PostgreSQL merged into; the environment says where its server is."""

    table = TABLE
    quote = '"'
    ADDRESS = "HEADGATE_KILL_POSTGRES"
    """Variable with the JDBC URL."""

    def settings(self, work: Path) -> dict[str, str]:
        """Return what the session needs."""
        return connectors.settings(["postgres"], work / "warehouse")

    def connection(self) -> Mapping[str, Any]:
        """Return where the table is."""
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
        return spark.read.jdbc(given["url"], TABLE, properties=given["properties"])

    def newest(self, work: Path) -> int:
        """Unknown without asking the server."""
        return -1


@contextmanager
def server_of(name: str) -> Iterator[None]:
    """Run the server that the sink of that name needs, if it needs one."""
    if SINKS[name] is not MergedPostgres:
        yield
        return
    columns = COLUMNS.replace("timestamp", "timestamptz").replace("end ", '"end" ')
    with postgres.server() as url:
        postgres.run(url, f"CREATE TABLE {TABLE} ({columns}, {_SEEN} int, UNIQUE (start, auction))")
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
"""By the names that ``--option sink=`` takes."""


def sink(name: str) -> KillSink:
    """Return the sink of a name.

    Raises
    ------
    ConfigError
        There is none.
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


def _newest_snapshot(work: Path, key: str) -> int:
    folder = work / "warehouse" / "iceberg" / "db" / TABLE / "metadata"
    files = sorted(folder.glob("v*.metadata.json"), key=lambda p: int(p.name[1:].split(".")[0]))
    if not files:
        return -1
    snapshots = json.loads(files[-1].read_text())["snapshots"]
    return max((int(one["summary"].get(key, -1)) for one in snapshots), default=-1)
