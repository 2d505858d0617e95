"""Everything public of PySpark's writer and query is there, with the same parameters."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from headgate.core.errors import HeadgateError
from headgate.spark.api.pool_query import PoolQuery
from headgate.spark.api.query import Query
from headgate.spark.api.writer import Writer

PAIRS: list[tuple[type, type]] = [
    (DataStreamWriter, Writer),
    (StreamingQuery, Query),
    (StreamingQuery, PoolQuery),
]


NEWER = {"trigger": {"realTime"}}
"""By method, parameters that the oldest PySpark of ours does not have."""


def public(kind: type) -> dict[str, Any]:
    return {name: found for name, found in inspect.getmembers(kind) if not name.startswith("_")}


@pytest.mark.parametrize(
    ("spark_kind", "name", "ours"),
    [
        pytest.param(spark_kind, name, ours, id=f"{ours.__name__}.{name}")
        for spark_kind, ours in PAIRS
        for name in public(spark_kind)
    ],
)
def test_what_pyspark_has_is_there_with_the_same_parameters(
    spark_kind: type, name: str, ours: type
) -> None:
    theirs, mine = getattr(spark_kind, name), getattr(ours, name, None)
    assert mine is not None
    assert callable(mine) == callable(theirs)
    if not callable(theirs):
        return
    wanted, got = (list(inspect.signature(one).parameters.values()) for one in (theirs, mine))
    # an older PySpark lacks some that ours has, and refuses by a sentence of its own
    newer = NEWER.get(name, set()) - {p.name for p in wanted}
    assert [(p.name, p.kind, p.default) for p in got if p.name not in newer] == [
        (p.name, p.kind, p.default) for p in wanted
    ]


class _NoSession:
    """Enough of a DataFrame to be told how to write."""

    sparkSession = None


def test_a_continuous_trigger_is_refused_with_the_reason() -> None:
    writer: Any = object.__new__(Writer)
    super(Writer, writer).__init__(_NoSession())
    with pytest.raises(HeadgateError, match="slots change between micro-batches or epochs; use"):
        writer.trigger(continuous="1 second")


def test_options_are_taken_as_pyspark_takes_them() -> None:
    writer: Any = object.__new__(Writer)
    super(Writer, writer).__init__(_NoSession())
    writer.option("a", 1).option("b", True).options(c=2.5, d="x").option("a", None)
    assert dict(writer.settings.options) == {"a": "1", "b": "true", "c": "2.5", "d": "x"}
