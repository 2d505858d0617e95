"""What the journal of a running query says that its views and metrics need."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import urllib.error
import urllib.request

import pytest

import headgate as hg
from headgate.journal import Batch, BatchBegun, Start, read

ROWS, FILES = 200, 3


def test_lines_tell_operators_key_groups_and_windows_apart(spark, tmp_path):
    for number in range(FILES):
        keys = spark.range(number * ROWS, (number + 1) * ROWS, 1, 1).selectExpr("id", "id % 7 AS k")
        keys.write.mode("append").parquet(str(tmp_path / "in"))
    rows = spark.readStream.schema("id long, k long").option("maxFilesPerTrigger", 1)
    counts = rows.parquet(str(tmp_path / "in")).dropDuplicates(["id"]).groupBy("k").count()
    writer = hg.writeStream(counts).outputMode("update").format("noop").slo("mean < 60 s over 1 s")
    writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()

    start, *events = read(query.journal)
    assert isinstance(start, Start)
    assert set(start.versions) == {"headgate", "spark", "python"}
    first, second = (operator.id for operator in start.operators)

    lines = [(type(e), e.step) for e in events if isinstance(e, Batch | BatchBegun)]
    batches = [event for event in events if isinstance(event, Batch)]
    assert lines == [(kind, b.step) for b in batches for kind in (BatchBegun, Batch)]
    assert sum(batch.served for batch in batches) == FILES * ROWS

    assert {stats.operator for batch in batches for stats in batch.slot_stats} == {first}
    served = {first: 0, second: 0}
    for batch in batches:
        for one in batch.served_groups:
            served[one.operator] += sum(one.records)
    assert served[first] == FILES * ROWS
    assert 0 < served[second] <= FILES * ROWS  # merged before they reach the second

    slo = batches[-1].slo
    assert slo is not None
    assert sum(judged for judged, _ in slo.windows_of.values()) == slo.windows
    assert slo.windows_met == sum(met for _, met in slo.windows_of.values())


def test_the_driver_serves_the_metrics_of_its_queries_at_one_address(spark, tmp_path):
    spark.range(10).write.parquet(str(tmp_path / "in"))
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{sock.getsockname()[1]}"

    def start(name):
        counts = (
            spark.readStream.schema("id long").parquet(str(tmp_path / "in")).groupBy("id").count()
        )
        writer = hg.writeStream(counts).queryName(name).outputMode("update").format("noop")
        writer = writer.option("checkpointLocation", str(tmp_path / name))
        return writer.option("headgate.metrics", address).start()

    def scrape():
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(f"http://{address}/metrics", timeout=10) as answer:
            text = answer.read().decode()
        return {line for line in text.splitlines() if line.startswith("headgate_records_served")}

    first, second = start("one"), start("two")
    first.processAllAvailable()
    second.processAllAvailable()
    assert scrape() == {
        f'headgate_records_served_total{{query="{n}"}} 10.0' for n in ("one", "two")
    }
    first.stop()
    assert scrape() == {'headgate_records_served_total{query="two"} 10.0'}
    second.stop()
    with pytest.raises(urllib.error.URLError, match="refused"):
        scrape()


GAUGED = """
import json, sys, urllib.request
import headgate as hg

ui = {"spark.ui.enabled": "true", "spark.ui.port": "0"}
spark = hg.session(master="local[2]", **ui)
spark.range(10).write.parquet(sys.argv[1] + "/in")

def gauges(run):
    rows = spark.readStream.schema("id long").parquet(sys.argv[1] + "/in")
    writer = hg.writeStream(rows.groupBy("id").count()).queryName("clicks").format("noop")
    writer = writer.outputMode("update").option("checkpointLocation", sys.argv[1] + run)
    query = writer.start()
    query.processAllAvailable()
    running = read()
    query.stop()
    return running, read()

def read():
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(spark.sparkContext.uiWebUrl + "/metrics/json/", timeout=10) as answer:
        found = json.load(answer)["gauges"]
    named = {name.partition(".headgate.clicks.")[2]: one["value"] for name, one in found.items()}
    return {name: named.get(name) for name in ("query_up", "records_served", "slots")}

off = gauges("/off")
spark.conf.set("spark.sql.streaming.metricsEnabled", "true")
print(json.dumps([off, gauges("/on"), gauges("/again")]))
"""


@pytest.mark.thorough
def test_sparks_own_metric_system_has_a_querys_gauges_where_it_has_those_of_streams(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", GAUGED, str(tmp_path)], capture_output=True, text=True, check=False
    )
    off, on, again = json.loads(done.stdout or "[]") or pytest.fail(done.stderr)
    nothing = dict.fromkeys(("query_up", "records_served", "slots"))
    assert off == [nothing, nothing]
    running = {"query_up": 1.0, "records_served": 10.0, "slots": 2.0}
    assert on == [running, {**running, "query_up": 0.0}]
    assert again == on, "Spark keeps a name for as long as the application runs"


def test_a_headgate_that_no_distribution_brought_knows_its_version():
    """As of ``spark-submit --py-files``: there are modules, and nothing that says who installed them."""
    program = """
import importlib.metadata
def gone(name): raise importlib.metadata.PackageNotFoundError(name)
importlib.metadata.version = gone
from headgate.spark.step.record import VERSIONS
print(VERSIONS["headgate"])
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.stdout.strip() == hg.__version__, done.stderr
