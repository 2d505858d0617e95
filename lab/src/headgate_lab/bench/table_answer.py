"""Counts numbers in windows, and checks a table against the windows due after the numbers read so far."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

_START_MS = 1_700_000_000_000
_ADVANCE_MS = 1_000
"""Event time from one batch of the source to the next, in ms; the rows of a batch have the same time."""

_WINDOW_S, _SLIDE_S, _DELAY_S = 2, 1, 1


@dataclass(frozen=True)
class Numbers:
    """Describes the input, the numbers 0, 1, 2 and so on, and the query.

    Attributes
    ----------
    rows : int
        Numbers per batch.
    keys : int
        Distinct keys.
    """

    rows: int
    keys: int

    def windows(self, spark: SparkSession) -> DataFrame:
        """Return, as a stream, the count and sum of each key's numbers in windows of 2 s, every 1 s."""
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
        """Compare a table with the answer after the first `read` numbers.

        Returns
        -------
        dict
            Numbers of (window, key) rows: ``windows`` that must be in the table, ``lost`` ones that are
            not, ``doubled`` ones, and ones with ``wrong`` values.
        """
        ms = f"{_START_MS} + id div {self.rows} * {_ADVANCE_MS}"
        numbers = spark.range(read).selectExpr(
            "id as value", f"timestamp_millis({ms}) as timestamp"
        )
        newest_s = (_START_MS + (read // self.rows - 1) * _ADVANCE_MS) // 1000
        # windows that the watermark of the last batch but one has closed
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
