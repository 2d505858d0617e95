"""Defines the demo's queries in plain PySpark: NEXMark, a web log, word count, the stock exchange.

The query functions only use ``spark.readStream`` and PySpark's functions. So they run under headgate and
on plain Spark, which is the test oracle. With a session whose ``readStream`` is a batch reader they
return the batch answer. Call `headgate_demo.spark.sources.register` first.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from headgate.core.errors import ConfigError
from headgate.core.input import shown
from headgate_demo.generators import order_book
from headgate_demo.spark.matcher import TRADES, Matcher
from headgate_demo.spark.sellers import AVERAGES, LastAuctions

WATERMARK_BIDS = "4 seconds"
"""As in Flink's NEXMark; longer than the generator's default delay of 3 s, so that no event is late."""

LONGEST_AUCTION = "2 minutes"
"""Longest time from the opening of an auction to a bid that the join pairs with it; bounds the state. At
about 30 events/s or more, all auctions of the generator are shorter."""

_EVENT_TYPES = {"person": 0, "auction": 1, "bid": 2}

_BID = "event_type,bid.auction,bid.bidder,bid.price,bid.dateTime,scheduled"


def _bids(spark: SparkSession, columns: str, options: Mapping[str, str]) -> DataFrame:
    """Return the bids, one column per field, with `scheduled`."""
    reader = spark.readStream.format("nexmark").options(**{"columns": columns, **options})
    return reader.load().where("event_type = 2").select("bid.*", "scheduled")


def _events(
    spark: SparkSession, kind: str, fields: tuple[str, ...], options: Mapping[str, str]
) -> DataFrame:
    """Return the people, auctions or bids, one column per field, with `scheduled`."""
    columns = ",".join(["event_type", *(f"{kind}.{field}" for field in fields), "scheduled"])
    reader = spark.readStream.format("nexmark").options(**{"columns": columns, **options})
    events = reader.load().where(f"event_type = {_EVENT_TYPES[kind]}")
    return events.select(f"{kind}.*", "scheduled")


def q0(spark: SparkSession, **options: str) -> DataFrame:
    """Return all bids as they are. Stateless."""
    return _bids(spark, "event_type,bid,scheduled", options)


def q1(spark: SparkSession, **options: str) -> DataFrame:
    """Return all bids with the price in euros (price * 0.908). Stateless."""
    return _bids(spark, "event_type,bid,scheduled", options).withColumn(
        "price", F.col("price") * F.lit(0.908)
    )


def q2(spark: SparkSession, **options: str) -> DataFrame:
    """Return auction and price of bids on every 123rd auction. Stateless."""
    bids = _bids(spark, "event_type,bid.auction,bid.price,scheduled", options)
    return bids.where("auction % 123 = 0")


def q3(spark: SparkSession, **options: str) -> DataFrame:
    """Return auctions of category 10 by sellers in Oregon, Idaho or California.

    Columns name, city, state, auction. A join of two streams without event time: its state only grows.
    """
    people = _events(spark, "person", ("id", "name", "city", "state"), options)
    people = people.where("state in ('OR', 'ID', 'CA')")
    auctions = _events(spark, "auction", ("id", "seller", "category"), options)
    auctions = auctions.where("category = 10").select(
        F.col("id").alias("auction"), "seller", "scheduled"
    )
    joined = people.join(auctions, F.expr("id = seller"))
    return joined.select("name", "city", "state", "auction")


def _closed_auctions(spark: SparkSession, longest: str, options: Mapping[str, str]) -> DataFrame:
    """Return auction, opened, seller, category and highest price of each auction with a bid in time."""
    fields = ("id", "dateTime", "expires", "seller", "category")
    auctions = _events(spark, "auction", fields, options).withWatermark("dateTime", WATERMARK_BIDS)
    auctions = auctions.withColumnRenamed("dateTime", "opened")
    bids = _events(spark, "bid", ("auction", "price", "dateTime"), options)
    bids = bids.withWatermark("dateTime", WATERMARK_BIDS)
    if not re.fullmatch(r"[0-9]{1,9} (second|minute|hour)s?", longest):
        msg = f'longest="{shown(longest, 60)}" is no time; write it as 2 minutes.'
        raise ConfigError(msg)  # it becomes part of an expression
    in_time = (
        "id = auction and dateTime between opened and expires "
        f"and dateTime <= opened + interval {longest}"
    )
    offers = auctions.join(bids, F.expr(in_time))
    return offers.groupBy("auction", "opened", "seller", "category").agg(
        F.max("price").alias("price")
    )


def q4(spark: SparkSession, longest: str = LONGEST_AUCTION, **options: str) -> DataFrame:
    """Return the average price per category of the auctions that opened in each window of 10 s.

    Columns window, category, average. NEXMark averages over all auctions so far, which append mode
    cannot emit; here an auction counts in the window in which it opened. A join and two aggregates.
    """
    closed = _closed_auctions(spark, longest, options)
    per_category = closed.groupBy(F.window("opened", "10 seconds"), "category")
    return per_category.agg(F.avg("price").alias("average"))


def q5(spark: SparkSession, **options: str) -> DataFrame:
    """Return the auction with most bids of each window of 10 s, every 2 s.

    Columns window, auction, bids. Of a tie the lowest auction is returned (Flink's query returns all), so
    that the answer does not depend on order. Two chained aggregates; append mode.
    """
    per_auction = (
        _bids(spark, "event_type,bid.auction,bid.dateTime,scheduled", options)
        .withWatermark("dateTime", WATERMARK_BIDS)
        .groupBy(F.window("dateTime", "10 seconds", "2 seconds"), "auction")
        .agg(F.count("*").alias("bids"))
    )
    # The largest struct has most bids; the sign makes the lowest auction the largest of a tie.
    top = F.max(F.struct("bids", (-F.col("auction")).alias("minus_auction"))).alias("top")
    return (
        per_auction.groupBy("window")
        .agg(top)
        .select("window", (-F.col("top.minus_auction")).alias("auction"), "top.bids")
    )


def q6(spark: SparkSession, longest: str = LONGEST_AUCTION, **options: str) -> DataFrame:
    """Return for each closed auction the average price of its seller's last ten.

    Columns seller, auction, average. "Last" refers to the time of opening, since the results of a window
    come by event time, not by closing time. A join, an aggregate and a processor.
    """
    closed = _closed_auctions(spark, longest, options).drop("category")
    by_seller = closed.groupBy("seller")
    return by_seller.transformWithState(LastAuctions(), AVERAGES, "append", "None")


def q7(spark: SparkSession, **options: str) -> DataFrame:
    """Return the bid with the highest price of each tumbling window of 10 s.

    Columns window, auction, bidder, price. Of equal prices the lowest auction, then the lowest bidder, is
    returned (Flink's query returns all). Append mode.
    """
    top = F.max(
        F.struct(
            "price",
            (-F.col("auction")).alias("minus_auction"),
            (-F.col("bidder")).alias("minus_bidder"),
        )
    ).alias("top")
    return (
        _bids(spark, _BID, options)
        .withWatermark("dateTime", WATERMARK_BIDS)
        .groupBy(F.window("dateTime", "10 seconds"))
        .agg(top)
        .select(
            "window",
            (-F.col("top.minus_auction")).alias("auction"),
            (-F.col("top.minus_bidder")).alias("bidder"),
            "top.price",
        )
    )


def q8(spark: SparkSession, **options: str) -> DataFrame:
    """Return the people who registered and opened an auction in the same window of 10 s.

    Columns window, id, name; each person once. A left semi join on equal windows.
    """
    people = _events(spark, "person", ("id", "name", "dateTime"), options)
    people = people.withWatermark("dateTime", WATERMARK_BIDS)
    window = F.window("dateTime", "10 seconds")
    people = people.select(window.alias("window"), "id", "name", "scheduled")
    auctions = _events(spark, "auction", ("seller", "dateTime"), options)
    auctions = auctions.withWatermark("dateTime", WATERMARK_BIDS)
    auctions = auctions.select(window.alias("opened_in"), "seller", "scheduled")
    same = F.expr("id = seller and window = opened_in")
    return people.join(auctions, same, "left_semi").drop("scheduled")


def sdsc(spark: SparkSession, **options: str) -> DataFrame:
    """Return requests per path and kind in windows of 60 s, every 10 s, in log time.

    Columns window, path_id, kind, count. Append mode.
    """
    path = find_sdsc_log(options.get("path"))
    reader = spark.readStream.format("replay").options(**{**options, "path": path})
    return (
        reader.load()
        .withWatermark("ts", "30 seconds")
        .groupBy(F.window("ts", "60 seconds", "10 seconds"), "path_id", "kind")
        .count()
    )


def stock_exchange(spark: SparkSession, **options: str) -> DataFrame:
    """Return the trades that a stream of orders makes, one order book per stock.

    Columns stock, buy, sell (order numbers), price (cents), volume (shares). Append mode.
    """
    orders = spark.readStream.format("stock_exchange").options(**options).load()
    return orders.groupBy("stock").transformWithState(Matcher(), TRADES, "append", "None")


def stock_exchange_reference(spark: SparkSession, **options: str) -> DataFrame:
    """Return the same trades, matched one order at a time in plain Python; for batch sessions."""
    orders = spark.readStream.format("stock_exchange").options(**options).load()
    return orders.coalesce(1).mapInArrow(_by_the_book, TRADES)


def _by_the_book(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    rows = (row for batch in batches for row in batch.to_pylist())
    schema = pa.schema(
        [pa.field("stock", pa.int32())]
        + [pa.field(name, pa.int64()) for name in ("buy", "sell", "price", "volume")]
    )
    trades = [dict(zip(schema.names, trade, strict=True)) for trade in order_book.trades_of(rows)]
    yield pa.RecordBatch.from_pylist(trades, schema=schema)


def word_count(spark: SparkSession, **options: str) -> DataFrame:
    """Return the count of each word in windows of 5 s.

    Columns window, word, count. Append mode. [STREAMSWITCH] figure 16 has two operators, Split and
    Count; here Spark splits before the exchange.
    """
    sentences = spark.readStream.format("sentences").options(**options).load()
    words = sentences.withWatermark("scheduled", "1 second").select(
        "scheduled", F.explode(F.split("text", " ")).alias("word")
    )
    return words.groupBy(F.window("scheduled", "5 seconds"), "word").count()


SDSC_LOG = "../shared/data/sdsc_http_1995.requests.csv.gz"


def find_sdsc_log(path: str | None = None) -> str:
    """Return the path of the SDSC log: `path`, else HEADGATE_SDSC_LOG, else beside the repository.

    Raises
    ------
    ConfigError
        The file does not exist.
    """
    named = path or os.environ.get("HEADGATE_SDSC_LOG")
    # demo/src/headgate_demo/spark/queries.py: the repository is four folders up.
    roots = (Path.cwd(), Path(__file__).resolve().parents[4])
    candidates = [Path(named)] if named else [root / SDSC_LOG for root in roots]
    for candidate in candidates:
        if candidate.is_file():
            return str(candidate.resolve())
    msg = (
        f'the log of workload sdsc is not at "{candidates[0]}"; get SDSC-HTTP of 22 Aug 1995 from '
        "the Internet Traffic Archive, write it as CSV with columns t_s (seconds of the day), "
        "host_id, path_id, kind, and name the file by option path or HEADGATE_SDSC_LOG."
    )
    raise ConfigError(msg)
