"""Lets records of a branch without state pass by slots of their own, beside branches with state.

So what reads both finds them in the same place, committed in the same step, whichever fails.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pyarrow as pa
from pyspark.errors import PySparkTypeError
from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from headgate.core.errors import UnsupportedQuery
from headgate.operators.passing import Limiting, Passing
from headgate.operators.processor import ProcessorSpec
from headgate.operators.spec import Kind, Leaf
from headgate.spark.jvm.arrow import to_arrow_schema
from headgate.spark.jvm.expressions import column, data_type
from headgate.spark.jvm.gateway import Jvm, each
from headgate.spark.jvm.plans import placeholder
from headgate.spark.read.plan import Passed, PlannedOperator, PlannedQuery, Routed
from headgate.spark.read.reading import Given, NodeReader, Reading, Taken
from headgate.spark.read.wording import WAY_OUT

_PLACES = 2**20
"""Keys that records are spread over by their content; far more than key groups. Chosen."""


def passing(reading: Reading, plan: Jvm) -> PlannedOperator:
    """Return an operator that puts out what `plan`, which keeps no state, does.

    Raises `UnsupportedQuery`: a column is of a type that Arrow does not know.
    """
    kinds = [data_type(a.dataType()) for a in each(plan.output())]
    values = [column(reading.spark, attribute) for attribute in each(plan.output())]
    hashed = [value for value, kind in zip(values, kinds, strict=True) if _hashes(kind)]
    place = F.pmod(F.xxhash64(*hashed), F.lit(_PLACES)) if hashed else F.lit(0).cast("bigint")
    return _operator(reading, plan, place, Passing, "pass", "Pass: what keeps no state passes by")


def passed(spark: SparkSession, query: PlannedQuery) -> PlannedQuery:
    """Return a query with an operator that its records pass, if it has none: so it has steps, too.

    Raises `UnsupportedQuery`: as `passing`.
    """
    if query.operators:
        return query
    reading = Reading(spark, query.plan, query.mode, None, (), 0)
    operator = passing(reading, query.plan)
    return replace(query, operators=[operator], plan=operator.output_plan)


def limiting(reading: Reading, node: Jvm, upstream: PlannedOperator | None) -> PlannedOperator:
    """Return the operator of a limit over what others put out in append mode; raises likewise."""
    most = int(node.limitExpr().eval(None))
    made = partial(Limiting, most=most)
    place = F.lit(0).cast("bigint")
    return _operator(reading, node.child(), place, made, "limit", f"Limit {most}")


LIMIT_READER = NodeReader(("GlobalLimit",), limiting)


def _operator(
    reading: Reading,
    plan: Jvm,
    place: Column,
    made: Callable[[pa.Schema], Passing],
    kind: str,
    what: str,
) -> PlannedOperator:
    spark, attributes = reading.spark, list(each(plan.output()))
    kinds = [data_type(a.dataType()) for a in attributes]
    schema = T.StructType([T.StructField(f"v{i}", kind) for i, kind in enumerate(kinds)])
    try:
        arrow = to_arrow_schema(schema, timezone="UTC")
    except PySparkTypeError as error:
        msg = f"cannot pass on a column of this stream ({error}); select fewer, {WAY_OUT}."
        raise UnsupportedQuery(msg) from error
    named = T.StructType(
        [T.StructField(a.name(), k) for a, k in zip(attributes, kinds, strict=True)]
    )
    hole = placeholder(spark, named, plan.output())
    return reading.operator(
        kind,
        what,
        ProcessorSpec((Leaf(Kind.INTEGER),), arrow, made(arrow), mode=reading.mode),
        taken=Taken(
            plan=plan,
            keys=[Routed("k0", Leaf(Kind.INTEGER), place)],
            values=[Passed(f"v{i}", column(spark, a)) for i, a in enumerate(attributes)],
            key_names=["place"],
            slice_start=None,
            arrival=reading.arrived(attributes),
        ),
        given=Given(hole, hole, schema),
    )


def _hashes(kind: T.DataType) -> bool:
    """Return whether Spark hashes values of a type."""
    if isinstance(kind, T.ArrayType):
        return _hashes(kind.elementType)
    if isinstance(kind, T.StructType):
        return all(_hashes(field.dataType) for field in kind.fields)
    return not isinstance(kind, T.MapType | T.VariantType)
