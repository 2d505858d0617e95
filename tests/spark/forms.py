"""What forms of queries are said in: modes, the streams with a watermark, and texts of SQL."""

from __future__ import annotations

from grammar import Build, Query
from grammar_data import Given
from pyspark.sql import DataFrame

WM = "10 seconds"


def append(build: Build) -> Query:
    """Return a query in append mode whose rows come out when they are due."""
    return Query(build, "append", due=True)


def at_once(build: Build) -> Query:
    """Return one in append mode whose rows come out as they are made."""
    return Query(build, "append")


def complete(build: Build) -> Query:
    """Return a query in complete mode."""
    return Query(build, "complete")


def update(build: Build, *keys: str) -> Query:
    """Return a query in update mode, of which the newest row of each key counts."""
    return Query(build, "update", keys=list(keys))


def events(g: Given) -> DataFrame:
    return g.events.withWatermark("ts", WM)


def clicks(g: Given) -> DataFrame:
    return g.clicks.withWatermark("click_ts", WM)


def sql(text: str) -> Build:
    def build(g: Given) -> DataFrame:
        events(g).createOrReplaceTempView("events")
        clicks(g).createOrReplaceTempView("clicks")
        g.users.createOrReplaceTempView("users")
        return g.spark.sql(text)

    return build
