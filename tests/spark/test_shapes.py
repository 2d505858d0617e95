"""What a query may be told beside its own calls: watermarks of several streams, order, initial state."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from grammar import Query
from grammar_data import Given
from pyspark import cloudpickle
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.stateful_processor import StatefulProcessor
from test_grammar import elastic, expected, folder, session

import headgate as hg

__all__ = ["folder", "session"]

cloudpickle.register_pickle_by_value(sys.modules[__name__])

POLICY = "spark.sql.streaming.multipleWatermarkPolicy"


def of_two_times(g: Given) -> DataFrame:
    """Two streams, of which one is most of a batch behind the other."""
    behind = (F.col("click_ts") - F.expr("INTERVAL 50 SECONDS")).alias("ts")
    events = g.events.withWatermark("ts", "5 seconds").select("ts", F.lit("event").alias("of"))
    clicks = g.clicks.select(behind, F.lit("click").alias("of")).withWatermark("ts", "5 seconds")
    return (
        events.union(clicks)
        .groupBy(F.window("ts", "10 seconds"))
        .agg(F.count("*").alias("n"), F.sort_array(F.collect_set("of")).alias("of"))
    )


def test_the_watermark_of_several_streams_is_the_one_that_the_session_asks_for(
    session: SparkSession, folder: Path
) -> None:
    found = {}
    for policy in ("min", "max"):
        session.conf.set(POLICY, policy)
        try:
            query = Query(of_two_times, stream=True)
            found[policy] = elastic(session, folder, query, policy)
            assert found[policy] == expected(session, folder, query)
        finally:
            session.conf.unset(POLICY)
    assert found["min"] != found["max"]


def test_lists_of_a_pivot_are_in_the_order_that_is_asked_for(
    session: SparkSession, folder: Path
) -> None:
    def build(g: Given) -> DataFrame:
        grouped = g.events.groupBy("device").pivot("action", ["buy", "view"])
        return grouped.agg(F.collect_list("id"))

    rows: list[Row] = []

    def keep(batch: DataFrame, batch_id: int) -> None:
        rows[:] = batch.collect()

    made = hg.writeStream(build(Given(session, folder))).outputMode("complete")
    made = made.option("headgate.ordered", "id").slots(start=2).foreachBatch(keep)
    made.trigger(availableNow=True).start().awaitTermination()
    wanted = build(Given(session, folder, stream=False)).collect()
    in_order = {r["device"]: (sorted(r["buy"]), sorted(r["view"])) for r in wanted}
    assert {r["device"]: (r["buy"], r["view"]) for r in rows} == in_order


class Counting(StatefulProcessor):
    """Counts the rows of a key of two parts, one a struct, from an initial state on."""

    def init(self, handle: Any) -> None:
        self.n = handle.getValueState("n", "n bigint")

    def handleInitialState(self, key: Any, initialState: Any, timerValues: Any) -> None:
        self.n.update((initialState.n,))

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Row]:
        before = self.n.get()[0] if self.n.exists() else 0
        n = before + sum(1 for _ in rows)
        self.n.update((n,))
        yield Row(user=key[0], device=key[1]["device"], n=n)

    def close(self) -> None:
        pass


def counted(g: Given) -> DataFrame:
    keys = ["user", "what"]
    events = g.events.withColumn("what", F.struct("device", "action"))
    begins = g.spark.sql(
        "SELECT * FROM VALUES ('ann', named_struct('device', 'd1', 'action', 'buy'), 100L), "
        "('zed', named_struct('device', 'd1', 'action', 'buy'), 7L) AS t(user, what, n)"
    )
    if not g.stream:
        start = begins.select("user", "what", F.col("n").alias("n0"))
        rows = events.groupBy(*keys).count().join(start, ["user", "what"], "left")
        total = F.col("count") + F.coalesce("n0", F.lit(0))
        return rows.select("user", "what.device", total.alias("n"))
    return events.groupBy(*keys).transformWithState(
        Counting(),
        "user string, device string, n bigint",
        "update",
        "None",
        initialState=begins.groupBy("user", "what"),
    )


def test_a_processor_has_keys_of_several_parts_and_an_initial_state(
    session: SparkSession, folder: Path
) -> None:
    got, _ = elastic(session, folder, Query(counted, "update", keys=[]), "counted")
    wanted, _ = expected(session, folder, Query(counted))
    assert wanted
    # each key's last row is among those that came
    assert not wanted - got
