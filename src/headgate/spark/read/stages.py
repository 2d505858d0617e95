"""From a query's analysed plan to the chain of its stateless Python stages."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.errors import PySparkRuntimeError
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from headgate.core.errors import UnsupportedQuery
from headgate.spark.jvm.expressions import column, data_type
from headgate.spark.jvm.gateway import Jvm, class_name, each, seq
from headgate.spark.jvm.plans import analysed, placeholder
from headgate.spark.jvm.userfunctions import function_of
from headgate.spark.worker.replica import Function

STAGE = "MapInArrow"
_STATEFUL = {
    "Aggregate",
    "TransformWithStateInPySpark",
    "TransformWithState",
    "FlatMapGroupsInPandasWithState",
    "Deduplicate",
    "DeduplicateWithinWatermark",
    "Distinct",
}
_OTHER_PYTHON = {"MapInPandas": "mapInPandas", "ArrowEvalPython": "a Python UDF"}
_KEPT = {"Project", "Filter", "SubqueryAlias", "View", "ResolvedHint"}


class NoPythonStage(UnsupportedQuery):
    """The query has nothing that a pool could run."""


@dataclass
class Stage:
    """One stateless Python function of a query.

    Attributes
    ----------
    id : str
        ``map-0``, counted from the source upwards.
    what : str
        The function's name.
    function : callable
        As it was given to ``mapInArrow``.
    input_plan : plan node
        What the stage reads; its leaf is the placeholder of the stage below where there is one.
    placeholder : plan node
        Stands for what the replicas put out.
    raw_schema : StructType
        Of what they put out.
    """

    id: str
    what: str
    function: Function
    input_plan: Jvm
    placeholder: Jvm
    raw_schema: T.StructType


@dataclass
class Pipeline:
    """A query of stateless Python stages.

    Attributes
    ----------
    stages : list of Stage
        From the source upwards.
    plan : plan node
        What stands above the last stage, over its placeholder.
    arrival : Column or None
        When a record arrived, as a timestamp expression over the first stage's input.
    """

    stages: list[Stage]
    plan: Jvm
    arrival: Column | None


def read_pipeline(df: DataFrame, policy: str, arrival: str | None = None) -> Pipeline:
    """Return the stages of a query.

    Parameters
    ----------
    df : DataFrame
        A streaming DataFrame.
    policy : str
        For messages.
    arrival : str or None
        Name of a timestamp column that the first stage reads.

    Raises
    ------
    UnsupportedQuery
        The query keeps state, has no Python stage, or a part that pools cannot run.
    """
    plan = analysed(df)
    if not plan.isStreaming():
        msg = "this DataFrame is not streaming; read its source with spark.readStream."
        raise UnsupportedQuery(msg)
    reader = _Reader(df, policy)
    above = reader.above(plan)
    if not reader.stages:
        msg = (
            f"{policy} has no operator to run: this query has no Python stage. Write one with "
            "mapInArrow, or leave out the policy: Catalyst runs the query."
        )
        raise NoPythonStage(msg)
    return Pipeline(reader.stages, above, reader.arrival(arrival))


class _Reader:
    """Walks the plan once, from the top."""

    def __init__(self, df: DataFrame, policy: str) -> None:
        self.spark = df.sparkSession
        self.policy = policy
        self.stages: list[Stage] = []

    def above(self, plan: Jvm) -> Jvm:
        """Return what stands above the stages, over their placeholders."""
        name = class_name(plan)
        if name in _STATEFUL or (name == "Join" and _streams(plan) > 1):
            msg = (
                f'{self.policy} cannot run operator "{name}", which keeps state: its replicas take '
                'any event. Use the policy "streamswitch" for it.'
            )
            raise UnsupportedQuery(msg)
        if name in _OTHER_PYTHON:
            msg = f"{self.policy} cannot run {_OTHER_PYTHON[name]}; write it as mapInArrow."
            raise UnsupportedQuery(msg)
        if name == STAGE:
            return self._stage(plan)
        children = list(each(plan.children()))
        replaced = [self.above(child) for child in children]
        if not self.stages:
            return plan
        if name not in _KEPT:
            msg = (
                f"{self.policy} cannot keep {name} above a Python stage; supported there: select, "
                "withColumn and where."
            )
            raise UnsupportedQuery(msg)
        return plan.withNewChildren(seq(self.spark, replaced))

    def _stage(self, node: Jvm) -> Jvm:
        below = self.above(node.child())
        function = _function(node)
        outputs = T.StructType(
            [T.StructField(a.name(), data_type(a.dataType())) for a in each(node.output())]
        )
        hole = placeholder(self.spark, outputs, node.output())
        stage = Stage(
            id=f"map-{len(self.stages)}",
            what=getattr(function, "__name__", type(function).__name__),
            function=function,
            input_plan=below,
            placeholder=hole,
            raw_schema=outputs,
        )
        self.stages.append(stage)
        return hole

    def arrival(self, name: str | None) -> Column | None:
        """Return when a record arrived."""
        if name is None:
            return None
        for attribute in each(self.stages[0].input_plan.output()):
            if attribute.name() == name:
                return column(self.spark, attribute)
        msg = f'the first Python stage reads no column "{name}"; headgate.arrival must name one it reads.'
        raise UnsupportedQuery(msg)


def _streams(plan: Jvm) -> int:
    return sum(1 for child in each(plan.children()) if child.isStreaming())


def _function(node: Jvm) -> Function:
    """Return the function that was given to ``mapInArrow``."""
    try:
        found: Function = function_of(node)
    except PySparkRuntimeError as error:  # what is large PySpark has broadcast and let go of
        msg = (
            "cannot run a function that takes more than 1 MB with all that it holds; let it read what "
            "is large from a file when it is called."
        )
        raise UnsupportedQuery(msg) from error
    return found


def arrived_ms(arrival: Column | None) -> Column:
    """Return when a record arrived, in ms since 1970; null where nothing says so."""
    if arrival is None:
        return F.lit(None).cast("double")
    return F.unix_micros(arrival) / F.lit(1000.0)
