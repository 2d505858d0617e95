"""Tests how Python functions of a plan are called so that markers pass them; without Spark."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from made_plans import Made
from pyspark.errors import PySparkRuntimeError
from pyspark.sql import types as T
from rewritten_plans import (
    NUMBER,
    OURS,
    SPARK,
    STREAM,
    A,
    B,
    attr,
    expression,
    node,
    put_words,
    written,
)
from said_columns import Said

from headgate.core.errors import UnsupportedQuery
from headgate.spark.realtime import markers
from headgate.spark.realtime.user_functions import (
    OfArrays,
    OfBatches,
    OfIterators,
    OfRecords,
    OfSeries,
)


@pytest.fixture(autouse=True)
def words(monkeypatch: pytest.MonkeyPatch) -> None:
    put_words(monkeypatch)


def function(kind: int, result: Any = NUMBER, *children: Made) -> Made:
    return Made("PythonUDF", *children, evalType=kind, dataType=result, name="f", said="f")


def test_functions_are_called_with_the_marker_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(markers, "_of_records", lambda spark, one: f"of {one.name()}")
    monkeypatch.setattr(
        markers, "call", lambda of, one, values, named: Said(f"{of}{values}{named}")
    )
    inner = function(0, NUMBER, A)
    named = Made("NamedArgumentExpression", key="by", value=inner)
    plan = Made("BatchEvalPython", STREAM, udfs=[function(0, NUMBER, B, inner, named)],
                resultAttrs=[attr("r")])  # fmt: skip
    call = "of f[m_to, a]{}"
    said = f"of f[m_to, b, {call}]{{'by': {call}}} as r"
    assert written(plan) == f" > a?, b?, {said}, {OURS}"


def test_arguments_are_not_computed_for_markers_and_pandas_has_no_nulls_of_theirs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(markers, "_of_records", lambda spark, one: "f")
    monkeypatch.setattr(markers, "call", lambda of, one, values, named: Said(f"{of}{values}"))
    monkeypatch.setattr(markers, "PANDAS_UDFS", (2,))

    def arguments(kind: int, of: T.DataType) -> str:
        given = [expression("a + 1", dataType=of), attr("c", of)]
        plan = Made("ArrowEvalPython", STREAM, udfs=[function(kind, NUMBER, *given)],
                    resultAttrs=[attr("r")])  # fmt: skip
        return written(plan).partition("[")[2].partition("]")[0]

    assert arguments(0, NUMBER) == "m_to, guarded(m_to, a + 1), c"
    pair = T.StructType().add("s", T.StringType()).add("n", T.BooleanType())
    for whole in (NUMBER, T.BooleanType(), T.StructType().add("p", pair)):
        assert arguments(2, whole) == "m_to, whole(m_to, a + 1), whole(m_to, c)"
    for other in (T.DoubleType(), T.ArrayType(NUMBER), T.StructType().add("s", T.StringType())):
        assert arguments(2, other) == "m_to, guarded(m_to, a + 1), c"


def test_a_function_is_called_in_the_way_of_its_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(markers, "called_by", lambda one: len)
    monkeypatch.setattr(markers, "ROW_UDFS", (1,))
    monkeypatch.setattr(markers, "PANDAS_UDFS", (2, 3))
    monkeypatch.setattr(markers, "ITERATOR_UDFS", (3, 5))
    pair = T.StructType().add("p", NUMBER).add("q", NUMBER)
    made = [markers._of_records(SPARK, function(n)) for n in (1, 2, 3, 4, 5)]
    series, arrays = OfSeries(len, None), OfArrays(len, pa.int64())
    assert made == [OfRecords(len), series, OfIterators(series), arrays, OfIterators(arrays)]
    assert markers._of_records(SPARK, function(2, pair)) == OfSeries(len, ("p", "q"))
    zoned = markers._of_records(SPARK, function(4, T.TimestampType()))
    assert zoned == OfArrays(len, pa.timestamp("us", "timeZone UTC"))

    def large(one: Any) -> Any:
        raise PySparkRuntimeError("large")

    monkeypatch.setattr(markers, "called_by", large)
    with pytest.raises(
        UnsupportedQuery, match=r"^f, a Python function of more than 1 MB, before the"
    ):
        markers._of_records(SPARK, function(1))


@pytest.mark.parametrize("kind", ["MapInPandas", "MapInArrow"])
def test_batches_of_records_are_passed_to_a_function(
    monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr(markers, "called_by", lambda one: len)
    changes: list[Any] = []

    def mapped(spark: Any, plan: Made, change: Any) -> Made:
        frame = SimpleNamespace(
            mapInPandas=lambda *given: changes.append(("MapInPandas", *given)),
            mapInArrow=lambda *given: changes.append(("MapInArrow", *given)),
        )
        change(frame)
        return node(f"{plan.sql()} > mapped", [attr("r1"), attr("m1"), attr("m2")])

    monkeypatch.setattr(markers, "mapped", mapped)
    plan = Made(kind, STREAM, output=[attr("r")], functionExpr=expression("f"))
    source = node("source", [attr("x"), attr("y"), attr("m_to", T.IntegerType()), attr("m_token")])
    passed = markers._over(markers._Walk(SPARK, source, {}), plan)
    taken = f"whole(m_to, a?) as a, whole(m_to, b?) as b, {OURS}"
    steps = [f"a?, b?, {OURS}", *[taken] * (kind == "MapInPandas"), "mapped", "r1 as r, m1, m2"]
    assert passed.plan.sql().split(" > ")[2:] == steps
    assert [one.name() for one in passed.ours] == ["m1", "m2"]
    [(called, of, whole)] = changes
    function_of: Any = len
    ours = pa.schema([("m_to", pa.int32()), ("m_token", pa.int64())])
    assert called == kind
    assert of == OfBatches(
        function_of, ("a", "b"), pa.schema([("r", pa.int64())]), ours, pandas=kind == "MapInPandas"
    )
    assert whole.simpleString() == "struct<r:bigint,m_to:int,m_token:bigint>"
