"""What progress says of a query in slots: to its handle, to listeners, to Spark's own metrics."""

from __future__ import annotations

import contextlib
import queue
from types import SimpleNamespace

import pytest
from pyspark.sql.streaming import StreamingQueryListener

import headgate as hg
from headgate.journal.schema import Batch
from headgate.spark.api.real_time import RealTimeQuery
from headgate.spark.jvm.query_events import timestamp
from headgate.spark.step.progress import Progress

BOUND_S = 240.0
FILES = 3
ROWS = 10


class Heard(StreamingQueryListener):
    """Keeps what it is told."""

    def __init__(self):
        self.events = queue.SimpleQueue()

    def onQueryStarted(self, event):
        pass

    def onQueryProgress(self, event):
        self.events.put(event.progress)

    def onQueryTerminated(self, event):
        self.events.put(None)

    def until(self, last):
        """Return what it is told, up to the first that `last` is true of."""
        found = [self.events.get(timeout=BOUND_S)]
        while not last(found[-1]):
            found.append(self.events.get(timeout=BOUND_S))
        return found


def figures(progress):
    (operator,) = progress.stateOperators
    return (
        progress.batchId,
        progress.numInputRows,
        [source.numInputRows for source in progress.sources],
        operator.numRowsTotal,
        operator.numRowsUpdated,
        progress.sink.description,
        progress.sink.numOutputRows,
    )


@pytest.mark.parametrize("sink", ["ForeachBatchSink", "NoopTable"])
def test_each_progress_has_the_figures_of_its_batch_for_the_handle_listeners_and_the_jvm(
    spark, tmp_path, sink
):
    heard = Heard()
    spark.streams.addListener(heard)  # before the query's own: it is told the same
    for number in range(FILES):
        keys = spark.range(number * ROWS, (number + 1) * ROWS, 1, 1)
        keys.write.mode("append").parquet(str(tmp_path / "in"))
    rows = spark.readStream.schema("id long").option("maxFilesPerTrigger", 1)
    counts = rows.parquet(str(tmp_path / "in")).groupBy("id").count()
    writer = hg.writeStream(counts).outputMode("update")
    if sink == "NoopTable":
        writer.format("noop")
    else:
        writer.foreachBatch(lambda frame, batch: None)
    query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    try:
        told = heard.until(lambda progress: progress.numInputRows == 0)
    finally:
        query.stop()
        told += heard.until(lambda progress: progress is None)[:-1]
        spark.streams.removeListener(heard)
    with_rows = [figures(p) for p in told if p.numInputRows]
    assert with_rows == [(n, ROWS, [ROWS], (n + 1) * ROWS, ROWS, sink, ROWS) for n in range(FILES)]
    for progress in told[FILES:]:
        assert figures(progress)[1:] == (0, [0], FILES * ROWS, 0, sink, 0)
    recent = query.recentProgress
    assert [figures(p) for p in recent] == [figures(p) for p in told]
    assert [p["headgate"]["emitted"] for p in recent] == [figures(p)[-1] for p in told]
    assert recent[-1]["headgate"]["state_rows"] == FILES * ROWS
    # what the metrics and the UI of the JVM read
    of_spark = query._inner.lastProgress
    assert figures(of_spark) == figures(query.lastProgress)


# -- without Spark ----------------------------------------------------------------------------------


def step(number, batch, emitted, **more):
    return Batch(number, batch, 1, 2, 5.0, {}, 10, 10, emitted, 0, 0, 0, 0, state_rows=7, **more)


def operator(total, updated):
    zero = dict.fromkeys(
        ("allUpdatesTimeMs", "numRowsRemoved", "allRemovalsTimeMs", "commitTimeMs"), 0
    )
    found = {"operatorName": "a", "numRowsTotal": total, "numRowsUpdated": updated}
    return found | zero | {"numRowsDroppedByWatermark": 1}


def begun(kept="100"):
    progress = Progress()
    conf = SimpleNamespace(get=lambda key, default: kept)
    progress.begin(
        SimpleNamespace(conf=conf), SimpleNamespace(description="delta"), [operator(3, 0)]
    )
    return progress


def filled(progress, batch):
    sources = [
        {"description": "users", "numInputRows": 4, "inputRowsPerSecond": 2.0},
        {"description": "tick", "numInputRows": 1, "inputRowsPerSecond": 1.0},
    ]
    sink = {"description": "ForeachBatchSink", "numOutputRows": -1}
    given = {"batchId": batch, "numInputRows": 5, "inputRowsPerSecond": 3.0}
    return progress.filled(
        given | {"processedRowsPerSecond": 9.0, "sources": sources, "sink": sink}
    )


def test_the_tick_is_neither_listed_nor_counted():
    found = filled(begun(), 0)
    assert [source["description"] for source in found["sources"]] == ["users"]
    assert (found["numInputRows"], found["inputRowsPerSecond"]) == (4, 2.0)
    assert (
        "processedRowsPerSecond" not in found
    )  # of a rate that Spark does not know it says nothing
    assert found["sink"] == {"description": "delta", "numOutputRows": 0}


def test_what_was_completed_before_stays_as_it_is():
    progress = begun()
    once = filled(progress, 0)
    assert progress.filled({**once, "batchId": 0}) == once


def test_steps_of_one_batch_are_added_up_and_other_batches_keep_theirs():
    progress = begun()
    progress.add(step(0, 4, 2), [operator(5, 2)], emitted=2)
    progress.add(step(1, 6, 3), [operator(6, 1)], emitted=3)
    progress.add(step(2, 6, 4), [operator(7, 1)], emitted=4)
    seen = {batch: filled(progress, batch) for batch in (3, 4, 5, 6, 7)}
    out = {batch: found["sink"]["numOutputRows"] for batch, found in seen.items()}
    assert out == {3: 0, 4: 2, 5: 0, 6: 7, 7: 0}
    state = {batch: found["stateOperators"][0] for batch, found in seen.items()}
    totals = {batch: (one["numRowsTotal"], one["numRowsUpdated"]) for batch, one in state.items()}
    assert totals == {3: (3, 0), 4: (5, 2), 5: (5, 0), 6: (7, 2), 7: (7, 0)}
    assert state[6]["numRowsDroppedByWatermark"] == 2
    assert progress.own(3) == {}
    assert (progress.own(6)["emitted"], progress.own(7)["emitted"]) == (7, 0)
    assert (progress.own(7)["step"], progress.own(7)["state_rows"]) == (2, 7)


def test_a_listener_that_is_late_finds_what_an_earlier_batch_observed():
    progress = Progress()
    for batch in range(300):
        progress.observe(batch, f"counts of {batch}")
    assert progress.observed(298) == "counts of 298"
    assert progress.observed(0) is None


@pytest.mark.parametrize("kept", ["2", "0"])
def test_no_more_batches_are_remembered_than_spark_keeps_progress_of(kept):
    progress = begun(kept)
    for number in range(50):
        progress.add(step(number, number, 1), [operator(1, 1)], emitted=1)
    assert len(progress._done) <= 3
    assert filled(progress, 49)["sink"]["numOutputRows"] == 1


@pytest.mark.parametrize(
    ("at_us", "said"),
    [
        (0, "1970-01-01T00:00:00.000Z"),
        (1_700_000_000_123_999, "2023-11-14T22:13:20.123Z"),
        (1_700_000_000_000_000_000, "9999-12-31T23:59:59.999Z"),
        (2**63 - 1, "9999-12-31T23:59:59.999Z"),
    ],
)
def test_a_time_in_a_wrong_unit_is_a_time_all_the_same(at_us, said):
    assert timestamp(at_us) == said


def test_a_progress_that_cannot_be_told_ends_no_query(monkeypatch, caplog):
    def fail(self):
        raise ValueError("no progress")

    monkeypatch.setattr(RealTimeQuery, "_newest_second", fail)
    query = RealTimeQuery.__new__(RealTimeQuery)
    query._inner = SimpleNamespace(name="clicks")
    query._life = SimpleNamespace(asked=contextlib.nullcontext)
    query._tell_progress()
    assert "no progress of clicks" in caplog.text
