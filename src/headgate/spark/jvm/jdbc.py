"""Accesses a database from the driver through Spark's own JDBC: its drivers, dialects and options."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from pyspark.sql import SparkSession

from headgate.spark.jvm.gateway import Jvm, jvm, scala_map


class JdbcTransaction:
    """Runs statements on a database in one transaction."""

    def __init__(self, connection: Jvm) -> None:
        self._connection = connection

    def run(self, sql: str, *values: str | int) -> int:
        """Run a statement with values for its question marks; return the number of changed rows."""
        made = self._connection.prepareStatement(sql)
        try:
            for number, value in enumerate(values, 1):
                made.setObject(number, value)
            made.execute()
            return int(made.getUpdateCount())
        finally:
            made.close()

    def rows(self, sql: str, *values: str | int) -> list[list[Any]]:
        """Return the rows of a query, of texts and numbers."""
        made = self._connection.prepareStatement(sql)
        try:
            for number, value in enumerate(values, 1):
                made.setObject(number, value)
            cursor = made.executeQuery()
            width = cursor.getMetaData().getColumnCount()
            rows = []
            while cursor.next():
                rows.append([cursor.getObject(number) for number in range(1, width + 1)])
            return rows
        finally:
            made.close()

    def columns(self, query: str) -> tuple[str, ...]:
        """Return the names of a query's columns."""
        made = self._connection.prepareStatement(query)
        try:
            about = made.executeQuery().getMetaData()
            return tuple(str(about.getColumnName(n)) for n in range(1, about.getColumnCount() + 1))
        finally:
            made.close()


@contextmanager
def transaction(
    spark: SparkSession, url: str, table: str, properties: Mapping[str, str]
) -> Iterator[JdbcTransaction]:
    """Open a transaction on a database; commit it at the end, or roll it back after an exception.

    `properties`: options of Spark's JDBC source.
    """
    java = jvm(spark)
    options = java.org.apache.spark.sql.execution.datasources.jdbc.JDBCOptions(
        url, table, scala_map(spark, properties)
    )
    dialect = java.org.apache.spark.sql.jdbc.JdbcDialects.get(url)
    connection = dialect.createConnectionFactory(options).apply(-1)
    try:
        connection.setAutoCommit(False)
        try:
            yield JdbcTransaction(connection)
        except BaseException:
            connection.rollback()
            raise
        connection.commit()
    finally:
        connection.close()
