"""Loads the classes that tests need: plain PySpark in batch and stream, and headgate's own calls."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import headgate as hg


def same(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Return what comes."""
    yield from batches


spark = SparkSession.builder.config("spark.ui.enabled", "false").getOrCreate()
with tempfile.TemporaryDirectory() as name:
    place = Path(name)
    rows = spark.range(100).select(
        (F.col("id") % 7).alias("key"), F.timestamp_seconds("id").alias("at"), F.lit(0.5).alias("v")
    )
    rows.mapInArrow(same, rows.schema).write.parquet(f"{place}/in")
    text = rows.select(F.to_json(F.struct("*")).alias("value"))
    text.select(F.from_json("value", rows.schema).alias("r")).select("r.*").write.json(f"{place}/j")
    found = spark.read.parquet(f"{place}/in")
    found.join(found.groupBy("key").agg(F.sum("v").alias("s")), "key").orderBy("at").collect()
    stream = spark.readStream.schema(rows.schema).parquet(f"{place}/in")
    counts = (
        stream.withWatermark("at", "5 seconds")
        .groupBy(F.window("at", "10 seconds"), "key")
        .agg(F.sum("v").alias("s"), F.count(F.lit(1)).alias("n"))
    )
    for number, stream in enumerate((counts.writeStream, hg.writeStream(counts))):
        writer = stream.option("checkpointLocation", f"{place}/checkpoint{number}")
        query = writer.format("parquet").trigger(availableNow=True).start(f"{place}/out{number}")
        query.awaitTermination()
