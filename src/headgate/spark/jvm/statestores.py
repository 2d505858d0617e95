"""Reads the state of plain Spark's streaming queries, and writes such state.

It reads with Spark's data sources, and writes with Spark's `StateRewriter`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

from pyspark.errors import PySparkException
from pyspark.java_gateway import ensure_callback_server_started
from pyspark.sql import Column, DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from headgate.core.errors import CheckpointError
from headgate.core.location import uri
from headgate.spark.jvm.errors import JavaError
from headgate.spark.jvm.folding import as_bytes, runs_as
from headgate.spark.jvm.gateway import Jvm, class_name, each, java_class
from headgate.spark.jvm.minors import adapter
from headgate.spark.jvm.plans import computed_rows
from headgate.spark.jvm.sessions import clone_of

_NOT_LOADED = re.compile(r"\[CANNOT_LOAD_STATE_STORE\.\w+\](?:(?!SQLSTATE).){0,200}")
"""Matches Spark's error about a state store that it cannot read."""

_OF_A_TASK = re.compile(r"^.*most recent failure: .*?\): ")
"""Matches Spark's text before the error of a failed task."""


def state_metadata(spark: SparkSession, path: Path) -> list[Row]:
    """Return the metadata of a checkpoint's state: a row for each operator and store.

    Raises `CheckpointError`: the metadata cannot be read.
    """
    try:
        rows = spark.read.format("state-metadata").load(uri(path)).collect()
    except (PySparkException, JavaError) as error:
        msg = f"the state below {path} cannot be read ({_first_line(error)})."
        raise CheckpointError(msg) from error
    return sorted(rows, key=lambda row: int(row.operatorId))


def state_rows(
    spark: SparkSession, path: Path, operator: int, batch: int, **options: str
) -> DataFrame:
    """Return an operator's state after a batch, as Spark's source ``statestore`` reads it.

    `operator`: Spark's number of the operator. `options` (str): options of the source: ``joinSide``,
    ``stateVarName``, ``storeName`` and so on. Raises `CheckpointError`: the state cannot be read, for
    instance because Spark has removed files of that batch.
    """
    reader = spark.read.format("statestore").options(operatorId=operator, batchId=batch, **options)
    try:
        return reader.load(uri(path))
    except (PySparkException, JavaError) as error:
        msg = (
            f"the state of operator {operator} below {path} cannot be read ({_first_line(error)})."
        )
        raise CheckpointError(msg) from error


@contextmanager
def state_read(path: Path) -> Iterator[None]:
    """Turn Spark's error about unreadable state into one sentence, within the context.

    Raises `CheckpointError`: a file of the state below `path` is missing or damaged.
    """
    try:
        yield
    except (PySparkException, JavaError) as error:
        said = _NOT_LOADED.search(str(error))
        if said is None:
            raise
        msg = f"the state below {path} cannot be read ({said[0].strip()}); restore it from a copy."
        raise CheckpointError(msg) from error


def aggregates_as_run(spark: SparkSession, plan: Jvm) -> list[list[str]]:
    """Return the classes of the functions of each Aggregate in Spark's optimised plan.

    The nodes are in order from the sink down; the functions of a node in the order of their buffers.
    """
    optimised = spark._jsparkSession.sessionState().optimizer().execute(plan)
    aggregates: list[list[str]] = []
    _collect(spark, optimised, aggregates)
    return aggregates


def _collect(spark: SparkSession, plan: Jvm, aggregates: list[list[str]]) -> None:
    if class_name(plan) == "Aggregate" and plan.isStreaming():
        functions: dict[str, str] = {}
        for expression in each(plan.aggregateExpressions()):
            _functions(spark, expression, functions)
        aggregates.append(list(functions.values()))
    for child in each(plan.children()):
        _collect(spark, child, aggregates)


def _functions(spark: SparkSession, expression: Jvm, names: dict[str, str]) -> None:
    if class_name(expression) == "AggregateExpression":
        known = str(expression.canonicalized().toString())
        names.setdefault(known, class_name(runs_as(spark, expression.aggregateFunction())))
        return
    for child in each(expression.children()):
        _functions(spark, child, names)


_REWRITING = {
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.streaming.offsetLog.formatVersion": "1",
    # the only format of Spark's rewriter; the log records it, so a later start uses it, too
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
}


def rewriting_session(spark: SparkSession) -> SparkSession:
    """Return a session like `spark` in which state can be rewritten."""
    session = clone_of(spark)
    for key, value in _REWRITING.items():
        session.conf.set(key, value)
    return session


class _Function:
    """A Python function that Scala calls with one argument."""

    Java = SimpleNamespace(implements=("scala.Function1",))
    """Tells Py4J which Java interface it implements."""

    def __init__(self, function: Callable[[Jvm], Jvm]) -> None:
        self._function = function

    def apply(self, argument: Jvm) -> Jvm:
        """Call the function."""
        return self._function(argument)


def rewrite(
    spark: SparkSession,
    origin: Path,
    target: Path,
    batch: int,
    stores: Mapping[tuple[int, str], DataFrame],
) -> None:
    """Write the state after `batch` below `target`, in the form of the state below `origin`.

    Parameters
    ----------
    origin : Path    A checkpoint of the same query with a batch 0.
    target : Path
        A checkpoint that already has the offsets of `batch`, and Spark's metadata and schemas of the
        operators' state.
    stores : mapping of (int, str) to DataFrame
        Entries as `entry_bytes` makes them, by Spark's number for the operator and the name of the store.
    """
    ensure_callback_server_started(spark.sparkContext._gateway)  # type: ignore[no-untyped-call]
    session = spark._jsparkSession

    def transformed(read: Jvm) -> Jvm:
        # with the schema of `read`, because its nullability differs from that of `made`
        options = next(each(read.queryExecution().analyzed().collectLeaves())).options()
        store = int(options.get("operatorId")), str(options.get("storeName") or "default")
        made = computed_rows(stores[store])
        return session.internalCreateDataFrame(made, read.schema(), False)

    some = java_class(spark, "scala.Some")
    none = java_class(spark, "scala.None$.MODULE$")
    node = java_class(spark, "org.apache.spark.sql.execution.streaming.state.StateRewriter")
    rewriter = adapter().state_rewriter(
        node,
        session,
        0,
        batch,
        uri(target),
        session.sessionState().newHadoopConf(),
        some(uri(origin)),
        some(_Function(transformed)),
        none,
    )
    rewriter.run()


def entry_bytes(rows: DataFrame, keys: int, hashed: int, partitions: int) -> DataFrame:
    """Return state entries as bytes, each in the partition where Spark's hash of its key puts it.

    Parameters
    ----------
    rows : DataFrame    Key and value columns.
    keys : int    Number of key columns.
    hashed : int    Number of key columns whose hash gives the partition.
    partitions : int    Number of the state's partitions.
    """
    names = rows.columns
    key, value = ([F.col(name) for name in part] for part in (names[:keys], names[keys:]))
    kinds = [T.StructType(part) for part in (rows.schema.fields[:keys], rows.schema.fields[keys:])]
    spread = rows.repartition(partitions, *key[:hashed]) if hashed else rows.coalesce(1)
    return spread.select(
        # Spark's rewriter expects this column, by which Spark would distribute entries; it is null,
        # because the entries are in their partitions already
        F.lit(None).alias("partition_key"),
        _row_bytes(kinds[0], key).alias("key_bytes"),
        _row_bytes(kinds[1], value).alias("value_bytes"),
        F.lit("default").alias("column_family_name"),
    )


_BEFORE_ROW = 40
"""Bytes before the struct in what `as_bytes` returns: the header of a row that holds one array,
and the header of that array of one element."""


def _row_bytes(kind: T.StructType, columns: list[Column]) -> Column:
    """Return columns as the bytes of one of Spark's unsafe rows."""
    if not columns:
        return F.lit(b"")
    return F.substring(as_bytes(kind, F.struct(*columns)), _BEFORE_ROW + 1, _ALL_BYTES)


_ALL_BYTES = 2**31 - 1


def _first_line(error: Exception) -> str:
    text = str(error.java_exception.toString() if isinstance(error, JavaError) else error)
    return _OF_A_TASK.sub("", text.strip().splitlines()[0]).removesuffix(".")
