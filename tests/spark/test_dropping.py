"""t_out and q_size of pools on Spark: what is dropped is counted, once, whatever fails."""

from __future__ import annotations

import time

import pytest
from pool_runs import ROWS, doubled, pooled, put_out, source
from pyspark.errors import StreamingQueryException

from headgate.core.errors import ConfigError
from headgate.journal.reader import read
from headgate.journal.schema import Batch
from headgate.report.run import Run
from headgate.report.summary import summary
from headgate.spark.step import steps

pytestmark = pytest.mark.timeout(300)


def dropped_in(journal, reason):
    """Return how many rows each step dropped, as the journal has it; a step counts once."""
    batches = (event for event in read(journal) if isinstance(event, Batch))
    return {batch.step: batch.dropped[reason] for batch in batches if reason in batch.dropped}


def until_all_arrived(query):
    while sum(line.arrived for line in query.batches()) < ROWS and query.isActive:
        time.sleep(0.05)


def test_rows_beyond_the_queue_are_dropped_and_counted(spark, tmp_path):
    df = source(spark, tmp_path).mapInArrow(doubled, "w long")
    writer = pooled(df, tmp_path, max=2).option("headgate.slotRate", 50)
    query = writer.option("headgate.replicas.queueMax", 300).start()
    until_all_arrived(query)
    assert all(line.waiting <= 300 for line in query.batches())
    query.drain()
    last = query.lastProgress["headgate"]
    query.stop()
    dropped = query.batches()[-1].dropped["queue_full"]
    assert dropped > 0
    assert sum(put_out(spark, tmp_path, "w").values()) + dropped == ROWS
    assert sum(dropped_in(query.journal, "queue_full").values()) == dropped
    assert summary(query.journal)["dropped"] == {"late": 0, "queue_full": dropped}
    assert "dropped" in last


def test_rows_that_grow_too_old_are_dropped_and_counted(spark, tmp_path):
    df = source(spark, tmp_path).mapInArrow(doubled, "w long")
    writer = pooled(df, tmp_path, max=2).option("headgate.slotRate", 100)
    query = writer.option("headgate.replicas.timeout", "2 s").start()
    until_all_arrived(query)
    query.drain()
    query.stop()
    dropped = query.batches()[-1].dropped["too_old"]
    assert dropped > 0
    found = put_out(spark, tmp_path, "w")
    assert set(found.values()) == {1}
    assert sum(found.values()) + dropped == ROWS
    assert Run.read(query.journal).dropped == {"too_old": dropped}


@pytest.mark.parametrize("where", ["before-manifest", "after-manifest", "after-sink"])
def test_a_row_that_was_dropped_stays_dropped_and_counts_once(spark, tmp_path, monkeypatch, where):
    df = source(spark, tmp_path).mapInArrow(doubled, "w long")

    def writer():
        made = pooled(df, tmp_path, max=2).option("headgate.slotRate", 50)
        return made.option("headgate.replicas.queueMax", 300)

    def crash(at: str, step: int) -> None:
        if (at, step) == (where, 2):
            raise ConfigError("planned")

    with monkeypatch.context() as patch:
        patch.setattr(steps, "crash_point", crash)
        query = writer().start()
        with pytest.raises(StreamingQueryException, match="planned"):
            query.awaitTermination()
    before = dict(query._work.loop.dropped()) if where != "before-manifest" else {}
    query = writer().start()
    assert query._work.loop.dropped().get("queue_full", 0) >= before.get("queue_full", 0)
    query.drain(120)
    query.stop()
    dropped = query.batches()[-1].dropped["queue_full"]
    found = put_out(spark, tmp_path, "w")
    assert set(found.values()) == {1}
    assert sum(found.values()) + dropped == ROWS
