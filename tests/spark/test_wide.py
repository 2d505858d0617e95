"""Rows of more columns than a word has null bits: each null stays where it is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from grammar import Query
from grammar_data import Given
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from test_grammar import elastic, expected, folder, session

from headgate.spark.jvm.plans import analysed
from headgate.spark.read.logical import read
from headgate.spark.step.exchange import streaming_input

__all__ = ["folder", "session"]

WIDE = 70
"""More than one word of null bits."""


def many(width: int = WIDE) -> list[Column]:
    """Return columns that are null, or zero, or something else, each in other records."""
    made = [(F.col("id") + i) % 5 for i in range(width)]
    return [F.when(x > 1, x - 2).alias(f"c{i}") for i, x in enumerate(made)]


def aggregates(g: Given) -> DataFrame:
    # where only some columns have a value for a device, the others' results are null
    only = [F.when(F.col("id") % 3 == i % 3, F.col(f"c{i}")) for i in range(WIDE)]
    calls = [F.min, F.max, F.sum, F.avg, F.stddev_pop, F.first]
    made = [
        F.round(calls[i % 5](x), 6).alias(f"a{i}") if i % 6 < 5 else F.max(x).alias(f"a{i}")
        for i, x in enumerate(only)
    ]
    rows = g.events.select("id", "device", *many())
    return rows.groupBy((F.col("id") % 7).alias("k")).agg(*made)


def duplicates(g: Given) -> DataFrame:
    return g.events.select(*many()).dropDuplicates()


def joined(g: Given) -> DataFrame:
    left = g.events.withWatermark("ts", "10 seconds").select("ts", "user", *many())
    right = g.clicks.withWatermark("click_ts", "10 seconds")
    match = "user = click_user AND click_ts BETWEEN ts AND ts + INTERVAL 5 SECONDS"
    return left.join(right, F.expr(match), "left")


QUERIES: dict[str, tuple[Callable[[Given], DataFrame], str, bool]] = {
    "aggregates": (aggregates, "complete", False),
    "duplicates": (duplicates, "append", False),
    "join": (joined, "append", True),
}


@pytest.mark.thorough
@pytest.mark.parametrize("name", QUERIES)
def test_a_query_of_many_columns_answers_as_sparks_batch_does(
    session: SparkSession, folder: Path, name: str
) -> None:
    build, mode, due = QUERIES[name]
    query = Query(build, mode, due=due)
    assert elastic(session, folder, query, f"wide_{name}") == expected(session, folder, query)


def test_catalyst_infers_nothing_of_what_is_routed(session: SparkSession, folder: Path) -> None:
    """Spark asks for it with every batch, and of n columns there would be 3**n constraints."""
    frame = Given(session, folder).events.select(*many(7)).dropDuplicates()
    routed = streaming_input(session, read(frame, "append"), 16)
    # but that some are never null
    assert analysed(routed).constraints().size() <= len(routed.columns)
