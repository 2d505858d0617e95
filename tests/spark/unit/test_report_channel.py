"""Reports of a step's slots come once, and those of other attempts are forgotten."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from headgate.spark.job.reports import ReportChannel


@dataclass
class Said:
    step: int
    attempt: int


def test_a_drained_channel_keeps_nothing() -> None:
    made = SimpleNamespace(value=[])
    context: Any = SimpleNamespace(accumulator=lambda *_: made)
    channel: ReportChannel[Any] = ReportChannel(context)
    made.value = [Said(3, 1), Said(3, 2), Said(2, 2), Said(3, 2)]
    assert channel.drain(3, 2) == [Said(3, 2), Said(3, 2)]
    assert made.value == []
