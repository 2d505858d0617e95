"""A query of each kind of operator, for `test_adopt.py`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import carried_state as carry
import pandas as pd
from carried_state import Query
from pyspark import cloudpickle
from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F
from pyspark.sql.streaming import StatefulProcessor

cloudpickle.register_pickle_by_value(sys.modules[__name__])


def timed(frame: DataFrame) -> DataFrame:
    return frame.withWatermark("ts", f"{carry.DELAY_S} seconds")


def _figures() -> list[Any]:
    return [
        F.count("*").alias("n"),
        F.count("x").alias("xs"),
        F.sum("x").alias("sum"),
        F.min("x").alias("least"),
        F.max("s").alias("greatest"),
        F.avg("d").alias("mean"),
        F.sum("m").alias("money"),
        F.avg("m").alias("price"),
        # decimals of few digits, which Spark adds up without their point
        F.sum(F.col("p").cast("decimal(8,2)") / 4).alias("quarters"),
        F.sum(F.col("p").cast("decimal(7,2)")).alias("cents"),
        F.avg(F.col("p").cast("decimal(7,2)")).alias("cent"),
    ]


def windowed(frame: DataFrame) -> DataFrame:
    return timed(frame).groupBy(F.window("ts", "10 seconds"), "k").agg(*_figures())


def overlapping(frame: DataFrame) -> DataFrame:
    window = F.window("ts", "10 seconds", "5 seconds")
    return timed(frame).groupBy("k", window).agg(*_figures())


def sessions(frame: DataFrame) -> DataFrame:
    session = F.session_window("ts", "700 milliseconds")
    return timed(frame).groupBy("k", session).agg(*_figures())


def by_key(frame: DataFrame) -> DataFrame:
    others = (F.round(F.stddev("p"), 6).alias("spread"), F.max_by("s", "p").alias("top"))
    return frame.groupBy("s", (F.col("k") % 2).alias("odd")).agg(*_figures(), *others)


def in_all(frame: DataFrame) -> DataFrame:
    return frame.agg(F.count("*").alias("n"), F.sum("x").alias("sum")).withColumn("one", F.lit(1))


def distinct(frame: DataFrame) -> DataFrame:
    return frame.select("k", "s").dropDuplicates()


def distinct_by_time(frame: DataFrame) -> DataFrame:
    second = frame.withColumn("ts", F.date_trunc("second", "ts"))
    return timed(second).select("ts", "k").dropDuplicates()


def within(frame: DataFrame) -> DataFrame:
    few = timed(frame.withColumn("p", F.col("p") % 50))
    return few.dropDuplicatesWithinWatermark(["p"]).select("id", "p")


def _sides(frame: DataFrame, every: int) -> tuple[DataFrame, DataFrame]:
    left = timed(frame.where("id % 2 = 0")).select("k", "s", "id", F.col("ts").alias("at"))
    right = timed(frame.where(f"id % {every} = 0")).select(
        F.col("k").alias("again"), F.col("id").alias("other"), F.col("ts").alias("later")
    )
    return left, right


_SOON = "k = again and later > at and later <= at + interval 4 seconds"


def inner(frame: DataFrame) -> DataFrame:
    left, right = _sides(frame, 3)
    return left.join(right, F.expr(_SOON))


def outer(frame: DataFrame) -> DataFrame:
    left, right = _sides(frame.where("k is not null"), 9)
    return left.join(right, F.expr(_SOON), "leftOuter")


def semi(frame: DataFrame) -> DataFrame:
    left, right = _sides(frame, 9)
    return left.join(right, F.expr(_SOON), "leftSemi")


def totals(key: Any, frames: Iterator[pd.DataFrame], state: Any) -> Iterator[pd.DataFrame]:
    if state.hasTimedOut:
        n, text = state.get
        state.remove()
        yield pd.DataFrame({"k": [key[0]], "n": [-n], "text": [text]})
        return
    n, text = state.get if state.exists else (0, "")
    latest = 0
    for frame in frames:
        n += len(frame)
        text = max([text, *frame["s"].dropna()])
        latest = max(latest, int(frame["ts"].max().timestamp() * 1000))
    state.update((n, text))
    state.setTimeoutTimestamp(latest + 1500)
    yield pd.DataFrame({"k": [key[0]], "n": [n], "text": [text]})


def group_state(frame: DataFrame) -> DataFrame:
    keyed = timed(frame.withColumn("k", F.col("id") % 50)).groupBy("k")
    columns = "k bigint, n bigint, text string"
    return keyed.applyInPandasWithState(
        totals, columns, "n bigint, text string", "update", "EventTimeTimeout"
    )


class Silence(StatefulProcessor):
    """Says of each key what came until nothing came for a while."""

    output = "k bigint, n bigint, prices bigint, last bigint"

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.seen = handle.getValueState("seen", "n bigint, timer bigint")
        self.prices = handle.getMapState("prices", "price bigint", "times int")
        self.ids = handle.getListState("ids", "id bigint")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        n, timer = self.seen.get() if self.seen.exists() else (0, 0)
        latest = 0
        for row in rows:
            n += 1
            latest = max(latest, int(row.ts.timestamp() * 1000))
            self.ids.appendValue((row.id,))
            self.prices.updateValue((row.p % 7,), (1,))
        if latest + 1500 > timer:
            if timer:
                self.handle.deleteTimer(timer)
            timer = latest + 1500
            self.handle.registerTimer(timer)
        self.seen.update((n, timer))
        yield from ()

    def handleExpiredTimer(
        self, key: Any, timerValues: Any, expiredTimerInfo: Any
    ) -> Iterator[Row]:
        prices, ids = sum(1 for _ in self.prices.keys()), [row[0] for row in self.ids.get()]
        yield Row(k=key[0], n=self.seen.get()[0], prices=prices, last=max(ids))
        for state in (self.seen, self.prices, self.ids):
            state.clear()


def with_state(frame: DataFrame) -> DataFrame:
    keyed = timed(frame.withColumn("k", F.col("id") % 50)).groupBy("k")
    return keyed.transformWithState(Silence(), Silence.output, "append", "eventTime")


def distinct_in_windows(frame: DataFrame) -> DataFrame:
    second = timed(frame.withColumn("ts", F.date_trunc("second", "ts")))
    window = F.window("ts", "4 seconds")
    return second.dropDuplicates(["ts", "k"]).groupBy(window).agg(F.count("*").alias("n"))


def windows_of_windows(frame: DataFrame) -> DataFrame:
    inner = timed(frame).groupBy(F.window("ts", "2 seconds"), "k").agg(F.count("*").alias("n"))
    outer = inner.groupBy(F.window(F.window_time("window"), "6 seconds"))
    return outer.agg(F.max("n").alias("most"), F.sum("n").alias("n"))


WHOLE = (("headgate.windows", "whole"),)
_OVER = "window.end <= {due}"
AGGREGATES = {
    "windows, append": Query(windowed, "append", ends=_OVER),
    "windows, update": Query(windowed, "update", keys=("window", "k")),
    "windows, complete": Query(windowed, "complete", keys=("window", "k")),
    "overlapping windows": Query(overlapping, "append", ends=_OVER, options=WHOLE),
    "sessions": Query(sessions, "append", ends="session_window.end <= {due}"),
    "keys": Query(by_key, "update", keys=("s", "odd")),
    "no key": Query(in_all, "complete", keys=("one",)),
}
DUPLICATES = {
    "duplicates": Query(distinct, "append"),
    "duplicates by time": Query(distinct_by_time, "append"),
    "duplicates within the watermark": Query(within, "append", batch=False),
}
JOINS = {
    "inner join": Query(inner, "append"),
    "outer join": Query(
        outer, "append", ends="other is not null or at <= {due} - interval 4 seconds"
    ),
    "semi join": Query(semi, "append"),
}
PROCESSORS = {
    "group state": Query(group_state, "update", batch=False),
    "processor": Query(with_state, "append", batch=False),
}
CHAINS = {
    "duplicates, then windows": Query(distinct_in_windows, "append", ends=_OVER),
    "windows of windows": Query(windows_of_windows, "append", ends=_OVER),
}
EXPORTED = AGGREGATES | DUPLICATES | JOINS | CHAINS | {"group state": PROCESSORS["group state"]}
ADOPTED = AGGREGATES | DUPLICATES | JOINS | CHAINS | PROCESSORS
