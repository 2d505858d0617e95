"""Generated queries of several operators."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from grammar import Build, Draw, Query, before_last, events
from grammar_data import Given
from grammar_operators import clicks, join
from pyspark.sql import DataFrame
from pyspark.sql import functions as F


def _counted(g: Given, build: Build, *by: Any) -> DataFrame:
    return (
        build(g)
        .groupBy(F.window("ts", "20 seconds"), *by)
        .agg(F.count("*").alias("n"), F.sum("id").alias("ids"))
    )


def chain(draw: Draw) -> Query:
    """Return several operators, one over the other or side by side."""
    what = draw.one("chain", CHAINS)
    made: Query = what(draw)
    return made


def _aggregates_twice(draw: Draw) -> Query:
    stream = events(draw, most=1)
    how = draw.one("again", ["the same window", "window of the window", "window_time"])

    def build(g: Given) -> DataFrame:
        below = _counted(g, stream.build, "user", "device")
        by: Any = {
            "the same window": "window",
            "window of the window": F.window("window", "40 seconds"),
            "window_time": F.window(F.window_time("window"), "1 minute"),
        }[how]
        return below.groupBy(by, "device").agg(
            F.max("n").alias("most"), F.sum("n").alias("n"), F.count("user").alias("users")
        )

    has = {"window": "window", "device": "text", "most": "number", "n": "number", "users": "number"}
    return Query(build, "append", has, due=True, text=f"{stream.text} | twice, {how}")


def _duplicates_then_aggregate(draw: Draw) -> Query:
    stream = events(draw, most=1)
    how = draw.one("first", ["dropDuplicates", "dropDuplicatesWithinWatermark"])
    cut = draw.one("then", ["window", "keys"])
    mode = "append" if cut == "window" or how != "dropDuplicates" else draw.one("mode", ["update"])
    cut = "window" if how != "dropDuplicates" else cut

    def build(g: Given) -> DataFrame:
        frame = stream.build(g)
        if how == "dropDuplicates" or not g.stream:
            frame = frame.dropDuplicates(["id", "ts"])
        else:
            frame = frame.dropDuplicatesWithinWatermark(["id"])
        by: list[Any] = [F.window("ts", "30 seconds")] if cut == "window" else []
        return frame.groupBy(*by, "device").agg(
            F.count("*").alias("n"), F.sum("value").alias("total")
        )

    has = {"device": "text", "n": "number", "total": "number"}
    has = {"window": "window", **has} if cut == "window" else has
    keys = [name for name in ("window", "device") if name in has]
    return Query(build, mode, has, keys, cut == "window", text=f"{stream.text} | {how} then {cut}")


def _join_then_aggregate(draw: Draw) -> Query:
    base = join(draw, how=draw.one("join", ["inner", "left"]))
    named = base.build

    def build(g: Given) -> DataFrame:
        return (
            named(g)
            .groupBy(F.window("ts", "20 seconds"), "device")
            .agg(F.count("click_id").alias("n"), F.sum("cost").alias("cost"))
        )

    has = {"window": "window", "device": "text", "n": "number", "cost": "number"}
    keys = ["window", "device"]
    return Query(
        build, base.mode, has, keys, base.mode == "append", text=f"{base.text} | aggregate"
    )


def _join_of_aggregates(draw: Draw) -> Query:
    stream, other = events(draw, most=1), clicks(draw)
    how = draw.one("join", ["inner", "left", "full"])

    def build(g: Given) -> DataFrame:
        seen = _counted(g, stream.build, "user").select("window", "user", "n")
        hit = other(g).groupBy(
            F.window("click_ts", "20 seconds"), F.col("click_user").alias("user")
        )
        return seen.join(hit.agg(F.sum("cost").alias("cost")), ["window", "user"], how)

    has = {"window": "window", "user": "text", "n": "number", "cost": "number"}
    return Query(build, "append", has, due=True, text=f"{stream.text} | {how} join of aggregates")


def _union_of_aggregates(draw: Draw) -> Query:
    stream = events(draw, most=1)
    mixed = draw.one("union", ["of aggregates", "with the stream"])

    def build(g: Given) -> DataFrame:
        one = _counted(g, stream.build, "user").select(F.col("user").alias("what"), "n")
        if mixed == "of aggregates":
            other = _counted(g, stream.build, "device").select(F.col("device").alias("what"), "n")
        else:
            other = before_last(stream.build(g)).select(
                F.col("user").alias("what"), F.col("id").alias("n")
            )
        return one.union(other)

    return Query(
        build,
        "append",
        {"what": "text", "n": "number"},
        due=True,
        text=f"{stream.text} | union {mixed}",
    )


def _aggregate_then_duplicates(draw: Draw) -> Query:
    stream = events(draw, most=1)

    def build(g: Given) -> DataFrame:
        found = _counted(g, stream.build, "user", "device")
        return found.select("window", "device").dropDuplicates(["window", "device"])

    return Query(
        build,
        "append",
        {"window": "window", "device": "text"},
        due=True,
        text=f"{stream.text} | aggregate then duplicates",
    )


def _join_then_duplicates(draw: Draw) -> Query:
    base = join(draw, how="inner")

    def build(g: Given) -> DataFrame:
        return base.build(g).select("id", "ts").dropDuplicates(["id", "ts"])

    return Query(build, "append", {"id": "number", "ts": "time"}, text=f"{base.text} | duplicates")


def _duplicates_then_join(draw: Draw) -> Query:
    stream, other = events(draw, most=1), clicks(draw)
    how = draw.one("join", ["inner", "left"])

    def build(g: Given) -> DataFrame:
        once = stream.build(g).dropDuplicates(["id", "ts"]).select("id", "ts", "user")
        match = "user = click_user AND click_ts BETWEEN ts AND ts + INTERVAL 15 SECONDS"
        return once.join(other(g).dropDuplicates(["click_id", "click_ts"]), F.expr(match), how)

    has = {"id": "number", "ts": "time", "user": "text", "ad": "number"}
    return Query(
        build, "append", has, due=how == "left", text=f"{stream.text} | duplicates then {how} join"
    )


def _three_streams(draw: Draw) -> Query:
    stream, other = events(draw, most=1), clicks(draw)

    def build(g: Given) -> DataFrame:
        first = stream.build(g).select("id", "ts", "user")
        third = g.clicks.withColumnsRenamed(
            {"click_id": "id3", "click_ts": "ts3", "click_user": "user3"}
        )
        third = third.select("id3", "ts3", "user3").withWatermark("ts3", "10 seconds")
        near = "user = click_user AND click_ts BETWEEN ts AND ts + INTERVAL 8 SECONDS"
        nearer = "user = user3 AND ts3 BETWEEN ts AND ts + INTERVAL 4 SECONDS"
        return first.join(other(g), F.expr(near)).join(third, F.expr(nearer))

    has = {"id": "number", "ts": "time", "user": "text", "ad": "number", "id3": "number"}
    return Query(build, "append", has, text=f"{stream.text} | three streams")


def _self_join(draw: Draw) -> Query:
    stream = events(draw, most=0)

    def build(g: Given) -> DataFrame:
        frame = stream.build(g)
        a = frame.select("id", "ts", "user").alias("a")
        b = frame.select(
            F.col("id").alias("id2"), F.col("ts").alias("ts2"), F.col("user").alias("user2")
        )
        return a.join(b, F.expr("user = user2 AND ts2 > ts AND ts2 <= ts + INTERVAL 9 SECONDS"))

    return Query(
        build,
        "append",
        {"id": "number", "ts": "time", "user": "text", "id2": "number"},
        text=f"{stream.text} | self join",
    )


def _static_join_between(draw: Draw) -> Query:
    stream = events(draw, most=1)

    def build(g: Given) -> DataFrame:
        below = _counted(g, stream.build, "user").join(g.users, F.col("user") == F.col("name"))
        return below.groupBy("window", "tier").agg(
            F.sum("n").alias("n"), F.max("level").alias("level")
        )

    has = {"window": "window", "tier": "text", "n": "number", "level": "number"}
    return Query(
        build, "append", has, due=True, text=f"{stream.text} | static join between aggregates"
    )


def _union_below(draw: Draw) -> Query:
    stream, other = events(draw, most=1), clicks(draw)
    mode = draw.one("mode", ["append", "update", "complete"])

    def build(g: Given) -> DataFrame:
        a = stream.build(g).select("ts", "user", F.lit("e").alias("of"))
        b = other(g).select(
            F.col("click_ts").alias("ts"), F.col("click_user").alias("user"), F.lit("c").alias("of")
        )
        return (
            a.unionByName(b)
            .groupBy(F.window("ts", "30 seconds"), "user")
            .agg(F.count("*").alias("n"), F.collect_set("of").alias("of"))
        )

    has = {"window": "window", "user": "text", "n": "number", "of": "array"}
    return Query(
        build,
        mode,
        has,
        ["window", "user"],
        mode == "append",
        False,
        text=f"{stream.text} | union below",
    )


CHAINS: dict[str, Callable[[Draw], Query]] = {
    "aggregate over an aggregate": _aggregates_twice,
    "aggregate over dropDuplicates": _duplicates_then_aggregate,
    "aggregate over a join": _join_then_aggregate,
    "join of aggregates": _join_of_aggregates,
    "union of aggregates": _union_of_aggregates,
    "dropDuplicates over an aggregate": _aggregate_then_duplicates,
    "dropDuplicates over a join": _join_then_duplicates,
    "join over dropDuplicates": _duplicates_then_join,
    "three streams": _three_streams,
    "self join": _self_join,
    "static join between": _static_join_between,
    "union below": _union_below,
}
