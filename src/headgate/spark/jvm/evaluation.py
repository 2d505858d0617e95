"""Evaluates Python functions of Spark SQL on Arrow data, with the code of PySpark's own workers.

On the driver, this module takes from an expression all that a worker needs. In a worker, PySpark's own
code makes the function, so values are converted as under plain Spark.
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
"""Kinds of functions that return one value per row, with their names for people."""

ALONE = {PythonEvalType.SQL_SCALAR_PANDAS_ITER_UDF, PythonEvalType.SQL_SCALAR_ARROW_ITER_UDF}
"""Kinds of functions that PySpark evaluates one by one."""

_SERIALIZER: Any = CPickleSerializer()


@dataclass(frozen=True)
class PythonCall:
    """Holds one function, and the positions of its arguments among the input columns."""

    command: bytes
    """The function and its return type, pickled in the driver by PySpark or by `pickled`."""
    args: tuple[int, ...]
    kwargs: dict[str, int]


@dataclass(frozen=True)
class Evaluation:
    """Holds functions of one kind, and Spark's settings for the conversion of their values."""

    kind: int
    """PySpark's number of the kind."""
    calls: tuple[PythonCall, ...]
    settings: dict[str, str]
    """See `settings_of`."""
    inputs: str = ""
    """Type of the input columns, a struct, as JSON."""

    def run(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Return the results, a column for each function; called in a worker."""
        # imported here, because the driver does not need the workers' modules
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
    """Return batches with all columns in one struct, the input form of ``mapInPandas``."""
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
    """Return the settings of a session that PySpark's workers use."""
    runner = java_class(spark, "org.apache.spark.sql.execution.python.ArrowPythonRunner$.MODULE$")
    settings = runner.getPythonRunnerConfMap(spark._jsparkSession.sessionState().conf())
    return {str(pair._1()): str(pair._2()) for pair in each(settings)}


def kind_of(expression: Jvm) -> int:
    """Return PySpark's number of the kind of a PythonUDF."""
    return int(expression.evalType())


def command_of(expression: Jvm) -> bytes:
    """Return the pickled function and return type of a PythonUDF."""
    command = expression.func().command()
    return bytes(command.toArray(command.elemTag()))


def unpickled(command: bytes) -> tuple[Any, Any]:
    """Return a function and its return type; safe, because PySpark pickled them in this process."""
    function, returns = _SERIALIZER.loads(command)
    return function, returns


def pickled(function: Any, returns: Any) -> bytes:
    """Return a function and its return type in the form that a worker reads."""
    return bytes(_SERIALIZER.dumps((function, returns)))


def arguments_of(expression: Jvm) -> list[tuple[str, Jvm]]:
    """Return the arguments of a PythonUDF, each with its name; "" for a positional argument."""
    arguments = []
    for child in each(expression.children()):
        named = class_name(child) == "NamedArgumentExpression"
        arguments.append((child.key(), child.value()) if named else ("", child))
    return arguments


def schema_json(schema: StructType) -> str:
    """Return the type of the input columns in the form of `Evaluation.inputs`."""
    return str(schema.json())
