"""One replica's work in one batch, called as Spark calls it, without Spark."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from headgate.checkpoint.checkpoint import Checkpoint
from headgate.journal.histogram import completed
from headgate.spark.job.reports import Payload, ReplicaReport
from headgate.spark.worker import replica
from headgate.spark.worker.facts import ReplicaFacts
from headgate.spark.worker.payloads import read_table
from headgate.spark.worker.replica import ARRIVED, LANE, ORIGIN, ReplicaTask

NOW_S = 1000.0


class Clocks:
    """Clocks that only the function moves."""

    now_s = NOW_S

    def time(self) -> float:
        return self.now_s

    def perf_counter(self) -> float:
        return self.now_s


class Replica:
    """The second of two lanes of a stage that doubles numbers, half a second for each chunk."""

    def __init__(self, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.checkpoint, self.place = Checkpoint(place), place
        self.checkpoint.open({"key_groups": 2})
        self.clock, self.waiting = Clocks(), Payload(None, None, 0, 0)
        monkeypatch.setattr(replica, "time", self.clock)
        monkeypatch.setattr(replica, "TaskContext", SimpleNamespace(get=lambda: self.context))
        self.reports: list[ReplicaReport] = []
        self.seen: list[list[int]] = []

    def doubled(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            numbers = batch.column("v").to_pylist()
            self.seen.append(numbers)
            self.clock.now_s += 0.5
            kept = [2 * n for n in numbers if n % 5]
            yield pa.RecordBatch.from_pydict({"w": pa.array(kept, pa.int64())})

    def serve(self, *came: Any, backlog: Any = (), feeds: bool = False, **facts: Any) -> Any:
        given = {"step": 3, "attempt": 2, "checkpoint": str(self.place), "quotas": [None] * 2}
        given |= {"waiting_crc32": {}, "box_s": None, "now_ms": 5e5, "timeout_s": None} | facts
        told = ReplicaFacts(**given, backlog=[[], backlog]).to_json()
        self.context = SimpleNamespace(
            getLocalProperty={ReplicaFacts.PROPERTY + "map-0": told}.get,
            partitionId=lambda: 1,
        )
        sender = SimpleNamespace(add=self.reports.extend)
        task = ReplicaTask("map-0", self.doubled, sender, feeds, {})
        assert list(task(iter(came))) == [], "rows go with the report"
        return self.reports[-1]

    def rows(self, kept: Payload | None) -> dict[str, list[Any]]:
        assert kept is not None
        data = kept.data
        if data is None:
            assert kept.name is not None
            data = self.checkpoint.read_file("backlog", kept.name, crc32=kept.crc32)
        found: dict[str, list[Any]] = read_table(data).to_pydict()
        return found


def batch(*numbers: int, origin: int = -1, at_ms: float | None = 9e5) -> pa.RecordBatch:
    count = len(numbers)
    columns = {"v": pa.array(numbers, pa.int64()), ARRIVED: pa.array([at_ms] * count, pa.float64())}
    columns |= {ORIGIN: pa.array([origin] * count), LANE: pa.array([1] * count)}
    return pa.RecordBatch.from_pydict(columns)


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Replica:
    return Replica(tmp_path / "ck", monkeypatch)


def test_a_replica_serves_what_came_and_reports_its_output_and_its_time(made: Replica) -> None:
    report = made.serve(batch(1, 2), batch(), batch(3, 5, origin=0))
    assert made.rows(report.output) == {"w": [2, 4, 6]}
    assert (report.step, report.attempt, report.operator, report.lane) == (3, 2, "map-0", 1)
    assert (report.arrived, report.served, report.output_rows) == (4, 4, 3)
    assert (report.waiting, report.waiting_rows, report.taken, report.too_old) == (None, 0, 0, 0)
    assert report.origins == {-1: 2, 0: 2}
    assert (report.useful_s, report.rows_s) == (1.0, 1.0)
    # rows of 900 s are done at 1000.5 s and at 1001 s
    assert report.latency_sum_ms == pytest.approx(2 * 100_500 + 2 * 101_000)
    assert completed(report.histogram) == 4


def test_what_is_more_than_its_quota_waits_in_a_file_with_its_time_of_arrival(
    made: Replica,
) -> None:
    report = made.serve(batch(1, 2, 3), batch(4, at_ms=None), quotas=[None, 2])
    assert made.seen == [[1, 2]]
    assert (report.served, report.waiting_rows) == (2, 2)
    assert report.waiting.name is not None
    assert made.rows(report.waiting) == {"v": [3, 4], ARRIVED: [9e5, 5e5]}
    crc32 = {report.waiting.name: report.waiting.crc32}
    segment = [report.waiting.name, 1, 1]
    later = made.serve(batch(7), backlog=[segment], waiting_crc32=crc32)
    assert made.seen[1:] == [[4], [7]], "what waited comes first"
    assert (later.taken, later.arrived, later.served) == (1, 1, 2)


def test_rows_that_are_too_old_are_dropped_and_counted(made: Replica) -> None:
    report = made.serve(batch(1, 2), batch(3, at_ms=(NOW_S - 1.0) * 1e3), timeout_s=2.0)
    assert made.seen == [[3]]
    assert (report.served, report.too_old, report.waiting_rows) == (1, 2, 0)


def test_a_stage_that_another_one_reads_puts_out_when_its_rows_had_come(made: Replica) -> None:
    report = made.serve(batch(1, 2, at_ms=7e5), feeds=True)
    assert made.rows(report.output) == {"w": [2, 4], ARRIVED: [7e5, 7e5]}
    report = made.serve(batch(1, 5, at_ms=7e5), feeds=True)
    assert made.rows(report.output) == {"w": [2], ARRIVED: [7e5]}


def test_without_a_row_there_is_nothing_but_the_report(made: Replica) -> None:
    report = made.serve(batch())
    assert (report.output, report.waiting, report.histogram, report.origins) == (None, None, (), {})
    assert (report.served, report.latency_sum_ms) == (0, 0.0)
