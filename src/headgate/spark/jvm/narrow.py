"""Computes a plan of `select` and `where` over a few rows, in the calling thread and without a job.

Catalyst compiles the plan once. New planning for each set of rows would take tens of milliseconds,
and a job even more.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from headgate.operators.hidden import without_hidden_nulls
from headgate.spark.jvm.arrow import to_arrow_schema
from headgate.spark.jvm.composed import Composer
from headgate.spark.jvm.expressions import column
from headgate.spark.jvm.gateway import Jvm, class_name, each, java_class
from headgate.spark.jvm.planned import planned_per_batch
from headgate.spark.jvm.plans import analysed, collapsed, of_rows, optimised
from headgate.spark.jvm.sessions import active

_ARROW = "org.apache.spark.sql.execution.arrow.ArrowConverters"
_ZONE = "UTC"
_KEPT = "__headgate_kept"
_MOST_ROWS, _MOST_BYTES = 2**31 - 1, 2**40
"""Limits of one Arrow batch of results, so high that all results are in one."""
_LENGTH_BYTES = 4


class NarrowPlan:
    """Runs a compiled plan of projections and filters; only one thread may use it at a time.

    Parameters
    ----------
    frame : DataFrame
        A projection over the leaf; if it may drop rows, its last column is `_KEPT`.
    leaf : plan node
    schema : StructType
        Schema of the leaf's rows.
    file : Path
        On this host. The JVM writes the plan's rows to this file, and Python reads them. Python writes
        the leaf's rows to a second file, with the suffix ``-given``, and the JVM reads them.
    """

    def __init__(self, frame: DataFrame, leaf: Jvm, schema: StructType, file: Path) -> None:
        spark = frame.sparkSession
        plan = analysed(frame)
        with active(spark):
            make = java_class(spark, "org.apache.spark.sql.catalyst.expressions.UnsafeProjection")
            self._project = make.create(plan.projectList(), leaf.output())
        self._into = to_arrow_schema(schema, _ZONE)
        self._drops = frame.columns[-1] == _KEPT
        # a large answer through py4j would wait 40 ms for TCP's acknowledgement, so rows go through files
        self._given, self._made = file.with_name(f"{file.name}-given"), file
        self._compute = self._composed(spark, plan.schema())

    def _composed(self, spark: SparkSession, schema: Jvm) -> Callable[[], None]:
        """Return a function that reads the leaf's rows from one file, and appends results to another."""
        composer = Composer(spark)
        method, bound, then = composer.method, composer.bound, composer.then
        arrow = java_class(spark, f"{_ARROW}$.MODULE$")
        path = java_class(spark, "java.io.File")(str(self._given)).toPath()
        read = bound(method("java.nio.file.Files", "readAllBytes("), 0, path)
        rows_of = then(
            bound(method(f"{_ARROW}$", "fromIPCStream(byte[])"), 0, arrow),
            method("scala.Tuple2", "_1("),
        )
        mapped = bound(method("scala.collection.Iterator", "map("), 1, self._project)
        to_arrow = bound(method(f"{_ARROW}$", "toBatchWithSchemaIterator("), 0, arrow)
        to_arrow = bound(to_arrow, 1, schema, _MOST_ROWS, _MOST_BYTES, _ZONE, False, False)
        # opened to append, so that writing starts at the file's beginning after a truncation
        out = java_class(spark, "java.io.FileOutputStream")(str(self._made), True)
        stream = java_class(spark, "java.io.DataOutputStream")(out)
        write = method("org.apache.spark.api.python.PythonRDD", "writeIteratorToStream(")
        write = bound(write, 1, stream)
        # both iterators close themselves at their ends, so these calls close them only after an error
        write = composer.closing(write, method(f"{_ARROW}$ArrowBatchIterator", "close("))
        compute = then(then(mapped, to_arrow), write)
        close = method(f"{_ARROW}$InternalRowIteratorFromIPCStream", "close(")
        return composer.call(then(then(read, rows_of), composer.closing(compute, close)))

    @classmethod
    def of(cls, frame: DataFrame, leaf: Jvm, schema: StructType, file: Path) -> NarrowPlan | None:
        """Return the compiled plan of a frame; None if it has more than projections and filters.

        Parameters
        ----------
        frame : DataFrame
        leaf : plan node
            The only leaf of the frame's plan.
        schema : StructType
            Schema of the leaf's rows.
        file : Path
            See the class.
        """
        spark = frame.sparkSession
        if planned_per_batch(spark, analysed(frame)):
            return None
        plan = collapsed(spark, optimised(frame))
        values, condition = plan.output(), None
        if class_name(plan) == "Project":
            values, plan = plan.projectList(), plan.child()
        if class_name(plan) == "Filter":
            condition, plan = plan.condition(), plan.child()
        if class_name(plan) != class_name(leaf) or not plan.output().equals(leaf.output()):
            return None
        every = [*each(values), *([] if condition is None else [condition])]
        if not all(value.deterministic() for value in every):
            return None
        return cls(_guarded(spark, leaf, every, drops=condition is not None), leaf, schema, file)

    def rows(self, table: pa.Table) -> pa.Table:
        """Return the plan's result for `table`, the rows of the leaf."""
        table = without_hidden_nulls(table).cast(self._into).combine_chunks()
        with (
            pa.OSFile(str(self._given), "wb") as given,
            pa.ipc.new_stream(given, self._into) as out,
        ):
            out.write_table(table)
        os.truncate(self._made, 0)
        self._compute()
        rows = pa.concat_tables(_tables(self._made.read_bytes()))
        return rows.filter(rows.column(_KEPT)).drop_columns([_KEPT]) if self._drops else rows


def _tables(content: bytes) -> Iterator[pa.Table]:
    """Yield the tables of a file, in which an Arrow stream follows the length of each table."""
    start = _LENGTH_BYTES
    while start <= len(content):
        length = int.from_bytes(content[start - _LENGTH_BYTES : start], "big")
        with pa.ipc.open_stream(content[start : start + length]) as reader:
            yield reader.read_all()
        start += length + _LENGTH_BYTES


def _guarded(spark: SparkSession, leaf: Jvm, values: list[Jvm], *, drops: bool) -> DataFrame:
    """Return a frame of `values` over the leaf that computes only the condition for rows that it drops.

    Another value might raise an error for such a row.
    """
    below = of_rows(spark, leaf)
    if not drops:
        return below.select(*(column(spark, value) for value in values))
    *projected, condition = (column(spark, value) for value in values)
    names = [value.name() for value in values[:-1]]
    made = [F.when(condition, output).alias(n) for output, n in zip(projected, names, strict=True)]
    return below.select(*made, condition.alias(_KEPT))
