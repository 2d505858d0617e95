"""Slots that are lost: who learns of it, from what Spark says and from what tasks report."""

from __future__ import annotations

import time
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import functions as F

import headgate as hg
from headgate.control.slots.static import Static
from headgate.journal import AssignmentChange, SlotLost, read
from headgate.spark.step.losses import Losses
from headgate_lab.testing import faults

pytestmark = pytest.mark.timeout(300)

LOST = RuntimeError(
    "Job aborted due to stage failure: Task 1 in stage 9.0 failed 1 times, most recent failure: "
    "Lost task 1.0 in stage 9.0 (TID 31) (host executor driver): org.apache.spark.SparkException: "
    "Python worker exited unexpectedly (crashed)"
)
"""Of slot 1 of whatever ran in stage 9."""


def report(slot, operator="op", daemon="a", tries=0, stage=-1):
    return SimpleNamespace(operator=operator, slot=slot, daemon=daemon, tries=tries, stage=stage)


@pytest.mark.parametrize(
    ("stages", "lost"),
    [
        # rows are dealt in a stage before, merged perhaps in one more
        ([7, 8, 9], [("third", 1)]),
        ([8, 9, 10], [("second", 1)]),
        ([8, 9, 10, 11], [("first", 1)]),
        ([9, 10, 11, 12], []),
        ([], []),
    ],
)
def test_a_lost_task_is_the_slot_of_the_operator_whose_stage_it_was_in(stages, lost):
    losses = Losses(frozenset, {9: stages}.get)
    chain = {"first": 4, "second": 2, "third": 2}
    assert losses.in_attempt(LOST, [chain], []) == lost


def test_a_slot_of_the_same_stage_says_whose_it_is():
    losses = Losses(frozenset)
    chain = {"first": 4, "second": 3}
    assert losses.in_attempt(LOST, [chain], [report(2, "first", stage=9)]) == [("first", 1)]


def test_of_several_chains_it_is_the_one_that_is_not_done():
    losses = Losses(frozenset, {9: [8, 9]}.get)
    chains = [{"left": 1}, {"right": 2}]
    assert losses.in_attempt(LOST, chains, [report(0, "left", stage=7)]) == [("right", 1)]


def test_a_task_that_is_no_slots_is_not_named():
    # before the exchange there are more tasks than slots
    losses = Losses(frozenset, {9: [9]}.get)
    assert losses.in_attempt(LOST, [{"op": 1}], []) == []


def test_a_failure_of_the_users_code_is_no_loss():
    losses = Losses(frozenset)
    failed = RuntimeError(str(LOST).replace("Python worker exited unexpectedly", "ValueError"))
    assert losses.in_attempt(failed, [{"op": 2}], []) == []


def test_a_task_that_spark_ran_again_was_lost():
    losses = Losses(frozenset)
    assert losses.in_step([report(0), report(1, tries=1)]) == [("op", 1)]


def test_slots_of_an_executor_that_went_between_two_steps_were_lost():
    living = {"1", "2"}
    losses = Losses(lambda: frozenset(living))
    losses.in_step([report(0, daemon="a"), report(1, daemon="b")])
    assert losses.in_step([report(0, daemon="b"), report(1, daemon="a")]) == []
    living.discard("2")
    assert losses.in_step([report(0, daemon="c"), report(1, daemon="a")]) == [("op", 0)]
    assert losses.in_step([report(0, daemon="c"), report(1, daemon="a")]) == []


class Listening(Static):
    """A policy that decides nothing, and keeps whose slots were lost."""

    name = "listening"

    def __init__(self):
        super().__init__()
        self.failed = []

    def slot_failed(self, operator, slot_id):
        self.failed.append((operator, slot_id))


def test_a_policy_is_told_of_a_slot_whose_worker_was_killed_in_a_running_query(spark, tmp_path):
    policy = Listening()
    rows = spark.readStream.format("rate").option("rowsPerSecond", 200).load()
    counts = rows.groupBy((F.col("value") % 64).alias("key")).count()
    writer = (
        hg.writeStream(counts)
        .slo("mean < 5 s over 1 s")
        .policy(policy)
        .slots(start=2)
        .keyGroups(8)
        .outputMode("update")
        .format("noop")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
    )
    faults.inject(writer, faults.kill_worker(slot=1, step=2))
    query = writer.start()
    try:
        until = time.monotonic() + 60
        while not policy.failed and time.monotonic() < until:
            time.sleep(0.1)
    finally:
        query.stop()
    assert policy.failed == [("aggregate-0", 1)]
    (written,) = [e for e in read(query.journal) if isinstance(e, SlotLost)]
    assert (written.step, written.operator, written.slot) == (2, "aggregate-0", 1)


def totals(rows):
    return rows.dropDuplicates(["key", "value"]).groupBy("key").agg(F.sum("value").alias("total"))


def test_in_a_chain_the_slot_that_was_killed_is_named_and_gets_the_assignment_on_its_way(
    spark, tmp_path
):
    given, answer, paused, scaled = tmp_path / "in", {}, tmp_path / "paused", tmp_path / "scaled"
    given.mkdir()
    for number in range(5):
        rows = {"key": [n % 40 for n in range(400)], "value": list(range(number, number + 400))}
        pq.write_table(pa.table(rows), given / f"{number}.parquet")

    def keep(frame, _):
        answer.update({row.key: row.total for row in frame.collect()})

    schema = "key long, value long"
    policy = Listening()
    reader = spark.readStream.schema(schema).option("maxFilesPerTrigger", 1)
    writer = (
        hg.writeStream(totals(reader.parquet(str(given))))
        .slo("mean < 5 s over 1 s")
        .policy(policy)
        .slots(max=4, start=2)
        .keyGroups(8)
        .outputMode("update")
        .foreachBatch(keep)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
    )
    first, second = "deduplicate-0", "aggregate-1"
    faults.inject(
        writer,
        faults.pause_worker(slot=0, step=2, until=scaled, trace=paused, operator=first),
        faults.kill_worker(slot=1, step=2, operator=second),
    )
    query = writer.start()
    try:
        until = time.monotonic() + 60
        while not paused.exists() and time.monotonic() < until:
            time.sleep(0.01)
        query.scale(3, operator=second)  # in the midst of the step
        scaled.touch()
        query.processAllAvailable()
    finally:
        query.stop()
    events = list(read(query.journal))
    (lost,) = [e for e in events if isinstance(e, SlotLost)]
    assert (lost.step, lost.operator, lost.slot, lost.epoch) == (2, second, 1, 1)
    assert policy.failed == [(second, 1)]
    (change,) = [e for e in events if isinstance(e, AssignmentChange)]
    assert (change.step, change.operator, change.epoch, change.slots_after) == (3, second, 1, 3)
    expected = totals(spark.read.schema(schema).parquet(str(given))).collect()
    assert answer == {row.key: row.total for row in expected}
