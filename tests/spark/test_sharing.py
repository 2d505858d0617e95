"""What slots of one host share: a change moves no byte of state, and load is even whatever the values."""

from __future__ import annotations

import os
import time
from collections import Counter
from pathlib import Path
from statistics import fmean, pstdev

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import functions as F

import headgate as hg
from headgate.journal.reader import locate
from headgate.journal.reader import read as read_journal
from headgate.journal.schema import AssignmentChange, Batch
from headgate.tables.arena import arena_root

pytestmark = pytest.mark.timeout(600)

KEYS, SLOTS = 60_000, 4


def write(folder, number, rows):
    """Have a file appear as a whole; it is one batch."""
    folder.mkdir(parents=True, exist_ok=True)
    made = folder / f".{number}"
    pq.write_table(pa.Table.from_pylist(rows), made)
    made.rename(folder / f"{number}.parquet")


def started(frame, place, *, mode="update", slots=2, groups=64):
    writer = hg.writeStream(frame).outputMode(mode).format("noop").keyGroups(groups)
    writer = writer.slots(start=slots).option("checkpointLocation", str(place))
    return writer.trigger(processingTime="200 milliseconds").start()


def until(query, what):
    deadline = time.monotonic() + 120
    while not what():
        assert query.isActive
        assert time.monotonic() < deadline
        time.sleep(0.1)


def served(place):
    return sum(e.served for e in read_journal(locate(place)) if isinstance(e, Batch))


def tables():
    """Return the files that hold key groups of this process's queries: which file it is, and its size.

    Other processes' queries have theirs beside them; a run's lock is held by the driver.
    """
    found, root = {}, Path(arena_root())
    locks = [Path(os.path.realpath(fd)) for fd in Path("/proc/self/fd").iterdir()]
    runs = {root / lock.relative_to(root).parts[0] for lock in locks if root in lock.parents}
    for path in (path for run in runs for path in run.rglob("g[0-9]*")):
        if "." not in path.name:
            about = os.stat(path)
            found[path] = about.st_ino, about.st_size
    return found


def test_a_change_within_a_host_moves_no_byte_of_state(spark, tmp_path):
    place, folder, before = tmp_path / "checkpoint", tmp_path / "in", tables()
    rows = [{"k": f"key {i}", "v": i} for i in range(5_000)]
    write(folder, 0, rows)
    frame = spark.readStream.schema("k string, v bigint").parquet(str(folder))
    query = started(frame.groupBy("k").agg(F.sum("v")), place)
    try:
        until(query, lambda: served(place) == len(rows))
        held = {path: about for path, about in tables().items() if path not in before}
        query.scale(SLOTS)
        # every key again, so that every key group is served by the slot that has it now
        write(folder, 1, rows)
        until(query, lambda: served(place) == 2 * len(rows))
        after = {path: about for path, about in tables().items() if path not in before}
    finally:
        query.stop()
    events = list(read_journal(locate(place)))
    (change,) = [e for e in events if isinstance(e, AssignmentChange) and e.slots_after == SLOTS]
    assert change.groups_moved >= 16
    assert change.bytes_moved == 0
    last = [e for e in events if isinstance(e, Batch)][-1]
    assert {stats.slot for stats in last.slot_stats if stats.served} == set(range(SLOTS))
    # a table that was built again, from the changelog or another's bytes, is another file
    assert len(held) == 64
    assert after == held


def test_of_several_requests_the_last_one_holds_for_all_slots_at_once(spark, tmp_path):
    # STRETCH, theorem 4: asked for in the midst of a batch, as control records come one after the other
    place, folder, answer, asked = tmp_path / "checkpoint", tmp_path / "in", {}, []
    rows = [{"k": f"key {i % 900}", "v": i} for i in range(3_000)]
    for number in range(4):
        write(folder, number, rows)

    def keep(frame, batch):
        if batch == 1:
            for slots in (3, 5, SLOTS):
                query.scale(slots)
                asked.append(slots)
        answer.update({row.k: row.n for row in frame.collect()})

    frame = spark.readStream.schema("k string, v bigint").option("maxFilesPerTrigger", 1)
    frame = frame.parquet(str(folder)).groupBy("k").agg(F.count("*").alias("n"))
    writer = hg.writeStream(frame).outputMode("update").foreachBatch(keep).keyGroups(64)
    writer = writer.slots(start=2, max=8).option("checkpointLocation", str(place))
    query = writer.start()
    try:
        until(query, lambda: served(place) == 4 * len(rows))
        query.processAllAvailable()
    finally:
        query.stop()
    events = list(read_journal(locate(place)))
    (change,) = [e for e in events if isinstance(e, AssignmentChange)]
    assert asked == [3, 5, SLOTS]
    assert (change.slots_after, change.epoch) == (SLOTS, 1)
    for batch in (e for e in events if isinstance(e, Batch)):
        owners = change.slot_of if batch.step >= change.step else None
        for stats in batch.slot_stats:
            assert stats.slot < (SLOTS if owners else 2)
    assert answer == {key: 4 * n for key, n in Counter(row["k"] for row in rows).items()}


def spread(numbers):
    """Return the coefficient of variation."""
    return pstdev(numbers) / fmean(numbers)


def per_slot(place):
    """Return how many records each slot served in all."""
    total = [0] * SLOTS
    for event in read_journal(locate(place)):
        if isinstance(event, Batch):
            for stats in event.slot_stats:
                total[stats.slot] += stats.served
    return total


@pytest.mark.parametrize("values", ["many keys", "one hot value"])
def test_slots_get_even_loads(spark, tmp_path, values):
    place, folder = tmp_path / "checkpoint", tmp_path / "in"
    if values == "many keys":
        write(folder, 0, [{"k": i, "v": i} for i in range(KEYS)])
        frame = spark.readStream.schema("k bigint, v bigint").parquet(str(folder))
        frame, records = frame.groupBy("k").count(), KEYS
        query = started(frame, place, slots=SLOTS, groups=1024)
    else:
        # a join without an equality: every slot compares, one stores, whatever the value is
        write(folder, 0, [{"k": 7, "v": i} for i in range(KEYS // 4)])
        write(tmp_path / "other", 0, [{"k": 8, "v": i} for i in range(100)])
        left = spark.readStream.schema("k bigint, v bigint").parquet(str(folder))
        right = spark.readStream.schema("k bigint, v bigint").parquet(str(tmp_path / "other"))
        right = right.select(F.col("k").alias("k2"), F.col("v").alias("v2"))
        frame = left.join(right, F.expr("abs(k - k2) <= 1 and abs(v - v2) <= 0"))
        query, records = started(frame, place, mode="append", slots=SLOTS), KEYS // 4 + 100
    try:
        until(query, lambda: served(place) >= records)
    finally:
        query.stop()
    counts = per_slot(place)
    assert sum(counts) == records
    assert spread(counts) <= 0.02
