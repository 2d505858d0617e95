"""`hg.explain` says in which output mode a query runs, and else what hinders it."""

from __future__ import annotations

import re
from collections.abc import Callable

import pandas as pd
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import headgate as hg
from headgate.core.errors import CheckpointError


def rate(spark: SparkSession) -> DataFrame:
    frame = spark.readStream.format("rate").option("rowsPerSecond", 5).load()
    return frame.withWatermark("timestamp", "5 seconds")


def _mean(values: pd.Series) -> float:
    return float(values.mean())


def by_key(frame: DataFrame) -> DataFrame:
    return frame.groupBy((F.col("value") % 7).alias("k")).agg(F.count("*").alias("n"))


EXPLAINED: dict[str, tuple[Callable[[SparkSession], DataFrame], str | None, str]] = {
    "append": (lambda s: rate(s).select("value"), None, r"elastic       nothing: .*stateless"),
    "no watermark": (
        lambda s: by_key(rate(s)),
        None,
        r'output mode   "update" or "complete"; not append: .*\nelastic +Aggregate keys',
    ),
    "sorted": (
        lambda s: by_key(rate(s)).orderBy("n"),
        None,
        r'output mode   "complete"; not append: .*\nelastic +Aggregate keys',
    ),
    "in no mode": (
        lambda s: rate(s).groupBy("value").agg(F.pandas_udf(_mean, "double")("value")),
        None,
        r"not elastic   .*cannot run _mean\(value\)",
    ),
    "values are kept": (
        lambda s: rate(s).groupBy("value").agg(F.countDistinct("timestamp"), F.stddev("value")),
        "complete",
        r"elastic       Aggregate keys value; .*; distinct count\(timestamp\): its values are kept, "
        r"Spark's own function runs above; stddev\(.*\): merged as Spark's own expressions say;",
    ),
    "the mode that is asked for": (lambda s: by_key(rate(s)), "append", "not elastic   .*ppend"),
}


@pytest.mark.parametrize("name", EXPLAINED)
def test_explain_says_in_which_mode_a_query_runs(spark: SparkSession, name: str) -> None:
    build, mode, words = EXPLAINED[name]
    said = hg.explain(build(spark)) if mode is None else hg.explain(build(spark), mode)
    assert re.match(words, said), said


def test_what_a_store_gets_is_estimated_and_a_directory_is_no_store(spark):
    counted = spark.readStream.format("rate").load().groupBy("value").count()
    said = hg.explain(counted, "update", checkpointLocation="s3://bucket/key").splitlines()
    (line,) = [line for line in said if line.startswith("store ")]
    assert "s3://bucket/key: about 3 requests per batch, 1 per second" in line
    assert line.endswith("14,400 an hour")
    assert said.index(line) == 1
    assert "store " not in hg.explain(counted, "update", checkpointLocation="/checkpoints/one")
    with pytest.raises(CheckpointError, match="s3://bucket"):
        hg.explain(counted, "update", checkpointLocation="s3://bucket")
