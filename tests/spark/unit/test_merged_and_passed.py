"""Tests which merges of buffers become programs of slots, and how rows without state pass by."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
from made_plans import Items, Made, attribute, source
from pyspark.errors import PySparkTypeError
from pyspark.sql import types as T
from said_columns import F, Said

from headgate.core.errors import UnsupportedQuery
from headgate.operators.passing import Limiting, Passing
from headgate.operators.spec import Kind, Leaf, OutputMode, Program
from headgate.spark.read import merging, passing
from headgate.spark.read.reading import Reading

SPARK: Any = "the session"
LONG, TEXT, DOUBLE = T.LongType(), T.StringType(), T.DoubleType()
INTEGER = Leaf(Kind.INTEGER)


@pytest.fixture(autouse=True)
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passing, "F", F)
    for name in ("passing", "reading"):
        monkeypatch.setattr(
            f"headgate.spark.read.{name}.column", lambda spark, one: Said(one.sql())
        )
    for name in ("passing", "reading", "merging"):
        monkeypatch.setattr(f"headgate.spark.read.{name}.data_type", lambda kind: kind)
    monkeypatch.setattr("headgate.spark.read.reading.kafka_arrival", lambda spark, plan: None)


# --- merges of buffers ------------------------------------------------------------------------------


def merged(monkeypatch: pytest.MonkeyPatch, made: Any, initial: Any, *, kind: Any = DOUBLE) -> Any:
    """Return the program of a function whose buffer has two columns; `made` says its merge."""
    monkeypatch.setattr(
        merging, "is_a", lambda spark, one, name: one._kind == name.rpartition(".")[2]
    )
    left, right = ([attribute(f"{side}{i}", kind) for i in (0, 1)] for side in "lr")
    function = Made(
        "Covariance", aggBufferAttributes=left, inputAggBufferAttributes=right,
        mergeExpressions=made(*left, *right), initialValues=Items(initial),
    )  # fmt: skip
    return merging.program_of(SPARK, function)


def literal(value: Any) -> Made:
    return Made("Literal", value=value)


def test_a_merge_of_buffers_becomes_a_program(monkeypatch: pytest.MonkeyPatch) -> None:
    def made(a: Made, b: Made, c: Made, d: Made) -> list[Made]:
        total = Made("Add", a, c, dataType=DOUBLE)
        return [
            total,
            Made("If", Made("IsNull", b), Made("Coalesce", d, literal(2.5)), literal(None)),
        ]

    assert merged(monkeypatch, made, [literal(0.0), literal(True)]) == Program(
        (
            ("add", ("left", 0), ("right", 0)),
            (
                "if",
                ("is_null", ("left", 1)),
                ("coalesce", ("right", 1), ("value", 2.5)),
                ("value", None),
            ),
        ),
        (0.0, True),
        True,
    )


def test_what_no_program_computes_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def of(one: Any) -> Any:
        return lambda *given: [one(*given)]

    zero = [literal(0)]
    whole = of(lambda a, b, c, d: Made("Add", a, c, dataType=LONG))
    unknown = of(lambda a, b, c, d: Made("Sqrt", a, dataType=DOUBLE))
    within = of(lambda a, b, c, d: Made("And", Made("Sqrt", a, dataType=DOUBLE), c))
    stranger = of(lambda *given: attribute("z", DOUBLE))
    for made in (whole, unknown, within, stranger):
        assert merged(monkeypatch, made, zero) is None
    fits = of(lambda a, b, c, d: Made("And", a, c))
    assert merged(monkeypatch, fits, zero) is not None
    assert merged(monkeypatch, fits, [literal("text")]) is None
    assert merged(monkeypatch, fits, zero, kind=TEXT) is None
    assert merged(monkeypatch, fits, [Made("Cast", literal(0))]) is None


@dataclass(frozen=True)
class Query:
    """A query as far as it is asked for here."""

    operators: list[Any]
    plan: Any
    mode: OutputMode


# --- rows that pass by ------------------------------------------------------------------------------


def test_rows_without_state_pass_by_with_all_their_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        passing, "placeholder", lambda spark, schema, output: ("hole", schema.names)
    )
    columns = [attribute("a", LONG), attribute("m", T.MapType(LONG, LONG)), attribute("b", TEXT)]
    plan = source(*columns)
    query = Query([], plan, OutputMode.UPDATE)
    made = passing.passing(Reading(SPARK, plan, query.mode, None, (), 4), plan)
    assert (made.id, made.what) == ("pass-4", "Pass: what keeps no state passes by")
    assert [(k.name, k.leaf, str(k.value)) for k in made.keys] == [
        ("k0", INTEGER, "pmod(xxhash64(a, b), 1048576)")
    ]
    assert [(v.name, str(v.value)) for v in made.values] == [("v0", "a"), ("v1", "m"), ("v2", "b")]
    spec: Any = made.spec
    assert (spec.keys, spec.outputs.names, spec.mode) == (
        (INTEGER,),
        ["v0", "v1", "v2"],
        query.mode,
    )
    assert (type(spec.processor), made.key_names, made.slice_start) == (Passing, ["place"], None)
    assert made.output_plan == made.placeholder == ("hole", ["a", "m", "b"])
    assert made.raw_schema.names == ["v0", "v1", "v2"]
    only_maps = source(columns[1])
    made = passing.passing(Reading(SPARK, only_maps, query.mode, None, (), 0), only_maps)
    assert str(made.keys[0].value) == "0.cast(bigint)"
    limit = Made("GlobalLimit", plan, limitExpr=SimpleNamespace(eval=lambda _: 7))
    made = passing.LIMIT_READER.read(Reading(SPARK, limit, query.mode, None, (), 5), limit, None)
    assert (made.id, made.what, str(made.keys[0].value)) == ("limit-5", "Limit 7", "0.cast(bigint)")
    held: Any = made.spec
    assert (type(held.processor), held.processor.most) == (Limiting, 7)


@pytest.mark.parametrize(
    ("kind", "hashes"),
    [
        (LONG, True), (T.MapType(LONG, LONG), False), (T.VariantType(), False),
        (T.ArrayType(T.MapType(LONG, LONG)), False), (T.ArrayType(LONG), True),
        (T.StructType([T.StructField("a", LONG), T.StructField("b", T.VariantType())]), False),
        (T.StructType([T.StructField("a", LONG)]), True),
    ],
)  # fmt: skip
def test_spark_hashes_all_but_maps_and_variants(kind: T.DataType, hashes: bool) -> None:
    assert passing._hashes(kind) is hashes


def test_a_column_that_arrow_does_not_have_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(schema: Any, timezone: str) -> None:
        raise PySparkTypeError(f"no such type in {timezone}")

    monkeypatch.setattr(passing, "to_arrow_schema", refuse)
    plan = source(attribute("a", LONG))
    with pytest.raises(
        UnsupportedQuery,
        match=r"^cannot pass on a column of this stream \(no such type in UTC\); sel",
    ):
        passing.passing(Reading(SPARK, plan, OutputMode.APPEND, None, (), 0), plan)


def test_a_query_without_operators_has_one_that_passes_its_rows_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        passing, "placeholder", lambda spark, schema, output: ("hole", schema.names)
    )
    plan = source(attribute("a", LONG))
    query: Any = Query([], plan, OutputMode.UPDATE)
    made = passing.passed(SPARK, query)
    [operator] = made.operators
    assert (operator.id, operator.input_plan) == ("pass-0", plan)
    assert made.plan == operator.output_plan == ("hole", ["a"])
    assert passing.passed(SPARK, made) is made
