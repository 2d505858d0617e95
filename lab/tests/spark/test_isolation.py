"""A time budget: what a slow slot cannot serve waits, in order, with its key group; no times asserted."""

from __future__ import annotations

import json
import os
import threading

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import functions as F

import headgate as hg
from headgate.checkpoint.checkpoint import Checkpoint
from headgate.core.assignment import spread
from headgate.spark.job.job import JobConfig, OperatorState
from headgate.spark.job.reports import Payload, Report
from headgate_lab.bench import isolation
from headgate_lab.testing import faults

pytestmark = pytest.mark.timeout(900)

FILES, ROWS, KEYS = 8, 400, 100
SCALE_AT, SLOTS_AFTER = 4, 3


@pytest.fixture(scope="module")
def input_path(tmp_path_factory):
    """Files of rows, one per batch; `seq` grows in the order of arrival."""
    path = tmp_path_factory.mktemp("input")
    random = np.random.default_rng(7)
    for index in range(FILES):
        seq = np.arange(index * ROWS, (index + 1) * ROWS)
        table = pa.table({"key": random.integers(0, KEYS, ROWS), "seq": seq})
        file = path / f"part-{index}.parquet"
        pq.write_table(table, file)
        os.utime(file, (1_700_000_000 + index,) * 2)  # Spark takes the oldest file first
    return path


def ordered(rows):
    """First and last show any change of order within a key."""
    return rows.groupBy("key").agg(
        F.count("*").alias("n"), F.first("seq").alias("first"), F.last("seq").alias("last")
    )


class Run:
    """A job with slow slot 0, which changes its slots while records wait."""

    def __init__(self, spark, path, directory, monkeypatch, budget):
        self.quotas, self.reports, self.updates = {}, {}, []
        write_intent = Checkpoint.write_intent

        def intent(store, step, content):
            self.quotas[step] = content["quotas"]["aggregate-0"]
            self.assignments[step] = content["assignments"]["aggregate-0"]["slot_of"]
            write_intent(store, step, content)

        self.assignments = {}
        monkeypatch.setattr(Checkpoint, "write_intent", intent)
        schema = spark.read.parquet(str(path)).schema
        reader = spark.readStream.schema(schema).option("maxFilesPerTrigger", 1)
        started = threading.Event()
        writer = (
            hg.writeStream(ordered(reader.parquet(str(path))))
            .slots(start=2)
            .keyGroups(16)
            .budget(budget)
            .outputMode("update")
            .option("headgate.preaggregate", "off")
            .option("checkpointLocation", str(directory))
            .trigger(processingTime="0 seconds")
            .foreachBatch(lambda frame, batch: self._keep(frame, started))
        )
        faults.inject(writer, faults.slow(0, 500.0))
        self.query = writer.start()
        record = self.query._work.recorder.batch

        def batch(outcome, *rest):
            self.reports[outcome.step] = list(outcome.reports)
            record(outcome, *rest)

        self.query._work.recorder.batch = batch
        started.set()
        try:
            self.query.processAllAvailable()
            self.query.drain(timeout_s=120.0)
        finally:
            self.query.stop()
        lines = self.query.journal.read_text().splitlines()
        events = [json.loads(line) for line in lines]
        self.batches = {e["step"]: e for e in events if e["event"] == "batch"}

    def _keep(self, frame, started):
        started.wait()
        self.updates += [tuple(row) for row in frame.collect()]
        if len(self.quotas) == SCALE_AT:
            self.query.scale(SLOTS_AFTER)


@pytest.fixture(scope="module")
def budgeted(spark, input_path, tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        yield Run(spark, input_path, tmp_path_factory.mktemp("run") / "c", patch, "50 ms")


def test_no_slot_serves_more_than_its_quota_and_the_slow_one_leaves_the_rest(budgeted):
    for step, reports in budgeted.reports.items():
        for report in reports:
            assert report.served_rows <= budgeted.quotas[step][report.slot]
    assert max(b["backlog"] for b in budgeted.batches.values()) > 0
    # served and waiting are all that ever came
    arrived = sum(b["arrived"] for b in budgeted.batches.values())
    served = sum(b["served"] for b in budgeted.batches.values())
    assert (arrived, served) == (FILES * ROWS, FILES * ROWS)
    left = {0: 0, 1: 0}
    for step, batch in budgeted.batches.items():
        if 1 < step < SCALE_AT:  # before, no rate is known, and each slot gets a few rows to try
            for stats in batch["slot_stats"]:
                left[stats["slot"]] += stats["backlog"]
                # how much the quick slot leaves says only how busy the machine was
                full = stats["served"] == budgeted.quotas[step][stats["slot"]]
                assert full or stats["backlog"] == 0
    assert left[0] > 0


def test_waiting_records_move_with_their_key_group(budgeted):
    changed = [
        step
        for step in budgeted.assignments
        if step and budgeted.assignments[step] != budgeted.assignments[step - 1]
    ]
    (step,) = changed
    before, after = budgeted.assignments[step - 1], budgeted.assignments[step]
    moved = {g for g in range(16) if before[g] == 0 and after[g] != 0}
    assert moved
    waited = set()
    for later in range(step, max(budgeted.reports) + 1):
        for report in budgeted.reports[later]:
            waited |= {g for g in report.taken if g in moved and report.slot == after[g]}
            assert all(after[group] == report.slot for group in report.taken)
    assert waited == moved


def test_records_of_a_key_group_are_served_in_the_order_they_came(budgeted, input_path, spark):
    newest = {}
    for key, count, first, last in budgeted.updates:
        before = newest.get(key, (0, first, -1))
        assert count > before[0]
        assert first == before[1]
        assert last > before[2]
        newest[key] = (count, first, last)
    expected = (
        spark.read.parquet(str(input_path))
        .groupBy("key")
        .agg(F.count("*"), F.min("seq"), F.max("seq"))
    )
    assert {(key, *rest) for key, rest in newest.items()} == {tuple(r) for r in expected.collect()}


def test_everything_is_out_in_the_end(budgeted):
    last = budgeted.batches[max(budgeted.batches)]
    assert last["backlog"] == 0
    assert last["backlog_bytes"] == 0


def test_without_a_budget_nothing_waits(spark, input_path, tmp_path, monkeypatch):
    run = Run(spark, input_path, tmp_path / "c", monkeypatch, None)
    assert {batch["backlog"] for batch in run.batches.values()} == {0}
    assert set(map(str, run.quotas.values())) == {"None"}


@pytest.mark.thorough
def test_both_sides_of_the_benchmark_run():
    found = isolation.run(seconds=2.0, warmup_s=2.0, rate=2_000, slots=2, budget="50 ms")
    for side in ("with", "without"):
        for part in ("slow_slot", "other_slots"):
            assert found["latency_ms"][side][part]["records"] >= 0
    assert found["busy"] >= 1.0
    json.dumps(found)


# --- quotas, without Spark -----------------------------------------------------------------------

CONFIG = JobConfig("job", key_groups=8, slots=2, budget_s=0.1)


def report(slot, rows, useful_ms, groups=None, waiting=None, segments=None):
    return Report(
        step=0, attempt=1, operator="o", slot=slot, token="t", consumed=(), groups=groups or {},
        sections={}, changelog=None, output=None, waiting=waiting, late=None, output_rows=0,
        late_rows=0, segments=segments or {}, taken={}, arrived=rows, served=rows, late_records=0,
        waiting_records=0, served_rows=rows, touched_rows=0, served_by_group={}, histogram=(),
        latency_sum_ms=0.0, latency_max_ms=0.0, watermark_us=0, holds_us=0, useful_ms=useful_ms,
    )  # fmt: skip


def fresh():
    return OperatorState.fresh(2, 8)


def test_slots_of_unknown_rate_are_given_what_fits_at_10_ms_a_row_and_no_budget_gives_none():
    assert fresh().quotas(CONFIG, 2, 0) == [10, 10]
    assert fresh().quotas(JobConfig("job", key_groups=8), 2, 0) is None


def test_a_slot_that_turns_slow_stretches_one_batch_only():
    state = fresh()
    for _ in range(5):
        state.apply(report(0, 10_000, 120.0), 0, 0)  # 20 ms of it are fixed cost
    assert state.quotas(CONFIG, 2, 0)[0] == 10_000
    # now 1 ms per row: the batch in which it shows takes ten times the budget, the next fits
    state.apply(report(0, 1_000, 1_020.0), 0, 0)
    assert state.quotas(CONFIG, 2, 0)[0] == 100


def test_a_slot_that_recovers_gets_its_quota_back_at_once():
    state = fresh()
    state.apply(report(0, 1_000, 1_020.0), 0, 0)
    state.apply(report(0, 100, 1.0), 0, 0)
    assert state.quotas(CONFIG, 2, 0)[0] == 10_000


def test_small_changes_of_rate_are_smoothed():
    state = fresh()
    state.apply(report(0, 10_000, 120.0), 0, 0)
    state.apply(report(0, 8_000, 120.0), 0, 0)
    assert state.rate_per_s[0] == 90_000.0


def test_a_slot_with_little_to_do_keeps_its_quota():
    state = fresh()
    state.apply(report(0, 10_000, 120.0), 0, 0)
    for _ in range(50):
        state.apply(report(0, 5, 10.0), 0, 0)
    assert state.quotas(CONFIG, 2, 0)[0] == 10_000


def test_a_slot_whose_quota_is_too_small_to_tell_gets_more_as_long_as_records_wait():
    state = fresh()
    state.rate_per_s[0] = 20.0
    state.backlog[0] = [["f", 0, 100, 0]]
    for _ in range(20):
        state.apply(report(0, 2, 10.0), 0, 0)
    assert state.quotas(CONFIG, 2, 0)[0] > 1_000


def test_the_budget_is_shared_by_the_waves_of_slots():
    state = OperatorState.fresh(5, 8)
    state.apply(report(0, 10_000, 120.0), 0, 0)
    assert state.quotas(CONFIG, 2, 0) == [3_333] * 5


def test_a_change_of_slots_keeps_the_rates_of_those_that_stay():
    state = fresh()
    state.apply(report(0, 1_000, 1_020.0), 0, 0)
    state.apply(report(1, 4_000, 120.0), 0, 0)
    state.assign(spread(3, 8))
    assert state.quotas(CONFIG, 4, 0) == [100, 4_000, 4_000]
    state.assign(spread(1, 8))
    assert state.quotas(CONFIG, 4, 0) == [100]


def test_what_waits_too_long_or_is_too_much_is_served_past_the_budget():
    waiting = Payload(None, "file", 1, 0)
    state = fresh()
    state.apply(report(0, 0, 0.0, waiting=waiting, segments={0: (0, 10)}), 0, 1_000)
    assert state.quotas(CONFIG, 2, 61_000)[0] == 10
    assert state.quotas(CONFIG, 2, 61_001)[0] > 10**9
    state.apply(report(1, 0, 0.0, waiting=waiting, segments={7: (0, 2**23)}), 0, 1_000)
    assert state.quotas(CONFIG, 2, 1_000)[1] > 10**9
