"""`dropDuplicates` and `dropDuplicatesWithinWatermark` answer as Spark does."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from pathlib import Path

import answers
import pytest
import relational
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F


@pytest.fixture(scope="module")
def session(spark: SparkSession) -> SparkSession:
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    spark.conf.set("spark.sql.shuffle.partitions", "2")
    return spark


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data") / "in"
    answers.write_files(folder, seed=2)
    return folder


def by_the_second(frame: DataFrame) -> DataFrame:
    frame = frame.withColumn("ts", F.date_trunc("second", "ts"))
    return frame.withWatermark("ts", f"{answers.DELAY_S} seconds")


QUERIES = {
    "a key without time is remembered for ever": lambda s: s.dropDuplicates(["t", "r", "d"]).select(
        "t", "r", "d"
    ),
    "a key with event time is forgotten": lambda s: (
        by_the_second(s).select("ts", "i", "o").dropDuplicates()
    ),
    "what is left is counted": lambda s: (
        by_the_second(s)
        .dropDuplicates(["ts", "t"])
        .where("t <> 'ab'")
        .groupBy(F.window("ts", "4 seconds"))
        .agg(F.count("*").alias("n"), F.max("t"))
    ),
}


@pytest.mark.parametrize(
    ("name", "changes"), relational.cases(QUERIES, ["what is left is counted"])
)
def test_duplicates_are_dropped_as_spark_does(
    session: SparkSession, files: Path, tmp_path: Path, name: str, changes: int | None
) -> None:
    expected = relational.batch_answer(session, QUERIES[name], [files])
    got = relational.put_out(session, QUERIES[name], [files], tmp_path, changes=changes)
    if "window" in expected[0]:
        until = answers.final_watermark(files).replace(microsecond=0, tzinfo=None)
        expected = [row for row in expected if row.window.end <= until]
    assert expected
    assert answers.differences(expected, got) == ""


def within_watermark(frame: DataFrame) -> DataFrame:
    frame = frame.withWatermark("ts", f"{answers.DELAY_S} seconds")
    return frame.dropDuplicatesWithinWatermark(["i", "o"]).select("id", "i", "o")


def kept_within_watermark(session: SparkSession, files: Path) -> list[int]:
    """Return the ids of the records that a dictionary keeps; there is no batch form."""
    delay = dt.timedelta(seconds=answers.DELAY_S)
    forget: dict[object, dt.datetime] = {}
    watermark, latest, kept, before = dt.datetime.min, dt.datetime.min, [], 0
    for batch, row in [r for r in relational.rows_of(session, files) if r[1].ts is not None]:
        if batch != before:
            # a batch ends under the watermark that it began with
            forget = {k: t for k, t in forget.items() if t > watermark}
            watermark, before = latest - delay, batch
        latest = max(latest, row.ts)
        if (row.i, row.o) not in forget:
            forget[row.i, row.o] = row.ts + delay
            kept.append(row.id)
    return kept


def test_within_the_watermark_a_key_comes_again_once_it_is_forgotten(
    session: SparkSession, files: Path, tmp_path: Path
) -> None:
    def timed(frame: DataFrame) -> DataFrame:
        return within_watermark(frame.where("ts is not null"))

    got = relational.put_out(session, timed, [files], tmp_path, changes=None)
    expected = kept_within_watermark(session, files)
    assert len(expected) > len({(r.i, r.o) for r in got}), "some key must come twice"
    assert Counter(row.id for row in got) == Counter(expected)
