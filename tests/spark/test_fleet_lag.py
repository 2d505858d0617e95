"""A fleet sees what waits at the sources of its jobs, on Spark."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest
from pyspark.sql import functions as F

import headgate as hg
from headgate.control.fleet.view import FleetDecision
from headgate.core.slo import parse_slo
from headgate.spark.fleet.flows import Graph
from headgate.spark.read.logical import read

pytestmark = pytest.mark.timeout(300)


class Watching:
    """A policy that wants nothing, and keeps what it saw."""

    name = "watching"

    def __init__(self):
        self.views = []

    def decide(self, view):
        self.views.append(view)
        return FleetDecision()


def rows(spark, per_s):
    return spark.readStream.format("rate").options(rowsPerSecond=per_s, numPartitions=1).load()


def takes_ten_ms(value):
    time.sleep(0.01)
    return value % 7


def writer(counts, folder, name):
    return (
        hg.writeStream(counts)
        .queryName(name)
        .slo("juice >= 0.9 over 1 min")
        .slots(max=4, start=1)
        .keyGroups(8)
        .outputMode("update")
        .option("checkpointLocation", str(folder / name))
        .format("noop")
    )


def test_a_job_that_falls_behind_its_source_has_little_juice_though_it_serves_whatever_it_reads(
    spark, tmp_path
):
    policy = Watching()
    fleet = hg.Fleet(spark, 4, policy=policy, round_s=1.0)
    # 100 records a second is what a core can do, and 200 come
    slow = rows(spark, 200).groupBy(F.udf(takes_ten_ms, "long")("value").alias("key")).count()
    quick = rows(spark, 200).groupBy((F.col("value") % 7).alias("key")).count()
    fleet.add(writer(slow, tmp_path, "slow"))
    fleet.add(writer(quick, tmp_path, "quick"))

    def measured(name):
        found = [view.jobs[name].values for view in policy.views if name in view.jobs]
        return [values[0] for values in found if values is not None]

    try:
        fleet.start()
        until = time.monotonic() + 90
        while time.monotonic() < until and not [v for v in measured("slow") if v < 0.65]:
            time.sleep(0.5)
        assert fleet.failures == {}
    finally:
        fleet.stop()
    slow_juice, quick_juice = sorted(measured("slow")), sorted(measured("quick"))
    assert slow_juice[0] < 0.65
    assert quick_juice[len(quick_juice) // 2] > 0.85


def test_results_of_windows_are_charged_their_wait_for_the_watermark_also_through_a_chain(
    spark, tmp_path
):
    policy = Watching()
    fleet = hg.Fleet(spark, 4, policy=policy, round_s=2.0)
    timed = rows(spark, 50).withWatermark("timestamp", "6 seconds")
    key = (F.col("value") % 7).alias("key")
    counts = timed.groupBy(F.window("timestamp", "1 second"), key).count()
    largest = counts.groupBy("window").agg(F.max("count"))
    for name, query in (("windows", counts), ("chain", largest)):
        made = writer(query, tmp_path, name).outputMode("append").slots(max=2, start=1)
        made.settings = replace(made.settings, slos=(parse_slo("mean < 60 s over 10 s"),))
        fleet.add(made)
    found = {}

    def measured(name):
        values = [view.jobs[name].values for view in policy.views if name in view.jobs]
        found[name] = [one[0] for one in values if one is not None]
        # the first batches take long anyway
        return len(found[name]) > 5 and all(value > 5.0 for value in found[name][-3:])

    try:
        fleet.start()
        until = time.monotonic() + 100
        while time.monotonic() < until and not (measured("windows") and measured("chain")):
            time.sleep(0.5)
        assert fleet.failures == {}
        # a window's newest record waits six seconds for the watermark, whatever else takes time
        assert measured("windows"), found
        assert measured("chain"), found
        judged = fleet.query("windows").recentProgress[-1]["headgate"]["slo"]["by_operator"]
        assert set(judged) <= {"aggregate-0"}
    finally:
        fleet.stop()


def test_the_sources_of_a_query_are_known_from_its_plan(spark):
    left, right = rows(spark, 10).withColumn("k", F.col("value")), rows(spark, 20)
    right = right.withColumn("k", F.col("value"))
    within = "l.k = r.k and l.timestamp >= r.timestamp - interval 1 minute"
    joined = left.alias("l").join(right.alias("r"), F.expr(within)).select("l.k")
    graph = Graph.of(read(joined, "append").operators)
    assert [(e.place, e.sources) for e in graph.entrances] == [(0, (0,)), (1, (1,))]
    merged = Graph.of(read(left.union(right).groupBy("k").count(), "update").operators)
    assert [e.sources for e in merged.entrances] == [(0, 1)]
    counts = left.groupBy("k").count()
    forked = Graph.of(read(counts.union(left.groupBy("k").count()), "update").operators)
    assert [e.sources for e in forked.entrances] == [(0,), (0,)]


@pytest.mark.parametrize(
    ("between", "lossless"), [("count > 1", False), ("true", False), ("", True)]
)
def test_a_filter_between_operators_is_no_loss(spark, between, lossless):
    timed = rows(spark, 10).withWatermark("timestamp", "1 second")
    counts = timed.groupBy(F.window("timestamp", "1 second"), "value").count()
    counts = counts.where(between) if between else counts
    chain = read(counts.groupBy("window").agg(F.max("count")), "append").operators
    graph = Graph.of(chain)
    assert graph.parents == {chain[1].id: chain[0].id}
    assert (chain[1].id in graph.lossless) is lossless
