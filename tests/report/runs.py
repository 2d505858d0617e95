"""Journals made by hand."""

from __future__ import annotations

from pathlib import Path

from headgate.journal import (
    AssignmentChange,
    Batch,
    Event,
    JournalWriter,
    Latency,
    SlotStats,
    Start,
    Stop,
)
from headgate.journal.histogram import counts_of, sparse_of

BEGAN_MS = 1_700_000_000_000
PERIOD_MS = 400


def start(at_ms: int = BEGAN_MS, **fields: object) -> Start:
    given = {"job": "j", "name": "q", "key_groups": 128, "slots": 2, "workload": "nexmark-q5"}
    return Start(**{**given, "at_ms": at_ms, **fields})  # type: ignore[arg-type]


def batch(step: int, **fields: object) -> Batch:
    """A batch of 100 records of 300 ms each; ends 400 ms after the one before."""
    slots = int(fields.get("slots", 2))  # type: ignore[call-overload]
    given = {
        "step": step,
        "spark_batch": step,
        "epoch": 0,
        "slots": slots,
        "duration_ms": 300.0,
        "phases_ms": {"plan": 40.0, "slots": 80.0, "manifest": 9.0, "sink": 60.0, "wait": 90.0},
        "arrived": 100,
        "served": 100,
        "emitted": 10,
        "late": 0,
        "backlog": 0,
        "backlog_bytes": 0,
        "latency_ms": Latency(300.0, 300.0, 300.0, 300.0, 300.0),
        "histogram": sparse_of(counts_of([300.0] * 100)),
        "watermark_us": (BEGAN_MS - 4000) * 1000,
        "slot_stats": tuple(
            SlotStats(s, 128 // slots, 100 // slots, 0, 150.0) for s in range(slots)
        ),
        "hottest": ((17, 25), (3, 10)),
        "state_rows": 1000,
        "state_bytes": 3 << 20,
        "changelog_bytes": 4096,
        "at_ms": BEGAN_MS + (step + 1) * PERIOD_MS,
    }
    return Batch(**{**given, **fields})  # type: ignore[arg-type]


def change(step: int, before: int, after: int, epoch: int = 1) -> AssignmentChange:
    at_ms = BEGAN_MS + step * PERIOD_MS
    return AssignmentChange(step, epoch, before, after, 64, 0, "--scale-at", at_ms=at_ms)


def scaled_run() -> list[Event]:
    """2 -> 4 at batch 30 and 4 -> 3 at batch 60; 90 batches, each change 18 ms longer."""
    events: list[Event] = [start(parameters={"duration_s": 60.0})]
    slots = 2
    for step in range(90):
        if step in {30, 60}:
            after = {30: 4, 60: 3}[step]
            events.append(change(step, slots, after, epoch=step // 30))
            slots = after
        # 290, 300, 310 in turn: median 300, quartiles 290 and 310.
        usual_ms = 290.0 + 10 * (step % 3)
        duration_ms = 318.0 if step in {30, 60} else usual_ms
        events.append(batch(step, slots=slots, epoch=step // 30, duration_ms=duration_ms))
    return events


def stopped(error: str | None = None, at_ms: int = BEGAN_MS + 40_000) -> Stop:
    return Stop("user", error, {}, at_ms)


def journal(path: Path, events: list[Event]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with JournalWriter(path) as writer:
        for event in events:
            writer.write(event)
    return path
