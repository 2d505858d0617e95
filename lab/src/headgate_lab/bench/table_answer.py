"""Numbers counted in windows: what must be in a table follows from how far a job has read."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

_START_MS = 1_700_000_000_000
_ADVANCE_MS = 1_000
"""Event time from one batch of the source to the next; all rows of a batch have the same."""

_WINDOW_S, _SLIDE_S, _DELAY_S = 2, 1, 1


@dataclass(frozen=True)
class Numbers:
    """The input: 0, 1, 2 and so on.

    Attributes
    ----------
    rows : int
        Per batch.
    keys : int
        That they are counted by.
    """

    rows: int
    keys: int

    def windows(self, spark: SparkSession) -> DataFrame:
        """Return, as a stream, how many numbers each key has in windows of 2 s, and their sum."""
        reader = spark.readStream.format("rate-micro-batch")
        numbers = reader.options(
            rowsPerBatch=self.rows,
            startTimestamp=_START_MS,
            advanceMillisPerBatch=_ADVANCE_MS,
            numPartitions=1,
        ).load()
        return self._counted(numbers.withWatermark("timestamp", f"{_DELAY_S} seconds"))

    def _counted(self, numbers: DataFrame) -> DataFrame:
        window = F.window("timestamp", f"{_WINDOW_S} seconds", f"{_SLIDE_S} seconds")
        key = (F.col("value") * 7919 % self.keys).alias("auction")
        counts = numbers.groupBy(window, key).agg(
            F.count("*").alias("bids"), F.sum("value").alias("total")
        )
        return counts.selectExpr("window.start", "window.end", "auction", "bids", "total")

    def compared(self, spark: SparkSession, read: int, table: DataFrame) -> dict[str, int]:
        """Return what a table has of a job that has read so many numbers.

        Returns
        -------
        dict
            ``windows`` that must be there, ``lost`` ones of them, ``doubled`` ones, ``wrong`` ones.
        """
        ms = f"{_START_MS} + id div {self.rows} * {_ADVANCE_MS}"
        numbers = spark.range(read).selectExpr(
            "id as value", f"timestamp_millis({ms}) as timestamp"
        )
        newest_s = (_START_MS + (read // self.rows - 1) * _ADVANCE_MS) // 1000
        # what the watermark of the last batch but one has closed, whoever counts
        bound_s = newest_s - _DELAY_S - _ADVANCE_MS // 1000
        answer = self._counted(numbers).withColumn("closed", F.unix_seconds("end") <= bound_s)
        found = table.groupBy("start", "auction").agg(
            F.count("*").alias("copies"), *_range("bids"), *_range("total")
        )
        there, same = F.col("copies").isNotNull(), F.lit(True)
        for name in ("bids", "total"):
            for end in ("least", "greatest"):
                same &= F.col(name).eqNullSafe(F.col(f"{end}_{name}"))
        both = answer.join(found, ["start", "auction"], "full_outer")
        counted = both.select(
            F.count_if("closed").alias("windows"),
            F.count_if(F.col("closed") & ~there).alias("lost"),
            F.count_if(F.col("copies") > 1).alias("doubled"),
            F.count_if(there & ~same).alias("wrong"),
        ).first()
        assert counted is not None
        return dict(counted.asDict())


def _range(name: str) -> list[Column]:
    return [F.min(name).alias(f"least_{name}"), F.max(name).alias(f"greatest_{name}")]
