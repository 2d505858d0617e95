"""Slots that are lost: who learns of it, from what Spark says and from what tasks report."""

from __future__ import annotations

import time
from types import SimpleNamespace

import pytest
from pyspark.sql import functions as F

import headgate as hg
from headgate.control.policies.static import Static
from headgate.journal import SlotLost, read
from headgate.spark.step.losses import Losses
from headgate_lab.testing import faults

pytestmark = pytest.mark.timeout(300)

LOST = RuntimeError(
    "Job aborted due to stage failure: Task 1 in stage 9.0 failed 1 times, most recent failure: "
    "Lost task 1.0 in stage 9.0 (TID 31) (host executor driver): org.apache.spark.SparkException: "
    "Python worker exited unexpectedly (crashed)"
)


def report(slot, operator="op", daemon="a", tries=0):
    return SimpleNamespace(operator=operator, slot=slot, daemon=daemon, tries=tries)


def test_a_failed_attempt_names_the_slot_whose_task_was_lost():
    losses = Losses(frozenset)
    assert losses.in_attempt(LOST, {"op": 2}, []) == [("op", 1)]
    assert losses.in_attempt(LOST, {"first": 4, "second": 2}, [report(1, "first")]) == [
        ("second", 1)
    ]


def test_a_failure_of_the_users_code_is_no_loss():
    losses = Losses(frozenset)
    failed = RuntimeError(str(LOST).replace("Python worker exited unexpectedly", "ValueError"))
    assert losses.in_attempt(failed, {"op": 2}, []) == []


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
