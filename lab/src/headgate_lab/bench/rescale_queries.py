"""Builds the queries whose slots `rescale` changes: sums of a given size, and DRRS's three.

All of them put out `k`, a number that samples the keys, and `rescale_cost.DUE_US`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from pyspark.sql import Column, DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from headgate_lab.bench import wide
from headgate_lab.bench.rescale_cost import DUE_US

LOADS_S, LOADS_PER_S = 20.0, 100
"""Seconds in which records load the state of `sums`, and these records per second."""

STARTS_S = 10.0
"""Longest time from the building of a query to its first record, in seconds. Chosen."""

_BLOCKS = 1_000
"""Blocks of keys. A record that loads stands for a block; they load one block after the other, each
twice. At random each would have to come eight times."""

_STREAMERS = 20_000
_ENTERS = 3
"""Of five events, those of a viewer who comes. Chosen."""
_PAST_BYTES = 8_192
"""Bytes of a streamer's past when the first event comes. Chosen: some 100 MB after half a minute."""


def sums(spark: SparkSession, rate: int, keys: int, loads_until_s: float) -> DataFrame:
    """Return `wide.totals` over `keys` keys; records that are due until `loads_until_s` load all keys."""
    events = spark.readStream.format("nexmark").option("columns", "scheduled")
    due = events.option("rate", f"steps({LOADS_PER_S}, {LOADS_S + STARTS_S:g}s={rate})").load()
    block = max(1, keys // _BLOCKS)
    due_us, blocks = F.unix_micros("scheduled"), -(-keys // block)
    turn = F.floor(due_us * F.lit(LOADS_PER_S / 1e6))
    first = F.pmod(turn, F.lit(blocks)) * block
    loaded = F.when(
        due_us < F.lit(int(loads_until_s * 1e6)), F.sequence(first, first + (block - 1))
    )
    drawn = F.array(F.pmod(F.xxhash64("scheduled"), F.lit(keys)))
    coming = due.select(F.explode(loaded.otherwise(drawn)).alias("k"), "scheduled")
    return wide.totals(coming.withColumn("v", F.pmod("k", F.lit(1_000))), _newest())


def q7(spark: SparkSession, rate: int) -> DataFrame:
    """Return the greatest bid of each bidder in sliding windows of 10 s, every 500 ms.

    References
    ----------
    DRRS V-A, by the authors' code. Differs: event time, and no padding of 2 kB in a bid.
    """
    bids = _events(spark, rate, bids=True, columns="bid.bidder,bid.price,bid.dateTime,scheduled")
    bids = bids.where("bid is not null").select("bid.*", "scheduled")
    window = F.window("dateTime", "10 seconds", "500 milliseconds")
    per_bidder = bids.withWatermark("dateTime", "1 second").groupBy(window, "bidder")
    top = per_bidder.agg(F.max("price").alias("price"), _newest())
    return top.select(F.col("bidder").alias("k"), "window", "price", DUE_US)


def q8(spark: SparkSession, rate: int) -> DataFrame:
    """Return people joined with the auctions they opened in the same sliding windows of 40 s, every 5 s.

    References
    ----------
    DRRS V-A, by the authors' code: 20 people to 30 auctions. Differs as `q7`.
    """
    window = F.window("dateTime", "40 seconds", "5 seconds")
    people = _events(
        spark, rate, bids=False, columns="person.id,person.name,person.dateTime,scheduled"
    )
    people = people.where("person is not null").select("person.*", "scheduled")
    people = people.withWatermark("dateTime", "1 second").select(
        window.alias("window"), "id", "name", "scheduled"
    )
    auctions = _events(spark, rate, bids=False, columns="auction.seller,auction.dateTime,scheduled")
    auctions = auctions.where("auction is not null").select("auction.*", "scheduled")
    auctions = auctions.withWatermark("dateTime", "1 second").select(
        window.alias("opened_in"), "seller", "scheduled"
    )
    same = F.expr("id = seller and window = opened_in")
    joined = people.alias("p").join(auctions.alias("a"), same)
    due_us = F.unix_micros(F.greatest("p.scheduled", "a.scheduled")).alias(DUE_US)
    return joined.select(F.col("id").alias("k"), "window", "name", due_us)


class Loyalty(StatefulProcessor):
    """Scores the loyalty of a streamer's viewers; the history of scores grows with every event."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Open the states."""
        self._viewers = handle.getValueState("viewers", "n long, events long")
        self._loyalty = handle.getValueState("loyalty", "engagement double, watch double, n long")
        self._history = handle.getListState("history", "score double")
        self._past = handle.getValueState("past", "bytes binary")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        """Return the loyalty after each event."""
        if not self._past.exists():
            self._past.update((bytes(_PAST_BYTES),))
        viewers, events = self._viewers.get() or (0, 0)
        engagement, watch, count = self._loyalty.get() or (0.0, 0.0, 0)
        scores = []
        for row in rows:
            viewers, events, count = viewers + row.enters, events + 1, count + 1
            scores.append((viewers / events,))
            engagement, watch = engagement + viewers / events, watch + row.seconds
            loyalty = (0.4 * engagement + 0.3 * watch + 0.3 * count) / 100
            yield Row(k=key[0], loyalty=loyalty, due_us=row.due_us)
        self._viewers.update((viewers, events))
        self._loyalty.update((engagement, watch, count))
        self._history.appendList(scores)


def twitch(spark: SparkSession, rate: int) -> DataFrame:
    """Return the loyalty of the viewers of each streamer after each event.

    References
    ----------
    DRRS V-A. Differs: drawn events instead of the Twitch data set, streamers by a power law of about 0.5,
    and one operator in the place of seven.
    """
    events = _events(spark, rate, bids=True, columns="scheduled")
    drawn = F.pmod(F.xxhash64("scheduled"), F.lit(1_000_000)) / F.lit(1e6)
    coming = events.select(
        F.floor(drawn * drawn * _STREAMERS).alias("k"),
        F.when(F.pmod(F.hash("scheduled"), F.lit(5)) < _ENTERS, 1).otherwise(-1).alias("enters"),
        (F.pmod(F.hash("scheduled"), F.lit(600)) / 60.0).alias("seconds"),
        F.unix_micros("scheduled").alias(DUE_US),
        "scheduled",
    )
    output = f"k long, loyalty double, {DUE_US} long"
    return coming.groupBy("k").transformWithState(Loyalty(), output, "append", "None")


PAPERS: dict[str, Callable[[SparkSession, int], DataFrame]] = {"q7": q7, "q8": q8, "twitch": twitch}
"""Queries of DRRS's comparison. Their state is what the records before the change leave."""


def _newest() -> Column:
    """Return the due time of a row's newest record."""
    return F.max(F.unix_micros("scheduled")).alias(DUE_US)


def _events(spark: SparkSession, rate: int, *, bids: bool, columns: str) -> DataFrame:
    """Return the events in order: bids but for a few others, or 20 people to 30 auctions."""
    shares = ("1", "1", "48") if bids else ("20", "30", "0")
    names = ("person_proportion", "auction_proportion", "bid_proportion")
    reader = (
        spark.readStream.format("nexmark").option("columns", columns).option("prob_delayed", "0")
    )
    return reader.options(**dict(zip(names, shares, strict=True)), rate=str(rate)).load()
