"""Queries of each kind that runs in real time, over bids, with the answer of a batch."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
from pyspark import cloudpickle
from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F
from pyspark.sql import types as T
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout
from pyspark.sql.streaming.stateful_processor import StatefulProcessor
from real_time import Build, bids

# workers do not have this file
cloudpickle.register_pickle_by_value(sys.modules[__name__])

THIRD = 3
"""A key is put out when so many bids for it have come."""


class Third(StatefulProcessor):
    """Puts out each auction that gets its third bid."""

    def init(self, handle: Any) -> None:
        self.seen = handle.getValueState("seen", "n long")

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:
        before = self.seen.get()[0] if self.seen.exists() else 0
        now = before + sum(self.count(one) for one in rows)
        self.seen.update((now,))
        if before < THIRD <= now:
            yield self.row(key[0])

    def count(self, row: Any) -> int:
        assert row.auction is not None
        return 1

    def row(self, auction: int) -> Any:
        return Row(auction=auction)


class ThirdInPandas(Third):
    """The same over frames."""

    def count(self, row: Any) -> int:
        return len(row)

    def row(self, auction: int) -> Any:
        return pd.DataFrame({"auction": [auction]})


def third(
    key: tuple[int, ...], frames: Iterator[pd.DataFrame], state: GroupState
) -> Iterator[pd.DataFrame]:
    """The same with ``applyInPandasWithState``."""
    (before,) = state.get if state.exists else (0,)
    now = before + sum(map(len, frames))
    state.update((now,))
    if before < THIRD <= now:
        yield pd.DataFrame({"auction": [key[0]]})


def thirds(session: Any) -> DataFrame:
    """What all of them come to."""
    counted = bids(session).groupBy("auction").agg(F.count("*").alias("n"))
    return counted.where(F.col("n") >= THIRD).select("auction")


def by_rows(session: Any) -> DataFrame:
    grouped = bids(session).groupBy("auction")
    return grouped.transformWithState(Third(), "auction bigint", "Update", "None")


def by_frames(session: Any) -> DataFrame:
    grouped = bids(session).groupBy("auction")
    return grouped.transformWithStateInPandas(ThirdInPandas(), "auction bigint", "Update", "None")


def by_function(session: Any) -> DataFrame:
    grouped = bids(session).groupBy("auction")
    return grouped.applyInPandasWithState(
        third, "auction bigint", "n bigint", "update", GroupStateTimeout.NoTimeout
    )


class Later(StatefulProcessor):
    """Puts out each auction half a second after its first bid, by the clock."""

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.seen = handle.getValueState("seen", "n long")

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:
        if not self.seen.exists():
            self.handle.registerTimer(timerValues.getCurrentProcessingTimeInMs() + 500)
        self.seen.update((len(list(rows)),))
        yield from ()

    def handleExpiredTimer(
        self, key: Any, timerValues: Any, expiredTimerInfo: Any
    ) -> Iterator[Any]:
        yield Row(auction=key[0])


class Written:
    """An object for ``foreach``; each row is a line of its task's file."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def open(self, partition_id: int, epoch_id: int) -> bool:
        self.directory.mkdir(exist_ok=True)
        self.file = (self.directory / f"{partition_id}-{epoch_id}").open("w")
        return True

    def process(self, row: Any) -> None:
        print(json.dumps({"auction": row.auction, "p": row.p}), file=self.file)

    def close(self, error: Exception | None) -> None:
        self.file.close()


def later(session: Any, events: int) -> DataFrame:
    """Auctions by the clock, of a stream that ends."""
    grouped = bids(session, events=events).groupBy("auction")
    return grouped.transformWithState(Later(), "auction bigint", "Update", "ProcessingTime")


def auctions(session: Any) -> DataFrame:
    return bids(session).dropDuplicates(["auction"]).select("auction")


def within(session: Any) -> DataFrame:
    read = bids(session, prob_delayed=0).withWatermark("dateTime", "1 hour")
    return read.dropDuplicatesWithinWatermark(["auction"]).select("auction")


plain = F.udf(lambda price: price + 1, T.LongType())
by_arrow = F.udf(lambda price: price + 2, T.LongType(), useArrow=True)


@F.pandas_udf(T.LongType())
def series(price: pd.Series) -> pd.Series:
    assert price.notna().all()
    return price + 4


@F.pandas_udf(T.LongType())
def iterator(given: Iterator[pd.Series]) -> Iterator[pd.Series]:
    for price in given:
        assert price.notna().all()
        yield price + 8


def frames(given: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
    for frame in given:
        assert frame["price"].notna().all()
        yield frame[frame["price"] % 3 != 0]


def batches(given: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in given:
        assert batch.column("price").null_count == 0
        yield batch


def functions(session: Any) -> DataFrame:
    """Functions in Python below, all of which fail on a marker."""
    read = bids(session, prob_delayed=0).withWatermark("dateTime", "1 second")
    read = read.withColumn("price", iterator(series(by_arrow(plain("price"))))).where(
        "price % 2 = 0"
    )
    read = read.mapInPandas(frames, read.schema).mapInArrow(batches, read.schema)
    return read.groupBy("auction").agg(F.count("*").alias("n"), F.sum("price").alias("p"))


def tables(session: Any) -> DataFrame:
    """Joins with tables below, of each kind, and rows that are multiplied."""
    ids = session.range(0, 50)
    numbers = ids.select(F.col("id").alias("k"), (F.col("id") * 2).alias("twice"))
    few = numbers.where("k < 30").withColumnRenamed("twice", "t")
    read = bids(session, prob_delayed=0).withWatermark("dateTime", "1 second")
    read = read.withColumn("k", F.col("bidder") % 70)
    read = read.join(numbers, "k").join(few, "k", "left")
    read = read.join(numbers.where("k % 7 = 1"), "k", "left_anti")
    read = read.join(numbers.where("k < 40"), "k", "left_semi")
    times = F.expr("case when k % 5 = 0 then array() else sequence(1, k % 3 + 1) end")
    read = read.withColumn("times", F.explode(times))
    read = read.selectExpr("*", "stack(2, 'price', price, 'k', k) AS (name, value)")
    return read.groupBy("k").agg(
        F.count("*").alias("n"),
        F.sum("price").alias("p"),
        F.sum("t").alias("t"),
        F.sum("value").alias("v"),
    )


def twice(session: Any) -> DataFrame:
    """An aggregate over an aggregate."""
    read = bids(session, prob_delayed=0).withWatermark("dateTime", "500 milliseconds")
    by_auction = read.groupBy(F.window("dateTime", "1 second"), "auction").count()
    return by_auction.groupBy(F.window("window", "2 seconds")).agg(
        F.max("count").alias("most"), F.count("*").alias("auctions")
    )


def duplicates_then_counts(session: Any) -> DataFrame:
    read = bids(session, prob_delayed=0).withWatermark("dateTime", "500 milliseconds")
    once = read.withColumn("second", F.date_trunc("second", "dateTime"))
    once = once.dropDuplicates(["auction", "dateTime"])
    return once.groupBy(F.window("dateTime", "1 second")).agg(F.count("*").alias("n"))


def stateless(session: Any) -> DataFrame:
    return bids(session).where("price % 3 = 0").select("auction", (F.col("price") * 2).alias("p"))


@dataclass(frozen=True)
class Form:
    """A query in real time.

    Attributes
    ----------
    keys : tuple of str
        In update mode: of which the newest row counts.
    answer : callable or None
        What a batch computes, where that is another query.
    """

    build: Build
    mode: str = "append"
    keys: tuple[str, ...] = ()
    answer: Callable[[Any], DataFrame] | None = None


FORMS = {
    "duplicates": Form(auctions),
    "duplicates within watermark": Form(within, answer=auctions),
    "processor of rows": Form(by_rows, "update", ("auction",), thirds),
    "processor of frames": Form(by_frames, "update", ("auction",), thirds),
    "function with state": Form(by_function, "update", ("auction",), thirds),
    "python below": Form(functions, "update", ("auction",)),
    "tables below": Form(tables, "update", ("k",)),
    "aggregate over aggregate": Form(twice),
    "duplicates then counts": Form(duplicates_then_counts),
    "stateless": Form(stateless),
}
SHORT = ("processor of rows", "python below", "aggregate over aggregate")
