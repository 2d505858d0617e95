"""Evaluates Python functions of Spark SQL on Arrow as PySpark's own workers do, by their code.

On the driver: what of an expression a worker needs. In a worker: the very functions that PySpark makes of
it, so that values go in and come out as they do under plain Spark.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.serializers import CPickleSerializer
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType
from pyspark.util import PythonEvalType

from headgate.spark.jvm.gateway import Jvm, class_name, each, java_class
from headgate.spark.jvm.older_workers import evaluate

PLAIN = PythonEvalType.SQL_BATCHED_UDF
MAP_IN_PANDAS = PythonEvalType.SQL_MAP_PANDAS_ITER_UDF
SCALAR = {
    PLAIN: "a Python UDF",
    PythonEvalType.SQL_ARROW_BATCHED_UDF: "a Python UDF",
    PythonEvalType.SQL_SCALAR_PANDAS_UDF: "a pandas UDF",
    PythonEvalType.SQL_SCALAR_PANDAS_ITER_UDF: "a pandas UDF over an iterator",
    PythonEvalType.SQL_SCALAR_ARROW_UDF: "an Arrow UDF",
    PythonEvalType.SQL_SCALAR_ARROW_ITER_UDF: "an Arrow UDF over an iterator",
}
"""Kinds of function that give one value per row, and how they are called."""

ALONE = {PythonEvalType.SQL_SCALAR_PANDAS_ITER_UDF, PythonEvalType.SQL_SCALAR_ARROW_ITER_UDF}
"""Kinds of which PySpark evaluates one at a time."""

_SERIALIZER: Any = CPickleSerializer()


@dataclass(frozen=True)
class PythonCall:
    """One function, and where its arguments are among the columns that it is given."""

    command: bytes
    """The function and its type, as PySpark pickled them in this very process, or as we did."""
    args: tuple[int, ...]
    kwargs: dict[str, int]


@dataclass(frozen=True)
class Evaluation:
    """Functions of one kind, and Spark's settings that say how values go in and come out."""

    kind: int
    """PySpark's number of the kind."""
    calls: tuple[PythonCall, ...]
    settings: dict[str, str]
    """See `settings_of`."""
    inputs: str = ""
    """The type of the columns given, a struct, as JSON."""

    def run(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Return the results, a column for each function; called in a worker."""
        # Late and by name: a driver need not load what workers run.
        kind = PythonEvalType.SQL_ARROW_BATCHED_UDF if self.kind == PLAIN else self.kind
        worker: Any = importlib.import_module("pyspark.worker")
        try:
            message: Any = importlib.import_module("pyspark.worker_message")
        except ImportError:  # an older minor
            return evaluate(kind, self.calls, self.settings, self.inputs, batches)
        infos = [
            message.UDFInfo([memoryview(call.command)], list(call.args), dict(call.kwargs), 0)
            for call in self.calls
        ]
        settings = worker.RunnerConf(self.settings)
        inputs = worker.EvalConf({"input_type": self.inputs})
        made = worker.read_udfs(worker.pickleSer, infos, kind, settings, inputs)
        function: Callable[[int, Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]] = made[0]
        return function(0, batches)


def in_struct(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Return batches with all columns in one, as ``mapInPandas`` is given them."""
    return map(_wrapped, batches)


def out_of_struct(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Undo `in_struct`."""
    for batch in batches:
        rows = batch.column(0)
        yield pa.RecordBatch.from_arrays(rows.flatten(), schema=pa.schema(list(rows.type)))


def _wrapped(batch: pa.RecordBatch) -> pa.RecordBatch:
    if batch.num_columns == 0:
        rows = pa.array([{}] * batch.num_rows)
    else:
        rows = pa.StructArray.from_arrays(batch.columns, fields=list(batch.schema))
    return pa.RecordBatch.from_arrays([rows], ["_0"])


def settings_of(spark: SparkSession) -> dict[str, str]:
    """Return the settings of a session that PySpark's workers go by."""
    runner = java_class(spark, "org.apache.spark.sql.execution.python.ArrowPythonRunner$.MODULE$")
    settings = runner.getPythonRunnerConfMap(spark._jsparkSession.sessionState().conf())
    return {str(pair._1()): str(pair._2()) for pair in each(settings)}


def kind_of(expression: Jvm) -> int:
    """Return PySpark's number of the kind of a PythonUDF."""
    return int(expression.evalType())


def command_of(expression: Jvm) -> bytes:
    """Return a function and its type as the plan has them, pickled."""
    command = expression.func().command()
    return bytes(command.toArray(command.elemTag()))


def unpickled(command: bytes) -> tuple[Any, Any]:
    """Return the function and its type; the plan holds what PySpark pickled in this very process."""
    function, returns = _SERIALIZER.loads(command)
    return function, returns


def pickled(function: Any, returns: Any) -> bytes:
    """Return a function and its type as a worker reads them."""
    return bytes(_SERIALIZER.dumps((function, returns)))


def arguments_of(expression: Jvm) -> list[tuple[str, Jvm]]:
    """Return the arguments of a PythonUDF, each with its name; empty for one by its place."""
    arguments = []
    for child in each(expression.children()):
        named = class_name(child) == "NamedArgumentExpression"
        arguments.append((child.key(), child.value()) if named else ("", child))
    return arguments


def schema_json(schema: StructType) -> str:
    """Return the type of the columns given, as `Evaluation.inputs` has it."""
    return str(schema.json())
