"""Processors in the manner of Spark's own documentation, and queries around them."""

from __future__ import annotations

import datetime as dt
import os
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark import cloudpickle
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.streaming import StatefulProcessor

# workers cannot import it
cloudpickle.register_pickle_by_value(sys.modules[__name__])

START = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
FILES, ROWS = 3, 40


def write_file(folder: Path, number: int, *, late: bool = True) -> None:
    """Write one batch of readings: sensor, time, value, word; some have nulls, and some may be late."""
    rng = random.Random(number)
    folder.mkdir(parents=True, exist_ok=True)
    rows = []
    for _ in range(ROWS):
        behind = rng.random() < 0.1
        seconds = 20 * number + rng.random() * 20 - (60 if late and number and behind else 0)
        rows.append(
            {
                "sensor": rng.choice(["a", "b", "c", "d", None]),
                "ts": START + dt.timedelta(seconds=round(seconds, 3)),
                "value": rng.randrange(200),
                "word": rng.choice(["x", "yy", "zzz", "é", None]),
            }
        )
    kinds = [pa.string(), pa.timestamp("us", tz="UTC"), pa.int64(), pa.string()]
    schema = pa.schema(list(zip(["sensor", "ts", "value", "word"], kinds, strict=True)))
    pq.write_table(pa.Table.from_pylist(rows, schema=schema), folder / f"{number}.parquet")
    os.utime(folder / f"{number}.parquet", (1_000_000_000 + number,) * 2)


def readings(spark: SparkSession, folder: Path) -> DataFrame:
    reader = spark.readStream.schema("sensor string, ts timestamp, value bigint, word string")
    return reader.option("maxFilesPerTrigger", 1).parquet(str(folder))


class Violations(StatefulProcessor):
    """Counts readings above a limit per sensor: value state."""

    output = "sensor string, readings bigint, violations int, highest bigint"

    def init(self, handle: Any) -> None:
        self.seen = handle.getValueState("seen", "readings bigint, violations int, highest bigint")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        readings, violations, highest = self.seen.get() if self.seen.exists() else (0, 0, -1)
        for row in rows:
            readings += 1
            violations += row.value > 100
            highest = max(highest, row.value)
        self.seen.update((readings, violations, highest))
        yield Row(sensor=key[0], readings=readings, violations=violations, highest=highest)


class Words(StatefulProcessor):
    """Counts words per sensor, and forgets the rarest: map state, and a value of nested types."""

    output = "sensor string, word string, times bigint, last array<string>, at timestamp"

    def init(self, handle: Any) -> None:
        self.times = handle.getMapState("times", "word string", "times bigint")
        self.last = handle.getValueState(
            "last",
            "words array<string>, at timestamp, d decimal(9,2), lengths map<string, bigint>, "
            "first struct<word: string, at: timestamp>",
        )

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        words, at, _, lengths, first = self.last.get() or ([], None, None, {}, None)
        rows = sorted(rows, key=lambda row: (row.ts, row.value))
        for row in rows:
            (times,) = self.times.getValue((row.word,)) or (0,)
            self.times.updateValue((row.word,), (times + 1,))
            words = [*words, row.word][-3:]
            at = row.ts.astimezone(dt.UTC).replace(tzinfo=None)
            lengths[str(row.word)] = len(str(row.word))
        first = first or Row(word="-", at=at)
        self.last.update((words, at, None, lengths, first))
        words = [*words, str(sorted(lengths.items())), first.word, str(first.at)]
        if len(list(self.times.keys())) > 3:
            rarest = min(self.times.iterator(), key=lambda pair: (pair[1][0], str(pair[0])))
            self.times.removeKey(rarest[0])
        for (word,), (times,) in self.times.iterator():
            yield Row(sensor=key[0], word=word, times=times, last=words, at=at)


class Silence(StatefulProcessor):
    """Says when a sensor has been silent for long: event-time timers."""

    output = "sensor string, what string, at bigint"

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.latest = handle.getValueState("latest", "at bigint")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        latest = max(int(row.ts.timestamp() * 1000) for row in rows)
        if self.latest.exists():
            latest = max(latest, self.latest.get()[0])
        for timer in self.handle.listTimers():
            self.handle.deleteTimer(timer)
        self.handle.registerTimer(latest + 7000)
        self.latest.update((latest,))
        yield Row(sensor=key[0], what="alive", at=timerValues.getCurrentWatermarkInMs())

    def handleExpiredTimer(
        self, key: Any, timerValues: Any, expiredTimerInfo: Any
    ) -> Iterator[Row]:
        yield Row(sensor=key.sensor, what="silent", at=expiredTimerInfo.getExpiryTimeInMs())
        self.latest.clear()


class Sessions(StatefulProcessor):
    """Collects readings until a timer closes the session: list state and event-time timers."""

    output = "sensor string, values array<bigint>, until bigint"

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.values = handle.getListState("values", "value bigint, word string")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        rows = sorted(rows, key=lambda row: (row.ts, row.value, str(row.word)))
        if not self.values.exists():
            self.handle.registerTimer(int(rows[0].ts.timestamp() * 1000) + 15_000)
        self.values.appendList([(row.value, row.word) for row in rows])
        return iter([])

    def handleExpiredTimer(
        self, key: Any, timerValues: Any, expiredTimerInfo: Any
    ) -> Iterator[Row]:
        values = [value for value, _ in self.values.get()]
        self.values.clear()
        yield Row(sensor=key[0], values=values, until=expiredTimerInfo.getExpiryTimeInMs())


class Fresh(StatefulProcessor):
    """Time to live: what is gone by the next batch, and what stays; a timer for the next batch."""

    output = "sensor string, what string, n bigint"

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.gone = handle.getValueState("gone", "n bigint", 1)
        self.stays = handle.getMapState("stays", "word string", "n bigint", 3_600_000)
        self.items = handle.getListState("items", "n bigint", 1)

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        before = [self.gone.exists(), self.items.exists(), self.stays.containsKey(("all",))]
        count = sum(1 for _ in rows)
        (n,) = self.stays.getValue(("all",)) or (0,)
        self.stays.updateValue(("all",), (n + count,))
        self.gone.update((count,))
        self.items.appendValue((count,))
        self.handle.registerTimer(timerValues.getCurrentProcessingTimeInMs() + 1)
        yield Row(sensor=key[0], what=str(before), n=n + count)

    def handleExpiredTimer(
        self, key: Any, timerValues: Any, expiredTimerInfo: Any
    ) -> Iterator[Row]:
        now_ms = timerValues.getCurrentProcessingTimeInMs()
        assert expiredTimerInfo.getExpiryTimeInMs() <= now_ms
        yield Row(sensor=key[0], what="timer", n=self.stays.getValue(("all",))[0])


class Stock(StatefulProcessor):
    """Takes an initial state: what was there before the stream."""

    output = "sensor string, left bigint, notes string"

    def init(self, handle: Any) -> None:
        self.left = handle.getValueState("left", "n bigint")
        self.notes = handle.getListState("notes", "note string")

    def handleInitialState(self, key: Any, initialState: Row, timerValues: Any) -> None:
        self.left.update((initialState.amount,))
        self.notes.appendValue((f"begun with {list(initialState.asDict())} {len(initialState)}",))

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        rows = list(rows)
        left = (self.left.get() or (0,))[0] - sum(row.value for row in rows)
        self.notes.appendValue((f"rows of {len(rows[0])} {rows[0].__fields__}",))
        self.left.update((left,))
        yield Row(sensor=key[0], left=left, notes=str([note for (note,) in self.notes.get()]))


class ViolationsInPandas(StatefulProcessor):
    """`Violations` on frames."""

    output = Violations.output

    def init(self, handle: Any) -> None:
        self.seen = handle.getValueState("seen", "readings bigint, violations int, highest bigint")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        readings, violations, highest = self.seen.get() if self.seen.exists() else (0, 0, -1)
        for frame in rows:
            readings += len(frame)
            violations += int((frame["value"] > 100).sum())
            highest = max(highest, int(frame["value"].max()))
            kind = type(frame)
        self.seen.update((readings, violations, highest))
        yield kind(
            {
                "sensor": [key[0]],
                "readings": [readings],
                "violations": [violations],
                "highest": [highest],
            }
        )


def query(spark: SparkSession, folder: Path, processor: Any, mode: str = "None") -> DataFrame:
    """Return the query of a processor over the readings."""
    frame = readings(spark, folder)
    if mode == "EventTime":
        frame = frame.withWatermark("ts", "5 seconds")
    grouped = frame.groupBy("sensor")
    initial = None
    if isinstance(processor, Stock):
        amounts = spark.createDataFrame(
            [("a", 500), ("b", 100), ("e", 7)], "sensor string, amount int"
        )
        initial = amounts.groupBy("sensor")
    if isinstance(processor, ViolationsInPandas):
        return grouped.transformWithStateInPandas(processor, processor.output, "update", mode)
    return grouped.transformWithState(processor, processor.output, "update", mode, initial)


class Failing(Violations):
    """`Violations` that fails in the second batch."""

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        rows = list(rows)
        if any(row.ts >= START + dt.timedelta(seconds=20) for row in rows):
            raise ValueError(f"secret {rows}")
        return super().handleInputRows(key, iter(rows), timerValues)
