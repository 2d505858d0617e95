"""Outer and semi joins of two streams on any condition, as joins that slots run.

Slots compare leaves; what else a condition says only Catalyst can tell, above them. Of an inner join that
is a filter. An outer join puts out, besides the pairs that pass it, the records that never had such a
pair, and two records that agree in all that the condition looks at have the same partners. So::

    left outer join(L, R, C)  =  pairs  union  (those of L that meet no pair of the same content)

where ``pairs`` is the inner join, and the latter an outer join of L with ``pairs`` on what the condition
looks at: an equality. A semi join is the semi join of L with ``pairs``.
"""

from __future__ import annotations

from functools import reduce

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from headgate.spark.jvm.expressions import catalyst, column, data_type
from headgate.spark.jvm.gateway import Jvm, class_name, each, seq
from headgate.spark.jvm.plans import analysed, inner_join, join_of, named_as, of_rows, union
from headgate.spark.read.conditions import ConditionReader

_SIDES = {
    "LEFT OUTER": (0,),
    "RIGHT OUTER": (1,),
    "FULL OUTER": (0, 1),
    "LEFT SEMI": (0,),
}
_JOINS = ("LeftOuter", "RightOuter")


def with_any_condition(spark: SparkSession, plan: Jvm) -> Jvm:
    """Return a plan whose outer and semi joins of streams are on what slots compare."""
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
    """One join.

    Parameters
    ----------
    spark : SparkSession
    join : plan node
    rest : list of expression
        The conjuncts that slots cannot tell.
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
            [a for a in each(one.output()) if a.exprId().toString() in looked_at]
            for one in self._inputs
        ]

    def plan(self, kind: str) -> Jvm:
        """Return what puts out the rows of a join of that kind."""
        if kind == "LEFT SEMI":
            return self._with_pairs(0, "LeftSemi")[0]
        alone = [self._alone(side) for side in _SIDES[kind]]
        pairs = named_as(of_rows(self._spark, self._pairs), each(self._join.output()))
        return union(self._spark, [pairs, *alone])

    def _with_pairs(self, side: int, kind: str) -> tuple[Jvm, Jvm]:
        """Return a side's join with the pairs of its content, and a column that pairs have."""
        mine, other = self._looked_at[side], self._looked_at[1 - side]
        frame = of_rows(self._spark, self._pairs)
        contents = [_content(self._spark, a).alias(f"m{i}") for i, a in enumerate(mine)]
        partner = analysed(frame.select(*contents, *(column(self._spark, a) for a in other)))
        there = list(each(partner.output()))[: len(mine)]
        same = [
            _content(self._spark, a).eqNullSafe(column(self._spark, b))
            for a, b in zip(mine, there, strict=True)
        ]
        theirs = {a.exprId().toString() for a in other}
        mines = {a.exprId().toString() for a in mine}
        for conjunct in self._compared:
            named = {a.exprId().toString() for a in _references(conjunct)}
            if named & mines or not named & theirs:
                same.append(column(self._spark, conjunct))
        condition = catalyst(reduce(lambda a, b: a & b, same))
        inputs = (self._inputs[side], partner) if side == 0 else (partner, self._inputs[side])
        return join_of(self._spark, self._join, inputs, kind, condition), there[0]

    def _alone(self, side: int) -> Jvm:
        """Return the rows of one side that have no partner, and nulls for the other's."""
        marked, there = self._with_pairs(side, _JOINS[side])
        frame: DataFrame = of_rows(self._spark, marked)
        # a content is a struct, which is there even where what is in it is null
        frame = frame.where(column(self._spark, there).isNull())
        mine = {a.exprId().toString() for a in each(self._inputs[side].output())}
        values = [
            column(self._spark, a)
            if a.exprId().toString() in mine
            else F.lit(None).cast(data_type(a.dataType()))
            for a in each(self._join.output())
        ]
        named = [value.alias(f"o{i}") for i, value in enumerate(values)]
        return named_as(frame.select(*named), each(self._join.output()))


def _references(expression: Jvm) -> list[Jvm]:
    return list(each(expression.references().toSeq()))


def _content(spark: SparkSession, attribute: Jvm) -> Column:
    """Return what of a record is compared; never as event time, by which Spark drops records."""
    value = column(spark, attribute)
    if isinstance(data_type(attribute.dataType()), T.TimestampType):
        value = F.unix_micros(value)
    return F.struct(value.alias("c"))
