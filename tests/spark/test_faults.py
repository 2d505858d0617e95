"""Faults in slots and drivers: the answer stays Spark's, and the fault is known to have struck."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections import Counter

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import functions as F

import headgate as hg
from headgate.core.errors import ConfigError
from headgate.spark.job.faults import CRASH, SlotFaults
from headgate.spark.step.record import StepRecorder
from headgate_lab.bench import kill
from headgate_lab.testing import faults

# five lives of a job, each with a start of the JVM; on a busy machine a start takes half a minute
pytestmark = pytest.mark.timeout(1200)

FILES, ROWS, KEYS = 6, 400, 200
STEP = 3
SLOTS = 2


@pytest.fixture(scope="module")
def input_path(tmp_path_factory):
    """Files of rows, one per batch; the times of file i are around i times 5 s."""
    path = tmp_path_factory.mktemp("input")
    random = np.random.default_rng(5)
    for index in range(FILES):
        seconds = index * 5 + random.integers(0, 5, ROWS)
        table = pa.table(
            {
                "key": random.integers(0, KEYS, ROWS),
                "value": random.integers(0, 1000, ROWS),
                "ts": pa.array(seconds * 1_000_000, pa.timestamp("us", tz="UTC")),
            }
        )
        pq.write_table(table, path / f"part-{index}.parquet")
    return path


def totals(rows):
    return rows.groupBy("key").agg(F.count("*").alias("n"), F.sum("value").alias("total"))


class Job:
    """Runs `totals` over the input under faults, one file per batch, and keeps what came out."""

    def __init__(self, spark, path, directory, preaggregate="off", budget=None):
        schema = spark.read.parquet(str(path)).schema
        reader = spark.readStream.schema(schema).option("maxFilesPerTrigger", 1)
        self.expected = {tuple(r) for r in totals(spark.read.parquet(str(path))).collect()}
        self.last = {}
        self.writer = (
            hg.writeStream(totals(reader.parquet(str(path))))
            .slots(start=SLOTS)
            .keyGroups(16)
            .outputMode("update")
            .option("headgate.preaggregate", preaggregate)
            .option("headgate.snapshotEvery", 4)
            .option("checkpointLocation", str(directory))
            .trigger(availableNow=True)
            .foreachBatch(self._keep)
        )

    def _keep(self, frame, batch):
        self.last |= {row.key: tuple(row) for row in frame.collect()}

    def run(self, *planned):
        faults.inject(self.writer, *planned)
        query = self.writer.start()
        query.awaitTermination()
        lines = query.journal.read_text().splitlines()
        self.events = [json.loads(line) for line in lines]
        return self

    @property
    def answer(self):
        return set(self.last.values())

    def retries(self):
        return [(e["step"], e["attempt"]) for e in self.events if e["event"] == "retry"]

    def batch(self, step):
        (found,) = [e for e in self.events if e["event"] == "batch" and e["step"] == step]
        return found


@pytest.fixture(params=["off", "on"])
def job(spark, input_path, tmp_path, request):
    return Job(spark, input_path, tmp_path / "checkpoint", request.param)


@pytest.mark.parametrize(
    "fault", [pytest.param(faults.raise_in, marks=pytest.mark.thorough), faults.kill_worker]
)
def test_a_slot_that_ends_in_the_middle_of_its_writes_does_not_change_the_answer(job, fault):
    job.run(fault(slot=1, step=STEP))
    assert job.retries() == [(STEP, 1)]
    assert job.batch(STEP)["attempts"] == 2
    assert job.batch(STEP - 1)["attempts"] == 1
    assert job.answer == job.expected


def test_a_slot_that_fails_twice_is_tried_a_third_time(job):
    job.run(faults.raise_in(slot=0, step=STEP, attempts=2))
    assert job.retries() == [(STEP, 1), (STEP, 2)]
    assert job.answer == job.expected


def test_a_slot_that_always_fails_ends_the_query_with_its_reason(spark, input_path, tmp_path):
    job = Job(spark, input_path, tmp_path / "checkpoint")
    with pytest.raises(Exception, match="a test made slot 0 fail"):
        job.run(faults.raise_in(slot=0, step=STEP, attempts=99))
    # the checkpoint is whole: the next start finishes the work
    job.run()
    assert job.events[-1]["reason"] == "source ended"
    assert job.answer == job.expected


def test_two_executions_of_a_slot_alive_at_once_do_not_change_the_answer(
    job, tmp_path, monkeypatch
):
    """::

    slot 0, attempt 1   write g, stop ........................ resume, write on (old inode)
    slot 1, attempt 1      write, raise
    both,   attempt 2                    write, commit
    """
    trace, retried, retry = tmp_path / "trace", tmp_path / "retried", StepRecorder.retry
    monkeypatch.setattr(StepRecorder, "retry", lambda *given: (retry(*given), retried.touch()))
    job.run(
        faults.pause_worker(slot=0, step=STEP, until=retried, trace=trace),
        faults.raise_in(slot=1, step=STEP, after=trace),
    )
    assert job.retries() == [(STEP, 1)]
    assert job.batch(STEP)["attempts"] == 2
    notes = [json.loads(line) for line in trace.read_text().splitlines()]
    assert Counter(n["what"] for n in notes)["pause"] == 1
    at_ms = {note["what"]: note["at_ms"] for note in notes}
    assert {n["attempt"] for n in notes} == {1}
    (retried,) = [e for e in job.events if e["event"] == "retry"]
    # the zombie wrote after the retry had begun
    assert at_ms["pause"] < retried["at_ms"] < at_ms["resumed"] <= at_ms["wrote on"]
    assert job.answer == job.expected


@pytest.mark.parametrize("count", [1, pytest.param(5, marks=pytest.mark.thorough)])
def test_drivers_killed_on_one_checkpoint_give_the_batch_answer(count):
    found = kill.run(count=count, seed=1)
    assert found["verified"], found
    assert found["kills"] == count
    assert found["restarts"] == count
    assert found["at"]["between manifest and sink"] >= count // 2
    assert found["undelivered"] >= 1
    assert found["with_backlog"] >= 1
    assert found["rows_compared"] > 0


@pytest.mark.thorough
def test_a_kill_that_never_fires_fails_the_run(monkeypatch):
    monkeypatch.setattr(
        kill, "_plans", lambda parameters: [kill.Plan("after-sink", 10**6, "group")]
    )
    found = kill.run(count=1, seed=1, events=6_000, life_s_max=30.0)
    assert found["failed"] == ["kill 1: after-sink, group"]


CRASHING = """
from headgate.spark.job.faults import crash_point
crash_point("after-manifest", 6)
crash_point("after-sink", 7)
print("alive", flush=True)
crash_point("after-manifest", 7)
print("still alive")
"""


@pytest.mark.parametrize("whom", ["", ":driver", ":group"])
def test_a_driver_dies_where_it_is_told_and_nowhere_else(whom):
    env = {"PATH": "/usr/bin:/bin", CRASH: f"after-manifest:7{whom}"}
    command = [sys.executable, "-c", CRASHING]
    ran = subprocess.run(command, env=env, capture_output=True, check=False, start_new_session=True)
    assert (ran.returncode, ran.stdout.split()) == (-signal.SIGKILL, [b"alive"])


def test_a_driver_that_nobody_told_lives():
    ran = subprocess.run([sys.executable, "-c", CRASHING], env={}, capture_output=True, check=True)
    assert b"still alive" in ran.stdout


def test_a_crash_nobody_understands_is_refused(monkeypatch):
    from headgate.spark.job.faults import crash_point

    monkeypatch.setenv(CRASH, "after-lunch:7")
    with pytest.raises(ConfigError, match="after-manifest"):
        crash_point("after-sink", 7)


def test_a_fault_strikes_its_own_slot_step_and_attempt_only():
    planned = [faults.raise_in(slot=1, step=3, attempts=2)]
    struck = {
        (slot, step, attempt)
        for slot in range(3)
        for step in range(5)
        for attempt in range(1, 4)
        if SlotFaults(planned, slot, step, attempt).on_group is not None
    }
    assert struck == {(1, 3, 1), (1, 3, 2)}
