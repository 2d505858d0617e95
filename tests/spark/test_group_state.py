"""``applyInPandasWithState``, unchanged: plain Spark's answer, whatever happens to slots."""

from __future__ import annotations

import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import answers
import pandas as pd
import pytest
from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout
from written import Given, write_streams

import headgate as hg
from headgate_lab.testing import faults

cloudpickle.register_pickle_by_value(sys.modules[__name__])


def running_total(
    key: tuple[str, ...], frames: Iterator[pd.DataFrame], state: GroupState
) -> Iterator[pd.DataFrame]:
    """Put out how much a user has spent so far, and forget one that has spent enough."""
    count, total = state.get if state.exists else (0, 0.0)
    for frame in frames:
        count, total = count + len(frame), total + float(frame["value"].sum())
    if total > 900:
        state.remove()
    else:
        state.update((count, total))
    yield pd.DataFrame({"user": [key[0]], "n": [count], "total": [round(total, 6)]})


def silence(
    key: tuple[str, ...], frames: Iterator[pd.DataFrame], state: GroupState
) -> Iterator[pd.DataFrame]:
    """Put out a user's actions when none has come for 5 seconds of event time."""
    if state.hasTimedOut:
        (empty,) = list(frames)
        assert len(empty) == 0
        assert "value" in empty.columns
        n, newest_ms = state.get
        late = state.getCurrentWatermarkMs() > newest_ms + 5000
        state.remove()
        yield pd.DataFrame({"user": [key[0]], "n": [n], "newest": [newest_ms], "late": [late]})
        return
    n, newest_ms = state.getOption or (0, 0)
    for frame in frames:
        n += len(frame)
        newest_ms = max(newest_ms, int(frame["ts"].max().timestamp() * 1000))
    state.update((n, newest_ms))
    at_ms = max(newest_ms + 5000, state.getCurrentWatermarkMs() + 1)
    state.setTimeoutTimestamp(at_ms)


def kinds(
    key: tuple[str, ...], frames: Iterator[pd.DataFrame], state: GroupState
) -> Iterator[pd.DataFrame]:
    """Put out what the frames look like."""
    state.update((1,))
    for frame in frames:
        types = [f"{name} {kind}" for name, kind in frame.dtypes.items()]
        yield pd.DataFrame({"user": [key[0]], "seen": [f"{types} from {frame.index[0]}"]})


def typed(g: Given) -> DataFrame:
    small = F.col("value").cast("int")
    columns = g.events.withColumn("small", small).withColumn("tiny", small.cast("tinyint"))
    gaps = F.when(F.col("user") != "bob", F.col("small"))
    return (
        columns.withColumn("gaps", gaps)
        .drop("ts")
        .groupBy("user")
        .applyInPandasWithState(
            kinds, "user string, seen string", "n int", "update", GroupStateTimeout.NoTimeout
        )
    )


def whole(g: Given) -> DataFrame:
    """Likewise, no column of which has a null."""
    small = F.coalesce(F.col("value"), F.lit(0)).cast("int")
    columns = g.events.select(F.coalesce("user", F.lit("nobody")).alias("user"), small.alias("n"))
    return columns.groupBy("user").applyInPandasWithState(
        kinds, "user string, seen string", "n int", "update", GroupStateTimeout.NoTimeout
    )


def totals(g: Given) -> DataFrame:
    return g.events.groupBy("user").applyInPandasWithState(
        running_total,
        "user string, n bigint, total double",
        "n bigint, total double",
        "update",
        GroupStateTimeout.NoTimeout,
    )


def silences(g: Given) -> DataFrame:
    return (
        g.events.withWatermark("ts", "10 seconds")
        .groupBy("user", "device")
        .applyInPandasWithState(
            silence,
            "user string, n bigint, newest bigint, late boolean",
            "n bigint, newest bigint",
            "append",
            GroupStateTimeout.EventTimeTimeout,
        )
    )


QUERIES: dict[str, tuple[Callable[[Given], DataFrame], str]] = {
    "totals": (totals, "update"),
    "silences": (silences, "append"),
    "types with nulls": (typed, "update"),
    "types": (whole, "update"),
}


@pytest.fixture(scope="module")
def session(spark: SparkSession) -> Iterator[SparkSession]:
    before = {
        n: spark.conf.get(n) for n in ("spark.sql.session.timeZone", "spark.sql.shuffle.partitions")
    }
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    spark.conf.set("spark.sql.shuffle.partitions", "2")
    yield spark
    for name, value in before.items():
        spark.conf.set(name, value)


def rows_of(
    made: Any, mode: str, checkpoint: Path, meanwhile: Callable[[Any], Any] = lambda query: None
) -> Counter[str]:
    found: Counter[str] = Counter()

    def keep(batch: DataFrame, batch_id: int) -> None:
        found.update(map(repr, batch.collect()))

    made = made.outputMode(mode).foreachBatch(keep).option("checkpointLocation", str(checkpoint))
    query = made.trigger(availableNow=True).start()
    meanwhile(query)
    query.awaitTermination()
    return found


@pytest.mark.parametrize("name", QUERIES)
@pytest.mark.parametrize(
    "seed", [1, *(pytest.param(n, marks=pytest.mark.thorough) for n in range(2, 21))]
)
def test_it_answers_as_plain_sparks_stream(
    session: SparkSession, tmp_path: Path, name: str, seed: int
) -> None:
    build, mode = QUERIES[name]
    write_streams(tmp_path / "in", seed)
    given = Given(session, tmp_path / "in")
    expected = rows_of(build(given).writeStream, mode, tmp_path / "plain")
    made = hg.writeStream(build(given)).slots(start=2).keyGroups(16)
    faults.inject(made, faults.kill_worker(slot=seed % 2, step=1 + seed % 3))

    def change(query: Any) -> None:
        answers.change_at_random(query, random.Random(seed), key_groups=16)

    got = rows_of(made, mode, tmp_path / "elastic", change)
    assert sum(expected.values()) > 5
    assert got == expected


def idle(
    key: tuple[str, ...], frames: Iterator[pd.DataFrame], state: GroupState
) -> Iterator[pd.DataFrame]:
    if state.hasTimedOut:
        n = state.get[0]
        state.remove()
        yield pd.DataFrame({"user": [key[0]], "n": [n]})
        return
    n = sum(map(len, frames)) + (state.get[0] if state.exists else 0)
    state.update((n,))
    state.setTimeoutDuration(1000)


def test_a_timeout_by_processing_time_comes_without_any_record(
    session: SparkSession, tmp_path: Path
) -> None:
    write_streams(tmp_path / "in")
    events = Given(session, tmp_path / "in").events
    frame = events.groupBy("user").applyInPandasWithState(
        idle, "user string, n bigint", "n bigint", "append", GroupStateTimeout.ProcessingTimeTimeout
    )
    found: Counter[str] = Counter()

    def keep(batch: DataFrame, batch_id: int) -> None:
        for row in batch.collect():
            found[row["user"]] += row["n"]

    query = (
        hg.writeStream(frame).foreachBatch(keep).trigger(processingTime="100 milliseconds").start()
    )
    deadline = time.monotonic() + 60
    everything = {
        r["user"]: r["n"]
        for r in Given(session, tmp_path / "in", stream=False)
        .events.groupBy("user")
        .agg(F.count("*").alias("n"))
        .collect()
    }
    while found != everything and time.monotonic() < deadline:
        time.sleep(0.2)
    query.stop()
    assert found == everything
