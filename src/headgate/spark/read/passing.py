"""Turns a branch without state into an operator whose slots pass its records on unchanged.

An operator or sink that reads several branches then gets all of them committed in the same step.
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
"""Number of keys, hashes of the records' content; far more than key groups. Chosen."""


def passing(reading: Reading, plan: Jvm) -> PlannedOperator:
    """Return an operator that puts out the rows of `plan`, which keeps no state.

    Raises `UnsupportedQuery`: Arrow does not have the type of a column.
    """
    kinds = [data_type(a.dataType()) for a in each(plan.output())]
    values = [column(reading.spark, attribute) for attribute in each(plan.output())]
    hashed = [value for value, kind in zip(values, kinds, strict=True) if _hashes(kind)]
    place = F.pmod(F.xxhash64(*hashed), F.lit(_PLACES)) if hashed else F.lit(0).cast("bigint")
    return _operator(reading, plan, place, Passing, "pass", "Pass: what keeps no state passes by")


def passed(spark: SparkSession, query: PlannedQuery) -> PlannedQuery:
    """Return a query with an operator that passes its records on, if it has none, so that it has steps.

    Raises `UnsupportedQuery`: as `passing`.
    """
    if query.operators:
        return query
    reading = Reading(spark, query.plan, query.mode, None, (), 0)
    operator = passing(reading, query.plan)
    return replace(query, operators=[operator], plan=operator.output_plan)


def limiting(reading: Reading, node: Jvm, upstream: PlannedOperator | None) -> PlannedOperator:
    """Return the operator of a limit in append mode over rows of other operators; raises as `passing`."""
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
