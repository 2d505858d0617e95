"""Turns rows that wait in a join of plain Spark's into records of both sides.

Spark has put out all their pairs already, so the adopting step drops its output. The column `MET` marks a
row that has had a partner; else an outer join would later put the row out without a partner.
"""

from __future__ import annotations

from functools import reduce

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from headgate.core.errors import CheckpointError
from headgate.operators.join.operator import MET
from headgate.operators.join.spec import LEFT, JoinKind, JoinSpec
from headgate.spark.jvm.expressions import data_type
from headgate.spark.jvm.gateway import Jvm, class_name, each
from headgate.spark.jvm.plans import named_as, of_rows, replace_leaf
from headgate.spark.plain.plain_state import PlainState, struct_of
from headgate.spark.step.exchange import routed_columns

MATCHED = "matched"
"""Spark's name of the flag after a row's columns."""


def of_rows_waiting(asked: PlainState, spec: JoinSpec) -> DataFrame:
    """Return the rows that wait on both sides as records.

    Raises `CheckpointError`: the state lacks a column that the query needs, or has another form.
    """
    operator, node = asked.operator, asked.operator.node
    assert node is not None
    sides = [_side(asked, plan, side) for side, plan in enumerate((node.left(), node.right()))]
    columns = [
        value.alias(name) for name, value in routed_columns(operator, asked.key_groups).items()
    ]
    frames = []
    for side in range(len(sides)):
        for met in (False, True):
            if met and spec.kind is JoinKind.LEFT_SEMI and side == LEFT:
                continue  # the semi join has put this row out, and further partners change nothing
            over = operator.input_plan
            for other, (old, waiting) in enumerate(sides):
                chosen = waiting.where(F.col(MATCHED) == met if other == side else F.lit(False))
                new = named_as(chosen.drop(MATCHED), list(each(old.output())))
                over = replace_leaf(asked.spark, over, old, new)
            if over.isStreaming():
                msg = (
                    f"the rows that wait in {operator.what} cannot be put in place of its streams."
                )
                raise CheckpointError(msg)
            frames.append(of_rows(asked.spark, over).select(*columns, F.lit(met).alias(MET)))
    return reduce(DataFrame.unionByName, frames)


def _side(asked: PlainState, plan: Jvm, side: int) -> tuple[Jvm, DataFrame]:
    """Return a side's plan, and rows with the plan's output columns followed by `MATCHED`.

    Spark's state may have columns that the query does not use. For some joins, such as a semi join, Spark
    joins below a projection: then the result is the plan below that projection.
    """
    name = ("left", "right")[side]
    state = asked.load(storeName=f"{name}-keyWithIndexToValue")
    fields = struct_of(state, "value").fields
    there = [field.name for field in fields]
    wanted = [attribute.name() for attribute in each(plan.output())]
    twice = {column for column in there if there.count(column) > 1 or wanted.count(column) > 1}
    if twice or there[-1] != MATCHED:
        what = ", ".join(sorted(twice)) or "no flag matched"
        msg = (
            f"the state of the {name} side has {what}, which cannot be told apart from columns of "
            f"{asked.operator.what}; give the query that wrote it, each column with its own name."
        )
        raise CheckpointError(msg)
    needed = _needed(asked.operator.input_plan, plan)
    lacking = [
        column.name()
        for column in each(plan.output())
        if column.name() not in there and column.exprId().toString() in needed
    ]
    if lacking and class_name(plan) == "Project":
        return _side(asked, plan.child(), side)
    if lacking:
        msg = (
            f"the state of the {name} side lacks column {lacking[0]}, which the query needs; "
            "give the query that wrote it."
        )
        raise CheckpointError(msg)
    columns = []
    for attribute in each(plan.output()):
        kind = data_type(attribute.dataType())
        if attribute.name() in there:
            columns.append(F.col(f"value.`{attribute.name()}`"))
        else:
            columns.append(F.lit(None).cast(kind).alias(attribute.name()))
    flag = F.coalesce(F.col(f"value.{MATCHED}"), F.lit(False)).alias(MATCHED)
    return plan, state.select(*columns, flag)


def _needed(plan: Jvm, below: Jvm) -> set[str]:
    """Return the ids of all attributes that `plan` refers to above `below`, a part of it."""
    if plan.equals(below):
        return set()
    own = {attribute.exprId().toString() for attribute in each(plan.references().toSeq())}
    return reduce(set.union, (_needed(child, below) for child in each(plan.children())), own)
