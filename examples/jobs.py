"""Queries for examples/fleet.toml: plain PySpark, nothing of headgate in them."""

from __future__ import annotations

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F


def counts(spark: SparkSession, rate: str = "100", keys: str = "6400") -> DataFrame:
    """Return how many rows of each key came in windows of 5 s; keys are evenly loaded."""
    rows = spark.readStream.format("rate").option("rowsPerSecond", rate).load()
    return (
        rows.withWatermark("timestamp", "2 seconds")
        .groupBy(F.window("timestamp", "5 seconds"), (F.col("value") % int(keys)).alias("key"))
        .count()
    )
