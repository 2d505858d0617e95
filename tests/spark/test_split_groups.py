"""A hot key group whose records are dealt to several slots: the same answers come out as of plain Spark.

Six tenths of all records have one key. The test splits its key group, has more and fewer shares, moves
groups, scales and ends the split, at batch boundaries, in any order.
"""

from __future__ import annotations

import json
import queue
import random
from collections import Counter
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import functions as F

import headgate as hg
from headgate.core.assignment import Assignment
from headgate_lab.testing import faults

pytestmark = pytest.mark.timeout(900)

FILES, ROWS, HOT, GROUPS = 8, 600, "hot", 8


@pytest.fixture(scope="module")
def input_path(tmp_path_factory):
    """Files of rows, one per batch: file i has times around i times 5 s, and some that are late."""
    path = tmp_path_factory.mktemp("hot")
    draw = np.random.default_rng(3)
    for index in range(FILES):
        seconds = index * 5 + draw.random(ROWS) * 5
        late = draw.random(ROWS) < 0.1
        seconds = np.where(late, np.maximum(seconds - 20, 0), seconds)
        hot = draw.random(ROWS) < 0.6
        names = np.where(hot, HOT, np.char.add("k", draw.integers(0, 50, ROWS).astype(str)))
        value = draw.integers(-500, 1000, ROWS)
        table = pa.table(
            {
                "key": pa.array(names.tolist()),
                "value": pa.array(value, mask=draw.random(ROWS) < 0.05),
                "ts": pa.array((seconds * 1e6).astype(np.int64), pa.timestamp("us", tz="UTC")),
            }
        )
        pq.write_table(table, path / f"part-{index}.parquet")
    return path


def merged(rows, *by):
    amount = (F.col("value") / 100).cast("decimal(12,2)")
    return rows.groupBy(*by).agg(
        F.count("*").alias("n"),
        F.count("value").alias("known"),
        F.sum("value").alias("total"),
        F.avg("value").alias("mean"),
        F.min("value").alias("least"),
        F.max("value").alias("most"),
        F.sum(amount).alias("amount"),
        F.max(F.col("key")).alias("name"),
    )


SHAPES = {"none": None, "tumbling": "5 seconds", "endless": "6 seconds"}


def query_of(spark, path, shape):
    schema = spark.read.parquet(str(path)).schema
    rows = spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).parquet(str(path))
    if shape == "none":
        return merged(rows, "key")
    size = SHAPES[shape]
    if shape == "endless":  # windows that overlap; with a watermark they stay whole
        return merged(rows, F.window("ts", size, "2 seconds"), "key")
    rows, window = rows.withWatermark("ts", "3 seconds"), F.window("ts", size)
    return merged(rows, window, "key")


def plain(row):
    return tuple(str(value) for value in row)


class Answer:
    """What came out: all rows in append mode, else the last of each key."""

    def __init__(self, mode, shape):
        self.mode = mode
        self.width = 1 if shape == "none" else 2
        self.rows = Counter()
        self.last = {}

    def __call__(self, frame, _):
        for row in map(plain, frame.collect()):
            self.rows[row] += 1
            self.last[row[: self.width]] = row

    @property
    def found(self):
        return self.rows if self.mode == "append" else self.last


def on_spark(spark, path, mode, shape, checkpoint):
    answer = Answer(mode, shape)
    writer = query_of(spark, path, shape).writeStream.outputMode(mode).foreachBatch(answer)
    writer = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True)
    writer.start().awaitTermination()
    return answer.found


def split_of(query, shares):
    """Return what holds with the busiest key group split over so many slots, or whole."""
    (name,) = query.assignment()
    held = query._work.changes.newest(name)
    served = Counter()
    for report in read_batches(query):
        served.update({int(g): n for g, n in report["hottest"]})
    hot = served.most_common(1)[0][0]
    if shares > held.slots:
        held = replace(held, slots=shares)
    owner = held.slot_of[hot]
    others = [slot for slot in range(held.slots) if slot != owner]
    random.shuffle(others)
    split = {g: s for g, s in held.split.items() if g != hot}
    if shares > 1:
        split[hot] = (owner, *others[: shares - 1])
    return name, Assignment(held.slot_of, held.slots, held.epoch + 1, split)


def read_batches(query):
    lines = map(json.loads, query.journal.read_text().splitlines())
    return [line for line in lines if line["event"] == "batch"]


def act(query, draw):
    """Ask for some change of the split, or of something else."""
    what = draw.choice(["split", "split", "split", "whole", "move", "scale", "nothing"])
    if what == "nothing":
        return
    if what in ("split", "whole"):
        name, new = split_of(query, draw.randint(2, 4) if what == "split" else 1)
        query._work.changes.ask({name: new}, "test", what)
    elif what == "scale":
        query.scale(draw.randint(1, 4))
    else:
        (name,) = query.assignment()
        slots = query._work.changes.newest(name).slots
        query.remap({draw.randrange(GROUPS): draw.randrange(slots) for _ in range(3)})


def in_slots(spark, path, mode, shape, checkpoint, seed, *, planned=(), more=()):
    answer, draw = Answer(mode, shape), random.Random(seed)
    running = queue.SimpleQueue()

    def deliver(frame, batch):
        answer(frame, batch)
        query = running.get(timeout=60)  # it is there once `start` is back
        running.put(query)
        if read_batches(query):
            act(query, draw)

    writer = hg.writeStream(query_of(spark, path, shape)).outputMode(mode).foreachBatch(deliver)
    writer = writer.option("checkpointLocation", str(checkpoint)).keyGroups(GROUPS).slots(start=2)
    writer = writer.option("headgate.snapshotEvery", 3).option("headgate.preaggregate", "off")
    for key, value in more:
        writer = writer.migration(value) if key == "migration" else writer.option(key, value)
    faults.inject(writer, *planned)
    query = writer.trigger(availableNow=True).start()
    running.put(query)
    query.awaitTermination()
    return answer, query


CASES = [
    ("update", "none"),
    ("append", "tumbling"),
    pytest.param("complete", "tumbling", marks=pytest.mark.thorough),
    pytest.param("complete", "none", marks=pytest.mark.thorough),
    pytest.param("update", "tumbling", marks=pytest.mark.thorough),
    pytest.param("update", "endless", marks=pytest.mark.thorough),
]


@pytest.mark.parametrize(("mode", "shape"), CASES)
@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.thorough)])
def test_split_key_groups_give_the_answers_of_plain_spark(
    spark, input_path, tmp_path, mode, shape, seed
):
    expected = on_spark(spark, input_path, mode, shape, tmp_path / "spark")
    answer, query = in_slots(spark, input_path, mode, shape, tmp_path / "headgate", seed)
    changes = [json.loads(line) for line in query.journal.read_text().splitlines()]
    assert any(e["event"] == "assignment" and e["split"] for e in changes)
    assert answer.found == expected


def fixed(query, shares):
    """Split the hottest group over so many slots, once: where few are served another may be the next."""
    name, new = split_of(query, shares)
    if len(new.split) == 1:
        query._work.changes.ask({name: new}, "test", "split")


@pytest.mark.parametrize(
    "fault",
    [pytest.param(faults.raise_in, marks=pytest.mark.thorough), faults.kill_worker],
)
def test_a_slot_that_fails_with_shares_does_not_change_the_answer(
    spark, input_path, tmp_path, monkeypatch, fault
):
    monkeypatch.setitem(globals(), "act", lambda query, draw: fixed(query, 3))
    expected = on_spark(spark, input_path, "append", "tumbling", tmp_path / "spark")
    planned = [fault(slot=slot, step=4 + slot) for slot in range(3)]
    answer, query = in_slots(
        spark, input_path, "append", "tumbling", tmp_path / "headgate", 1, planned=planned
    )
    events = [json.loads(line) for line in query.journal.read_text().splitlines()]
    assert any(event["event"] == "retry" for event in events)
    assert answer.found == expected


@pytest.mark.thorough
def test_a_split_goes_on_after_a_restart_with_rows_waiting_at_several_slots(
    spark, input_path, tmp_path, monkeypatch
):
    """The slots serve few rows a step, so that they wait for all shares when the query fails."""
    monkeypatch.setitem(globals(), "act", lambda query, draw: fixed(query, 3))
    few = [("headgate.slotRate", "40")]  # less than a share gets, however long a step takes
    checkpoint = tmp_path / "headgate"
    with pytest.raises(Exception, match="a test made slot"):
        in_slots(
            spark,
            input_path,
            "update",
            "none",
            checkpoint,
            1,
            planned=[faults.raise_in(slot=s, step=5, attempts=99) for s in range(3)],
            more=few,
        )
    monkeypatch.setitem(globals(), "act", lambda query, draw: None)
    seen = []

    def look(query, draw):
        (state,) = query._work.states.values()
        seen.append((state.assignment.split, set(state.backlog)))

    monkeypatch.setitem(globals(), "act", look)
    answer, _ = in_slots(spark, input_path, "update", "none", checkpoint, 1, more=few)
    (shares,) = seen[0][0].values()
    assert len(shares) == 3
    # for a share that is not the owner's
    assert any(key >= GROUPS for _, waiting in seen for key in waiting)
    expected = on_spark(spark, input_path, "update", "none", tmp_path / "spark")
    # what the first run put out last was put out again, or has changed since
    assert {**expected, **answer.found} == expected
    assert (HOT,) in answer.found


@pytest.mark.parametrize(
    "strategy", ["subscale", pytest.param("fluid", marks=pytest.mark.thorough)]
)
def test_splits_and_migrations_give_the_answers_of_plain_spark(
    spark, input_path, tmp_path, strategy
):
    expected = on_spark(spark, input_path, "append", "tumbling", tmp_path / "spark")
    answer, query = in_slots(
        spark,
        input_path,
        "append",
        "tumbling",
        tmp_path / "headgate",
        5,
        more=[("migration", strategy)],
    )
    events = [json.loads(line) for line in query.journal.read_text().splitlines()]
    assert any(e["event"] == "migration" for e in events)
    assert any(e["event"] == "assignment" and e["split"] for e in events)
    assert answer.found == expected


def test_slots_with_few_rows_a_step_give_all_counts(spark, input_path, tmp_path):
    expected = on_spark(spark, input_path, "complete", "none", tmp_path / "spark")
    answer, query = in_slots(
        spark,
        input_path,
        "complete",
        "none",
        tmp_path / "headgate",
        3,
        more=[("headgate.slotRate", "400")],
    )
    assert any(batch["backlog"] for batch in read_batches(query))
    assert sum(batch["served"] for batch in read_batches(query)) == FILES * ROWS
    assert answer.found == expected
