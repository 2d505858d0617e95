"""Writes to Spark's own streaming sinks, as `DataStreamWriter` does.

A sink gets a step's rows with the query's id, the number of the output and the output mode, so that it
truncates, replaces or skips as it does under plain Spark. The start refuses settings that Spark refuses.
"""

from __future__ import annotations

import json
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.core.rdd import _wrap_function
from pyspark.errors import PySparkException
from pyspark.serializers import AutoBatchedSerializer, CPickleSerializer
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

from headgate.core.errors import CheckpointError, ConfigError
from headgate.core.frames import users_level
from headgate.core.input import regular_bytes
from headgate.spark.jvm.analysis import output_mode
from headgate.spark.jvm.files import HadoopPath
from headgate.spark.jvm.formats import is_a
from headgate.spark.jvm.gateway import Jvm, java_class, jvm, scala_map, seq, string_map
from headgate.spark.jvm.minors import adapter
from headgate.spark.jvm.plans import analysed, of_rows
from headgate.spark.jvm.sessions import active

_WRITE = "org.apache.spark.sql.connector.write"
_UPDATES = "org.apache.spark.sql.internal.connector.SupportsStreamingUpdateAsAppend"
_QUERY_ID, _BATCH_ID = "sql.streaming.queryId", "streaming.sql.batchId"
"""Local properties from which a sink and its tasks read the ids of query and batch."""
_RUN_ID = "spark.jobGroup.id"
"""Local property with the run id of a query."""
_LOG = "_spark_metadata"
"""Directory of the log in which Spark's file sink lists complete files."""


@contextmanager
def refused(what: str) -> Iterator[None]:
    """Turn Spark's error about a sink into a `ConfigError` of one sentence.

    Raises `ConfigError`.
    """
    try:
        yield
    except (PySparkException, Py4JJavaError) as error:
        java = getattr(error, "java_exception", None)
        text = str(error) if java is None else str(java.getMessage())
        first = text.strip().splitlines()[0].removesuffix(".")
        msg = f"{what} cannot be written to, as in Spark: {first}."
        raise ConfigError(msg) from error


class V1Sink:
    """Writes to a sink of the older interface: Spark's file sink, and others such as Delta's."""

    inside = False

    def __init__(self, spark: SparkSession, sink: Jvm, checkpoint: Path, table: str | None) -> None:
        self._spark = spark
        self._sink = sink
        self._stream = WrittenStream(spark, checkpoint)
        self._table = table
        self.description = "" if sink is None else str(sink.toString())

    def begin(self) -> None:
        """Do nothing: this sink needs no preparation."""

    def write(self, batch: int, frame: DataFrame) -> None:
        """Write the step, unless its number is in the sink's log already."""
        with self._stream.numbered(batch, frame):
            self._sink.addBatch(batch, frame._jdf)
        if self._table is not None:
            self._spark.catalog.refreshTable(self._table)


@dataclass(frozen=True)
class KnownOutputs:
    """Reads from the checkpoint which outputs a sink must have, and which it may have; -1 for none."""

    newest: Callable[[], int]
    """Returns the number of the last output that the checkpoint knows of."""
    delivered: Callable[[], int]
    """Returns the number of the last output that no start delivers again."""


class FileSink(V1Sink):
    """Writes to Spark's file sink: a directory with a log of the numbers of its outputs.

    The log does not name the query that wrote an output: Spark skips every number in the log.

    `path`: the directory.
    """

    def __init__(
        self,
        spark: SparkSession,
        sink: Jvm,
        checkpoint: Path,
        path: str,
        outputs: KnownOutputs,
        table: str | None = None,
    ) -> None:
        super().__init__(spark, sink, checkpoint, table)
        self._path = path
        self._outputs = outputs

    def begin(self) -> None:
        """Compare the directory's log with the checkpoint.

        Raises `CheckpointError`: the directory has outputs that the checkpoint lacks, or lacks
        outputs of the checkpoint.
        """
        with refused(f'path "{self._path}"'):
            names = HadoopPath(self._spark, self._path, _LOG).names()
        logged = [int(n) for name in names if (n := name.removesuffix(".compact")).isdecimal()]
        there, known = max(logged, default=-1), self._outputs.newest()
        if there > known:
            msg = (
                f'path "{self._path}" has output {there} in its {_LOG} already, and this is a checkpoint '
                f"that is behind its output: it knows {_counted(known)}; go on from the newest "
                "checkpoint, or begin a new one with a new path."
            )
            raise CheckpointError(msg)
        # the start writes missing outputs that were committed and not delivered
        delivered = self._outputs.delivered()
        if there < delivered:
            self._refuse_less(there, delivered)

    def _refuse_less(self, there: int, delivered: int) -> None:
        msg = (
            f'path "{self._path}" has {_counted(there)} in its {_LOG}, and this query has put out '
            f"{_counted(delivered)}: restore the directory, or begin a new checkpoint with a new path."
        )
        raise CheckpointError(msg)


def _counted(last: int) -> str:
    return "no output" if last < 0 else f"outputs up to {last}"


class FileTableSink(FileSink):
    """Writes to the file sink of a table; its files and its log lie in the table's directory.

    Spark's sink is created with the first output, because it creates an empty log at once, and readers
    then ignore all files that are not in the log.
    """

    def __init__(
        self,
        spark: SparkSession,
        make: Callable[[], Jvm],
        checkpoint: Path,
        table: str,
        path: str,
        outputs: KnownOutputs,
    ) -> None:
        super().__init__(spark, None, checkpoint, path, outputs, table)
        self._make = make
        self.description = f"FileSink[{path}]"

    def _refuse_less(self, there: int, delivered: int) -> None:
        if there >= 0:  # without any output, `write` refuses with a better message
            super()._refuse_less(there, delivered)

    def write(self, batch: int, frame: DataFrame) -> None:
        """Write the step, unless its number is in the sink's log already.

        Raises `CheckpointError`: the query has written to the table before without a log; with a
        log, readers would ignore those files.
        """
        if self._sink is None:
            if batch > 0 and not self._logged():
                msg = (
                    f"table {self._table} has no {_LOG} of what this query wrote to it before, so it was "
                    "altered or filled by an older headgate; start with a new table and a new checkpoint."
                )
                raise CheckpointError(msg)
            self._sink = self._make()
        super().write(batch, frame)

    def _logged(self) -> bool:
        return HadoopPath(self._spark, self._path, _LOG).exists()


class V2Sink:
    """Writes to a table of a DSv2 source, as a micro-batch of a streaming query."""

    inside = False

    def __init__(
        self,
        spark: SparkSession,
        table: Jvm,
        mode: str,
        options: Mapping[str, str],
        checkpoint: Path,
        named: tuple[Jvm, Jvm] | None,
    ) -> None:
        self._spark = spark
        self._mode = output_mode(spark, mode)
        self._options = scala_map(spark, options)
        self._stream = WrittenStream(spark, checkpoint)
        self.description = str(table.toString())
        some = jvm(spark).scala.Option.apply
        catalog, identifier = named or (None, None)
        relations = java_class(
            spark, "org.apache.spark.sql.execution.datasources.v2.DataSourceV2Relation$.MODULE$"
        )
        self._relation = relations.create(table, some(catalog), some(identifier))

    def begin(self) -> None:
        """Do nothing: this sink needs no preparation."""

    def write(self, batch: int, frame: DataFrame) -> None:
        """Write the step as the streaming query's micro-batch of that number."""
        node = java_class(
            self._spark,
            "org.apache.spark.sql.execution.streaming.sources.WriteToMicroBatchDataSource",
        )
        plan = adapter().micro_batch_write(
            node,
            self._relation,
            analysed(frame),
            self._stream.query_id,
            self._options,
            self._mode,
            java_class(self._spark, "scala.None$.MODULE$"),
        )
        plan = plan.withNewBatchId(batch)
        with self._stream.numbered(batch, frame):
            of_rows(frame.sparkSession, plan)._jdf.collect()


class MemorySink:
    """Writes to a table with the query's name in this session, as Spark's memory sink.

    `delivered`: returns the number of the newest output that no start delivers again, -1 for none.
    """

    inside = False

    def __init__(
        self,
        spark: SparkSession,
        name: str,
        schema_plan: DataFrame,
        mode: str,
        delivered: Callable[[], int],
    ) -> None:
        java = jvm(spark)
        with refused(f'format "memory" with the query\'s name "{name}"'):
            spark._jsparkSession.sessionState().sqlParser().parseTableIdentifier(name)
        self._sink: Jvm = java.org.apache.spark.sql.execution.streaming.sources.MemorySink()
        self.description = str(self._sink.toString())
        self._complete = mode == "complete"
        output = analysed(schema_plan).output()
        plan = java.org.apache.spark.sql.execution.streaming.sources.MemoryPlan(self._sink, output)
        self._name, self._rows = name, of_rows(spark, plan)
        self._delivered = delivered

    def begin(self) -> None:
        """Create the table; it replaces a table of the same name."""
        delivered = -1 if self._complete else self._delivered()
        if delivered >= 0:
            warnings.warn(
                f'table "{self._name}" of format "memory" begins without rows, though its query put out '
                f"outputs up to {delivered} before, which lie nowhere any more; for rows that outlive a "
                "start write to files or a table, or use a new checkpoint.",
                stacklevel=users_level(),
            )
        self._rows.createOrReplaceTempView(self._name)

    def write(self, batch: int, frame: DataFrame) -> None:
        """Add the step's rows; in complete mode they replace all others."""
        self._sink.write(batch, self._complete, frame._jdf.collect())


class WrittenStream:
    """Sets the id of the writing query for sinks, also outside of a Spark batch.

    `checkpoint`: the checkpoint of the query.
    """

    def __init__(self, spark: SparkSession, checkpoint: Path) -> None:
        self._spark = spark
        self._checkpoint = checkpoint
        self._query_id = ""
        self.early = False
        """Whether a repeated output may have other rows."""

    @property
    def has_run(self) -> bool:
        """Return whether the query has an id: it was started before, and may have put out something."""
        return self._metadata.is_file()

    @property
    def query_id(self) -> str:
        """Return the query's id, which Spark writes to the checkpoint with the first batch."""
        if not self._query_id:
            self._query_id = json.loads(regular_bytes(self._metadata))["id"]
        return self._query_id

    @property
    def _metadata(self) -> Path:
        return self._checkpoint / "metadata"

    @contextmanager
    def numbered(self, batch: int, frame: DataFrame) -> Iterator[None]:
        """Set query id and output number for this thread while the output is written."""
        context = self._spark.sparkContext
        before = {key: context.getLocalProperty(key) for key in (_QUERY_ID, _BATCH_ID)}
        context.setLocalProperty(_QUERY_ID, before[_QUERY_ID] or self.query_id)
        context.setLocalProperty(_BATCH_ID, str(batch))
        around = getattr(_thread, "stream", None)
        _thread.stream = self
        try:
            with active(frame.sparkSession):
                yield
        finally:
            _thread.stream = around
            for key, value in before.items():
                context.setLocalProperty(key, value)  # type: ignore[arg-type]


_thread = threading.local()


def program_of_thread() -> SparkSession | None:
    """Return the session in which the query of this thread was started; None outside of a write."""
    stream: WrittenStream | None = getattr(_thread, "stream", None)
    return None if stream is None else stream._spark


def is_early_in_thread() -> bool:
    """Return whether an output of this thread may be repeated with other rows under its number."""
    stream: WrittenStream | None = getattr(_thread, "stream", None)
    return stream is not None and stream.early


def query_of_thread(spark: SparkSession) -> tuple[str | None, str | None]:
    """Return query id and run id of the query for which this thread writes; None for each unknown id."""
    context = spark.sparkContext
    return context.getLocalProperty(_QUERY_ID), context.getLocalProperty(_RUN_ID)


def check_mode(
    spark: SparkSession,
    table: Jvm,
    mode: str,
    options: Mapping[str, str],
    schema: Jvm,
) -> None:
    """Refuse an output mode that a table does not support; Spark would only refuse in the first batch.

    Raises `ConfigError`.
    """
    needed = {"complete": f"{_WRITE}.SupportsTruncate", "update": _UPDATES}.get(mode)
    if needed is None:
        return
    java = jvm(spark)
    none = java.java.util.Optional.empty()
    info = java_class(spark, f"{_WRITE}.LogicalWriteInfoImpl")(
        "", schema, string_map(spark, options), none, none
    )
    if not is_a(spark, table.newWriteBuilder(info), needed):
        msg = f'"{table.name()}" does not take {mode} mode, as in Spark; use another mode.'
        raise ConfigError(msg)


def v1_sink(
    spark: SparkSession,
    file_format: str,
    mode: str,
    options: Mapping[str, str],
    partition_by: Sequence[str],
    schema: Jvm,
) -> Jvm:
    """Return Spark's sink of the older interface for a format; raises Spark's errors."""
    java = jvm(spark)
    none = java.scala.Option.empty()
    source = adapter().data_source(
        java.org.apache.spark.sql.execution.datasources.DataSource,
        spark._jsparkSession,
        file_format,
        seq(spark, []),
        none,
        seq(spark, partition_by),
        none,
        scala_map(spark, options),
        none,
    )
    return adapter().create_sink(source, output_mode(spark, mode), schema)


def row_table(spark: SparkSession, function: Any, schema: Jvm) -> Jvm:
    """Return the table that passes each row to a user's function, as PySpark's ``foreach`` makes it."""
    serializer = AutoBatchedSerializer(CPickleSerializer())  # type: ignore[no-untyped-call]
    wrapped = _wrap_function(
        spark.sparkContext,
        DataStreamWriter._construct_foreach_function(function),
        serializer,
        serializer,
    )
    writer = java_class(
        spark, "org.apache.spark.sql.execution.python.streaming.PythonForeachWriter"
    )(wrapped, schema)
    tables = "org.apache.spark.sql.execution.streaming.sources.ForeachWriterTable$.MODULE$"
    # a Python writer ignores the encoder; null would match two overloads
    encoder = java_class(
        spark, "org.apache.spark.sql.catalyst.encoders.ExpressionEncoder$.MODULE$"
    ).apply(schema)
    return java_class(spark, tables).apply(writer, encoder)
