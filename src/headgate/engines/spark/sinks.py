"""Where results go, and what each sink does with a step it has seen before.

========  ==============================================================================
replace   writing a step again replaces it
skip      a step that was written is skipped
plain     a step may be there twice after a crash between the sink and Spark's commit
========  ==============================================================================

A step's output is the same bytes each time it is delivered, so *skip* loses nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from pyspark.sql import DataFrame, SparkSession

from headgate.core.errors import ConfigError
from headgate.engines.spark.gateway import Jvm, jvm, of_rows, seq

FILE_FORMATS = ("parquet", "orc", "json", "csv", "text", "avro")


class Sink(Protocol):
    """Takes the output of steps, in order; may be given a step again."""

    kind: str
    """replace, skip or plain."""
    wants_empty: bool
    """Whether steps without output are delivered too."""
    inside: bool
    """Whether the job that computes a step may write it: only *replace*, and no user code."""

    def write(self, batch: int, frame: DataFrame) -> None:
        """Write one step's rows."""


@dataclass(frozen=True)
class Target:
    """Where a writer's results go, in the words of PySpark's ``DataStreamWriter``.

    Attributes
    ----------
    file_format, name, table : str or None
    mode : str
    partition_by : list of str
    options : mapping of str to str
        The sink's own.
    function : callable or None
        For ``foreachBatch``.
    """

    file_format: str | None
    mode: str
    name: str | None
    table: str | None
    partition_by: list[str]
    options: Mapping[str, str]
    function: Callable[[DataFrame, int], None] | None


def sink_of(spark: SparkSession, target: Target, plan: Jvm) -> Sink:
    """Return the sink of a target; `plan` is that of the results.

    Raises
    ------
    ConfigError
        The format needs a name or a path, or does not take the mode.
    """
    if target.function is not None:
        return FunctionSink(target.function)
    options, name = dict(target.options), (target.file_format or "").lower()
    if target.table is None:
        if name == "console":
            return ConsoleSink({k.lower(): v for k, v in options.items()})
        if name == "noop":
            return NoopSink()
        if name == "memory":
            if target.name is None:
                msg = 'format "memory" needs a table name; add .queryName(...).'
                raise ConfigError(msg)
            return MemorySink(spark, target.name, of_rows(spark, plan), target.mode)
        if name in ("", *FILE_FORMATS):
            return _file_sink(spark, target, name or "parquet")
    return WriterSink(
        target.file_format,
        target.table if target.table is not None else options.pop("path", None),
        table=target.table is not None,
        partition_by=target.partition_by,
        options=options,
    )


def _file_sink(spark: SparkSession, target: Target, name: str) -> Sink:
    path = require_path(target.options, name)
    if target.mode != "append":
        msg = f'format "{name}" takes append mode only, as in Spark; got {target.mode}.'
        raise ConfigError(msg)
    options = {k: v for k, v in target.options.items() if k != "path"}
    path = str(Path(path).absolute()) if "://" not in path else path
    return FileSink(spark, name, path, target.partition_by, options)


class FileSink:
    """Spark's own streaming file sink, with its log of files, so that any reader sees whole steps."""

    kind = "skip"
    wants_empty = False
    inside = False

    def __init__(
        self,
        spark: SparkSession,
        file_format: str,
        path: str,
        partition_by: list[str],
        options: Mapping[str, str],
    ) -> None:
        java = jvm(spark)
        sources = java.org.apache.spark.sql.execution.datasources
        lookup = getattr(getattr(sources, "DataSource$"), "MODULE$")
        conf = spark._jsparkSession.sessionState().conf()
        file_source = lookup.lookupDataSource(file_format, conf).newInstance()
        if "FileDataSourceV2" in file_source.getClass().getSuperclass().getName() or hasattr(
            file_source, "fallbackFileFormat"
        ):
            # the streaming file sink still writes through the older interface
            file_source = file_source.fallbackFileFormat().newInstance()
        self._sink: Jvm = java.org.apache.spark.sql.execution.streaming.sinks.FileStreamSink(
            spark._jsparkSession,
            path,
            file_source,
            seq(spark, partition_by),
            _scala_map(spark, options),
        )

    def write(self, batch: int, frame: DataFrame) -> None:
        """Write the step; one that is in the sink's log already is skipped."""
        self._sink.addBatch(batch, frame._jdf)


class NoopSink:
    """Spark's ``noop``: every row is computed and none is kept."""

    kind = "replace"
    wants_empty = False
    inside = True

    def write(self, batch: int, frame: DataFrame) -> None:
        """Compute the rows."""
        frame.write.format("noop").mode("overwrite").save()


class MemorySink:
    """A table of the query's name in this session, as Spark's memory sink."""

    kind = "skip"
    wants_empty = False
    inside = False

    def __init__(self, spark: SparkSession, name: str, schema_plan: DataFrame, mode: str) -> None:
        java = jvm(spark)
        self._sink: Jvm = java.org.apache.spark.sql.execution.streaming.sources.MemorySink()
        self._complete = mode == "complete"
        output = schema_plan._jdf.queryExecution().analyzed().output()
        plan = java.org.apache.spark.sql.execution.streaming.sources.MemoryPlan(self._sink, output)
        of_rows(spark, plan).createOrReplaceTempView(name)

    def write(self, batch: int, frame: DataFrame) -> None:
        """Add the step's rows (complete mode: put them in place of all others)."""
        self._sink.write(batch, self._complete, frame._jdf.collect())


class ConsoleSink:
    """Prints each step, as Spark's console sink."""

    kind = "plain"
    wants_empty = False
    inside = False

    def __init__(self, options: Mapping[str, str]) -> None:
        self._rows = int(options.get("numrows", "20"))
        self._truncate = options.get("truncate", "true").lower() == "true"

    def write(self, batch: int, frame: DataFrame) -> None:
        """Print the step's rows."""
        line = "-" * 43
        print(f"{line}\nBatch: {batch}\n{line}")
        frame.show(self._rows, self._truncate)


class FunctionSink:
    """The user's own function, called as Spark's ``foreachBatch`` calls it."""

    kind = "plain"
    wants_empty = False
    inside = False

    def __init__(self, function: Callable[[DataFrame, int], None]) -> None:
        self._function = function

    def write(self, batch: int, frame: DataFrame) -> None:
        """Call the function with the step's rows; a step that comes again has the same id."""
        self._function(frame, batch)


class WriterSink:
    """Any batch writer, appended to."""

    kind = "plain"
    wants_empty = False
    inside = False

    def __init__(
        self,
        file_format: str | None,
        target: str | None,
        *,
        table: bool,
        partition_by: list[str],
        options: Mapping[str, str],
    ) -> None:
        self._format = file_format
        self._target = target
        self._table = table
        self._partition_by = partition_by
        self._options = options

    def write(self, batch: int, frame: DataFrame) -> None:
        """Append the step's rows."""
        writer = frame.write.mode("append").options(**self._options)
        if self._format:
            writer = writer.format(self._format)
        if self._partition_by:
            writer = writer.partitionBy(*self._partition_by)
        if self._table and self._target:
            writer.saveAsTable(self._target)
        elif self._target:
            writer.save(self._target)
        else:
            writer.save()


def _scala_map(spark: SparkSession, items: Mapping[str, str]) -> Any:
    return jvm(spark).PythonUtils.toScalaMap(dict(items))


def require_path(options: Mapping[str, str], file_format: str) -> str:
    """Return the ``path`` option, which file sinks need."""
    path = options.get("path")
    if not path:
        msg = f'format "{file_format}" needs a place to write to; add .option("path", ...).'
        raise ConfigError(msg)
    return path
