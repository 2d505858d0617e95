"""Merges a step's rows into a table of PostgreSQL, once for each step.

Executors write the rows into a staging table. Then one transaction of the driver merges the rows,
records the step's number and drops the staging table, so a step is merged whole or not at all.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from headgate.core.errors import ConfigError
from headgate.spark.jvm.errors import JavaError
from headgate.spark.jvm.jdbc import JdbcTransaction, transaction
from headgate.spark.sinks.merge_rows import ahead, failing, one_row_per_key
from headgate.spark.sinks.merge_statement import Dialect, MergedColumns, MergeSpec
from headgate.spark.worker.failure import told

STEPS = "headgate_steps"
"""The table that holds the newest step of each writer, in the schema of the target table."""

_EQUAL = Dialect('"', "=")
_ALSO_NULL = Dialect('"', "IS NOT DISTINCT FROM")
"""Compares null keys, too, but uses no index."""
_STAGED = "headgate_rows_"
_OLDEST = 15
"""The first major version of PostgreSQL with MERGE."""


class JdbcMerge:
    """Merges the steps of one query into one table of PostgreSQL, version 15 or newer."""

    def __init__(self, spark: SparkSession, spec: MergeSpec) -> None:
        self._spark = spark
        self._spec = spec
        assert spec.url is not None
        self._url = spec.url
        schema, dot, _ = spec.table.rpartition(".")
        self._schema = schema + dot
        self._steps = f"{self._schema}{STEPS}"
        self._swept = False

    def check(self, rows: tuple[str, ...]) -> None:
        """Refuse a database that does not answer or is too old, and a table that is absent or unfit."""
        with self._asked(), self._transaction() as open_:
            ((version,),) = open_.rows("SELECT current_setting('server_version_num')::int")
            there = open_.columns(f"SELECT * FROM {self._spec.table} WHERE false")
        if int(version) < _OLDEST * 10_000:
            msg = (
                f"hg.merge needs PostgreSQL {_OLDEST} or newer, whose SQL has MERGE; {self._shown} is "
                f"version {int(version) // 10_000}."
            )
            raise ConfigError(msg)
        self._spec.statement(
            _EQUAL, self._spec.table, "rows", MergedColumns(self._spec.table, there, rows)
        )

    def write(self, writer: str, batch: int, frame: DataFrame, *, again: bool | None) -> None:
        """Merge a step's rows, unless the table has them."""
        spec, prefix = self._spec, _prefix(writer)
        with failing(spec.table, spec.on):
            with self._transaction() as open_:
                self._prepare(open_, prefix)
                newest = self._newest(open_, writer)
            if newest is not None and newest >= batch:
                if again is False:
                    raise ahead(spec.table, batch)
                return
            staged = f"{self._schema}{prefix}{uuid.uuid4().hex[:8]}"
            rows = one_row_per_key(frame, spec)
            rows.write.jdbc(self._url, staged, "overwrite", dict(spec.properties))
            with self._transaction() as open_:
                self._merge(open_, writer, batch, staged)

    def _prepare(self, open_: JdbcTransaction, prefix: str) -> None:
        """Create the table of steps, and drop staging tables that killed drivers have left."""
        if self._swept:
            return
        open_.run(
            f"CREATE TABLE IF NOT EXISTS {self._steps} (writer text PRIMARY KEY, step bigint NOT NULL)"
        )
        schema = self._schema.removesuffix(".").strip('"') or None
        where = "schemaname = current_schema()" if schema is None else "schemaname = ?"
        namespace = [] if schema is None else [schema]
        left = open_.rows(
            f"SELECT tablename::text FROM pg_tables WHERE {where} AND starts_with(tablename, ?)",
            *namespace,
            prefix,
        )
        for (name,) in left:
            open_.run(f"DROP TABLE {self._schema}{name}")
        self._swept = True

    def _newest(self, open_: JdbcTransaction, writer: str) -> int | None:
        # locks the row until the transaction ends, so that not two drivers of one query go on
        rows = open_.rows(f"SELECT step FROM {self._steps} WHERE writer = ? FOR UPDATE", writer)
        return int(rows[0][0]) if rows else None

    def _merge(self, open_: JdbcTransaction, writer: str, batch: int, staged: str) -> None:
        spec = self._spec
        noted = open_.run(
            f"INSERT INTO {self._steps} AS known VALUES (?, ?) ON CONFLICT (writer) "
            "DO UPDATE SET step = excluded.step WHERE known.step < excluded.step",
            writer,
            batch,
        )
        if noted:
            there = open_.columns(f"SELECT * FROM {spec.table} WHERE false")
            rows = open_.columns(f"SELECT * FROM {staged} WHERE false")
            columns = MergedColumns(spec.table, there, rows)
            keys = [_EQUAL.quoted(columns.of_rows(key, "on")) for key in spec.on]
            nulls = " OR ".join(f"{key} IS NULL" for key in keys)
            ((some,),) = open_.rows(
                f"SELECT count(*) FROM (SELECT 1 FROM {staged} WHERE {nulls} LIMIT 1) n"
            )
            # if Spark missed a task's commit and ran the task again, its rows are there twice
            once = f"(SELECT DISTINCT ON ({', '.join(keys)}) * FROM {staged})"
            into = _ALSO_NULL if int(some) else _EQUAL
            open_.run(spec.statement(into, spec.table, once, columns))
        open_.run(f"DROP TABLE {staged}")

    @property
    def _shown(self) -> str:
        return self._url.partition("?")[0]

    @contextmanager
    def _transaction(self) -> Iterator[JdbcTransaction]:
        spec = self._spec
        with transaction(self._spark, self._url, spec.table, spec.properties) as open_:
            yield open_

    @contextmanager
    def _asked(self) -> Iterator[None]:
        try:
            yield
        except (PySparkException, JavaError) as error:
            cause = told(error).removesuffix(".")
            msg = (
                f"table {self._spec.table} of {self._shown} cannot be merged into ({cause}); give "
                "hg.merge a table that is there, and its user and password as properties."
            )
            raise ConfigError(msg) from error


def _prefix(writer: str) -> str:
    return _STAGED + hashlib.sha256(writer.encode()).hexdigest()[:8] + "_"
