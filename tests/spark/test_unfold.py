"""What is exploded in the batch, and what stays in the streaming query."""

from __future__ import annotations

from pathlib import Path

import answers
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from headgate.spark.jvm.gateway import class_name, each
from headgate.spark.jvm.plans import analysed
from headgate.spark.read.logical import read
from headgate.spark.step.unfold import Unfolding, unfolding

KEY_GROUPS = 16


@pytest.fixture(scope="module")
def rows(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> DataFrame:
    """A stream of some columns."""
    folder: Path = tmp_path_factory.mktemp("data") / "in"
    answers.write_files(folder, seed=1)
    return answers.source(spark, folder, stream=True)


def letters(frame: DataFrame) -> DataFrame:
    return frame.select("*", F.explode(F.split("t", "")).alias("letter"))


def counted(frame: DataFrame) -> DataFrame:
    return frame.groupBy("letter").agg(F.count("*").alias("n"), F.sum("i"))


def unfolded(frame: DataFrame) -> Unfolding | None:
    return unfolding(frame.sparkSession, read(frame, "update"), KEY_GROUPS)


def nodes(frame: DataFrame) -> list[str]:
    """Return the names of all nodes of a plan."""
    found, pending = [], [analysed(frame)]
    while pending:
        one = pending.pop()
        found.append(class_name(one))
        pending += each(one.children())
    return found


def test_what_multiplies_rows_and_all_above_it_is_left_to_the_batch(rows: DataFrame) -> None:
    made = unfolded(counted(letters(rows.where("i > 0")).where("letter <> 'a'")))
    assert made is not None
    stream = nodes(made.stream())
    assert "Generate" not in stream
    assert "Filter" in stream, "the filter below stays where it saves rows"


def test_every_set_of_keys_of_a_rollup_is_made_in_the_batch(rows: DataFrame) -> None:
    made = unfolded(rows.rollup("t", "o").agg(F.count("*").alias("n")))
    assert made is not None
    assert "Expand" not in nodes(made.stream())
    assert made.used == ["t", "o"]


def test_only_columns_that_are_used_cross_to_the_batch(rows: DataFrame) -> None:
    made = unfolded(counted(letters(rows)))
    assert made is not None
    assert made.used == ["i", "t"]


def test_a_record_can_cross_without_any_column(rows: DataFrame) -> None:
    constant = rows.select(F.explode(F.array(F.lit(1), F.lit(2))).alias("k"))
    made = unfolded(constant.groupBy("k").count())
    assert made is not None
    assert made.used == []


@pytest.mark.parametrize(
    "frame",
    [
        pytest.param(lambda r: r.groupBy("t").count(), id="nothing multiplies"),
        pytest.param(
            lambda r: counted(letters(r).withWatermark("ts", "1 second")), id="a watermark above"
        ),
        pytest.param(
            lambda r: counted(letters(r).where(F.col("ts") < F.current_timestamp())),
            id="the batch's time above",
        ),
        pytest.param(lambda r: counted(letters(r).where(F.rand() < 2)), id="chance above"),
        pytest.param(
            lambda r: counted(letters(r)).union(counted(letters(r.where("i > 0")))),
            id="two operators read the source",
        ),
    ],
)
def test_these_stay_in_the_streaming_query(rows: DataFrame, frame) -> None:
    assert unfolded(frame(rows)) is None


def test_below_a_watermark_what_multiplies_stays_and_above_it_moves(rows: DataFrame) -> None:
    twice = letters(letters(rows).drop("letter").withWatermark("ts", "1 second"))
    made = unfolded(counted(twice))
    assert made is not None
    assert nodes(made.stream()).count("Generate") == 1
