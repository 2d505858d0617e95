"""Small journals of a query, for the tests beside this file."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from headgate.journal import (
    Batch,
    Event,
    GroupRecords,
    JournalWriter,
    Latency,
    OperatorInfo,
    SloState,
    SlotStats,
    Start,
)

START = Start("7f", "clicks", 128, 2, operators=(OperatorInfo("a", "counts"),), at_ms=1_000)
SLO = SloState(
    "steady",
    False,
    0.9,
    0.8,
    3,
    "a",
    100,
    4,
    0.99,
    2000.0,
    300.0,
    1.5,
    1,
    windows_of={"a": (100, 90)},
)


def batch(step: int, **fields: object) -> Batch:
    """A batch a second, of 100 records of which slot 0 serves 70."""
    stats = (
        SlotStats(0, 64, 70, 5, 400.0, operator="a"),
        SlotStats(1, 64, 30, 0, 200.0, operator="a"),
    )
    made = Batch(
        step, step, 0, 2, 500.0, {"slots": 400.0, "sink": 100.0}, 100, 100, 10, 1, 5, 40,
        latency_ms=Latency(300.0, 300.0, 300.0, 300.0, 300.0), histogram=((305.0, 100),),
        slot_stats=stats, served_groups=(GroupRecords("a", [3, 9], [70, 30]),),
        lag={"clicks-0": 200, "clicks-1": 95}, slo=SLO, at_ms=2_000 + 1_000 * step,
    )  # fmt: skip
    return dataclasses.replace(made, **fields)  # type: ignore[arg-type]


def write(path: Path, events: list[Event]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with JournalWriter(path) as writer:
        for event in events:
            writer.write(event)
    return path
