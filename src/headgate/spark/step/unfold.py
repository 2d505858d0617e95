"""Moves multiplication of rows (`explode`, `rollup`, whole windows) from the stream into the batch.

Spark passes the rows of a ``foreachBatch`` one by one. If a query explodes rows before that boundary,
each copy crosses it, and is merged right after it. If the batch explodes rows, a record crosses once, and
Spark's generated code explodes and aggregates in one loop.
"""

from __future__ import annotations

from itertools import compress

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from headgate.spark.jvm.expressions import column, data_type, tree_patterns
from headgate.spark.jvm.gateway import Jvm, class_name, each, seq
from headgate.spark.jvm.plans import (
    analysed,
    internal_rows,
    leaf,
    of_rows,
    optimised,
    replace_leaf,
    template,
)
from headgate.spark.read.expressions import attributes_used
from headgate.spark.read.plan import PlannedOperator, PlannedQuery
from headgate.spark.step.exchange import routed_columns

_MULTIPLIES = ("Generate", "Expand")
_MOVABLE = (*_MULTIPLIES, "Project", "Filter", "SubqueryAlias", "View", "ResolvedHint")
_BOUND_TO_THE_STREAM = ("CURRENT_LIKE", "PYTHON_UDF", "PLAN_EXPRESSION")
"""Spark's tree patterns of expressions that Catalyst replaces or runs in each micro-batch."""


class Unfolding:
    """Divides an operator's input plan between the streaming query and the batch.

    `operator`: an operator that reads the source. `below` (plan node): the part of its input plan
    that the streaming query runs.

    Attributes
    ----------
    used : list of str    Names of the columns of `below` that the plan above needs.
    hole : plan node    Leaf of `plan`, which a batch's rows replace.
    plan : plan node    Computes the routed columns from a batch's rows.
    """

    def __init__(
        self, spark: SparkSession, operator: PlannedOperator, below: Jvm, key_groups: int
    ) -> None:
        self._spark, self._below = spark, below
        columns = routed_columns(operator, key_groups)
        named = [value.alias(name) for name, value in columns.items()]
        # columns that are not used cross the boundary as null
        self._attributes = [a.withNullability(True) for a in each(below.output())]
        nothing = internal_rows(template(spark, of_rows(spark, below).schema))
        self.hole = leaf(spark, seq(spark, self._attributes), nothing)
        plan = replace_leaf(spark, operator.input_plan, below, self.hole)
        routed = of_rows(spark, plan).select(*named)
        self.plan = analysed(routed)
        ids = attributes_used(optimised(routed), self.hole)
        self._crosses = [a.exprId().toString() in ids for a in self._attributes]
        self.used = [a.name() for a in compress(self._attributes, self._crosses)]

    def stream(self) -> DataFrame:
        """Return the plan of the streaming query; columns are named by position."""
        values = []
        for attribute, crosses in zip(self._attributes, self._crosses, strict=True):
            nothing = F.lit(None).cast(data_type(attribute.dataType()))
            values.append(column(self._spark, attribute) if crosses else nothing)
        named = [value.alias(f"c{i}") for i, value in enumerate(values)]
        return of_rows(self._spark, self._below).select(*named)


def unfolding(spark: SparkSession, query: PlannedQuery, key_groups: int) -> Unfolding | None:
    """Return the part of a query's input that is better computed in the batch; None if there is none.

    None for several chains, because they share one read of the source and its rows.
    """
    chains = query.chains
    if len(chains) != 1:
        return None
    first = chains[0][0]
    below = _lowest_multiplied(spark, first.input_plan)
    return None if below is None else Unfolding(spark, first, below, key_groups)


def _lowest_multiplied(spark: SparkSession, plan: Jvm) -> Jvm | None:
    """Return the lowest node that multiplies rows and can move with all nodes above it."""
    bound = tree_patterns(spark, _BOUND_TO_THE_STREAM)
    lowest = None
    while class_name(plan) in _MOVABLE:
        for expression in each(plan.expressions()):
            if not expression.deterministic() or any(map(expression.containsPattern, bound)):
                return lowest
        multiplies = class_name(plan) in _MULTIPLIES
        (plan,) = list(each(plan.children()))
        lowest = plan if multiplies else lowest
    return lowest
