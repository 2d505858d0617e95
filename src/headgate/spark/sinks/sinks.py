"""Writes results to each kind of sink, and skips or replaces a step that the sink has.

========  ==============================================================================
replace   writing a step again replaces its rows
skip      a step that was written is skipped
plain     the sink may have a step twice after a crash between its write and Spark's commit
========  ==============================================================================

A repeated delivery of a step has the same bytes, so *skip* loses nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from headgate.checkpoint.spark_log import newest_batch
from headgate.core import formats
from headgate.core.calls import refuse_call
from headgate.core.errors import ConfigError, instead_of, nearest
from headgate.core.installed import SINKS, installed
from headgate.spark.jvm import sparksinks
from headgate.spark.jvm.files import path_of
from headgate.spark.jvm.formats import (
    Format,
    NamedTable,
    clustering,
    of_session_catalog,
    quoted,
    writes_streams,
)
from headgate.spark.jvm.gateway import Jvm
from headgate.spark.jvm.plans import of_rows
from headgate.spark.sinks import table_sinks
from headgate.spark.sinks.kafka_sink import KafkaSink
from headgate.spark.sinks.merge import Merge
from headgate.spark.sinks.merging import MergeSink
from headgate.spark.sinks.own_sink import OwnSink, guarantee_of_own, own_sink
from headgate.spark.sinks.ports import Sink, Target


def sink_of(spark: SparkSession, target: Target, plan: Jvm) -> Sink:
    """Return the sink of a target; `plan` is the plan of the results.

    Creates a missing table as Spark's writer does. Raises `ConfigError`: the format needs a name or
    a path, or does not take the mode, a column or an option.
    """
    name = (target.file_format or "").lower()
    if target.cluster_by and target.partition_by:
        msg = "clusterBy and partitionBy exclude each other, as in Spark; leave one out."
        raise ConfigError(msg)
    target = replace(
        target,
        partition_by=_columns(spark, target.partition_by, plan, "partitionBy"),
        cluster_by=_columns(spark, target.cluster_by, plan, "clusterBy"),
    )
    if target.table is not None:
        return _TableFinder(spark, target, plan).sink()
    if target.function is not None:
        _refuse_partitions(target, "foreachBatch")
        if isinstance(target.function, Merge):
            columns = tuple(plan.schema().fieldNames())
            return MergeSink(
                spark, target.function.spec, columns, target.checkpoint, target.last_output
            )
        refuse_call(target.function, "the function of foreachBatch", "df", "batch_id")
        return FunctionSink(target.function, sparksinks.WrittenStream(spark, target.checkpoint))
    if target.row_function is not None:
        _refuse_partitions(target, "foreach")
        _check_row_function(target.row_function)
        table = sparksinks.row_table(spark, target.row_function, plan.schema())
        return _table_sink(spark, table, target, plan)
    if name in _BY_NAME and (name != "kafka" or target.exactly_once):
        return _BY_NAME[name](spark, target, plan)
    if name and name not in formats.OWN:
        of_package = _own_sink(spark, target, plan)
        if of_package is not None:
            return of_package
    return _format_sink(spark, target, plan)


def _check_row_function(function: Any) -> None:
    """Refuse the argument of ``foreach`` if Spark could not call it."""
    if callable(function):
        refuse_call(function, "the function of foreach", "row")
        return
    name = type(function).__name__
    for method, arguments in _OF_ROWS.items():
        if hasattr(function, method):
            refuse_call(getattr(function, method), f"{name}.{method}", *arguments)


_OF_ROWS = {"open": ("partition_id", "epoch_id"), "process": ("row",), "close": ("error",)}
"""Arguments with which Spark calls the methods of an object for ``foreach``."""


def _memory_sink(spark: SparkSession, target: Target, plan: Jvm) -> Sink:
    _refuse_partitions(target, "memory")
    if target.name is None:
        msg = 'format "memory" needs a table name; add .queryName(...).'
        raise ConfigError(msg)
    return sparksinks.MemorySink(
        spark, target.name, of_rows(spark, plan), target.mode, target.delivered
    )


def _kafka_sink(spark: SparkSession, target: Target, plan: Jvm) -> Sink:
    _refuse_partitions(target, "kafka")
    schema = of_rows(spark, plan).schema
    newest = partial(newest_output, target)
    return KafkaSink(target.options, schema, target.checkpoint, newest, target.delivered)


def _own_sink(spark: SparkSession, target: Target, plan: Jvm) -> Sink | None:
    """Return the sink of an installed package with the format's name; None without such a package."""
    name, schema = str(target.file_format), of_rows(spark, plan).schema
    found = own_sink(name, target.options, target.mode, schema)
    if found is None:
        return None
    _refuse_partitions(target, name)
    stream = sparksinks.WrittenStream(spark, target.checkpoint)
    return OwnSink(*found, stream, partial(newest_output, target))


def _refuse_partitions(target: Target, what: str) -> None:
    if target.partition_by:
        msg = f'"{what}" takes no partitionBy, as in Spark; leave it out.'
        raise ConfigError(msg)


def _columns(spark: SparkSession, names: list[str], plan: Jvm, what: str) -> list[str]:
    """Return columns in the spelling of the result."""
    have = list(plan.schema().fieldNames())
    exact = spark.conf.get("spark.sql.caseSensitive", "false") == "true"
    columns = []
    for name in names:
        same = [h for h in have if h == name or (not exact and h.lower() == name.lower())]
        if not same:
            msg = f'{what} names "{name}", which the result does not have; use one of {", ".join(have)}.'
            raise ConfigError(msg)
        columns.append(same[0])
    return columns


def _format_sink(
    spark: SparkSession, target: Target, plan: Jvm, table: tuple[str, str] | None = None
) -> Sink:
    """Return the sink of a format; `table` is a table's name and directory."""
    name = target.file_format or _default_format(spark)
    what = f'format "{name}"'
    if name.lower() == "hive":
        msg = f"{what} is for tables only, as in Spark; use toTable."
        raise ConfigError(msg)
    if name.lower() in formats.FILE_FORMATS:
        require_path(target.options, name)
        if target.mode != "append":
            msg = f"{what} takes append mode only, as in Spark; got {target.mode}."
            raise ConfigError(msg)
    try:
        with sparksinks.refused(what):
            source = Format(spark, name)
    except ConfigError as error:
        if "DATA_SOURCE_NOT_FOUND" not in str(error):
            raise
        raise _unknown(name) from error
    with sparksinks.refused(what):
        made = None if source.older else source.table(target.options, plan.schema())
    if made is not None and writes_streams(spark, made):
        return _table_sink(spark, made, target, plan)
    if not (source.older or source.makes_sinks or source.is_files):
        return _batch_sink(source, made, target)
    options = dict(target.options)
    if target.cluster_by:
        options |= clustering(spark, target.cluster_by)

    def made_v1() -> Jvm:
        return sparksinks.v1_sink(
            spark, name, target.mode, options, target.partition_by, plan.schema()
        )

    known = sparksinks.KnownOutputs(partial(newest_output, target), target.delivered)
    if table is not None and (source.older or source.is_files):
        return sparksinks.FileTableSink(spark, made_v1, target.checkpoint, *table, known)
    with sparksinks.refused(what):
        made_sink = made_v1()
    if source.is_files:
        path = require_path(target.options, name)
        return sparksinks.FileSink(spark, made_sink, target.checkpoint, path, known)
    sink = sparksinks.V1Sink(spark, made_sink, target.checkpoint, table[0] if table else None)
    return table_sinks.delta(spark, sink, target, plan) or sink


def _unknown(name: str) -> ConfigError:
    brought = list(installed(SINKS))
    told = (
        nearest(name.lower(), (*formats.KNOWN, *brought)) or "; correct it, or install its package."
    )
    msg = (
        f'unknown format "{name}": Spark has none of that name, and installed packages bring '
        f"{', '.join(brought) or 'none'}{told}"
    )
    return ConfigError(msg)


def _table_sink(
    spark: SparkSession,
    table: Jvm,
    target: Target,
    plan: Jvm,
    named: tuple[Jvm, Jvm] | None = None,
) -> Sink:
    sparksinks.check_mode(spark, table, target.mode, target.options, plan.schema())
    sink = sparksinks.V2Sink(spark, table, target.mode, target.options, target.checkpoint, named)
    return table_sinks.iceberg(spark, sink, table, target, plan) or sink


def _batch_sink(source: Format, table: Jvm | None, target: Target) -> Sink:
    """Return a sink that appends by a batch writer; Spark itself does not stream into such a format."""
    if not source.appends(table):
        msg = f'format "{target.file_format}" cannot be written to, as in Spark; use another one.'
        raise ConfigError(msg)
    if target.mode != "append":
        msg = (
            f'format "{target.file_format}" has no streaming writer in Spark, and headgate only appends '
            f"to it; got {target.mode} mode, for which foreachBatch is the way."
        )
        raise ConfigError(msg)
    own = ("checkpointlocation", "queryname")
    options = {k: v for k, v in target.options.items() if k.lower() not in own}
    return WriterSink(str(target.file_format), target.partition_by, options)


class _TableFinder:
    """Finds the sink of ``toTable`` in the same way as Spark's writer."""

    def __init__(self, spark: SparkSession, target: Target, plan: Jvm) -> None:
        self._spark = spark
        self._plan = plan
        self._format = target.file_format or _default_format(spark)
        self._target = replace(target, file_format=self._format)
        self._name = str(target.table)

    def sink(self) -> Sink:
        """Return the sink of the table; create a missing table."""
        spark = self._spark
        with sparksinks.refused(f"table {self._name}"):
            named = NamedTable(spark, self._name)
            if named.is_temporary_view:
                msg = f"table {self._name} is a temporary view; name a table."
                raise ConfigError(msg)
            if not named.exists:
                table_sinks.check_there(self._name, self._target.last_output())
                spark.sql(self._create(".".join(quoted(part) for part in named.parts)))
            table = named.loaded()
        if writes_streams(spark, table):
            return _table_sink(spark, table, self._target, self._plan, named.at)
        files = of_session_catalog(spark, table)
        if files is None:
            msg = f"table {self._name} takes no streams, as in Spark; use foreachBatch."
            raise ConfigError(msg)
        return self._files(files, named.full)

    def _files(self, table: Jvm, name: str) -> Sink:
        """Return the sink of a table of files."""
        if str(table.tableType().name()) == "VIEW":
            msg = f"table {self._name} is a view; name a table."
            raise ConfigError(msg)
        provider = str(table.provider().get())
        if provider != self._format:
            msg = (
                f'table {self._name} is of format "{provider}", the query writes "{self._format}"; add '
                f'.format("{provider}").'
            )
            raise ConfigError(msg)
        path = path_of(self._spark, table.location())
        others = {k: v for k, v in self._target.options.items() if k.lower() != "path"}
        target = replace(self._target, options=others | {"path": path})
        return _format_sink(self._spark, target, self._plan, (name, path))

    def _create(self, name: str) -> str:
        """Return the SQL that creates the table: with nullable columns, and no option but the path."""
        target = self._target
        made = (
            f"CREATE TABLE {name} ({self._plan.schema().asNullable().toDDL()}) USING {self._format}"
        )
        for words, names in (
            ("PARTITIONED BY", target.partition_by),
            ("CLUSTER BY", target.cluster_by),
        ):
            if names:
                made += f" {words} ({', '.join(quoted(column) for column in names)})"
        path = {k.lower(): v for k, v in target.options.items()}.get("path")
        if path is not None:
            escaped = path.replace("\\", "\\\\").replace("'", "\\'")
            made += f" LOCATION '{escaped}'"
        return made


def _default_format(spark: SparkSession) -> str:
    return str(spark.conf.get("spark.sql.sources.default"))


def guarantee(name: str) -> str:
    """Return in words the guarantee of a format's sink after a crash of the driver.

    Raises `ConfigError`: the sink is from an installed package that does not work.
    """
    if name.lower() in formats.GUARANTEES:
        return formats.GUARANTEES[name.lower()]
    plugin = installed(SINKS).get(name.lower())
    if plugin is not None:
        return f"{guarantee_of_own(plugin)} ({plugin})"
    return "its own: an output that comes again has the query's id and the same batch number"


def newest_output(target: Target) -> int:
    """Return the number of the newest output that may have been delivered, -1 for none.

    A query without state has no manifest; then it is the newest batch that Spark has planned.
    """
    last = target.last_output()
    return newest_batch(target.checkpoint) if last is None else last


class NoopSink:
    """Computes every row and keeps none, as Spark's ``noop``."""

    inside = True
    description = "NoopTable"

    def begin(self) -> None:
        """Do nothing: there is nothing to prepare."""

    def write(self, batch: int, frame: DataFrame) -> None:
        """Compute the rows."""
        frame.write.format("noop").mode("overwrite").save()


class ConsoleSink:
    """Prints each step, as Spark's console sink does."""

    inside = False
    description = "ConsoleTable"

    def __init__(self, options: Mapping[str, str]) -> None:
        rows, truncate = options.get("numrows", "20"), options.get("truncate", "true").lower()
        try:
            self._rows = int(rows)
        except ValueError:
            msg = f'option numRows="{rows}" of format "console" is no whole number; use one such as 20.'
            raise ConfigError(msg) from None
        if truncate not in ("true", "false"):
            msg = f'option truncate="{truncate}" of format "console" is out of range; use true or false.'
            raise ConfigError(msg)
        self._truncate = truncate == "true"

    def begin(self) -> None:
        """Do nothing: there is nothing to prepare."""

    def write(self, batch: int, frame: DataFrame) -> None:
        """Print the step's rows."""
        line = "-" * 43
        print(f"{line}\nBatch: {batch}\n{line}")
        frame.show(self._rows, self._truncate)


class FunctionSink:
    """Calls the user's function as Spark's ``foreachBatch`` does."""

    inside = False
    description = "ForeachBatchSink"

    def __init__(
        self, function: Callable[[DataFrame, int], None], stream: sparksinks.WrittenStream
    ) -> None:
        self._function = function
        self._stream = stream

    def write_early(self) -> None:
        """Have `hg.merge` fail in the function, since a repeated output may have other rows."""
        self._stream.early = True

    def begin(self) -> None:
        """Do nothing: there is nothing to prepare."""

    def write(self, batch: int, frame: DataFrame) -> None:
        """Call the function with the step's rows; a repeated step has the same id."""
        with self._stream.numbered(batch, frame):
            self._function(frame, batch)


class WriterSink:
    """Appends by a batch writer: for formats without a streaming writer, such as JDBC."""

    inside = False

    def __init__(
        self, file_format: str, partition_by: list[str], options: Mapping[str, str]
    ) -> None:
        self._format = self.description = file_format
        self._partition_by = partition_by
        self._options = options

    def begin(self) -> None:
        """Do nothing: there is nothing to prepare."""

    def write(self, batch: int, frame: DataFrame) -> None:
        """Append the step's rows."""
        writer = frame.write.mode("append").format(self._format).options(**self._options)
        if self._partition_by:
            writer = writer.partitionBy(*self._partition_by)
        writer.save()


_BY_NAME: Mapping[str, Callable[[SparkSession, Target, Jvm], Sink]] = {
    "console": lambda _, target, __: ConsoleSink(
        {key.lower(): value for key, value in target.options.items()}
    ),
    "noop": lambda *_: NoopSink(),
    "memory": _memory_sink,
    "kafka": _kafka_sink,
}
"""Sinks of the formats that are neither files nor tables."""


WRITES_ANY_NUMBER = (WriterSink, ConsoleSink, NoopSink)
"""Sinks that ignore the output's number; other sinks may skip an output whose number they have."""


def require_path(options: Mapping[str, str], file_format: str) -> str:
    """Return the ``path`` option, which file sinks need."""
    path = {key.lower(): value for key, value in options.items()}.get("path")
    if not path:
        slip = instead_of("path", options)
        msg = f'format "{file_format}" needs a place to write to; add .option("path", ...){slip}.'
        raise ConfigError(msg)
    return path
