"""Computes a plan of `select` and `where` over a few rows, in the calling thread and without a job.

Catalyst compiles the plan once. A new plan for the rows of each epoch takes tens of milliseconds,
and a job some more.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from headgate.operators.hidden import without_hidden_nulls
from headgate.spark.jvm.arrow import to_arrow_schema
from headgate.spark.jvm.expressions import column
from headgate.spark.jvm.gateway import Jvm, class_name, each, java_class
from headgate.spark.jvm.planned import planned_per_batch
from headgate.spark.jvm.plans import analysed, of_rows, optimised
from headgate.spark.jvm.sessions import active

_ZONE = "UTC"
_KEPT = "__headgate_kept"
_MOST_ROWS, _MOST_BYTES = 2**31 - 1, 2**40
"""Of one Arrow batch of results: there is always one only."""
_LENGTH_BYTES = 4


class NarrowPlan:
    """A plan of projections and filters, compiled; to be used by one thread at a time.

    Parameters
    ----------
    frame : DataFrame
        Frame of a projection over the leaf; with the column `_KEPT` last where rows may be dropped.
    leaf : plan node
    schema : StructType
        Schema of the leaf's rows.
    file : Path
        Where the JVM may write rows; on this host.
    """

    def __init__(self, frame: DataFrame, leaf: Jvm, schema: StructType, file: Path) -> None:
        spark = frame.sparkSession
        plan = analysed(frame)
        with active(spark):
            make = java_class(spark, "org.apache.spark.sql.catalyst.expressions.UnsafeProjection")
            self._project = make.create(plan.projectList(), leaf.output())
        self._into = to_arrow_schema(schema, _ZONE)
        self._out_of = plan.schema()
        self._drops = frame.columns[-1] == _KEPT
        self._arrow = java_class(
            spark, "org.apache.spark.sql.execution.arrow.ArrowConverters$.MODULE$"
        )
        # a large answer of py4j's would wait 40 ms for TCP's acknowledgement, so a file has it
        self._file = file
        file_stream = java_class(spark, "java.io.FileOutputStream")
        # it appends, so that it writes from the start again once the file was cut off
        self._stream = java_class(spark, "java.io.DataOutputStream")(file_stream(str(file), True))
        self._write = java_class(
            spark, "org.apache.spark.api.python.PythonRDD"
        ).writeIteratorToStream

    @classmethod
    def of(cls, frame: DataFrame, leaf: Jvm, schema: StructType, file: Path) -> NarrowPlan | None:
        """Return the plan of a frame, ready to compute; None where it is more than a narrow one.

        Parameters
        ----------
        frame : DataFrame
        leaf : plan node
            Its only leaf.
        schema : StructType
            Schema of the leaf's rows.
        file : Path
            Where the JVM may write rows; on this host.
        """
        spark = frame.sparkSession
        if planned_per_batch(spark, analysed(frame)):
            return None
        plan = optimised(frame)
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
        """Return the rows that the plan makes of those of the leaf."""
        stream = pa.BufferOutputStream()
        table = without_hidden_nulls(table).cast(self._into)
        with pa.ipc.new_stream(stream, table.schema) as writer:
            writer.write_table(table.combine_chunks())
        batches = self._arrow.fromIPCStream(stream.getvalue().to_pybytes())._1()
        made = self._arrow.toBatchWithSchemaIterator(
            batches.map(self._project), self._out_of, _MOST_ROWS, _MOST_BYTES, _ZONE, False, False
        )
        os.truncate(self._file, 0)
        try:
            self._write(made, self._stream)  # both are closed at their ends
        except BaseException:
            made.close()
            batches.close()
            raise
        rows = pa.concat_tables(_tables(self._file.read_bytes()))
        return rows.filter(rows.column(_KEPT)).drop_columns([_KEPT]) if self._drops else rows


def _tables(content: bytes) -> Iterator[pa.Table]:
    """Return the tables of a file: of each its length, and an Arrow stream."""
    start = _LENGTH_BYTES
    while start <= len(content):
        length = int.from_bytes(content[start - _LENGTH_BYTES : start], "big")
        with pa.ipc.open_stream(content[start : start + length]) as reader:
            yield reader.read_all()
        start += length + _LENGTH_BYTES


def _guarded(spark: SparkSession, leaf: Jvm, values: list[Jvm], *, drops: bool) -> DataFrame:
    """Return the frame of values over a leaf, which computes none of them for a row that is dropped.

    A value may raise of such a row.
    """
    below = of_rows(spark, leaf)
    if not drops:
        return below.select(*(column(spark, value) for value in values))
    *projected, condition = (column(spark, value) for value in values)
    names = [value.name() for value in values[:-1]]
    made = [F.when(condition, output).alias(n) for output, n in zip(projected, names, strict=True)]
    return below.select(*made, condition.alias(_KEPT))


def fits(kinds: pa.Schema, schema: StructType) -> bool:
    """Return whether columns of Arrow are those of a schema but for the names and sizes of their types.

    A timestamp without a zone would stand for another time in Spark.
    """
    wanted = to_arrow_schema(schema, _ZONE)
    return len(kinds) == len(wanted) and all(
        not pa.types.is_timestamp(new.type)
        or (pa.types.is_timestamp(old.type) and (old.type.tz is None) == (new.type.tz is None))
        for old, new in zip(kinds, wanted, strict=True)
    )
