"""The streaming queries of Spark's own guide and examples, over the streams of `grammar_data`.

What a query does is that of the place it is named after; columns are those of the streams. Scala's and
Java's are in PySpark's words.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import pandas as pd
from grammar import Query
from grammar_data import Given
from pyspark import cloudpickle
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout

cloudpickle.register_pickle_by_value(sys.modules[__name__])

GUIDE = "Programming guide"
EXAMPLES = "Examples"
TESTS = "Tests of PySpark"


@dataclass(frozen=True)
class Example:
    """One query.

    Attributes
    ----------
    place : str
        Where it stands.
    query : Query
    """

    place: str
    query: Query


def _query(
    build: Callable[[Given], DataFrame],
    mode: str = "append",
    keys: Sequence[str] = (),
    *,
    last: bool = False,
    stream: bool = False,
) -> Query:
    """Return a query; `last`: whether the records that close everything come out in append mode, too."""
    return Query(build, mode, keys=list(keys), due=mode == "append" and not last, stream=stream)


def words(g: Given) -> DataFrame:
    """Return what the guide calls words: a time and a word."""
    return g.events.select(
        F.explode(F.split(F.concat_ws(" ", "user", "action"), " ")).alias("word"),
        F.col("ts").alias("timestamp"),
    )


def impressions(g: Given) -> DataFrame:
    return g.events.select(
        F.col("id").alias("impressionAdId"), F.col("ts").alias("impressionTime"), "user"
    ).withWatermark("impressionTime", "1 hour")


def clicks(g: Given) -> DataFrame:
    return g.clicks.select(
        F.col("click_id").alias("clickAdId"), F.col("click_ts").alias("clickTime"), "click_user"
    ).withWatermark("clickTime", "30 minutes")


_AD = (
    "clickAdId = impressionAdId AND clickTime >= impressionTime AND "
    "clickTime <= impressionTime + interval 1 hour"
)


def _joined(how: str) -> Query:
    return _query(lambda g: impressions(g).join(clicks(g), F.expr(_AD), how))


def _view(g: Given, text: str) -> DataFrame:
    g.events.createOrReplaceTempView("updates")
    return g.spark.sql(text)


def sessions(
    key: tuple[str, ...], frames: Iterator[pd.DataFrame], state: GroupState
) -> Iterator[pd.DataFrame]:
    """Count events of a user until none has come for 20 seconds of event time."""
    if state.hasTimedOut:
        count, start, end = state.get
        yield pd.DataFrame(
            {"user": [key[0]], "seconds": [(end - start) // 1000], "events": [count]}
        )
        state.remove()
        return
    times = [int(t.timestamp() * 1000) for frame in frames for t in frame["ts"]]
    count, start, end = state.get if state.exists else (0, min(times), max(times))
    count, start, end = count + len(times), min([start, *times]), max([end, *times])
    state.update((count, start, end))
    state.setTimeoutTimestamp(max(end + 20_000, state.getCurrentWatermarkMs() + 1))


def _sessions(g: Given) -> DataFrame:
    return (
        g.events.withWatermark("ts", "10 seconds")
        .groupBy("user")
        .applyInPandasWithState(
            sessions,
            "user string, seconds bigint, events bigint",
            "count bigint, start bigint, end bigint",
            "append",
            GroupStateTimeout.EventTimeTimeout,
        )
    )


def _count(
    key: tuple[str, ...], frames: Iterator[pd.DataFrame], state: GroupState
) -> Iterator[pd.DataFrame]:
    count = state.getOption[0] if state.exists else 0
    count += sum(map(len, frames))
    state.update((count,))
    yield pd.DataFrame({"key": [key[0]], "countAsString": [str(count)]})


def _counts(g: Given) -> DataFrame:
    return g.events.groupBy("user").applyInPandasWithState(
        _count,
        "key string, countAsString string",
        "c bigint",
        "update",
        GroupStateTimeout.NoTimeout,
    )


def _windowed(delay: str | None, *window: str) -> Callable[[Given], DataFrame]:
    def build(g: Given) -> DataFrame:
        found = words(g)
        if delay:
            found = found.withWatermark("timestamp", delay)
        return found.groupBy(F.window(found.timestamp, *window), found.word).count()

    return build


def _named(frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
    for frame in frames:
        yield frame[["user", "count"]].assign(user=frame["user"].str.upper())


ALL: dict[str, Example] = {
    "running word count": Example(
        f"{GUIDE}, quick example; structured_network_wordcount.py",
        _query(lambda g: words(g).select("word").groupBy("word").count(), "complete"),
    ),
    "selection": Example(
        f"{GUIDE}, basic operations",
        _query(
            lambda g: g.events.select("device", "value").where("value > 10").select("device"),
            last=True,
        ),
    ),
    "running count by type": Example(
        f"{GUIDE}, basic operations",
        _query(lambda g: g.events.groupBy("device").count(), "update", ["device"]),
    ),
    "running average by type": Example(
        f"{GUIDE}, basic operations (Scala's typed aggregate)",
        _query(lambda g: g.events.groupBy("device").agg(F.avg("value")), "complete"),
    ),
    "temporary view": Example(
        f"{GUIDE}, basic operations",
        _query(lambda g: _view(g, "select count(*) from updates"), "complete"),
    ),
    "sliding windows": Example(
        f"{GUIDE}, window operations; structured_network_wordcount_windowed.py",
        _query(_windowed(None, "10 minutes", "5 minutes"), "complete"),
    ),
    "sliding windows, sorted": Example(
        "structured_network_wordcount_windowed.py",
        _query(
            lambda g: _windowed(None, "1 minute", "30 seconds")(g).orderBy("window"), "complete"
        ),
    ),
    "windows with a watermark, append": Example(
        f"{GUIDE}, handling late data", _query(_windowed("10 minutes", "10 minutes", "5 minutes"))
    ),
    "windows with a watermark, update": Example(
        f"{GUIDE}, handling late data",
        _query(_windowed("10 minutes", "10 minutes", "5 minutes"), "update", ["window", "word"]),
    ),
    "tumbling windows": Example(
        f"{GUIDE}, types of time windows", _query(_windowed("10 seconds", "30 seconds"))
    ),
    "session windows": Example(
        f"{GUIDE}, types of time windows; structured_network_wordcount_session_window.py",
        _query(
            lambda g: (
                g.events.withWatermark("ts", "10 minutes")
                .groupBy(F.session_window("ts", "5 seconds"), "user")
                .count()
            )
        ),
    ),
    "session windows with a gap by key": Example(
        f"{GUIDE}, types of time windows",
        _query(
            lambda g: (
                g.events.withWatermark("ts", "10 minutes")
                .groupBy(
                    F.session_window(
                        "ts",
                        F.when(F.col("user") == "ann", "5 seconds")
                        .when(F.col("user") == "bob", "20 seconds")
                        .otherwise("5 minutes"),
                    ),
                    "user",
                )
                .count()
            )
        ),
    ),
    "the time of a window": Example(
        f"{GUIDE}, representation of the time for time window",
        _query(
            lambda g: (
                _windowed("10 seconds", "10 seconds", "5 seconds")(g)
                .groupBy(F.window(F.window_time("window"), "1 minute", "30 seconds"), "word")
                .count()
            )
        ),
    ),
    "a window of a window": Example(
        f"{GUIDE}, representation of the time for time window",
        _query(
            lambda g: (
                _windowed("10 seconds", "10 seconds", "5 seconds")(g)
                .groupBy(F.window("window", "1 minute", "30 seconds"), "word")
                .agg(F.sum("count").alias("count"))
            )
        ),
    ),
    "inner join with a table": Example(
        f"{GUIDE}, stream-static joins",
        _query(lambda g: g.events.join(g.devices, "device"), last=True),
    ),
    "left outer join with a table": Example(
        f"{GUIDE}, stream-static joins",
        _query(lambda g: g.events.join(g.devices, "device", "left_outer"), last=True),
    ),
    "inner join of two streams": Example(f"{GUIDE}, stream-stream joins", _joined("inner")),
    "left outer join of two streams": Example(
        f"{GUIDE}, stream-stream joins", _joined("leftOuter")
    ),
    "right outer join of two streams": Example(
        f"{GUIDE}, stream-stream joins", _joined("rightOuter")
    ),
    "full outer join of two streams": Example(
        f"{GUIDE}, stream-stream joins", _joined("fullOuter")
    ),
    "left semi join of two streams": Example(f"{GUIDE}, stream-stream joins", _joined("leftSemi")),
    "duplicates by id": Example(
        f"{GUIDE}, streaming deduplication",
        _query(lambda g: g.events.dropDuplicates(["id"]).select("id"), last=True),
    ),
    "duplicates by id and time": Example(
        f"{GUIDE}, streaming deduplication",
        _query(
            lambda g: (
                g.events.withWatermark("ts", "10 seconds")
                .dropDuplicates(["id", "ts"])
                .select("id", "ts")
            ),
            last=True,
        ),
    ),
    "duplicates within the watermark": Example(
        f"{GUIDE}, streaming deduplication",
        _query(
            lambda g: (
                g.events.withWatermark("ts", "1 hour").dropDuplicatesWithinWatermark(["id"])
                if g.stream
                else g.events.dropDuplicates(["id"])
            ).select("id"),
            last=True,
        ),
    ),
    "aggregation over a join": Example(
        f"{GUIDE}, stateful operations in a chain",
        _query(
            lambda g: (
                impressions(g)
                .join(clicks(g), F.expr(_AD))
                .groupBy(F.window("clickTime", "1 minute"))
                .agg(F.count("*").alias("n"))
            )
        ),
    ),
    "aggregation over an outer join": Example(
        f"{GUIDE}, stateful operations in a chain",
        _query(
            lambda g: (
                impressions(g)
                .join(clicks(g), F.expr(_AD), "leftOuter")
                .groupBy(F.window("impressionTime", "1 minute"), "user")
                .count()
            )
        ),
    ),
    "sessions by a function": Example(
        "structured_sessionization.py", _query(_sessions, stream=True)
    ),
    "deduplicate, then aggregate": Example(
        f"{GUIDE}, output modes",
        _query(
            lambda g: (
                g.events.withWatermark("ts", "10 seconds")
                .dropDuplicates(["id", "ts"])
                .groupBy(F.window("ts", "1 minute"))
                .count()
            )
        ),
    ),
    "aggregation without event time": Example(
        f"{GUIDE}, output sinks",
        _query(lambda g: g.events.groupBy("action").count(), "complete"),
    ),
    "bytes of Kafka as text": Example(
        "Kafka integration guide; structured_kafka_wordcount.py",
        _query(
            lambda g: (
                g.events.select(F.col("action").cast("binary").alias("value"))
                .selectExpr("CAST(value AS STRING)")
                .select(F.explode(F.split("value", " ")).alias("word"))
                .groupBy("word")
                .count()
            ),
            "complete",
        ),
    ),
    "a count per key by a function": Example(
        f"{TESTS}, applyInPandasWithState", _query(_counts, "update", stream=True)
    ),
    "maps over frames": Example(
        f"{TESTS}, mapInPandas",
        _query(
            lambda g: (
                g.events.groupBy("user").count().mapInPandas(_named, "user string, count bigint")
            ),
            "complete",
        ),
    ),
    "grouped frames": Example(
        f"{TESTS}, applyInPandas in complete mode",
        _query(
            lambda g: (
                g.events.groupBy("user", "device")
                .count()
                .groupBy("user")
                .applyInPandas(
                    lambda frame: frame.nlargest(1, ["count"]),
                    "user string, device string, count bigint",
                )
                .select("user", "count")
            ),
            "complete",
        ),
    ),
    "observed metrics": Example(
        f"{TESTS}, listeners",
        _query(
            lambda g: (
                g.events.observe("seen", F.count(F.lit(1)).alias("cnt")).groupBy("user").count()
            ),
            "complete",
        ),
    ),
    "a limit": Example(
        f"{TESTS}, streaming",
        _query(lambda g: g.events.select(F.lit(1).alias("one")).limit(5), last=True),
    ),
    "every row into foreachBatch": Example(
        f"{TESTS}, foreachBatch", _query(lambda g: g.events.select("id", "user"), last=True)
    ),
    "counts into foreachBatch": Example(
        f"{TESTS}, foreachBatch",
        _query(lambda g: g.events.groupBy("user").agg({"value": "max"}), "update", ["user"]),
    ),
}
"""By what a query does."""


def rows() -> list[tuple[str, str]]:
    """Return the table for people: name and place."""
    return [(name, example.place) for name, example in ALL.items()]
