"""Reads a user's Python function from the plan, and creates calls of such functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any

from pyspark import cloudpickle
from pyspark.serializers import CPickleSerializer
from pyspark.sql import Column
from pyspark.sql.udf import UserDefinedFunction
from pyspark.util import PythonEvalType

from headgate.spark.jvm.expressions import data_type
from headgate.spark.jvm.gateway import Jvm

_PANDAS = (
    PythonEvalType.SQL_TRANSFORM_WITH_STATE_PANDAS_UDF,
    PythonEvalType.SQL_TRANSFORM_WITH_STATE_PANDAS_INIT_STATE_UDF,
)

ROW_UDFS = (PythonEvalType.SQL_BATCHED_UDF, PythonEvalType.SQL_ARROW_BATCHED_UDF)
"""Kinds of functions that are called for each row."""

PANDAS_UDFS = (PythonEvalType.SQL_SCALAR_PANDAS_UDF, PythonEvalType.SQL_SCALAR_PANDAS_ITER_UDF)
"""Kinds of functions of pandas series."""

ITERATOR_UDFS = (
    PythonEvalType.SQL_SCALAR_PANDAS_ITER_UDF,
    PythonEvalType.SQL_SCALAR_ARROW_ITER_UDF,
)
"""Kinds of functions of iterators."""


def function_of(node: Jvm) -> Any:
    """Return the function of a plan node.

    PySpark has pickled the function in this process; this module unpickles nothing else. Raises
    `PySparkRuntimeError`: the function is not in the plan, because PySpark has broadcast a large
    function, and dropped it.
    """
    return called_by(node.functionExpr())


def called_by(expression: Jvm) -> Any:
    """Return the function of an expression that calls Python; raises as `function_of`."""
    command = expression.func().command()
    packed = bytes(command.toArray(command.elemTag()))
    serializer: Any = CPickleSerializer()
    function, _ = serializer.loads(packed)
    return function


def call(function: Any, of: Jvm, values: Sequence[Column], named: Mapping[str, Column]) -> Column:
    """Return the call of a function with the kind and type of `of`, an expression that calls Python."""
    kind = data_type(of.dataType())
    made = UserDefinedFunction(function, kind, name=str(of.name()), evalType=int(of.evalType()))
    if not of.udfDeterministic():
        made = made.asNondeterministic()
    return made(*values, **named)


def processor_of(node: Jvm) -> object:
    """Return the user's processor of ``transformWithState``; raises as `function_of`."""
    return function_of(node).__self__._stateful_processor


def takes_frames(node: Jvm) -> bool:
    """Return whether a ``transformWithState`` node is of the pandas kind."""
    return node.functionExpr().evalType() in _PANDAS


def send_by_value(module: ModuleType) -> None:
    """Pickle functions and classes of a module by value, so that Python workers need not import it."""
    cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]
