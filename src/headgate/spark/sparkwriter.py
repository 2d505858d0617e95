"""The side of a writer that is Spark's: where to, how often, and in whose name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

from pyspark.sql import DataFrame
from pyspark.sql.streaming.readwriter import DataStreamWriter

from headgate.core.errors import ConfigError, HeadgateError
from headgate.spark.cluster import session as sessions
from headgate.spark.cluster.location import Place, place
from headgate.spark.read.plan import Query as Plan
from headgate.spark.settings import given
from headgate.spark.settings import options as own
from headgate.spark.step import sinks


class SparkWriter:
    """What a writer is told in the words of PySpark's ``DataStreamWriter``, and what Spark is told."""

    def __init__(self, df: DataFrame) -> None:
        self._df = df
        self._format: str | None = None
        self._options: dict[str, str] = {}
        self._mode = "append"
        self._partition_by: list[str] = []
        self._cluster_by: list[str] = []
        self._name: str | None = None
        self._trigger: dict[str, Any] = {}
        self._function: Callable[[DataFrame, int], None] | None = None
        self._row_function: Any = None
        self._table: str | None = None

    def partitionBy(self, *cols: str | list[str]) -> Self:
        """Partition the files of a file sink."""
        self._partition_by = _flat(cols, "partitionBy")
        return self

    def clusterBy(self, *cols: str | list[str]) -> Self:
        """Cluster the rows of a table or format that knows of it; others leave it aside, as in Spark."""
        self._cluster_by = _flat(cols, "clusterBy")
        return self

    def queryName(self, queryName: str) -> Self:
        """Name the query, with any text; for format memory the name of a table."""
        self._name = given.text("query name", queryName, "a text, or leave queryName out")
        return self

    def trigger(
        self,
        *,
        processingTime: str | None = None,
        once: bool | None = None,
        continuous: str | None = None,
        availableNow: bool | None = None,
        realTime: str | None = None,
    ) -> Self:
        """Set how often a batch starts: ``processingTime="1 second"`` or ``availableNow=True``.

        ``once=True`` runs a single batch of all there is, as Spark does; windows that it makes due come
        out at the next start.
        """
        for name, value in (("realTime", realTime), ("continuous", continuous)):
            if value is not None:
                msg = (
                    f"trigger({name}=...) is not supported: slots change between micro-batches; use "
                    "processingTime."
                )
                raise HeadgateError(msg)
        if processingTime is not None:
            given.check_interval(self._df.sparkSession, processingTime, bool(once or availableNow))
            self._trigger = {"processingTime": processingTime}
        elif availableNow:
            self._trigger = {"availableNow": True}
        elif once:
            self._trigger = {"once": True}
        else:
            msg = "trigger() needs processingTime=..., availableNow=True or once=True."
            raise ConfigError(msg)
        return self

    def foreach(self, f: Any) -> Self:
        """Give each row to `f(row)`, or to an object with ``open``, ``process`` and ``close``.

        It runs on the executors; ``epoch_id`` is the same when a step comes again.
        """
        self._function, self._row_function = None, f
        return self

    def _start_plain(self) -> Any:
        """Run the whole query as plain Spark."""
        writer = self._df.writeStream.outputMode(self._mode)
        theirs = {k: v for k, v in self._options.items() if not own.is_own(k)}
        writer = writer.options(**theirs)
        if self._format:
            writer = writer.format(self._format)
        if self._partition_by:
            writer = writer.partitionBy(*self._partition_by)
        if self._cluster_by:
            writer = writer.clusterBy(*self._cluster_by)
        if self._name:
            writer = writer.queryName(self._name)
        if self._trigger:
            writer = writer.trigger(**self._trigger)
        if self._function is not None:
            writer = writer.foreachBatch(self._function)
        if self._row_function is not None:
            writer = writer.foreach(self._row_function)
        return writer.toTable(self._table) if self._table else writer.start()

    def _place(self) -> Place:
        """Return where the checkpoint lies."""
        options = {
            key.lower(): value for key, value in self._options.items()
        }  # as Spark reads them
        asked = options.get("checkpointlocation")
        calls = self._function is not None or self._row_function is not None
        one_time = calls or (self._format or "").lower() in sinks.ONE_TIME
        found = place(self._df.sparkSession, asked, self._name, one_time=one_time)
        sessions.check(self._df.sparkSession, str(found.path))
        return found

    def _inner(self, frame: DataFrame, where: Place) -> DataStreamWriter:
        """Return Spark's writer of the query that brings the batches."""
        writer = frame.writeStream.option("checkpointLocation", where.uri)
        writer = writer.queryName(self._name) if self._name else writer
        return writer.trigger(**self._trigger) if self._trigger else writer

    def _sink(self, plan: Plan, where: Place) -> sinks.Sink:
        options = {k: v for k, v in self._options.items() if not own.is_own(k)}
        if self._name:
            options["queryName"] = self._name  # as Spark's writer, and some sinks read it
        target = sinks.Target(
            file_format=self._format,
            mode=self._mode,
            name=self._name,
            table=self._table,
            partition_by=self._partition_by,
            options=options,
            function=self._function,
            checkpoint=where.path,
            row_function=self._row_function,
            cluster_by=self._cluster_by,
        )
        return sinks.sink_of(self._df.sparkSession, target, plan.plan)


def _flat(columns: tuple[str | list[str], ...], method: str) -> list[str]:
    """Return names given one by one or as lists."""
    names = [name for one in columns for name in (one if isinstance(one, list) else [one])]
    return [given.text(method, name, "names of columns") for name in names]
