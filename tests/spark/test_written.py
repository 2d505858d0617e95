"""Queries as people write them, only the writer's line changed: each answers as Spark's batch does."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T
from pyspark.sql.streaming.listener import StreamingQueryListener
from written import Given, Written, answers, write_streams

import headgate as hg

WM = "10 seconds"

# workers do not have this file
cloudpickle.register_pickle_by_value(sys.modules[__name__])


@pytest.fixture(scope="module")
def session(spark: SparkSession) -> Iterator[SparkSession]:
    before = {
        name: spark.conf.get(name)
        for name in ("spark.sql.session.timeZone", "spark.sql.shuffle.partitions")
    }
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    spark.conf.set("spark.sql.shuffle.partitions", "2")
    yield spark
    for name, value in before.items():
        spark.conf.set(name, value)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("written")
    write_streams(folder)
    return folder


def events(g: Given) -> DataFrame:
    return g.events.withWatermark("ts", WM)


def clicks(g: Given) -> DataFrame:
    return g.clicks.withWatermark("click_ts", WM)


def per_window(g: Given, *more: str) -> DataFrame:
    return events(g).groupBy(F.window("ts", "30 seconds"), *more).count()


# -- windows ----------------------------------------------------------------------------------------

WINDOWS = {
    "tumbling count": Written(lambda g: per_window(g, "device")),
    "tumbling count, update": Written(
        lambda g: per_window(g, "device"), "update", ["window", "device"]
    ),
    "sliding average": Written(
        lambda g: (
            events(g)
            .groupBy(F.window(F.col("ts"), "1 minute", "20 seconds"), F.col("device"))
            .agg(F.avg("value").alias("mean"), F.max("value").alias("peak"))
            .select("window.start", "window.end", "device", "mean", "peak")
        )
    ),
    "alarm above a threshold": Written(
        lambda g: (
            events(g)
            .groupBy(F.window("ts", "20 seconds"), "device")
            .agg(F.avg("value").alias("mean"))
            .where(F.col("mean") > 40)
            .withColumn("level", F.when(F.col("mean") > 60, "red").otherwise("amber"))
        )
    ),
    "word count": Written(
        lambda g: (
            g.events.select(F.explode(F.split("action", "")).alias("word")).groupBy("word").count()
        ),
        "complete",
    ),
    "sorted top": Written(
        lambda g: (
            g.events.groupBy("user")
            .agg(F.count("*").alias("n"), F.sum("value").alias("total"))
            .orderBy(F.desc("total"))
            .limit(2)
        ),
        "complete",
    ),
    "session": Written(
        lambda g: (
            events(g)
            .groupBy(F.session_window("ts", "4 seconds"), "user")
            .agg(F.count("*").alias("events"), F.sum("value").alias("spent"))
        )
    ),
    "session by device": Written(
        lambda g: (
            events(g)
            .groupBy(
                F.session_window(
                    "ts",
                    F.when(F.col("device") == "d1", "2 seconds")
                    .when(F.col("device") == "d2", "6 seconds")
                    .otherwise("3 seconds"),
                ),
                "user",
            )
            .count()
        )
    ),
    "window of windows": Written(
        lambda g: (
            per_window(g, "device")
            .groupBy(F.window(F.window_time("window"), "1 minute"), "device")
            .agg(F.sum("count").alias("n"), F.max("count").alias("peak"))
        )
    ),
    "window of a window column": Written(
        lambda g: (
            per_window(g, "device")
            .groupBy(F.window("window", "1 minute"))
            .agg(F.sum("count").alias("n"))
        )
    ),
    "json payload": Written(
        lambda g: (
            g.events.select("ts", F.from_json("payload", "temp double, unit string").alias("p"))
            .select("ts", "p.*")
            .withColumn(
                "temp",
                F.when(F.col("unit") == "F", (F.col("temp") - 32) / 1.8).otherwise(F.col("temp")),
            )
            .withWatermark("ts", WM)
            .groupBy(F.window("ts", "30 seconds"), "unit")
            .agg(F.min("temp"), F.max("temp"), F.count("temp"))
        )
    ),
    "distinct users by day": Written(
        lambda g: (
            events(g)
            .withColumn("day", F.to_date("ts"))
            .dropDuplicates(["user", "day"])
            .groupBy("day")
            .count()
        ),
        "update",
        ["day"],
    ),
}

# -- what stands above ------------------------------------------------------------------------------


# without hints: PySpark takes a function that has some for an Arrow UDF, and warns that it is none
shout = F.udf(lambda text: None if text is None else text.upper(), T.StringType())


@F.pandas_udf(T.DoubleType())
def doubled(values: pd.Series) -> pd.Series:
    return values * 2


def _scaled(frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
    for frame in frames:
        yield frame.assign(count=frame["count"] * 10)


ABOVE = {
    "static join above": Written(
        lambda g: per_window(g, "user").join(g.users, F.col("user") == F.col("name"))
    ),
    "left static join above": Written(
        lambda g: per_window(g, "user").join(
            g.users.withColumnRenamed("name", "user"), "user", "left"
        )
    ),
    "broadcast join above": Written(
        lambda g: per_window(g, "device").join(F.broadcast(g.devices), "device")
    ),
    "static join above, complete": Written(
        lambda g: (
            g.events.groupBy("user")
            .count()
            .join(g.users, F.col("user") == F.col("name"), "left")
            .orderBy("user")
        ),
        "complete",
    ),
    "anti join with a blacklist above": Written(
        lambda g: per_window(g, "user").join(
            g.users.where("tier = 'gold'"), F.col("user") == F.col("name"), "left_anti"
        )
    ),
    "explode above": Written(
        lambda g: (
            events(g)
            .groupBy(F.window("ts", "30 seconds"))
            .agg(F.max("id").alias("last"), F.count("*").alias("n"))
            .withColumn("part", F.explode(F.array("last", "n")))
        )
    ),
    "udf above": Written(lambda g: per_window(g, "user").withColumn("name", shout("user"))),
    "pandas udf above": Written(
        lambda g: (
            events(g)
            .groupBy(F.window("ts", "30 seconds"))
            .agg(F.sum("value").alias("v"))
            .withColumn("twice", doubled("v"))
        )
    ),
    "mapInPandas above": Written(
        lambda g: (
            per_window(g, "user")
            .select("user", "count")
            .mapInPandas(_scaled, "user string, count bigint")
        )
    ),
    "repartition above": Written(lambda g: per_window(g, "user").repartition(3)),
    "coalesce above": Written(lambda g: per_window(g, "user").coalesce(1)),
    "to json for kafka": Written(
        lambda g: per_window(g, "user").select(
            F.col("user").cast("string").alias("key"), F.to_json(F.struct("*")).alias("value")
        )
    ),
    "watermark above": Written(
        lambda g: (
            g.events.groupBy("user")
            .agg(F.max("ts").alias("seen"), F.count("*").alias("n"))
            .withWatermark("seen", "1 minute")
        ),
        "update",
        ["user"],
    ),
    "grouped applyInPandas above": Written(
        lambda g: (
            g.events.groupBy("user", "device")
            .count()
            .groupBy("user")
            .applyInPandas(
                lambda frame: frame.sort_values(["count", "device"]).tail(1),
                "user string, device string, count bigint",
            )
        ),
        "complete",
    ),
    "union of two aggregates": Written(
        lambda g: (
            per_window(g, "user")
            .withColumnRenamed("user", "what")
            .union(per_window(g, "device").withColumnRenamed("device", "what"))
        )
    ),
    "union of an aggregate and the stream": Written(
        lambda g: (
            per_window(g, "user")
            .select("user", F.col("count").cast("double").alias("x"))
            .unionByName(
                events(g).where("ts < '2026-03-01 13:00'").select("user", F.col("value").alias("x"))
            )
        )
    ),
    "limit above": Written(lambda g: per_window(g, "user").select(F.lit(1).alias("one")).limit(5)),
    "observe above": Written(
        lambda g: per_window(g, "user").observe("out", F.count("*").alias("n"))
    ),
}

# -- what stands below ------------------------------------------------------------------------------

BELOW = {
    "static join below": Written(
        lambda g: (
            events(g)
            .join(g.users, F.col("user") == F.col("name"), "left")
            .groupBy(F.window("ts", "30 seconds"), "tier")
            .count()
        )
    ),
    "observe below": Written(
        lambda g: (
            events(g)
            .observe("in", F.count("*").alias("n"), F.max("value").alias("top"))
            .groupBy(F.window("ts", "30 seconds"))
            .count()
        )
    ),
    "repartition below": Written(
        lambda g: events(g).repartition(4, "user").groupBy(F.window("ts", "30 seconds")).count()
    ),
    "explode below": Written(
        lambda g: (
            events(g)
            .withColumn("tag", F.explode_outer("tags"))
            .groupBy(F.window("ts", "30 seconds", "10 seconds"), "tag")
            .count()
        )
    ),
    "mapInPandas below": Written(
        lambda g: (
            g.events.select("ts", "user", "value")
            .mapInPandas(lambda frames: frames, "ts timestamp, user string, value double")
            .withWatermark("ts", WM)
            .groupBy(F.window("ts", "30 seconds"), "user")
            .agg(F.sum("value"))
        )
    ),
    "limit below": Written(
        lambda g: g.events.limit(30).groupBy("action").count().select(F.col("count") * 0),
        "complete",
    ),
    "union below": Written(
        lambda g: (
            events(g)
            .select("ts", F.col("user"))
            .unionByName(
                clicks(g).select(F.col("click_ts").alias("ts"), F.col("click_user").alias("user"))
            )
            .groupBy("user")
            .count()
        ),
        "update",
        ["user"],
    ),
}

# -- operators over operators -----------------------------------------------------------------------


def by_user(g: Given) -> DataFrame:
    return per_window(g, "user").select("window", "user", F.col("count").alias("seen"))


def clicks_by_user(g: Given) -> DataFrame:
    counts = clicks(g).groupBy(F.window("click_ts", "30 seconds"), "click_user").count()
    return counts.select("window", F.col("click_user").alias("user"), F.col("count").alias("hit"))


CHAINED = {
    "join of two aggregates": Written(
        lambda g: by_user(g).join(clicks_by_user(g), ["window", "user"])
    ),
    "left join of two aggregates": Written(
        lambda g: (
            by_user(g)
            .join(clicks_by_user(g), ["window", "user"], "left")
            .withColumn("rate", F.coalesce("hit", F.lit(0)) / F.col("seen"))
        )
    ),
    "aggregate over a static join over an aggregate": Written(
        lambda g: (
            per_window(g, "user")
            .join(g.users, F.col("user") == F.col("name"))
            .groupBy("window", "tier")
            .agg(F.sum("count").alias("n"))
        )
    ),
    "aggregate over an explode over an aggregate": Written(
        lambda g: (
            events(g)
            .groupBy(F.window("ts", "30 seconds"), "user")
            .agg(F.max("id").alias("a"), F.min("id").alias("b"))
            .withColumn("part", F.explode(F.array("a", "b")))
            .groupBy("window")
            .agg(F.sum("part"))
        )
    ),
    "aggregate over a union of aggregates": Written(
        lambda g: (
            by_user(g)
            .select("window", F.col("seen").alias("n"))
            .union(clicks_by_user(g).select("window", F.col("hit").alias("n")))
            .groupBy("window")
            .agg(F.sum("n").alias("n"))
        )
    ),
    "aggregate over dropDuplicates": Written(
        lambda g: (
            events(g)
            .dropDuplicates(["id", "ts"])
            .groupBy(F.window("ts", "30 seconds"), "user")
            .count()
        )
    ),
    "dropDuplicates after an aggregate": Written(
        lambda g: (
            events(g)
            .groupBy(F.window("ts", "30 seconds"), "user")
            .agg(F.max("device").alias("device"))
            .dropDuplicates(["window", "device"])
            .select("window", "device")
        )
    ),
    "aggregate over a join": Written(
        lambda g: (
            events(g)
            .join(
                clicks(g),
                F.expr("user = click_user AND click_ts BETWEEN ts AND ts + INTERVAL 20 SECONDS"),
            )
            .groupBy(F.window("ts", "30 seconds"), "user")
            .count()
        )
    ),
}

CHAINED["aggregate over a static join over a join"] = Written(
    lambda g: (
        events(g)
        .join(
            clicks(g),
            F.expr("user = click_user AND click_ts BETWEEN ts AND ts + INTERVAL 40 SECONDS"),
        )
        .join(g.users, F.col("user") == F.col("name"))
        .groupBy(F.window("ts", "10 seconds"), "tier")
        .count()
    )
)

# -- joins of streams -------------------------------------------------------------------------------

_MATCH = (
    "user = click_user AND click_ts BETWEEN ts - INTERVAL 5 SECONDS AND ts + INTERVAL 20 SECONDS"
)

JOINS = {
    how: Written(lambda g, how=how: events(g).join(clicks(g), F.expr(_MATCH), how))
    for how in ("inner", "left_outer", "right_outer", "full_outer", "left_semi")
} | {
    "join with more": Written(
        lambda g: (
            events(g)
            .join(
                clicks(g),
                F.expr(f"{_MATCH} AND action != 'view' AND ad > 2 AND id % 3 != click_id % 3"),
            )
            .select(
                "id",
                "click_id",
                "user",
                (F.col("click_ts").cast("double") - F.col("ts").cast("double")).alias("s"),
            )
        )
    ),
    "outer on any condition": Written(
        lambda g: events(g).join(
            clicks(g), F.expr(f"{_MATCH} AND (ad > id % 5 OR action = 'buy')"), "full_outer"
        )
    ),
    "semi on any condition": Written(
        lambda g: events(g).join(clicks(g), F.expr(f"{_MATCH} AND ad + id % 3 = 2"), "left_semi")
    ),
    "join, then enriched": Written(
        lambda g: (
            events(g).join(clicks(g), F.expr(_MATCH)).join(g.users, F.col("user") == F.col("name"))
        )
    ),
}

# -- duplicates and distinct ------------------------------------------------------------------------

DISTINCT = {
    "dropDuplicates": Written(
        lambda g: events(g).select("user", "device").dropDuplicates(), last=True
    ),
    "dropDuplicatesWithinWatermark": Written(
        lambda g: (
            (
                events(g).dropDuplicatesWithinWatermark(["id"])
                # a batch has no watermark
                if g.stream
                else events(g).dropDuplicates(["id"])
            )
            .select("id")
            .distinct()
        ),
        last=True,
    ),
    "distinct": Written(lambda g: g.events.select("user", "action").distinct(), last=True),
}


# -- SQL --------------------------------------------------------------------------------------------


def sql(text: str) -> Any:
    def build(g: Given) -> DataFrame:
        events(g).createOrReplaceTempView("events")
        clicks(g).createOrReplaceTempView("clicks")
        g.users.createOrReplaceTempView("users")
        return g.spark.sql(text)

    return build


SQL = {
    "sql window": Written(
        sql(
            """
            SELECT window.start AS start, window.end AS end, device, COUNT(*) AS n, AVG(value) AS mean
            FROM events
            WHERE action <> 'cart'
            GROUP BY window(ts, '30 seconds'), device
            HAVING COUNT(*) > 1
            """
        )
    ),
    "sql select distinct": Written(
        sql("SELECT DISTINCT user, action FROM events"), "update", ["user", "action"]
    ),
    "sql select distinct, append": Written(
        sql("SELECT DISTINCT user, action FROM events"), last=True
    ),
    "sql with": Written(
        sql(
            """
            WITH buys AS (SELECT * FROM events WHERE action = 'buy'),
                 totals AS (SELECT user, SUM(value) AS total FROM buys GROUP BY user)
            SELECT t.user, u.tier, t.total FROM totals t LEFT JOIN users u ON t.user = u.name
            """
        ),
        "complete",
    ),
    "sql order by": Written(
        sql("SELECT action, COUNT(*) AS n FROM events GROUP BY action ORDER BY n DESC LIMIT 2"),
        "complete",
    ),
    "sql tvf": Written(
        sql(
            """
            SELECT user, s.start, COUNT(1) AS n
            FROM (SELECT *, session_window(ts, '5 seconds') AS s FROM events)
            GROUP BY s, user
            """
        )
    ),
    "sql join": Written(
        sql(
            """
            SELECT e.id, c.click_id FROM events e JOIN clicks c
            ON e.user = c.click_user AND c.click_ts >= e.ts AND c.click_ts <= e.ts + interval 10 seconds
            """
        )
    ),
    "sql case and in": Written(
        sql(
            """
            SELECT user, SUM(CASE WHEN action IN ('buy', 'cart') THEN 1 ELSE 0 END) AS intent
            FROM events WHERE user IN (SELECT name FROM users) GROUP BY user
            """
        ),
        "update",
        ["user"],
    ),
}

# -- no operator at all -----------------------------------------------------------------------------

STATELESS = {
    "filter and parse": Written(
        lambda g: g.events.where("value > 50").withColumn(
            "p", F.from_json("payload", "unit string")
        ),
        last=True,
    ),
    "limit": Written(lambda g: g.events.select(F.lit(1).alias("one")).limit(7), last=True),
    "stateless static join": Written(
        lambda g: g.events.join(g.users, F.col("user") == F.col("name"), "left").drop("name"),
        last=True,
    ),
}

ALL = WINDOWS | ABOVE | BELOW | CHAINED | JOINS | DISTINCT | SQL | STATELESS


ALSO = {
    "session by device": "session",
    "window of a window column": "window of windows",
    "repartition below": "repartition above",
    "explode below": "explode above",
    "limit below": "limit above",
    "observe below": "observe above",
    "mapInPandas below": "mapInPandas above",
    "outer on any condition": "semi on any condition",
    "sql with": "sql window",
    "static join above, complete": "static join above",
    "tumbling count": "alarm above a threshold",
    "sorted top": "static join above",
    "left static join above": "static join above",
    "broadcast join above": "static join above",
    "coalesce above": "repartition above",
    "to json for kafka": "alarm above a threshold",
    "left join of two aggregates": "join of two aggregates",
    "aggregate over an explode over an aggregate": "aggregate over a static join over an aggregate",
    "left_outer": "full_outer",
    "right_outer": "full_outer",
    "left_semi": "semi on any condition",
    "sql order by": "static join above",
    "sql tvf": "session",
    "sql join": "inner",
    "sql case and in": "sql window",
    "stateless static join": "filter and parse",
}
"""Queries that only a thorough run has, and the one of the short run that takes the same way."""


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.thorough] if n in ALSO else []) for n in ALL]
)
def test_a_query_as_people_write_it_answers_as_sparks_batch_does(
    session: SparkSession, folder: Path, name: str
) -> None:
    got, expected, shape, expected_shape = answers(session, folder, ALL[name])
    assert expected
    assert (got, shape) == (expected, expected_shape)


def test_what_is_observed_is_in_the_progress_below_operators_and_above(
    session: SparkSession, folder: Path
) -> None:
    seen: list[Any] = []

    class Listener(StreamingQueryListener):
        def onQueryStarted(self, event: Any) -> None:
            pass

        def onQueryProgress(self, event: Any) -> None:
            seen.append(event.progress.observedMetrics)

        def onQueryTerminated(self, event: Any) -> None:
            pass

    listener = Listener()
    session.streams.addListener(listener)
    given = Given(session, folder)
    frame = given.events.observe("below", F.count("*").alias("n")).groupBy("user").count()
    frame = frame.observe("above", F.count("*").alias("users"), F.sum("count").alias("all"))
    query = hg.writeStream(frame).outputMode("complete").format("noop")
    query = query.trigger(availableNow=True).start()
    query.awaitTermination()
    deadline = time.monotonic() + 20
    while len(seen) < 4 and time.monotonic() < deadline:
        time.sleep(0.1)
    session.streams.removeListener(listener)
    counted = [metrics for metrics in seen if "above" in metrics]
    assert [metrics["below"]["n"] for metrics in counted] == [40, 40, 40, 41]
    assert [metrics["above"]["all"] for metrics in counted] == [40, 80, 120, 161]
    assert counted[-1]["above"]["users"] == 5
