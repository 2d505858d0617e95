"""PySpark's own processors, unchanged, on plain Spark and in slots: the same rows come out."""

from __future__ import annotations

import random
import re
import time
from collections import Counter

import answers
import pytest
import stateful
from answers import plain
from pyspark.errors import StreamingQueryException

import headgate as hg

pytestmark = pytest.mark.timeout(600)

_STORE = "spark.sql.streaming.stateStore.providerClass"
_ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


def value(item):
    """Return a value of a row so that equal ones are equal."""
    return tuple(map(value, item)) if isinstance(item, list) else plain(item)


class Collected:
    """A ``foreachBatch`` function that keeps all rows."""

    def __init__(self):
        self.rows = Counter()

    def __call__(self, frame, _):
        self.rows += Counter(tuple(map(value, row)) for row in frame.collect())


def ran(query, mode, rows):
    """Wait until a query has read all rows and fired the timers of the last batch."""
    if mode != "ProcessingTime":
        query.awaitTermination(120)
        return
    deadline = time.monotonic() + 120
    while sum(p.numInputRows for p in query.recentProgress) < rows:
        assert time.monotonic() < deadline
        assert query.isActive
        time.sleep(0.1)
    batches = query.lastProgress.batchId + 2
    while query.lastProgress.batchId < batches:
        assert time.monotonic() < deadline
        assert query.isActive
        time.sleep(0.1)
    query.stop()


def on_spark(spark, folder, checkpoint, processor, mode, collected):
    before = spark.conf.get(_STORE)
    shuffles = spark.conf.get("spark.sql.shuffle.partitions")
    spark.conf.set(_STORE, _ROCKSDB)
    spark.conf.set("spark.sql.shuffle.partitions", "2")
    try:
        frame = stateful.query(spark, folder, processor, mode)
        writer = frame.writeStream.outputMode("update").foreachBatch(collected)
        writer = writer.option("checkpointLocation", str(checkpoint))
        # by processing time there is always one more batch, so availableNow does not end
        trigger = (
            {"processingTime": "0 seconds"} if mode == "ProcessingTime" else {"availableNow": True}
        )
        rows = stateful.ROWS * len(list(folder.glob("*.parquet")))
        ran(writer.trigger(**trigger).start(), mode, rows)
    finally:
        spark.conf.set(_STORE, before)
        spark.conf.set("spark.sql.shuffle.partitions", shuffles)


def in_slots(spark, folder, checkpoint, processor, mode, collected, seed):
    frame = stateful.query(spark, folder, processor, mode)
    writer = hg.writeStream(frame).outputMode("update").foreachBatch(collected)
    writer = writer.option("checkpointLocation", str(checkpoint)).keyGroups(8).slots(start=2)
    query = writer.option("headgate.snapshotEvery", 3).trigger(availableNow=True).start()
    answers.change_at_random(query, random.Random(seed), key_groups=8)
    assert query.exception() is None


_STOPPED = {stateful.Words, stateful.Sessions}
"""Run in two halves, with a stop between them."""


@pytest.mark.parametrize(
    ("processor", "mode"),
    [
        (stateful.Words, "None"),
        (stateful.Silence, "EventTime"),
        pytest.param(stateful.Sessions, "EventTime", marks=pytest.mark.thorough),
        (stateful.Fresh, "ProcessingTime"),
        pytest.param(stateful.Stock, "None", marks=pytest.mark.thorough),
        (stateful.ViolationsInPandas, "None"),
    ],
)
def test_slots_put_out_what_plain_spark_does(spark, tmp_path, processor, mode):
    expected, got = Collected(), Collected()
    folder = tmp_path / "in"
    runs = [range(stateful.FILES)]
    if processor in _STOPPED:
        runs = [range(1), range(1, stateful.FILES)]
    for seed, files in enumerate(runs):
        for number in files:
            # What is late is judged per key group, and by Spark for all: see docs/deviations.md.
            stateful.write_file(folder, number, late=mode != "EventTime")
        on_spark(spark, folder, tmp_path / "spark", processor(), mode, expected)
        in_slots(spark, folder, tmp_path / "headgate", processor(), mode, got, seed)
    assert expected.rows
    assert got.rows == expected.rows


def test_a_query_whose_processor_failed_goes_on_once_it_is_corrected(spark, tmp_path):
    folder, checkpoint = tmp_path / "in", tmp_path / "headgate"
    for number in range(2):
        stateful.write_file(folder, number)
    got = Collected()
    with pytest.raises(StreamingQueryException) as caught:
        in_slots(spark, folder, checkpoint, stateful.Failing(), "None", got, 0)
    message = str(caught.value)
    assert re.search(
        r"processor-0, slot \d, step 1: Failing with \d keys: handleInputRows, at record \d+ of \d+ "
        r"of key \d of \d: ValueError.* in stateful.py line \d+",
        message,
    )
    assert "the state is as before" in message
    # journals go elsewhere than messages, and have nothing of what an exception says
    assert "secret" not in (checkpoint / "headgate" / "journal.jsonl").read_text()
    in_slots(spark, folder, checkpoint, stateful.Violations(), "None", got, 0)
    rows = spark.read.parquet(str(folder)).groupBy("sensor").count().collect()
    last = Counter()
    for sensor, readings, _, _ in got.rows:
        last[sensor] = max(last[sensor], readings)
    assert last == {row.sensor: row["count"] for row in rows}
