"""A slot's work in one batch, called as Spark calls it; here without Spark."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from share_slots import NAME, Slots

from headgate.operators.spec import Aggregate, AggregateSpec, Kind, Leaf, Op, OutputMode
from headgate.operators.step import GROUP, RECORDS
from headgate.spark.job.columns import INITIAL, MARKER_TO, MARKER_TOKEN, MARKER_US
from headgate.spark.worker import slot, worker
from headgate.spark.worker.facts import SlotFacts
from headgate.spark.worker.payloads import read_table
from headgate.spark.worker.slot import SlotTask

INTEGER = Leaf(Kind.INTEGER)
SPEC = AggregateSpec(
    (Leaf(Kind.BYTES),), None, (Aggregate(Op.COUNT, (INTEGER,)), Aggregate(Op.SUM_INTEGER, (INTEGER,))),
    OutputMode.UPDATE,
)  # fmt: skip


class Task:
    """The second slot of two, in a process of its own."""

    def __init__(self, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (place / "arena").mkdir(mode=0o700)
        self.slots = Slots(SPEC, place / "ck", slots=2)
        self.slots.split({}, slot_of=[0, 1, 0, 1])
        self.arena = str(place / "arena")
        self.sent: list[Any] = []
        self.context: Any = None
        monkeypatch.setattr(slot, "TaskContext", SimpleNamespace(get=lambda: self.context))
        monkeypatch.setattr(slot, "freeze_once", lambda: None)

    def run(self, *batches: pa.RecordBatch, tries: int = 0, given: Any = None, **of: Any) -> Any:
        """Return the report, and the batches that go on."""
        facts = self.slots.facts(0, 0, None)
        facts = dataclasses.replace(facts, arena_root=self.arena, run_id="e" * 32, **(given or {}))
        self.context = SimpleNamespace(
            getLocalProperty={SlotFacts.PROPERTY + NAME: facts.to_json()}.get,
            partitionId=lambda: 1, stageId=lambda: 12, attemptNumber=lambda: tries,
        )  # fmt: skip
        task = SlotTask(NAME, SPEC, SimpleNamespace(add=self.sent.extend), **of)
        return list(task(iter(batches))), self.sent[-1]


@pytest.fixture
def task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Task]:
    yield Task(tmp_path, monkeypatch)
    worker.leave_runs()


def batch(*numbers: int, **more: Any) -> pa.RecordBatch:
    """Return records of key group 1 and key "a"."""
    count = len(numbers)
    columns = {
        GROUP: pa.array([1] * count, pa.int32()), "k0": pa.array([b"a"] * count),
        "v0": pa.array([1] * count, pa.int64()), "v1": pa.array(numbers, pa.int64()),
        RECORDS: pa.array([1] * count, pa.int64()),
    }  # fmt: skip
    return pa.RecordBatch.from_pydict(columns | more)


def test_a_slot_serves_its_records_and_reports_under_its_stage(task: Task) -> None:
    out, report = task.run(batch(1, 2), batch(3), tries=2)
    assert out == [], "its output lies in the report"
    assert (report.operator, report.slot, report.stage, report.tries) == (NAME, 1, 12, 2)
    assert (report.step, report.attempt, report.arrived, report.served) == (0, 1, 3, 3)
    assert report.output_rows == 1
    [row] = read_table(report.output.data).to_pylist()
    assert (row["k0"], row["v0"]) == (b"a", 3)
    assert set(report.groups) == {1}
    assert set(report.sections) == {1}
    assert report.consumed == ()
    assert set(report.phases_ms) == {"read", "serve", "log"}
    assert report.useful_ms >= report.phases_ms["serve"]


def test_a_slot_without_a_record_reports_too(task: Task) -> None:
    out, report = task.run()
    assert (out, report.arrived, report.output, report.changelog) == ([], 0, None, None)


def test_rows_for_the_next_operator_go_on_with_a_marker_for_each_of_its_slots(task: Task) -> None:
    [out], report = task.run(batch(1, 2), next_operator="next", given={"next_slots": 3})
    assert report.output is None, "the next operator's slots have it"
    assert out.column("k0").to_pylist() == [b"a", None, None, None]
    assert out.column(MARKER_TO).to_pylist() == [None, 0, 1, 2]
    assert out.column(MARKER_TOKEN).to_pylist() == [None, *[report.token] * 3]
    assert out.column(MARKER_US).to_pylist() == [None, *[report.holds_us] * 3]


def test_rows_go_on_into_a_sink_of_the_same_job(task: Task) -> None:
    [out], report = task.run(batch(1, 2), into_sink=True)
    assert out.column("v0").to_pylist() == [2]
    assert (report.output, report.output_rows) == (None, 1)
    out, _ = task.run(into_sink=True)
    assert out == [], "nothing of no rows"


def test_a_slot_waits_for_the_lowest_watermark_of_those_that_it_reads(task: Task) -> None:
    def marked(records: pa.RecordBatch, *markers: tuple[str, int]) -> pa.RecordBatch:
        table = pa.Table.from_batches([records])
        rows = pa.table(
            {
                MARKER_TO: pa.array([1] * len(markers), pa.int32()),
                MARKER_TOKEN: [token for token, _ in markers],
                MARKER_US: pa.array([us for _, us in markers], pa.int64()),
            }
        )
        both = pa.concat_tables([table, rows], promote_options="default")
        return both.combine_chunks().to_batches()[0]

    given = {"watermark_us": 900}
    _, report = task.run(marked(batch(1), ("t2", 700)), marked(batch(2), ("t1", 800)), given=given)
    assert (report.consumed, report.watermark_us) == (("t1", "t2"), 700)
    assert report.served == 2
    _, report = task.run(marked(batch(1), ("t1", 5000)), given=given)
    assert report.watermark_us == 900, "no later than the batch's own"


def test_initial_state_comes_beside_the_records_and_is_taken_apart() -> None:
    schema = pa.schema([("i0", pa.binary()), ("i1", pa.int64()), ("k0", pa.binary())])
    operator: Any = SimpleNamespace(initial_schema=lambda: schema)
    arriving = pa.table(
        {
            GROUP: pa.array([1, 2], pa.int32()), "k0": [b"a", b"b"], "v0": [5, None],
            "i0": [None, b"x"], "i1": [None, 7], INITIAL: [None, True],
        }
    )  # fmt: skip
    records, initial = slot._split_initial(arriving, operator)
    assert records.to_pylist() == [{GROUP: 1, "k0": b"a", "v0": 5}]
    assert initial is not None
    assert initial.to_pylist() == [{"i0": b"x", "i1": 7, "k0": b"b", GROUP: 2}]
    plain = arriving.drop_columns([INITIAL, "i0", "i1"])
    assert slot._split_initial(plain, operator) == (plain, None)
    none: Any = SimpleNamespace(initial_schema=lambda: None)
    assert slot._split_initial(arriving, none) == (arriving, None)


def test_clocks_tell_when_a_slot_began_and_when_it_had_its_records(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = SimpleNamespace(perf_counter=lambda: 10.0, process_time=lambda: 1.0, time=lambda: 500.0)
    monkeypatch.setattr(slot, "time", clock)
    monkeypatch.setattr(slot, "waited_for_core_ms", lambda: 3.0)
    began = slot.Began.now()
    assert (began.started, began.read, began.cpu, began.waited_ms, began.at_ms) == (
        10.0, 10.0, 1.0, 3.0, 500_000.0,
    )  # fmt: skip
    clock.perf_counter, clock.process_time, clock.time = lambda: 12.0, lambda: 1.5, lambda: 502.0
    assert began.has_read() == slot.Began(10.0, 12.0, 1.5, 3.0, 500_000.0)
