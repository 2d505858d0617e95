"""Rewrites outer and semi joins of two streams on any condition as joins that slots run.

Slots compare leaves. Only Catalyst, above the slots, can compute other conjuncts: for an inner join as a
filter. An outer join also puts out the records without a partner. Records that agree in all columns of
the condition, their content, have the same partners. So::

    left outer join(L, R, C)  =  pairs  union  (records of L whose content is in no pair)

where ``pairs`` is the inner join, and the second part an outer join of L with ``pairs`` on the content:
an equality. A semi join is the semi join of L with ``pairs`` on the content.
"""

from __future__ import annotations

from functools import partial, reduce

from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from headgate.spark.jvm.expressions import both, column, data_type, same_even_null
from headgate.spark.jvm.gateway import Jvm, class_name, each, seq
from headgate.spark.jvm.plans import (
    analysed,
    inner_join,
    join_of,
    named_as,
    of_rows,
    project,
    union,
)
from headgate.spark.read.conditions import ConditionReader

_SIDES = {
    "LEFT OUTER": (0,),
    "RIGHT OUTER": (1,),
    "FULL OUTER": (0, 1),
    "LEFT SEMI": (0,),
}
_JOINS = ("LeftOuter", "RightOuter")


def with_any_condition(spark: SparkSession, plan: Jvm) -> Jvm:
    """Return a plan whose outer and semi joins of streams have only conditions that slots compute."""
    children = list(each(plan.children()))
    if not plan.isStreaming() or not children:
        return plan
    plan = plan.withNewChildren(seq(spark, [with_any_condition(spark, c) for c in children]))
    if class_name(plan) != "Join" or not all(c.isStreaming() for c in each(plan.children())):
        return plan
    kind = plan.joinType().sql()
    condition = ConditionReader(spark, plan).read()
    if kind not in _SIDES or not condition.rest or not condition.keys:
        return plan
    return _Rewritten(spark, plan, condition.rest).plan(kind)


class _Rewritten:
    """Rewrites one join.

    `join`: plan node. `rest` (list of expression): the conjuncts that slots cannot compute.
    """

    def __init__(self, spark: SparkSession, join: Jvm, rest: list[Jvm]) -> None:
        self._spark = spark
        self._join = join
        self._inputs = (join.left(), join.right())
        self._pairs = inner_join(spark, join)
        reader = ConditionReader(spark, join)
        self._compared = [c for c in reader.conjuncts() if not any(c.equals(r) for r in rest)]
        looked_at = {a.exprId().toString() for c in reader.conjuncts() for a in _references(c)}
        self._looked_at = [
            [a for a in each(side.output()) if a.exprId().toString() in looked_at]
            for side in self._inputs
        ]

    def plan(self, kind: str) -> Jvm:
        """Return the plan with the output rows of a join of that kind."""
        if kind == "LEFT SEMI":
            return project(
                self._spark, each(self._join.output()), self._with_pairs(0, "LeftSemi")[0]
            )
        alone = [self._alone(side) for side in _SIDES[kind]]
        # the parts have the join's ids already; another alias would get new ids in the analysis
        return union(self._spark, [self._pairs, *alone])

    def _with_pairs(self, side: int, kind: str) -> tuple[Jvm, Jvm]:
        """Return a side's join with the pairs by content, and a column that is null without a pair."""
        columns, other = self._looked_at[side], self._looked_at[1 - side]
        whole = list(each(self._inputs[side].output()))
        records, own = self._marked(self._inputs[side], columns, whole)
        pairs, theirs = self._marked(self._pairs, columns, other)
        same = [same_even_null(self._spark, a, b) for a, b in zip(own, theirs, strict=True)]
        there = {a.exprId().toString() for a in other}
        here = {a.exprId().toString() for a in columns}
        for conjunct in self._compared:
            named = {a.exprId().toString() for a in _references(conjunct)}
            if named & here or not named & there:
                same.append(conjunct)
        condition = reduce(partial(both, self._spark), same)
        inputs = (records, pairs) if side == 0 else (pairs, records)
        return join_of(self._spark, self._join, inputs, kind, condition), theirs[0]

    def _marked(self, plan: Jvm, contents: list[Jvm], others: list[Jvm]) -> tuple[Jvm, list[Jvm]]:
        """Return a plan of columns `others` and of the contents, and the attributes of the contents."""
        columns = [column(self._spark, a) for a in others]
        made = [_content(self._spark, a).alias(f"content{i}") for i, a in enumerate(contents)]
        marked = analysed(of_rows(self._spark, plan).select(*columns, *made))
        return marked, list(each(marked.output()))[len(columns) :]

    def _alone(self, side: int) -> Jvm:
        """Return the rows of one side without a partner, with nulls for the other side's columns."""
        joined, there = self._with_pairs(side, _JOINS[side])
        # a content is a struct, which is not null even if its value is null
        frame = of_rows(self._spark, joined).where(column(self._spark, there).isNull())
        ids = {a.exprId().toString() for a in each(self._inputs[side].output())}
        values = [
            column(self._spark, a)
            if a.exprId().toString() in ids
            else F.lit(None).cast(data_type(a.dataType()))
            for a in each(self._join.output())
        ]
        named = [value.alias(f"o{i}") for i, value in enumerate(values)]
        return named_as(frame.select(*named), each(self._join.output()))


def _references(expression: Jvm) -> list[Jvm]:
    return list(each(expression.references().toSeq()))


def _content(spark: SparkSession, attribute: Jvm) -> Column:
    """Return an attribute as a content: comparable, and no event time, by which Spark drops records."""
    value, kind = column(spark, attribute), data_type(attribute.dataType())
    if isinstance(kind, T.TimestampType):
        value = F.unix_micros(value)
    elif isinstance(kind, T.MapType):
        value = F.map_entries(value)  # Spark compares no maps
    return F.struct(value.alias("c"))
