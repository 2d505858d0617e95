"""Queries that tests run in real time, and what receives their rows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import headgate as hg

Build = Callable[[Any], DataFrame]


class Rows:
    """Receives the rows of steps, each step once however often it comes; a function of `foreachBatch`."""

    def __init__(self) -> None:
        self.steps: dict[int, list[Any]] = {}
        self.came_again = 0

    def __call__(self, frame: DataFrame, step: int) -> None:
        self.came_again += step in self.steps
        self.steps[step] = frame.collect()
        self.schema = frame.schema

    @property
    def count(self) -> int:
        """How many rows have come."""
        return sum(map(len, self.steps.values()))

    def all(self) -> list[Any]:
        """All rows, in the order of their steps."""
        return [row for step in sorted(self.steps) for row in self.steps[step]]

    def frame(self, spark: SparkSession) -> DataFrame:
        """All rows as a frame."""
        return spark.createDataFrame(self.all(), self.schema)

    def last_by(self, spark: SparkSession, *keys: str) -> DataFrame:
        """The last row of each key, which is what update mode comes to."""
        found = {tuple(row[key] for key in keys): row for row in self.all()}
        return spark.createDataFrame(list(found.values()), self.schema)


def bids(session: Any, *, rate: int = 2000, **options: Any) -> DataFrame:
    """Bids of the nexmark workload, without end."""
    reader = session.readStream.format("nexmark").option("rate", str(rate))
    for name, value in options.items():
        reader = reader.option(name, str(value))
    columns = "bid.auction,bid.bidder,bid.price,bid.dateTime"
    return reader.option("columns", columns).load().where("bid is not null").select("bid.*")


def windows(delay: str = "1 second", **options: Any) -> Build:
    """Windows that overlap, with a filter above the watermark and one on its column; none is late."""

    def build(session: Any) -> DataFrame:
        read = bids(session, prob_delayed=0, **options).withWatermark("dateTime", delay)
        read = read.where("price % 7 != 0").where(F.second("dateTime") % 5 != 0)
        window = F.window("dateTime", "2 seconds", "1 second")
        aggregates = F.count("*").alias("n"), F.sum("price").alias("p"), F.max("bidder").alias("b")
        return read.groupBy(window, "auction").agg(*aggregates)

    return build


def totals(**options: Any) -> Build:
    """Totals by key, without any time."""

    def build(session: Any) -> DataFrame:
        key = (F.col("auction") % 100).alias("k")
        return bids(session, **options).groupBy(key).agg(
            F.count("*").alias("n"), F.sum("price").alias("p")
        )  # fmt: skip

    return build


def writer(
    frame: DataFrame, rows: Rows, checkpoint: Path | str, mode: str, slots: int = 2
) -> hg.Writer:
    """A writer whose query runs in real time."""
    made = hg.writeStream(frame).foreachBatch(rows).outputMode(mode).slots(start=slots)
    made = made.option("checkpointLocation", str(checkpoint))
    return made.trigger(realTime="5 minutes")
