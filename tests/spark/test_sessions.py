"""Session windows, and records with several keys, answer as Spark does."""

from __future__ import annotations

from pathlib import Path

import answers
import pytest
import relational
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import headgate as hg


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


def letters(frame: DataFrame) -> DataFrame:
    """Count every letter of a text in every window it comes in: as many keys as letters."""
    exploded = watermarked(frame).select("ts", F.explode(F.split("t", "")).alias("letter"))
    windows = exploded.groupBy(F.window("ts", "6 seconds", "2 seconds"), "letter")
    return windows.agg(F.count("*").alias("n"))


def looked_into(frame: DataFrame) -> DataFrame:
    """Count in windows of which something is asked below, so that a record is copied into each."""
    windows = watermarked(frame).select("*", F.window("ts", "6 seconds", "2 seconds").alias("w"))
    return windows.where("second(w.start) % 4 = 0").groupBy("w", "t").agg(F.count("*"), F.sum("i"))


def in_sql(frame: DataFrame) -> DataFrame:
    """Count with a common table expression, and functions that Spark replaces by others."""
    watermarked(frame).createOrReplaceTempView("given")
    return frame.sparkSession.sql(
        "WITH cut AS (SELECT *, window(ts, '6 seconds', '2 seconds') AS w FROM given) "
        "SELECT w, t, count_if(i > 0) AS n, every(o) AS all, some(o) AS one, any_value(t) AS any "
        "FROM cut GROUP BY w, t"
    )


def final(rows: list, column: str, files: Path) -> list:
    until = answers.final_watermark(files).replace(tzinfo=None)
    return [row for row in rows if row[column].end <= until]


QUERIES = {
    "per key": (per_key, "session_window"),
    "without key": (without_key, "s"),
    "several keys per record": (letters, "window"),
    "windows that are looked into": (looked_into, "w"),
    "SQL": (in_sql, "w"),
}


@pytest.mark.parametrize(
    ("name", "changes"), relational.cases(QUERIES, ("per key", "several keys per record"))
)
def test_sessions_and_several_keys_per_record_answer_as_spark_does(
    session: SparkSession, files: Path, tmp_path: Path, name: str, changes: int | None
) -> None:
    build, column = QUERIES[name]
    expected = final(relational.batch_answer(session, build, [files]), column, files)
    got = relational.put_out(session, build, [files], tmp_path, changes=changes)
    assert len(expected) > 5
    assert answers.differences(expected, got) == ""


@pytest.mark.parametrize("added", ["INTERVAL 3 SECONDS", "make_interval(0, 0, 0, 0, 0, 0, 3)"])
def test_a_gap_is_not_taken_for_what_the_user_adds_to_the_time(
    session: SparkSession, files: Path, tmp_path: Path, added: str
) -> None:
    def build(frame: DataFrame) -> DataFrame:
        later = F.col("ts") + F.expr(added)
        return watermarked(frame).groupBy(F.session_window(later, "1 second"), "t").count()

    stream = build(answers.source(session, files, stream=True))
    assert "session with a gap of 1 s" in hg.explain(stream, "complete")
    writer = hg.writeStream(stream).outputMode("complete").format("memory").queryName("later")
    writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
    writer.trigger(availableNow=True).start().awaitTermination()
    expected = relational.batch_answer(session, build, [files])
    assert answers.differences(expected, session.table("later").collect()) == ""
