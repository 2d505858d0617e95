"""Joins of two streams answer as Spark's own batch join does."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from pathlib import Path

import answers
import pytest
import relational
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F

import headgate as hg

WITHIN_S = 3


@pytest.fixture(scope="module")
def session(spark: SparkSession) -> SparkSession:
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    spark.conf.set("spark.sql.shuffle.partitions", "2")
    return spark


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folders = [tmp_path_factory.mktemp("data") / f"in{i}" for i in range(2)]
    for seed, folder in enumerate(folders):
        answers.write_files(folder, seed=seed + 3)
    return folders


def sides(left: DataFrame, right: DataFrame) -> tuple[DataFrame, DataFrame]:
    """Return the two streams, each under a watermark, with columns of different names."""
    delay = f"{answers.DELAY_S} seconds"
    mine = left.select("id", "ts", "t", "o", "d", "m", "r").withWatermark("ts", delay)
    names = {"id": "id2", "ts": "ts2", "t": "u", "o": "p", "d": "e", "y": "y2"}
    other = right.select(*[F.col(a).alias(b) for a, b in names.items()])
    return mine, other.withWatermark("ts2", delay)


IN_TIME = f"ts2 >= ts - interval {WITHIN_S} seconds and ts2 <= ts + interval {WITHIN_S} seconds"


def joined(how: str, condition: str) -> Callable[[DataFrame, DataFrame], DataFrame]:
    def build(left: DataFrame, right: DataFrame) -> DataFrame:
        mine, other = sides(left, right)
        return mine.join(other, F.expr(condition), how)

    return build


def counted(left: DataFrame, right: DataFrame) -> DataFrame:
    mine, other = sides(left, right)
    pairs = mine.join(other, F.expr(f"t = u and {IN_TIME}")).select("id", "t", "ts")
    return pairs.groupBy(F.window("ts", "4 seconds"), "t").agg(F.count("*").alias("n"), F.max("id"))


def windowed(left: DataFrame, right: DataFrame) -> DataFrame:
    mine, other = sides(left, right)
    mine = mine.select("id", F.window("ts", "4 seconds").alias("w"), "t")
    other = other.select("id2", F.window("ts2", "4 seconds").alias("w2"), "u")
    return mine.join(other, F.expr("t = u and w = w2"), "left_outer").select("id", "id2", "w", "t")


def near_the_greatest(left: DataFrame, right: DataFrame) -> DataFrame:
    """Join numbers so large that what is as close to them may be no number any more."""
    mine, other = sides(left, right)
    greatest = 2**63 - 1
    mine = mine.select("id", "ts", "t", (F.lit(greatest) - F.col("id") % 7).alias("n"))
    other = other.select("id2", "ts2", "u", (F.lit(greatest) - F.col("id2") % 7).alias("n2"))
    near = "abs(n - n2) <= 3L and 5 > abs(n2 - n)"
    return mine.join(other, F.expr(f"t = u and {IN_TIME} and {near}"), "full_outer").drop("n", "n2")


QUERIES = {
    "inner": joined("inner", f"t = u and o <=> p and {IN_TIME} and d < e"),
    "inner, a part above": joined("inner", f"t = u and {IN_TIME} and d + e > 0 and id % 3 = 0"),
    "left outer": joined("left_outer", f"t = u and {IN_TIME} and e > 0"),
    "right outer": joined("right_outer", f"t = u and {IN_TIME} and d > 0"),
    "full outer": joined("full_outer", f"t = u and {IN_TIME}"),
    "left semi": joined("left_semi", f"t = u and {IN_TIME} and id > id2 - 100"),
    "equal windows": windowed,
    "counted": counted,
    "no equality": joined("inner", f"{IN_TIME} and abs(id - id2) <= 2"),
    "float keys": joined("inner", f"d = e and {IN_TIME}"),
    "near the greatest number": near_the_greatest,
}


def final(rows: list[Row], files: list[Path]) -> list[Row]:
    """Return the rows that are out at the end: what is alone is so once its time has passed."""
    until = min(answers.final_watermark(folder) for folder in files).replace(tzinfo=None)

    def out(row: Row) -> bool:
        if "window" in row:
            # pairs come until both sides are forgotten
            return bool(row.window.end <= until - dt.timedelta(seconds=WITHIN_S))
        if "w" in row:
            return row.id2 is not None or row.t is None or row.w.end <= until
        time = None
        if "id2" in row and row.id2 is None:
            time = row.t is not None and row.ts
        elif row.id is None:
            time = row.u is not None and row.ts2
        gone = dt.timedelta(seconds=WITHIN_S)
        return not time or time + gone <= until

    return [row for row in rows if out(row)]


SHOWN = ("full outer", "float keys")


@pytest.mark.parametrize(("name", "changes"), relational.cases(QUERIES, SHOWN))
def test_joins_answer_as_spark_does(
    session: SparkSession, files: list[Path], tmp_path: Path, name: str, changes: int | None
) -> None:
    build = QUERIES[name]
    expected = final(relational.batch_answer(session, build, files), files)
    got = relational.put_out(session, build, files, tmp_path, changes=changes)
    assert len(expected) > 10
    assert answers.differences(expected, got) == ""


def test_explain_says_how_a_join_runs(session: SparkSession, files: list[Path]) -> None:
    sources = [answers.source(session, folder, stream=True) for folder in files]
    text = hg.explain(QUERIES["inner, a part above"](*sources))
    assert "Join inner on t = u" in text
    assert "left kept for 3" in text
    assert "Catalyst checks" in text
    text = hg.explain(QUERIES["no equality"](*sources))
    assert "every slot sees every record" in text
    assert "; abs(id - id2) <= 2; left kept" in text
