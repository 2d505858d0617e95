"""Draws journals by lot, each figure of each event for itself, among them edges and what is missing."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import runs

from headgate.journal import (
    Applied,
    AssignmentChange,
    Batch,
    BatchBegun,
    ControlAct,
    Decided,
    Event,
    Latency,
    MemoryUse,
    NotReadyToDecide,
    OperatorInfo,
    Restart,
    Retry,
    SlotStats,
    Start,
    Wish,
)
from headgate.journal.histogram import counts_of, sparse_of
from headgate.journal.parts import GroupRecords, Observed, SloState

SLOS = (
    [], ["mean < 1 s over 1 s"], ["p99 < 1 s over 5 s"], ["mean < 1 s over 1 s", "p90 < 3 s over 5 s"],
    ["juice >= 0.95 over 1 min", "p50 < 500 ms over 1 s"], ["later than anything"],
)  # fmt: skip
OPERATORS = (OperatorInfo("count-0", "count(1)"), OperatorInfo("join-1", "inner join"))
PHASES = ("wait", "plan", "slots", "manifest", "sink", "logs", "cut")
TIMES_MS = (0.0, 9.94, 10.0, 80.0, 299.5, 500.0, 999.9, 1000.0, 1000.1, 1099.9, 1100.0, 3000.0, 1e4)
GAPS_MS = (1, 400, 400, 999, 1000, 2500, 9_999, 10_000, 10_001)
AFTER_MS = (
    0,
    0,
    0,
    400,
    400,
    400,
    9_999,
    10_000,
    10_001,
    60_000,
    119_999,
    120_000,
    300_000,
    300_001,
    90_061_000,
)
"""How long after the last line somebody looks."""
REASONS = ("", "3 slots of work", "3 slots of work; the cores are the limit", "all is well.")


def start(dice: random.Random, at_ms: int) -> Start:
    """Return a start event; settings that may be missing are."""
    given: dict[str, Any] = {
        "slo": dice.choice(SLOS), "cores": dice.choice([None, 1, 4]), "slots_max": dice.choice([0, 2, 8]),
        "machine_cores": dice.choice([None, 2]), "checkpoint": dice.choice([None, "CK"]),
        "policy": dice.choice(["unified", "threshold"]),
        "trigger": dice.choice([{}, {"processingTime": "1 second"}, {"realTime": "5 minutes"}]),
        "source_limits": dice.choice([{}, {}, {"maxFilesPerTrigger": "1", "rowsPerSecond": "9"}]),
        "unsplittable": dice.choice([{}, {"count-0": "first depends on the order"}]),
    }  # fmt: skip
    left = dice.choice([(), (), ("slo",), ("trigger", "policy"), ("cores", "machine_cores")])
    return runs.start(
        at_ms, name="q", workload=dice.choice([None, "nexmark-q5"]), key_groups=dice.choice([1, 32]),
        slots=dice.choice([1, 2, 4]), operators=OPERATORS[: dice.randint(0, 2)],
        parameters={name: value for name, value in given.items() if name not in left},
        floor_ms=dice.choice([None, 120.0]),
    )  # fmt: skip


def batch(dice: random.Random, step: int, at_ms: int, wanted: float) -> Batch:
    """Return a batch, none of whose figures depends on another."""
    slots = dice.choice([1, 2, 3, 14])
    records = dice.choice([0, 1, 60, 100, 1234])
    latencies = [dice.choice(TIMES_MS) + 1.0 for _ in range(dice.choice([0, 1, 20]))]
    stats = tuple(
        SlotStats(
            dice.choice([s, 2 * s]), dice.randint(0, 64), dice.choice([0, 25, 50, records]),
            dice.choice([0, 0, 7, 101, 400]), dice.choice(TIMES_MS), dice.choice([None, *TIMES_MS]),
            dice.choice([None, *TIMES_MS]), dice.choice([None, 5.0, 299.0]), dice.choice([None, 3.0]),
            dice.choice(["count-0", "count-0", "join-1"]),
        )
        for s in range(slots)
    )  # fmt: skip
    judged = dice.randint(0, 20)
    state = SloState(
        dice.choice(["not ready", "steady", "changing", "unreachable"]), dice.random() < 0.2,
        dice.choice([None, 0.5, wanted, 1.0]), dice.choice([None, 0.25, wanted]),
        dice.choice([None, 3]), dice.choice([None, "join-1"]), judged, 2, wanted,
        dice.choice([500.0, 1000.0]), dice.choice([0.0, 120.0, 600.0]), dice.choice([0.0, 1.5]),
        dice.choice([0, 3]), {}, dice.choice([None, judged // 2, judged]), {}, dice.choice([0, 1]),
        dice.choice([None, None, at_ms + 5_000]),
    )  # fmt: skip
    fields: dict[str, Any] = {
        "epoch": dice.randint(0, 3), "slots": slots, "at_ms": at_ms, "duration_ms": dice.choice(TIMES_MS),
        "phases_ms": {name: dice.choice(TIMES_MS) for name in PHASES if dice.random() < 0.6},
        "arrived": records, "served": dice.choice([0, 40, records]), "emitted": dice.choice([0, 17]),
        "late": dice.choice([0, 0, 3]), "backlog": dice.choice([0, 0, 30, 2000]),
        "backlog_bytes": dice.choice([0, 1023, 1024, 9 << 20, 10 << 20, 3 << 40]),
        "latency_ms": dice.choice([None, Latency(*(dice.choice(TIMES_MS) for _ in range(5)))]),
        "histogram": sparse_of(counts_of(latencies)), "slot_stats": stats,
        "watermark_us": dice.choice([None, (at_ms - 4000) * 1000, (at_ms + 1500) * 1000]),
        "hottest": dice.choice([(), ((17, 25), (3, 10)), ((3, 60), (17, 30))]),
        "hottest_key": dice.choice([None, None, "k = 7"]),
        "arrivals": dice.choice([(), (), (GroupRecords("count-0", [3, 9], [70, 40]),
                                         GroupRecords("join-1", [3], [5]))]),
        "state_bytes": dice.choice([0, 3 << 20]), "attempts": dice.choice([1, 2]),
        "dropped": dice.choice([{}, {}, {"too_old": 2, "restart": 1}]),
        "watermark_holder": dice.choice([None, 1]), "slo": dice.choice([None, state, state, state]),
        "lag": dice.choice([{}, {}, {"a-0": 0}, {"a-0": 50, "a-1": 7}]),
        "store_requests": dice.choice([None, 12]), "store_bytes": dice.choice([None, 5000]),
        "memory": dice.choice([None, MemoryUse(1 << 20, 3 << 20, 2, dice.randint(0, 3), 4, 2.5)]),
    }  # fmt: skip
    return runs.batch(step, **fields)


def between(dice: random.Random, step: int, at_ms: int) -> list[Event]:
    """Return what is written between two batches: seldom more than one thing."""
    wish = Wish(
        dice.choice(["count-0", "join-1"]),
        dice.choice(["scale-out", "scale-in"]),
        3,
        dice.choice([0, 11]),
    )
    seen = Observed("count-0", 2, dice.choice([None, 700.0]), dice.choice([None, 1000.0]), 120.0, 99.5,
                    140.0, 0.713, 1234)  # fmt: skip
    reason, who = dice.choice(REASONS), dice.choice(["eve", "unified"])
    before, after = dice.choice([(2, 4), (4, 2), (3, 3), (1, 2)])
    split = dice.choice([(), ((3, 0, 1),), ((3, 0, 1, 2), (17, 1, 0))])
    moved = dice.choice([0, 11])

    def change(operator: str) -> AssignmentChange:
        return AssignmentChange(step, dice.randint(1, 4), before, after, moved, 2048 * moved, who,
                                reason, operator, split=split, at_ms=at_ms)  # fmt: skip

    kinds: list[list[Event]] = [
        [], [], [],
        [Decided("unified", "out", reason, dice.random() < 0.7, (wish,) * dice.randint(0, 2), (seen,),
                 {"n": 1.0}, at_ms=at_ms)],
        [Decided("unified", "out", reason, True, (wish,), at_ms=at_ms), change(wish.operator),
         Applied(wish.operator, wish.kind, 3, 1234.5, at_ms=at_ms + 1)],
        [change("count-0")],
        [change("count-0"), change("join-1")],
        [NotReadyToDecide("count-0", dice.choice(["3 of 10 ticks", "counters are of epoch 3, epoch 4 is"
                                                  " in force"]), at_ms=at_ms)],
        [ControlAct(dice.choice(["hold", "scale", "stop", "freeze"]), "eve", dice.choice(["", "a sale"]),
                    dice.choice(["", "9 slots"]), dice.choice([None, "8 at most"]), at_ms=at_ms)],
        [Retry(step, dice.choice([1, 2]), "worker lost", at_ms=at_ms)],
        [start(dice, at_ms), Restart(step, step - 1, at_ms=at_ms)],
        [Restart(step, step - 1, at_ms=at_ms)],
        [runs.stopped(dice.choice([None, "disk full"]), at_ms), start(dice, at_ms + 1)],
        [batch(dice, max(0, step - 2), at_ms, 0.9)],
    ]  # fmt: skip
    return dice.choice(kinds)


def journal(dice: random.Random) -> list[Event]:
    """Return a journal of 0 to 15 batches."""
    at_ms = runs.BEGAN_MS
    events: list[Event] = [start(dice, at_ms)]
    wanted = dice.choice([0.9, 0.99])
    for step in range(dice.choice([0, 1, 2, 3, 9, 10, 11, 15])):
        at_ms += dice.choice(GAPS_MS)
        events += between(dice, step, at_ms - 1)
        if dice.random() < 0.2:
            events.append(BatchBegun(step, step, at_ms=at_ms - 1))
        events.append(batch(dice, step, at_ms, wanted))
    ends: list[list[Event]] = [
        [], [], [],
        [BatchBegun(99, 99, at_ms=at_ms + dice.choice([1, 5000]))],
        [runs.stopped(dice.choice([None, "disk full"]), at_ms + 1)],
    ]  # fmt: skip
    return events + dice.choice(ends)


def late_work(dice: random.Random) -> list[Event]:
    """Return three batches of a query that is late, or behind: what limits it is the only question.

    A second lies between two batches; shares of it are drawn at what a rule asks for and off it.
    """
    begun, slots = start(dice, runs.BEGAN_MS), dice.choice([1, 2, 4])
    given = {**begun.parameters, "slo": ["mean < 1 s over 1 s"]}
    given["trigger"] = dice.choice([{}, {}, {}, {"processingTime": dice.choice(["999 ms", "1 second"])},
                                    {"realTime": "5 minutes"}])  # fmt: skip
    given["slots_max"] = dice.choice([0, 8, 8, slots])
    events: list[Event] = [replace(begun, parameters=given, operators=OPERATORS[:1])]
    taken = dice.choice([None, None, -61_001, -60_000, 0, 1_000, 1_001])
    useful_ms = [dice.choice([0.0, 200.0, 490.0, 499.0, 500.0, 699.0, 700.0]) for _ in range(slots)]
    waits = [dice.choice([0, 0, 10, 101, 404]) for _ in range(slots)]
    grows, lag = dice.choice([-1, 0, 1, 1]), dice.choice([0, 0, 90])
    sink_ms = dice.choice([0.0] * 6 + [499.0, 500.0])
    slots_ms, computing = dice.choice([0.0, 499.0, 500.0]), dice.choice([None, 0.0, 0.5, 1.0])
    state, floor_ms = dice.choice(
        [("missed", 600.0), ("unreachable", 3000.0), ("unreachable", 3001.0)]
    )
    if taken is not None:
        after = slots if dice.random() < 0.8 else slots + 1
        change = AssignmentChange(
            0, 1, slots + 1, after, 3, 0, "unified", dice.choice(REASONS), "count-0",
            split=dice.choice([(), (), ((3, 0, 1),)]), at_ms=runs.BEGAN_MS + 1_000 + taken,
        )  # fmt: skip
        events.append(change)
    for step in range(3):
        waiting = [max(0, n + 40 * grows * step) if n else 0 for n in waits]
        stats = tuple(
            SlotStats(
                s, 8, 50, waiting[s], ms, 3000.0, 3000.0, None if computing is None else computing * ms,
                dice.choice([None, 0.0, 200.0]), "count-0",
            )
            for s, ms in enumerate(useful_ms)
        )  # fmt: skip
        slo = SloState(state, dice.random() < 0.1, 0.5, 0.1, 3, "count-0", 10 + step, 1, 0.99,
                       1000.0, floor_ms, 1.0, 1)  # fmt: skip
        hot = GroupRecords("count-0", [3, 9], dice.choice([[24, 76], [50, 50], [10, 10], [99, 1]]))
        fields: dict[str, Any] = {
            "slots": slots, "at_ms": runs.BEGAN_MS + 1_000 * (step + 1), "duration_ms": 900.0,
            "slot_stats": stats, "backlog": sum(waiting), "slo": slo, "arrived": 100,
            "phases_ms": {"sink": sink_ms, "slots": slots_ms}, "latency_ms": Latency(*[3000.0] * 5),
            "histogram": sparse_of(counts_of([3000.0] * 100)),
            "lag": {"a-0": lag * (1 + step)} if lag else {}, "arrivals": (hot,),
            "epochs": 20 if "realTime" in given["trigger"] else 0,
        }  # fmt: skip
        events.append(runs.batch(step, **fields))
        if dice.random() < 0.1:
            reason = dice.choice(REASONS)
            events.append(Decided("unified", "out", reason, True, at_ms=events[-1].at_ms))
    return events
