"""Queries for examples/fleet.toml and examples/together.toml: plain PySpark, nothing of headgate."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import StatefulProcessor
from pyspark.sql.types import LongType, StructField, StructType


def counts(spark: SparkSession, rate: str = "100", keys: str = "6400") -> DataFrame:
    """Return how many rows of each key came in windows of 5 s; keys are evenly loaded."""
    rows = _rows(spark, rate)
    return (
        rows.withWatermark("timestamp", "2 seconds")
        .groupBy(F.window("timestamp", "5 seconds"), (F.col("value") % int(keys)).alias("key"))
        .count()
    )


def sums(spark: SparkSession, rate: str = "100", keys: str = "6400") -> DataFrame:
    """Return what the rows of each key come to, all since the start."""
    rows = _rows(spark, rate).select((F.col("value") % int(keys)).alias("key"), "value")
    return rows.groupBy("key").agg(F.sum("value").alias("sum"), F.max("value").alias("max"))


def hot(spark: SparkSession, rate: str = "100", keys: str = "6400", share: str = "60") -> DataFrame:
    """Return how many rows each key has; `share` per cent of them have key 0."""
    value = F.col("value")
    key = F.when(value % 100 < int(share), 0).otherwise(value % int(keys)).alias("key")
    return _rows(spark, rate).groupBy(key).count()


def pairs(spark: SparkSession, rate: str = "50") -> DataFrame:
    """Return each order with its payment, which come within 10 s of each other."""
    orders = _rows(spark, rate).select(
        F.col("value").alias("order"), F.col("timestamp").alias("ordered")
    )
    payments = _rows(spark, rate).select(
        F.col("value").alias("paid_order"), F.col("timestamp").alias("paid")
    )
    return orders.withWatermark("ordered", "2 seconds").join(
        payments.withWatermark("paid", "2 seconds"),
        F.expr(
            "order = paid_order and paid between ordered - interval 10 seconds "
            "and ordered + interval 10 seconds"
        ),
    )


def enriched(spark: SparkSession, rate: str = "100") -> DataFrame:
    """Return each row with a text made of it, by Python."""
    return _rows(spark, rate).select("value").mapInArrow(_with_text, "value long, text string")


def scored(spark: SparkSession, rate: str = "100") -> DataFrame:
    """Return a score of each row that has a text, by two stages of Python."""
    texts = _rows(spark, rate).select("value").mapInArrow(_with_text, "value long, text string")
    return texts.where("value % 10 > 0").mapInArrow(_with_score, "value long, score double")


def digests(spark: SparkSession, rate: str = "50", rounds: str = "2000") -> DataFrame:
    """Return how many rows each key has and a digest of them, which takes `rounds` hashes a row."""
    rows = _rows(spark, rate).select((F.col("value") % 640).alias("key"), "value")
    schema = StructType([StructField(name, LongType()) for name in ("key", "rows", "digest")])
    return rows.groupBy("key").transformWithState(
        statefulProcessor=Digest(int(rounds)),
        outputStructType=schema,
        outputMode="update",
        timeMode="none",
    )


class Digest(StatefulProcessor):
    """Hashes each row on top of the ones before it: what it costs is time of a core."""

    def __init__(self, rounds: int) -> None:
        self._rounds = rounds

    def init(self, handle: Any) -> None:
        """Open the state: rows so far, and their digest."""
        fields = [StructField(name, LongType()) for name in ("rows", "digest")]
        self._state = handle.getValueState("state", StructType(fields))

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        """Take the rows of a key in, and put out where it stands."""
        count, digest = self._state.get() or (0, 0)
        for row in rows:
            made = f"{digest} {row.value}".encode()
            for _ in range(self._rounds):
                made = hashlib.sha256(made).digest()
            count, digest = count + 1, int.from_bytes(made[:7], "big")
        self._state.update((count, digest))
        yield Row(key=key[0], rows=count, digest=digest)

    def close(self) -> None:
        """Nothing is open."""


def _rows(spark: SparkSession, rate: str) -> DataFrame:
    return spark.readStream.format("rate").option("rowsPerSecond", rate).load()


def _with_text(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        values = batch.column("value")
        texts = [f"{value:x}" for value in values.to_pylist()]
        yield pa.record_batch({"value": values, "text": texts})


def _with_score(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        scores = [float(len(set(text))) for text in batch.column("text").to_pylist()]
        yield pa.record_batch({"value": batch.column("value"), "score": scores})
