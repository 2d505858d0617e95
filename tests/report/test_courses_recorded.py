"""Drawn courses of queries, asked about as they go: each diagnosis and each answer to why."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest
import runs

from headgate.core.errors import ConfigError
from headgate.journal import (
    AssignmentChange,
    Batch,
    ControlAct,
    Decided,
    Event,
    Latency,
    NotReadyToDecide,
    OperatorInfo,
    SlotStats,
    Start,
    Wish,
)
from headgate.journal.histogram import counts_of, sparse_of
from headgate.journal.parts import GroupRecords, SloState
from headgate.report.diagnose import DiagnosisReader, diagnose_lines
from headgate.report.limits import DriverSeen
from headgate.report.standing import Standing
from headgate.report.why import why, why_lines

Recorded = Callable[[str, Iterable[str]], None]
SLOS = (
    ["mean < 1 s over 1 s"], ["p99 < 1 s over 5 s"], [], ["mean < 1 s over 1 s", "p90 < 3 s over 5 s"],
    ["juice >= 0.95 over 1 min"],
)  # fmt: skip


@pytest.fixture(autouse=True)
def _utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "UTC")
        time.tzset()
        yield
    time.tzset()


def course(dice: random.Random) -> list[Event]:
    """Return 45 batches in stretches: calm, slow slots, a slow sink, a hot key group, a backlog."""
    given: dict[str, Any] = {
        "slo": dice.choice(SLOS), "cores": dice.choice([1, 4]), "slots_max": dice.choice([3, 8]),
        "policy": "unified", "trigger": dice.choice([{}, {"processingTime": "1 second"}]),
    }  # fmt: skip
    operators = (OperatorInfo("count-0", "count(1)"),)
    events: list[Event] = [runs.start(parameters=given, operators=operators)]
    at_ms, slots, met, split, epoch = runs.BEGAN_MS, 2, 0, (), 0
    kind, left = "calm", 6
    for step in range(45):
        left -= 1
        if left <= 0:
            kind = dice.choice(["calm", "calm", "slots", "sink", "hot", "backlog"])
            left = dice.randint(1, 9)
        mean_ms = {"calm": 300.0, "slots": 1500.0, "sink": 2500.0, "hot": 1100.0, "backlog": 9e3}[
            kind
        ]
        useful = [
            350.0 if kind == "slots" else 300.0 * (not s and kind == "hot") + 40.0
            for s in range(slots)
        ]
        sink_ms = 1500.0 if kind == "sink" else 20.0
        at_ms += round(max(useful) + sink_ms) + dice.choice([60, 150, 900])
        met += kind == "calm"
        state = SloState(
            "met" if kind == "calm" else "missed", False, met / (step + 1), 0.1, 3, "count-0",
            step + 1, 0, 0.99, 1000.0, 120.0, 1.5, 1,
        )  # fmt: skip
        stats = tuple(
            SlotStats(
                s, 64, 50, 90 * (kind in ("slots", "backlog")), ms, mean_ms, mean_ms, 5.0, 3.0
            )
            for s, ms in enumerate(useful)
        )
        waits = (step * 40) * (kind == "backlog") + 30 * (kind == "slots") * left
        fields: dict[str, Any] = {
            "slots": slots, "epoch": epoch, "slot_stats": stats, "at_ms": at_ms, "slo": state,
            "phases_ms": {"plan": 30.0, "slots": max(useful), "sink": sink_ms}, "backlog": waits,
            "duration_ms": max(useful) + sink_ms, "latency_ms": Latency(*[mean_ms] * 5),
            "histogram": sparse_of(counts_of([mean_ms] * 60 + [3 * mean_ms])),
            "lag": {"topic": 500 * left} if kind == "backlog" and step % 2 else {},
            "arrivals": (GroupRecords("count-0", [3, 9], [70 if kind == "hot" else 10, 40]),),
            "hottest_key": "k = 7" if kind == "hot" and step % 2 else None,
        }  # fmt: skip
        events.append(runs.batch(step, **fields))
        chance = dice.random()
        if chance < 0.12:
            wish = Wish("count-0", "scale-out", min(slots + 1, 4), 11)
            reason = f"{slots + 1} slots of work; the rest is for why"
            acts = dice.random() < 0.7
            events.append(Decided("unified", "out", reason, acts, (wish,), at_ms=at_ms + 1))
            if acts:
                epoch, now_split = epoch + 1, split if dice.random() < 0.5 else ()
                if kind == "hot":
                    now_split = ((3, 0, 1), (9, 1, 0))
                after = wish.slots
                said = dice.choice([reason, "", "another reason."])
                events.append(
                    AssignmentChange(step + 1, epoch, slots, after, 11, 9, "unified", said, "count-0",
                                     split=now_split, at_ms=at_ms + 2)
                )  # fmt: skip
                slots, split = after, now_split
        elif chance < 0.2:
            events.append(Decided("unified", "calm", "all is well; really.", True, at_ms=at_ms + 1))
        elif chance < 0.26:
            text = dice.choice(["3 of 10 ticks", "counters are of epoch 3, epoch 4 is in force"])
            events.append(NotReadyToDecide("count-0", text, at_ms=at_ms + 1))
        elif chance < 0.32:
            refused = dice.choice(["", "8 at most"])
            events.append(
                ControlAct(
                    "scale", "eve", dice.choice(["", "INC"]), "9 slots", refused, at_ms=at_ms
                )
            )
        elif chance < 0.34:
            events.append(runs.start(at_ms=at_ms + 3, parameters=given, operators=operators))
    if dice.random() < 0.4:
        events.append(runs.stopped(dice.choice([None, "disk full"]), at_ms + 9))
    return events


@pytest.mark.parametrize("seed", range(2))
def test_a_course_that_is_asked_about_as_it_goes(seed: int, recorded: Recorded) -> None:
    """A line that is as it was when the one before was asked is left out."""
    lines: list[str] = []
    dice = random.Random(100 + seed)
    for number in range(4):
        events, reader, before = course(dice), DiagnosisReader(), set()
        lines.append(
            f"== {number}: {events[0].parameters['slo'] if isinstance(events[0], Start) else ''}"
        )
        for index, event in enumerate(events):
            reader.absorb(event)
            if index % 7 == 6 or index == len(events) - 1:
                driver = DriverSeen(dice.choice([True, True, None, False]), "host a")
                now_ms = event.at_ms + dice.choice([0, 400, 9_000, 70_000])
                found = diagnose_lines(reader.diagnosis("CK", now_ms, driver))
                lines.append(f"-- after {index + 1} events, {now_ms - event.at_ms} ms later")
                lines += [line for line in found if line not in before]
                before = set(found)
        last_ms = max(event.at_ms for event in events)
        for at in ("+0:05", "12 s", f"+{(last_ms - runs.BEGAN_MS) // 1000} s", "3", None):
            try:
                lines += [f"-- why {at}", *why_lines(why(events, at))]
            except ConfigError as error:
                lines.append(f"-- why {at}: {error}")
    recorded(f"courses-{seed}", lines)


def test_stretches_of_late_batches(recorded: Recorded) -> None:
    """Only what an SLO judges, each kind of it in turn."""
    lines = []
    for texts in (*SLOS, ["p50 < 301 ms over 1 s"], ["mean < 300 ms over 1 s"], ["unreadable"]):
        dice = random.Random(31)
        standing = Standing(texts)
        for event in course(dice):
            if isinstance(event, Batch):
                standing.add(event)
        spans = [(a - runs.BEGAN_MS, b - runs.BEGAN_MS) for a, b in standing.stretches]
        lines.append(f"{texts} {spans}")
    recorded("stretches", lines)
