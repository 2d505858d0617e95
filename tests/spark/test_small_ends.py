"""Tests small parts of the engine that whole queries pass by: ends of processors, texts, time zones."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from headgate.operators.processor import TimeMode
from headgate.spark.jvm import arrow
from headgate.spark.sinks.merge_statement import Clause
from headgate.spark.worker.failure import _under_spark
from headgate.spark.worker.user_processor import RowProcessor


def test_a_processor_is_closed_once_and_only_behind_its_init() -> None:
    closed: list[str] = []
    user: Any = SimpleNamespace(close=lambda: closed.append("closed"))
    empty = pa.schema([])
    processor = RowProcessor(user, empty, empty, empty, empty, {}, TimeMode.NONE)
    processor.close()
    assert closed == []
    processor._handle = object()  # type: ignore[assignment]
    processor.close()
    processor.close()
    assert closed == ["closed"]


def test_a_clause_of_a_merge_tells_its_condition_and_its_values() -> None:
    values = {"n": "source.n + 1", "m": "target.m"}
    assert Clause(True, "update", "source.n > 1", values).texts == [
        "source.n > 1",
        *values.values(),
    ]
    assert Clause(False, "insert", values=values).texts == list(values.values())
    assert Clause(True, "delete").texts == []


def test_an_error_of_the_jvm_below_python_is_told_by_its_own_line() -> None:
    text = """Return Message: Traceback (most recent call last):
  File "a.py", line 3, in <module>
    frame.collect()
py4j.protocol.Py4JJavaError: An error occurred while calling o7.collect.
: java.lang.IllegalStateException: the shelf is full
	at a.B.c(B.scala:1)
"""
    assert _under_spark(text) == "IllegalStateException: the shelf is full"


def test_timestamps_get_the_zone_also_where_sparks_function_takes_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    at, local = pa.timestamp("us", "UTC"), pa.timestamp("us")
    inner = pa.struct([pa.field("at", at), pa.field("n", pa.int64())])

    def schema(moment: pa.DataType, struct: pa.DataType) -> pa.Schema:
        return pa.schema([
            pa.field("at", moment, nullable=False),
            pa.field("local", local),
            pa.field("list", pa.list_(struct)),
            pa.field("map", pa.map_(pa.string(), moment)),
        ])  # fmt: skip

    spark: Any = SimpleNamespace(to_arrow_schema=lambda _: schema(at, inner))
    monkeypatch.setattr(arrow, "sparks_own", spark)
    monkeypatch.setattr(arrow, "_TAKES_ZONE", False)
    tokyo = pa.timestamp("us", "Asia/Tokyo")
    there = pa.struct([pa.field("at", tokyo), pa.field("n", pa.int64())])
    made: Any = arrow.to_arrow_schema(SimpleNamespace(), "Asia/Tokyo")  # type: ignore[arg-type]
    assert made == schema(tokyo, there)
