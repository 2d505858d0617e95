"""The queries of Spark's own guide, examples and tests run, and answer as there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import spark_examples
from pyspark.sql import SparkSession
from test_grammar import elastic, expected, folder, session

__all__ = ["folder", "session"]

PAGE = Path(__file__).parents[2] / "docs" / "spark-examples.md"
QUICK = {"session windows with a gap by key", "sessions by a function", "a window of a window"}
"""Those that the corpus of `test_written` has nothing like."""


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if name in QUICK else [pytest.mark.thorough])
        for name in spark_examples.ALL
    ],
)
def test_an_example_of_sparks_answers_as_plain_spark_does(
    session: SparkSession, folder: Path, name: str
) -> None:
    query = spark_examples.ALL[name].query
    wanted, shape = expected(session, folder, query)
    assert wanted
    assert elastic(session, folder, query, re.sub(r"\W", "_", name)) == (wanted, shape)


def test_the_page_lists_every_example() -> None:
    rows = re.findall(r"^\| ([^|]+) \| ([^|]+) \|$", PAGE.read_text(), re.MULTILINE)
    assert set(spark_examples.rows()) <= set(rows)
