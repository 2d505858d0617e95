"""Records that wait for their slot are read back as they were written, or not at all."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from headgate.checkpoint.checkpoint import Checkpoint
from headgate.core.errors import CheckpointError
from headgate.spark.job.job import JobConfig, OperatorState
from headgate.spark.job.reports import Payload, Report
from headgate.spark.step.begun import Begun
from headgate.spark.step.commit import next_manifest
from headgate.spark.worker.facts import SlotFacts
from headgate.spark.worker.payloads import table_payload


def facts(**given: Any) -> SlotFacts:
    """Return what a slot is told, as it comes over to its task."""
    unused = dict.fromkeys(field.name for field in dataclasses.fields(SlotFacts))
    told = SlotFacts(**(unused | {"held": []} | given))  # type: ignore[arg-type]
    return SlotFacts.from_json(told.to_json())


def test_waiting_records_of_a_damaged_file_are_not_served(tmp_path: Path) -> None:
    checkpoint = Checkpoint(str(tmp_path))
    checkpoint.open({})
    table = pa.table({"k": list(range(100))})
    kept = table_payload(checkpoint, "backlog", "waits", table, inline_bytes=0)
    assert kept is not None
    waiting = {"0": [["waits", 10, 2, 0.0]], "1": [["waits", 50, 1, 0.0]]}
    told = facts(slot_of=[0, 1], backlog=waiting, waiting_crc32={"waits": kept.crc32})
    got = told.waiting(0, checkpoint)
    assert got is not None
    assert got["k"].to_pylist() == [10, 11]

    file = next(path for path in tmp_path.rglob("waits"))
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.chmod(0o600)
    file.write_bytes(bytes(data))
    with pytest.raises(CheckpointError, match="checksum does not match"):
        told.waiting(0, checkpoint)


@pytest.mark.parametrize(
    ("waits_ms", "rows", "is_served"),
    [(60_000, 1, False), (60_001, 1, True), (0, 100, False), (0, 101, True)],
)
def test_a_slot_whose_records_wait_too_long_or_are_too_many_serves_them_all(
    waits_ms: int, rows: int, is_served: bool
) -> None:
    config = JobConfig("job", budget_s=1.0, backlog_age_max_s=60.0, backlog_bytes_max=6400)
    state = OperatorState.fresh(2, 8)
    now_ms = 1_700_000_000_000
    group = state.assignment.slot_of.index(1)
    state.backlog = {group: [["file", 0, rows - 1, now_ms], ["file", 5, 1, now_ms - waits_ms]]}
    quotas = state.quotas(config, 2, now_ms)
    assert quotas is not None
    assert quotas[0] < 1000
    assert (quotas[1] > 10**15) == is_served


def test_of_late_records_a_manifest_names_the_newest_files_only():
    given = {field.name: 0 for field in dataclasses.fields(Report)}
    empty = {n: {} for n in ("groups", "sections", "segments", "taken", "served_by_group")}
    nothing = dict.fromkeys(("changelog", "output", "waiting", "counts"))
    states, latest = {"op": OperatorState.fresh(1, 8)}, None
    for step in range(600):
        late = Payload(None, f"late-{step}", 1, 0)
        more = {"operator": "op", "late": late, "consumed": (), "histogram": (), "phases_ms": {}}
        report = Report(**{**given, **empty, **nothing, **more})
        begun = Begun(step, step, 0, [], 0.0, 0.0, 0, drain=False, latest=latest)
        latest = next_manifest(begun, "job", 0, states, [report])
    named = [name for _, name in latest.engine["late"]]
    assert named[-1] == "late-599"
    assert len(named) < 300
