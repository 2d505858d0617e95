"""Turns rows of a join, and states of ``applyInPandasWithState``, into entries of plain Spark's state."""

from __future__ import annotations

from collections.abc import Iterator
from functools import reduce

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F
from pyspark.sql import types as T

from headgate.core.errors import UnsupportedQuery
from headgate.operators.join.operator import MET
from headgate.operators.join.spec import JoinSpec
from headgate.operators.processor import TIMERS, ProcessorSpec
from headgate.spark.jvm.arrow import from_arrow_schema
from headgate.spark.jvm.expressions import data_type
from headgate.spark.jvm.gateway import Jvm, class_name, each
from headgate.spark.plain.entries import DEFAULT, Entries, OurState, entries, key_values
from headgate.spark.plain.joins import MATCHED
from headgate.spark.plain.plain_state import fields_of
from headgate.spark.read import types
from headgate.spark.read.plan import JoinPart

_NO_TIMEOUT_MS = -1


def of_rows(ours: OurState, spec: JoinSpec) -> dict[str, Entries]:
    """Return the rows of both sides of a join, by the names of Spark's stores.

    Raises `UnsupportedQuery`: Spark keeps a column that headgate does not keep.
    """
    node = ours.operator.node
    assert node is not None
    stores: dict[str, Entries] = {}
    for side, (name, plan) in enumerate((("left", node.left()), ("right", node.right()))):
        part = ours.operator.join[side]
        keys = key_values([data_type(key_field.dataType()) for key_field in part.keys])
        fields = [
            T.StructField(f"v{i}", types.spark_type(x)) for i, x in enumerate(spec.sides[side])
        ]
        own = [T.StructField("number", T.LongType()), T.StructField(MET, T.BooleanType()), *fields]
        rows, leaves = ours.part(own, side), [F.col(key.name) for key in ours.operator.keys]
        form = ours.form(storeName=f"{name}-keyWithIndexToValue")
        values = [
            F.col(MET) if column == MATCHED else _kept(plan, part, keys, column)
            for column, _ in fields_of(form, "value")
        ]
        # in the order of their arrival: Spark numbers the rows of a key without gaps
        of_key = Window.partitionBy(*leaves).orderBy("number")
        index = (F.row_number().over(of_key) - 1).cast("bigint")
        columns = [c.alias(f"s{i}") for i, c in enumerate([*keys, index, *values])]
        stored = Entries(rows.select(*columns), len(keys) + 1, len(keys))
        stores[f"{name}-keyWithIndexToValue"] = stored
        counted = rows.groupBy(*leaves).agg(F.count("*").alias("count"))
        stores[f"{name}-keyToNumValues"] = entries(counted, keys, [F.col("count")])
    return stores


def _kept(plan: Jvm, part: JoinPart, keys: list[Column], name: str) -> Column:
    """Return a column of one side, or of the plan below its projection: an attribute, key or operand."""
    for attribute in _named(plan, name):
        kind = data_type(attribute.dataType())
        for known, (start, stop) in zip(part.attributes, part.spans, strict=True):
            if known.exprId().equals(attribute.exprId()):
                return types.rebuild(kind, [F.col(f"v{i}") for i in range(start, stop)])
        for key, value in zip(part.keys, keys, strict=True):
            if _is(key, attribute):
                return value
        for leaf, expression in part.compared:
            if _is(expression, attribute):
                return types.rebuild(kind, [F.col(f"v{leaf}")])
    msg = (
        f"state of the join cannot be carried to plain Spark: it keeps column {name}, of which headgate "
        "has kept nothing; select that column."
    )
    raise UnsupportedQuery(msg)


def _named(plan: Jvm, name: str) -> Iterator[Jvm]:
    """Yield the attributes that a plan puts out under a name, or reads under it and renames."""
    yield from (attribute for attribute in each(plan.output()) if attribute.name() == name)
    if class_name(plan) != "Project":
        return
    for attribute in each(plan.projectList()):
        if (
            class_name(attribute) == "Alias"
            and class_name(attribute.child()) == "AttributeReference"
        ):
            if attribute.child().name() == name:
                yield attribute.toAttribute()


def _is(expression: Jvm, attribute: Jvm) -> bool:
    named = class_name(expression) == "AttributeReference"
    return named and bool(expression.exprId().equals(attribute.exprId()))


def of_group_state(ours: OurState, spec: ProcessorSpec) -> dict[str, Entries]:
    """Return the state and the timeout of each key of ``applyInPandasWithState``.

    Raises `UnsupportedQuery`: the operator has another kind of processor.
    """
    node = ours.operator.node
    assert node is not None
    if class_name(node) != "FlatMapGroupsInPandasWithState":
        msg = (
            f"state of {spec.label} cannot be carried to plain Spark, whose transformWithState keeps its "
            "variables in forms of its own."
        )
        raise UnsupportedQuery(msg)
    value = dict(fields_of(ours.form(), "value"))
    kind = value["groupState"]
    assert isinstance(kind, T.StructType)
    names = [key.name for key in ours.operator.keys]
    frames = []
    for number, variable in enumerate(spec.variables):
        own = from_arrow_schema(variable.schema)
        fields = [T.StructField(f"v{i}", x.dataType) for i, x in enumerate(own)]
        rows = ours.part(fields, number)
        if variable.name == TIMERS.name:
            # a timer expires at its time, a timeout after its time
            state, at_ms = F.lit(None).cast(kind), F.col("v0") - 1
        else:
            columns = zip(fields, kind.fields, strict=True)
            state = F.struct(*(F.col(f.name).cast(x.dataType).alias(x.name) for f, x in columns))
            at_ms = F.lit(None).cast("bigint")
        frames.append(rows.select(*names, state.alias("state"), at_ms.alias("at_ms")))
    both = reduce(DataFrame.unionByName, frames).groupBy(*names)
    rows = both.agg(
        F.first("state", ignorenulls=True).alias("state"), F.max("at_ms").alias("at_ms")
    )
    values = [F.col("state")]
    if "timeoutTimestamp" in value:
        timeout = F.coalesce(F.col("at_ms"), F.lit(_NO_TIMEOUT_MS))
        values.append(timeout.cast(value["timeoutTimestamp"]))
    keys = key_values(
        [data_type(attribute.dataType()) for attribute in each(node.groupingAttributes())]
    )
    return {DEFAULT: entries(rows, keys, values)}
