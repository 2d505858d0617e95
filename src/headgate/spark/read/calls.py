"""Orders Python UDFs within expressions: selects UDFs to evaluate next, and replaces them by results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.errors import PySparkRuntimeError
from pyspark.sql import SparkSession
from pyspark.sql import types as T

from headgate.core.errors import UnsupportedQuery
from headgate.spark.jvm.evaluation import (
    ALONE,
    PLAIN,
    SCALAR,
    Evaluation,
    PythonCall,
    arguments_of,
    command_of,
    kind_of,
    pickled,
    schema_json,
    settings_of,
    unpickled,
)
from headgate.spark.jvm.expressions import alias, data_type, tree_patterns
from headgate.spark.jvm.gateway import Jvm, class_name, each, seq
from headgate.spark.jvm.plans import analysed, project, template
from headgate.spark.worker.scalar import AsPickled, ScalarCalls

TOO_LARGE = (
    "cannot run a function that takes more than 1 MB with all that it holds; let it read what is large "
    "from a file when it is called."
)


@dataclass
class Round:
    """Holds UDFs of one kind that one stage can evaluate, because no UDF needs another's result."""

    spark: SparkSession
    calls: list[Jvm]
    """list of expression."""
    results: list[Jvm]
    """list of attribute: the result of each call."""

    def replaced(self, expression: Jvm) -> Jvm:
        """Return an expression with the calls replaced by their results."""
        for call, result in zip(self.calls, self.results, strict=True):
            if expression.semanticEquals(call):
                return result
        children = list(each(expression.children()))
        if not children:
            return expression
        new = [self.replaced(child) for child in children]
        if all(a is b for a, b in zip(children, new, strict=True)):
            return expression
        return expression.withNewChildren(seq(self.spark, new))

    def evaluated(self, child: Jvm) -> Jvm:
        """Return a plan that computes the calls in Catalyst; only used to compare stages."""
        made = [
            alias(self.spark, call, result.name(), result.exprId())
            for call, result in zip(self.calls, self.results, strict=True)
        ]
        return project(self.spark, [*each(child.output()), *made], child)

    @property
    def what(self) -> str:
        """Names and kind of the functions."""
        names = ", ".join(dict.fromkeys(str(call.name()) for call in self.calls))
        return f"{names} ({SCALAR[kind_of(self.calls[0])]})"

    def stage_of(self, kept: int) -> tuple[ScalarCalls, list[Jvm]]:
        """Return the function of a replica, and its arguments, which follow `kept` columns."""
        kind = kind_of(self.calls[0])
        arguments: list[Jvm] = []
        calls = []
        for expression in self.calls:
            args, kwargs = [], {}
            for name, argument in arguments_of(expression):
                if name:
                    kwargs[name] = len(arguments)
                else:
                    args.append(len(arguments))
                arguments.append(argument)
            calls.append(PythonCall(_command(expression, kind), tuple(args), kwargs))
        fields = [
            T.StructField(f"a{n}", data_type(each_one.dataType()))
            for n, each_one in enumerate(arguments)
        ]
        evaluation = Evaluation(
            kind, tuple(calls), settings_of(self.spark), schema_json(T.StructType(fields))
        )
        return ScalarCalls(evaluation, kept), arguments


def next_round(spark: SparkSession, expressions: Sequence[Jvm]) -> Round | None:
    """Return the UDFs within `expressions` that need no other UDF; None if there are no UDFs.

    Raises `UnsupportedQuery`: a UDF is no function of single values.
    """
    (pattern,) = tree_patterns(spark, ["PYTHON_UDF"])
    calls: list[Jvm] = []
    for expression in expressions:
        _collect(expression, pattern, calls)
    if not calls:
        return None
    for call in calls:
        if kind_of(call) not in SCALAR:
            msg = f"cannot run {call.name()} on a pool: it is no function of single values."
            raise UnsupportedQuery(msg)
    kind = kind_of(calls[0])
    same = [calls[0]] if kind in ALONE else [call for call in calls if kind_of(call) == kind]
    schema = T.StructType(
        [T.StructField(f"r{n}", data_type(call.dataType())) for n, call in enumerate(same)]
    )
    return Round(spark, same, list(each(analysed(template(spark, schema)).output())))


def _collect(expression: Jvm, pattern: Jvm, calls: list[Jvm]) -> None:
    """Add the UDFs within an expression whose arguments have no UDF."""
    if not expression.containsPattern(pattern):
        return
    children = list(each(expression.children()))
    if class_name(expression) == "PythonUDF" and not any(
        child.containsPattern(pattern) for child in children
    ):
        if not any(expression.semanticEquals(known) for known in calls):
            calls.append(expression)
        return
    for child in children:
        _collect(child, pattern, calls)


def _command(expression: Jvm, kind: int) -> bytes:
    command = command_of(expression)
    try:
        function, returns = unpickled(command)
    except (
        PySparkRuntimeError,
        TypeError,
    ) as error:  # PySpark has broadcast a large function, and dropped it
        raise UnsupportedQuery(TOO_LARGE) from error
    return pickled(AsPickled(function, returns), returns) if kind == PLAIN else command
