"""The stock exchange as a job of a few thousand orders, and what must come out of it."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from typing import Any

from ending import ending
from pyspark.sql import DataFrame, SparkSession

import headgate as hg
from headgate.spark.cluster.session import session
from headgate.workloads.rates import ConstantRate
from headgate_demo.generators import order_book
from headgate_demo.generators.stock_exchange import ExchangeConfig, orders
from headgate_demo.spark import sources
from headgate_demo.spark.queries import stock_exchange

ROWS, BATCH, STOCKS, SEED = 4_000, 500, 60, 5
OPTIONS = {
    "seed": str(SEED),
    "rate": "1000",
    "events": str(ROWS),
    "batch_rows": str(BATCH),
    "base": "0",
    "stocks": str(STOCKS),
}


def trades(spark: SparkSession, **options: str) -> DataFrame:
    sources.register(spark)
    return stock_exchange(spark, **{**OPTIONS, **options})


def expected(rows: int = ROWS, stocks: int = STOCKS) -> Counter[tuple[int, ...]]:
    """Return what the plain order books make of the first rows."""
    config = ExchangeConfig(seed=SEED, rate=ConstantRate(1000.0), stocks=stocks)
    return Counter(order_book.trades_of(orders(config, 0, rows, 0).to_pylist()))


def writer(frame: DataFrame, directory: Path) -> Any:
    made = hg.writeStream(frame).format("parquet").option("path", str(directory / "out"))
    made = made.option("checkpointLocation", str(directory / "checkpoint"))
    return made.option("headgate.snapshotEvery", 3).keyGroups(16).slots(start=2)


def put_out(spark: SparkSession, directory: Path) -> Counter[tuple[int, ...]]:
    rows = spark.read.parquet(str(directory / "out")).collect()
    return Counter((r.stock, r.buy, r.sell, r.price, r.volume) for r in rows)


if __name__ == "__main__":
    ending(writer(trades(session(master="local[2]")), Path(sys.argv[1]))).awaitTermination()
