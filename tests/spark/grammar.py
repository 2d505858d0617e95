"""A grammar of streaming queries, as people write them and as far as Spark lets them through.

A seed draws a query: what is read, what is done below, an operator or several, an output mode, what
stands above, as calls or as SQL. `Draw.used` has each alternative that was taken, so that a test can say
that none is left out. Operators are in `grammar_operators`.
"""

from __future__ import annotations

import random
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pandas as pd
import pyarrow as pa
from grammar_data import EVENTS, Given
from pyspark import cloudpickle
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T
from written import LAST

# workers do not have this file
cloudpickle.register_pickle_by_value(sys.modules[__name__])

Step = Callable[[DataFrame, Given], DataFrame]
Build = Callable[[Given], DataFrame]

COLUMNS = set(
    re.findall(
        r"(\w+) (?:bigint|timestamp|string|double|decimal|boolean|date|array|map|struct)", EVENTS
    )
)
COLUMNS -= {"city"}


class Draw:
    """Draws, and remembers what was drawn.

    Attributes
    ----------
    used : list of str
        ``rule: alternative``, in the order in which they were drawn.
    offered : set of str
        All that could have been.
    """

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(f"grammar {seed}")
        self.used: list[str] = []
        self.offered: set[str] = set()

    def one(self, rule: str, choices: Mapping[str, Any] | Sequence[str], *among: str) -> Any:
        """Return one of the choices; of a mapping its value. `among` narrows them by name."""
        names = [name for name in choices if not among or name in among]
        name = self.rng.choice(names)
        self.used.append(f"{rule}: {name}")
        self.offered |= {f"{rule}: {other}" for other in choices}
        return choices[name] if isinstance(choices, Mapping) else name

    def some(self, rule: str, choices: Mapping[str, Any], least: int, most: int) -> list[Any]:
        """Return some of them, all different."""
        number = min(self.rng.randint(least, most), len(choices))
        names = self.rng.sample(list(choices), number)
        self.used += [f"{rule}: {name}" for name in names]
        self.offered |= {f"{rule}: {other}" for other in choices}
        return [choices[name] for name in names]

    def often(self, probability: float) -> bool:
        return self.rng.random() < probability


@dataclass(frozen=True)
class Query:
    """A query, or a part of one that others read.

    Attributes
    ----------
    build : callable
        From what it may read to its DataFrame.
    mode : str
        Output mode.
    has : dict of str to str
        Columns that are put out, by name, and what each is: number, text, window, time, array or other.
    keys : list of str
        In update mode: columns of which the newest row counts.
    due : bool
        Whether rows come out once their time is over: those of the records that close everything do not.
    exact : bool
        Whether no last digit and no order within a list is left to chance.
    stream : bool
        Whether the answer is defined by Spark's own stream, and not by its batch.
    batch : bool
        Whether only a batch of Spark's gives the answer: it refuses the stream.
    text : str
    """

    build: Build
    mode: str = "append"
    has: dict[str, str] = field(default_factory=dict)
    keys: list[str] = field(default_factory=list)
    due: bool = False
    exact: bool = True
    stream: bool = False
    batch: bool = False
    text: str = ""
    sink: str = "foreachBatch"

    def then(self, step: Step, text: str, **changed: Any) -> Query:
        """Return the query with a step more above."""
        build = self.build
        return replace(
            self, build=lambda g: step(build(g), g), text=f"{self.text} | {text}", **changed
        )

    def of(self, *kinds: str) -> list[str]:
        """Return the columns that are of one of some kinds."""
        return [name for name, kind in self.has.items() if kind in kinds]


# -- what is read and what is done below ------------------------------------------------------------


def _plain(g: Given) -> DataFrame:
    return g.events


def _kafka(g: Given) -> DataFrame:
    """As if it came from Kafka: bytes of JSON."""
    packed = g.events.select(
        F.col("user").cast("binary").alias("key"),
        F.to_json(F.struct("*")).cast("binary").alias("value"),
    )
    parsed = packed.select(
        F.from_json(F.col("value").cast("string"), EVENTS).alias("data"),
        F.col("key").cast("string"),
    )
    return parsed.select("data.*")


def _times_as_text(g: Given) -> DataFrame:
    return g.events.withColumn("ts", F.date_format("ts", "yyyy-MM-dd HH:mm:ss.SSSSSS")).withColumn(
        "ts", F.to_timestamp("ts")
    )


def _view(g: Given) -> DataFrame:
    g.events.createOrReplaceTempView("raw_events")
    return g.spark.sql("SELECT * FROM raw_events")


def _epochs(g: Given) -> DataFrame:
    return (
        g.events.withColumn("ms", (F.col("ts").cast("double") * 1e6).cast("bigint"))
        .withColumn("ts", F.timestamp_micros("ms"))
        .drop("ms")
    )


READ: dict[str, Build] = {
    "plain": _plain,
    "kafka": _kafka,
    "times as text": _times_as_text,
    "temporary view": _view,
    "times as numbers": _epochs,
}


shout = F.udf(lambda text: None if text is None else text.upper(), T.StringType())


@F.pandas_udf(T.DoubleType())
def halved(values: pd.Series) -> pd.Series:
    return values / 2


def same_frame(frame: pd.DataFrame) -> pd.DataFrame:
    return frame


def same_frames(frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
    yield from frames


def same_batches(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches


def _in_pandas(frame: DataFrame, g: Given) -> DataFrame:
    rest = ("attrs", "place", "tags", "ok", "born")  # what pandas would turn into something else
    return frame.drop(*rest).mapInPandas(same_frames, frame.drop(*rest).schema)


def _nothing(frame: DataFrame, g: Given) -> DataFrame:
    return frame


BELOW: dict[str, Step] = {
    "where": lambda f, g: f.where((F.col("action") != "cart") | F.col("ts").isNull()),
    "where text": lambda f, g: f.filter("id % 7 <> 3"),
    "withColumn chain": lambda f, g: (
        f.withColumn("value", F.col("value") * 2)
        .withColumn("level", F.when(F.col("value") > 50, "high").otherwise("low"))
        .withColumn("user", F.coalesce("user", F.lit("nobody")))
    ),
    "fillna": lambda f, g: f.fillna({"value": 0.0, "user": "?"}),
    "dropna": lambda f, g: f.dropna(subset=["user", "value"]),
    "static join": lambda f, g: f.join(g.users, F.col("user") == F.col("name")),
    "left static join": lambda f, g: f.join(F.broadcast(g.devices), "device", "left"),
    "semi static join": lambda f, g: f.join(g.devices, "device", "left_semi"),
    "anti static join": lambda f, g: f.join(
        g.users.where("level = 3"), f.user == F.col("name"), "left_anti"
    ),
    "right static join": lambda f, g: g.users.join(f, F.col("user") == F.col("name"), "right"),
    "static aggregate": lambda f, g: f.join(
        g.users.groupBy("name").agg(F.max("level").alias("best")), f.user == F.col("name"), "left"
    ),
    "replace": lambda f, g: f.na.replace({"buy": "cart"}, subset=["action"]),
    "explode": lambda f, g: f.withColumn("tag", F.explode("tags")),
    "explode outer": lambda f, g: f.withColumn("tag", F.explode_outer("tags")),
    "udf": lambda f, g: f.withColumn("user", shout("user")),
    "pandas udf": lambda f, g: f.withColumn("value", halved("value")),
    "mapInPandas": _in_pandas,
    "mapInArrow": lambda f, g: f.mapInArrow(same_batches, f.schema),
    "payload": lambda f, g: (
        f.withColumn("p", F.from_json("payload", "temp double, unit string"))
        .withColumn("value", F.col("p.temp"))
        .withColumn("device", F.col("p.unit"))
        .drop("p")
    ),
    "get_json_object": lambda f, g: f.withColumn("action", F.get_json_object("payload", "$.unit")),
    "observe": lambda f, g: f.observe("seen", F.count("*").alias("n")),
    "repartition": lambda f, g: f.repartition(3, "user"),
    "coalesce": lambda f, g: f.coalesce(1),
    "select expr": lambda f, g: f.selectExpr("*", "ts AS time", "upper(device) AS unit").drop(
        "unit", "time"
    ),
    "alias": lambda f, g: f.alias("e").select("e.*"),
    "transform": lambda f, g: f.transform(lambda x: x.withColumn("twice", F.col("id") * 2)),
    "processing time": lambda f, g: f.withColumn("now", F.current_timestamp()).drop("now"),
    "sql": lambda f, g: _through_sql(f),
    "in subquery": lambda f, g: _through_subquery(f, g.devices),
    "union": lambda f, g: f.where("id % 2 = 0").unionByName(f.where("id % 2 = 1")),
    "inline": lambda f, g: f.withColumn("part", F.explode(F.array(F.lit(1), F.lit(2)))).where(
        "part = 1"
    ),
}
"""Every column that operators ask for is still there afterwards, but for those `LOSES` names."""

LOSES = {"mapInPandas": {"attrs", "place", "tags", "ok", "born"}}


def _through_sql(frame: DataFrame) -> DataFrame:
    frame.createOrReplaceTempView("below")
    return frame.sparkSession.sql(
        "SELECT *, length(user) AS letters FROM below WHERE device IS NOT NULL"
    )


def _through_subquery(frame: DataFrame, known: DataFrame) -> DataFrame:
    frame.createOrReplaceTempView("below")
    known.createOrReplaceTempView("known")
    return frame.sparkSession.sql("SELECT * FROM below WHERE device IN (SELECT device FROM known)")


DELAYS = ["2 seconds", "10 seconds", "1 minute", "10 minutes", "1 hour"]


@dataclass(frozen=True)
class Stream:
    """A stream with a watermark (or none) that an operator reads.

    Attributes
    ----------
    build : callable
    columns : set of str
        Those of `EVENTS` that are there.
    text : str
    """

    build: Build
    columns: set[str]
    text: str


def events(draw: Draw, *, watermark: bool = True, most: int = 2) -> Stream:
    """Return the stream of events, prepared."""
    name = draw.one("read", list(READ))
    read, text, have = READ[name], name, set(COLUMNS)
    chosen = draw.some("below", {n: n for n in BELOW}, 0, most)
    steps = [BELOW[one] for one in chosen]
    for one in chosen:
        have -= LOSES.get(one, set())
    needs_lost = {"explode", "explode outer"} & set(chosen) and "mapInPandas" in chosen
    if needs_lost:
        steps, chosen = steps[:1], chosen[:1]
    delay = draw.one("delay", DELAYS) if watermark else None
    early = draw.often(0.5)
    text += "".join(f" | {one}" for one in chosen) + (
        f" | watermark {delay} {early=}" if delay else ""
    )

    def build(g: Given) -> DataFrame:
        frame = read(g)
        if delay and early:
            frame = frame.withWatermark("ts", delay)
        for step in steps:
            frame = step(frame, g)
        return frame.withWatermark("ts", delay) if delay and not early else frame

    return Stream(build, have, text)


def needs(expression: str) -> set[str]:
    """Return the columns of events that an expression names."""
    return set(re.findall(r"[a-z_]+", expression)) & COLUMNS


def before_last(frame: DataFrame) -> DataFrame:
    """Return a branch without what closes everything, where another branch comes out when it is due."""
    return frame.where(F.col("ts") < F.lit(LAST))
