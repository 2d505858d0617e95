"""Input and harness of queries as people write them: the same code over a stream and over a batch.

The last file of every stream holds one record far behind all others, so that everything before it is
due when the stream ends. In append mode the batch answer is that without these records.
"""

from __future__ import annotations

import json
import os
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, ClassVar

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import headgate as hg

START = datetime(2026, 3, 1, 12, 0, 0)
LAST = START + timedelta(hours=3)
"""Event time of the records that close everything."""

FILES, ROWS = 4, 40

LONERS = {"events": {"user": "eve"}, "clicks": {"click_user": "kim"}}

EVENTS = (
    "id bigint, ts timestamp, user string, device string, action string, value double, "
    "tags array<string>, payload string"
)
CLICKS = "click_id bigint, click_ts timestamp, click_user string, ad bigint"


def write_streams(folder: Path, seed: int = 1) -> None:
    """Write the files of both streams as JSON, in the order in which they come."""
    rng = random.Random(seed)
    for name, row in (("events", _event), ("clicks", _click)):
        (folder / name).mkdir(parents=True)
        number = 0
        for file in range(FILES):
            rows = []
            for _ in range(ROWS):
                at = START + timedelta(seconds=file * 60 + rng.uniform(0, 62))
                rows.append(row(rng, number, at))
                number += 1
            if file == FILES - 1:
                # of nobody else, so that nothing meets it
                rows.append({**row(rng, number, LAST), **LONERS[name]})
            path = folder / name / f"{file}.json"
            path.write_text("\n".join(map(json.dumps, rows)))
            os.utime(path, (1_000_000_000 + file, 1_000_000_000 + file))


def _event(rng: random.Random, number: int, at: datetime) -> dict[str, Any]:
    value = round(rng.uniform(0, 100), 2)
    return {
        "id": number // 2 if rng.random() < 0.3 else number,
        "ts": at.isoformat(),
        "user": rng.choice(["ann", "bob", "cy", "dee"]),
        "device": rng.choice(["d1", "d2", "d3"]),
        "action": rng.choice(["view", "buy", "cart"]),
        "value": value,
        "tags": rng.sample(["a", "b", "c"], rng.randint(0, 3)),
        "payload": json.dumps({"temp": value, "unit": rng.choice("CF")}),
    }


def _click(rng: random.Random, number: int, at: datetime) -> dict[str, Any]:
    return {
        "click_id": number,
        "click_ts": at.isoformat(),
        "click_user": rng.choice(["ann", "bob", "cy", "dee"]),
        "ad": rng.randint(0, 5),
    }


@dataclass(frozen=True)
class Given:
    """What a query may read; the same names whether it is a stream or a batch.

    Attributes
    ----------
    EVENTS, CLICKS : str
        Schemas.
    spark : SparkSession
    folder : Path
    stream : bool
    last : bool
        Whether the batch has the records that close everything.
    """

    EVENTS: ClassVar[str] = EVENTS
    CLICKS: ClassVar[str] = CLICKS
    spark: SparkSession
    folder: Path
    stream: bool = True
    last: bool = True

    @property
    def events(self) -> DataFrame:
        """Stream of what users do."""
        return self._read("events", self.EVENTS, "ts")

    @property
    def clicks(self) -> DataFrame:
        """Stream of clicks on advertisements."""
        return self._read("clicks", self.CLICKS, "click_ts")

    def _read(self, name: str, schema: str, time: str) -> DataFrame:
        path = str(self.folder / name)
        if self.stream:
            reader = self.spark.readStream.schema(schema).option("maxFilesPerTrigger", 1)
            return reader.json(path)
        read = self.spark.read.schema(schema).json(path)
        return read if self.last else read.where(F.col(time) < F.lit(LAST))

    @property
    def users(self) -> DataFrame:
        """A static table."""
        rows = [("ann", "gold", 1), ("bob", "silver", 2), ("cy", "gold", 3)]
        return self.spark.createDataFrame(rows, "name string, tier string, level int")

    @property
    def devices(self) -> DataFrame:
        """Another one."""
        rows = [("d1", "hall"), ("d2", "roof"), ("d3", "cellar")]
        return self.spark.createDataFrame(rows, "device string, place string")


@dataclass(frozen=True)
class Written:
    """A query as somebody writes it.

    Attributes
    ----------
    build : callable
        From what it may read to its DataFrame.
    mode : str
        Output mode.
    keys : sequence of str
        In update mode: columns of which the newest row counts; none where all rows do.
    last : bool
        Whether in append mode, too, the records that close everything come out.
    """

    build: Callable[[Given], DataFrame]
    mode: str = "append"
    keys: Sequence[str] = ()
    last: bool = False


def answers(spark: SparkSession, folder: Path, query: Written) -> Any:
    """Return (what headgate put out, what the batch says), as counted rows, and both schemas."""
    frame = query.build(Given(spark, folder))
    batches: list[list[Any]] = []

    def keep(batch: DataFrame, batch_id: int) -> None:
        batches.append(batch.collect())

    running = hg.writeStream(frame).outputMode(query.mode).foreachBatch(keep)
    running = running.trigger(availableNow=True).start()
    running.awaitTermination()
    batch = query.build(
        Given(spark, folder, stream=False, last=query.last or query.mode != "append")
    )
    return (
        counted(spark, final(batches, query.mode, query.keys)),
        counted(spark, batch.collect()),
        shape(frame),
        shape(batch),
    )


def final(batches: list[list[Any]], mode: str, keys: Sequence[str]) -> list[Any]:
    """Return the rows that count when the stream has ended: in update mode the newest of each key."""
    if mode == "complete":
        return batches[-1] if batches else []
    rows = [row for batch in batches for row in batch]
    if mode == "append" or not keys:
        return rows
    return list({tuple(repr(row[key]) for key in keys): row for row in rows}.values())


def counted(spark: SparkSession, rows: Sequence[Any]) -> Counter[str]:
    """Return rows as a bag; floats are rounded, since sums come in another order."""
    return Counter(repr(_plain(row.asDict(True))) for row in rows)


_ASIDE = 1.0 + 3.7e-11


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        # moved a little first: means of quarters lie just between two roundings
        return float(f"{value * _ASIDE:.9g}")
    if isinstance(value, dict):
        return {name: _plain(part) for name, part in value.items()}
    if isinstance(value, list):
        return sorted(map(_plain, value), key=repr)
    return value


def shape(frame: DataFrame) -> list[tuple[str, str]]:
    """Return the names and types of the columns."""
    return [(field.name, field.dataType.simpleString()) for field in frame.schema.fields]
