"""Operators over what a processor puts out: plain Spark's answer over the same batches."""

from __future__ import annotations

import random
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import answers
import pytest
from pyspark import cloudpickle
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.stateful_processor import (
    StatefulProcessor,
    StatefulProcessorHandle,
    TimerValues,
)
from written import Given, write_streams

import headgate as hg

cloudpickle.register_pickle_by_value(sys.modules[__name__])

_ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
_SETTINGS = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.streaming.stateStore.providerClass": _ROCKSDB,
}


class Numbered(StatefulProcessor):
    """Puts out each record of a user with its number."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._seen = handle.getValueState("seen", "n bigint")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: TimerValues) -> Any:
        found = self._seen.get()
        n = found[0] if found else 0
        for row in rows:
            n += 1
            yield Row(who=key[0], at=row.ts, n=n % 3)
        self._seen.update((n,))

    def close(self) -> None:
        pass


def numbered(g: Given) -> DataFrame:
    return (
        g.events.withWatermark("ts", "10 seconds")
        .groupBy("user")
        .transformWithState(
            Numbered(),
            "who string, at timestamp, n bigint",
            "append",
            "EventTime",
            eventTimeColumnName="at",
        )
    )


QUERIES: dict[str, Callable[[Given], DataFrame]] = {
    "an aggregate": lambda g: (
        numbered(g).groupBy(F.window("at", "30 seconds"), "who").agg(F.count("*").alias("n"))
    ),
    "an aggregate over a join with a table": lambda g: (
        numbered(g)
        .join(g.users, F.col("who") == F.col("name"))
        .groupBy(F.window("at", "30 seconds"), "tier")
        .agg(F.count("*").alias("n"), F.max("at").alias("last"))
    ),
    "duplicates": lambda g: (
        numbered(g).select("who", F.window("at", "30 seconds").alias("w")).distinct()
    ),
}


@pytest.fixture(scope="module")
def session(spark: SparkSession) -> Iterator[SparkSession]:
    before = {name: spark.conf.get(name) for name in _SETTINGS}
    for name, value in _SETTINGS.items():
        spark.conf.set(name, value)
    yield spark
    for name, value in before.items():
        spark.conf.set(name, value)


def rows_of(made: Any, checkpoint: Path, meanwhile: Callable[[Any], Any]) -> Counter[str]:
    found: Counter[str] = Counter()

    def keep(batch: DataFrame, batch_id: int) -> None:
        found.update(map(repr, batch.collect()))

    made = made.foreachBatch(keep).option("checkpointLocation", str(checkpoint))
    query = made.trigger(availableNow=True).start()
    meanwhile(query)
    query.awaitTermination()
    return found


SHORT = "an aggregate over a join with a table"


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=[] if n == SHORT else [pytest.mark.thorough]) for n in QUERIES],
)
def test_it_answers_as_plain_sparks_stream(
    session: SparkSession, tmp_path: Path, name: str
) -> None:
    write_streams(tmp_path / "in")
    build, given = QUERIES[name], Given(session, tmp_path / "in")
    expected = rows_of(build(given).writeStream, tmp_path / "plain", lambda query: None)

    def change(query: Any) -> None:
        answers.change_at_random(query, random.Random(name), key_groups=16)

    made = hg.writeStream(build(given)).slots(start=2).keyGroups(16)
    assert rows_of(made, tmp_path / "elastic", change) == expected
    assert expected
