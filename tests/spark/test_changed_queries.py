"""A changed query on a checkpoint is refused in the user's words, or goes on as plain Spark does."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from changed_queries import BASES, Case, Query, drawn, write_half
from pyspark.sql import DataFrame, SparkSession

import headgate as hg
from headgate.core.errors import CheckpointError

QUICK = [
    Case("sum by key", "another column"),
    Case("sum by key", "a filter of an aggregate"),
    Case("two sums", "turned around"),
    Case("two sums", "another expression below"),
    Case("above a join", "a sliding window"),
    Case("above a join", "a column above"),
    Case("sum by key", "a filter below"),
    Case("two sums", "a computed key"),
]
"""Cases of the short run; their three queries are started once each."""


class Checkpoints:
    """The checkpoints that queries left after the first half of the input, headgate's and Spark's."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark = spark
        self.folder = folder
        self.input = folder / "input"

    def begin(self, cases: list[Case]) -> None:
        """Run the queries over the first half of the input; the second is there from then on."""
        write_half(self.input, 0)
        for name in dict.fromkeys(case.base for case in cases):
            run(self.spark, BASES[name], self.input, self.folder / name, "headgate")
        for name in dict.fromkeys(case.base for case in cases if case.goes_on):
            run(self.spark, BASES[name], self.input, self.folder / f"{name} of Spark", "spark")
        write_half(self.input, 1)

    def go_on(self, case: Case, engine: str) -> Counter[str]:
        """Return what the changed query puts out on a copy of a checkpoint."""
        begun = self.folder / (case.base if engine == "headgate" else f"{case.base} of Spark")
        copy = self.folder / f"{case} {engine}"
        shutil.copytree(begun, copy)
        return run(self.spark, case.changed, self.input, copy, engine)


def run(
    spark: SparkSession, query: Query, source: Path, checkpoint: Path, engine: str
) -> Counter[str]:
    """Run a query over what is there, and return what it puts out."""
    found: Counter[str] = Counter()

    def keep(batch: DataFrame, _: int) -> None:
        found.update(str(tuple(row)) for row in batch.collect())

    frame = query.build(spark, source)
    writer: Any = frame.writeStream
    if engine == "headgate":
        writer = hg.writeStream(frame).keyGroups(8).slots(start=2)
    writer = writer.outputMode(query.mode).foreachBatch(keep).trigger(availableNow=True)
    writer.option("checkpointLocation", str(checkpoint)).start().awaitTermination()
    return found


@pytest.fixture(scope="module")
def checkpoints(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[Checkpoints]:
    settings = ("spark.sql.session.timeZone", "spark.sql.shuffle.partitions")
    before = {name: spark.conf.get(name) for name in settings}
    spark.conf.set("spark.sql.shuffle.partitions", "2")
    made = Checkpoints(spark, tmp_path_factory.mktemp("changed"))
    made.begin([*QUICK, *drawn()] if request.config.getoption("--thorough") else QUICK)
    yield made
    for name, value in before.items():
        spark.conf.set(name, value)


def check(checkpoints: Checkpoints, case: Case) -> None:
    if case.goes_on:
        assert checkpoints.go_on(case, "headgate") == checkpoints.go_on(case, "spark")
        return
    with pytest.raises(CheckpointError, match="belongs to another query") as raised:
        checkpoints.go_on(case, "headgate")
    said = str(raised.value)
    assert ": was " in said
    assert ", now " in said
    assert said.endswith("start the query as it was, or use a new checkpointLocation.")
    # words of the user's, and no codes of ours
    assert "[[" not in said
    assert "#" not in said


@pytest.mark.parametrize("case", QUICK, ids=str)
def test_a_changed_query_is_refused_or_goes_on_as_in_plain_spark(checkpoints, case: Case):
    check(checkpoints, case)


@pytest.mark.thorough
@pytest.mark.parametrize("case", drawn(), ids=str)
def test_of_sixty_changes_none_mixes_two_meanings(checkpoints, case: Case):
    check(checkpoints, case)
