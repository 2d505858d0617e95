"""Session windows, and records with several keys, answer as Spark does."""

from __future__ import annotations

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
    answers.write_files(folder, seed=6)
    return folder


def watermarked(frame: DataFrame) -> DataFrame:
    return frame.withWatermark("ts", f"{answers.DELAY_S} seconds")


def per_key(frame: DataFrame) -> DataFrame:
    by = watermarked(frame).groupBy(F.session_window("ts", "1 second"), "t", "o")
    return by.agg(F.count("*").alias("n"), F.sum("m"), F.max("d"), F.avg("i"))


def without_key(frame: DataFrame) -> DataFrame:
    # seconds, so that one session begins where another ends
    frame = frame.where("id % 6 = 0").withColumn("ts", F.date_trunc("second", "ts"))
    by = watermarked(frame).groupBy(F.session_window("ts", "1 second").alias("s"))
    return by.agg(F.count("*").alias("n"), F.min("id")).select("s", "n", "s.start", "min(id)")


def final(rows: list, column: str, files: Path) -> list:
    until = answers.final_watermark(files).replace(tzinfo=None)
    return [row for row in rows if row[column].end <= until]


@pytest.mark.parametrize("changes", [None, 7], ids=["unchanged", "changed"])
@pytest.mark.parametrize(("build", "column"), [(per_key, "session_window"), (without_key, "s")])
def test_session_windows_answer_as_spark_does(
    session: SparkSession, files: Path, tmp_path: Path, build, column: str, changes: int | None
) -> None:
    expected = final(relational.batch_answer(session, build, [files]), column, files)
    got = relational.put_out(session, build, [files], tmp_path, changes=changes)
    assert len(expected) > 5
    assert len({row[column].end - row[column].start for row in expected}) > 2
    assert answers.differences(expected, got) == ""


def pairs_of_letters(frame: DataFrame) -> DataFrame:
    """Count every letter of a text in every window it comes in: as many keys as letters."""
    letters = watermarked(frame).select("ts", F.explode(F.split("t", "")).alias("letter"))
    windows = letters.groupBy(F.window("ts", "6 seconds", "2 seconds"), "letter")
    return windows.agg(F.count("*").alias("n"))


@pytest.mark.parametrize("changes", [None, 7], ids=["unchanged", "changed"])
def test_records_with_several_keys_answer_as_spark_does(
    session: SparkSession, files: Path, tmp_path: Path, changes: int | None
) -> None:
    expected = relational.batch_answer(session, pairs_of_letters, [files])
    got = relational.put_out(session, pairs_of_letters, [files], tmp_path, changes=changes)
    expected = final(expected, "window", files)
    assert len(expected) > 10
    assert answers.differences(expected, got) == ""
