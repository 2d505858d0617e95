"""Timers and times to live of a processor over drawn steps: beside a plain model, and when it is due."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from headgate.core.errors import EngineError
from headgate.operators.build import operator_of
from headgate.operators.processor import Keyed, ProcessorSpec, State, TimeMode, Timers
from headgate.operators.serve import serve
from headgate.operators.spec import Kind, Leaf
from headgate.operators.step import GROUP, RECORDS, GroupState, Request, Served
from headgate.tables.heap import HeapStore
from headgate.tables.ports import EMPTY_TOKEN

Recorded = Callable[[str, Iterable[str]], None]
SAID = pa.schema([("said", pa.string())])
NEVER = 2**63 - 1
ENDS = (2**62, -(2**63), NEVER, 9_223_372_036_854_775, 9_223_372_036_854_776)
"""Times in milliseconds of which microseconds would turn their sign, and the last that do not."""


class Alarms:
    """Registers a timer at each time that comes, deletes those that come below zero, and counts rows."""

    keys = pa.schema([("name", pa.string())])
    inputs = pa.schema([("at", pa.int64()), ("gone", pa.bool_())])
    initial = pa.schema([])

    def __init__(self, ttl_ms: int | None) -> None:
        count = (pa.schema([]), pa.schema([("n", pa.int64())]), ttl_ms)
        self.states: dict[str, tuple[Any, ...]] = {"count": count[: 2 + (ttl_ms is not None)]}
        self.seen: list[Any] = []

    def handleInitial(self, keys: Any, initial: Any, state: State, timers: Timers) -> None:
        raise AssertionError

    def handleBatch(
        self, keys: pa.RecordBatch, batch: Keyed, state: State, timers: Timers
    ) -> pa.RecordBatch:
        at = batch.rows.column("at").to_numpy()
        gone = batch.rows.column("gone").to_numpy(zero_copy_only=False)
        timers.register(batch.of[~gone], at[~gone])
        timers.delete(batch.of[gone], at[gone])
        count = state["count"]
        before = dict(zip(count.of.tolist(), count.rows.column("n").to_pylist(), strict=True))
        counts = np.bincount(batch.of, minlength=keys.num_rows)
        after = [before.get(n, 0) + int(more) for n, more in enumerate(counts)]
        each = np.arange(keys.num_rows)
        state.put("count", each, pa.RecordBatch.from_pydict({"n": after}))
        self.seen.append((timers.timestamp_ms, sorted(set(timers.watermark_ms.tolist()))))
        texts = [f"{k} has {n}" for k, n in zip(keys.column(0).to_pylist(), after, strict=True)]
        return pa.RecordBatch.from_arrays([pa.array(texts)], schema=SAID)

    def handleExpired(
        self, keys: pa.RecordBatch, expired: Keyed, state: State, timers: Timers
    ) -> pa.RecordBatch:
        names, times = keys.column(0).to_pylist(), expired.rows.column(0).to_pylist()
        texts = [f"{names[o]} at {t}" for o, t in zip(expired.of.tolist(), times, strict=True)]
        return pa.RecordBatch.from_arrays([pa.array(texts)], schema=SAID)

    def close(self) -> None:
        """Do nothing."""


class Slot:
    """A slot that owns two key groups."""

    def __init__(self, processor: Any, mode: TimeMode) -> None:
        self.operator = operator_of(
            ProcessorSpec((Leaf(Kind.BYTES),), SAID, processor, time_mode=mode)
        )
        self.store = HeapStore(self.operator.layout.table)
        self.states = {group: GroupState(EMPTY_TOKEN, 0, 0) for group in (0, 1)}
        self.steps = 0

    def serve(self, rows: list[tuple[str, int, bool]], watermark_us: int, now_ms: int) -> Served:
        self.steps += 1
        arriving = pa.table({
            GROUP: pa.array([len(name) % 2 for name, *_ in rows], pa.int32()),
            "k0": pa.array([name.encode() for name, *_ in rows], pa.binary()),
            "v0": pa.array([at for _, at, _ in rows], pa.int64()),
            "v1": pa.array([gone for *_, gone in rows], pa.bool_()),
            RECORDS: pa.array([1] * len(rows), pa.int64()),
        })  # fmt: skip
        token = f"{self.steps:032x}"
        request = Request(
            token, watermark_us, self.states, lambda _: lambda _: [], timestamp_ms=now_ms,
            time_limit_s=20.0,
        )  # fmt: skip
        served = serve(self.operator, self.store, request, arriving)
        for group, done in served.groups.items():
            self.states[group] = GroupState(token, done.emitted_us, done.due_us)
        return served


@pytest.mark.parametrize(
    ("mode", "ttl_ms"),
    [(TimeMode.EVENT, None), (TimeMode.PROCESSING, None), (TimeMode.PROCESSING, 100)],
)
def test_timers_fire_when_they_are_due_and_once(
    mode: TimeMode, ttl_ms: int | None, recorded: Recorded
) -> None:
    dice, processor, lines = random.Random(121), Alarms(ttl_ms), []
    slot, timers = Slot(processor, mode), set[tuple[str, int]]()
    watermark_us, now_ms, counts = 0, 1_000, dict[str, tuple[int, int]]()
    for step in range(70):
        watermark_us += dice.choice([0, 999, 1_000, 40_000])
        now_ms += dice.choice([0, 1, 40, 100, 101, 300])
        clock_ms = now_ms if mode is TimeMode.PROCESSING else watermark_us // 1000
        rows = []
        for _ in range(dice.choice([0, 0, 1, 2, 5])):
            near = clock_ms + dice.choice([-5, 0, 1, 40, 41, 500])
            name = dice.choice(["a", "bb", "ccc", "dd"])
            rows.append((name, dice.choice([near] * 9 + list(ENDS)), dice.random() < 0.2))
        served = slot.serve(rows, watermark_us, now_ms)
        said = served.output.column(0).to_pylist()
        for name, at, gone in rows:
            (timers.discard if gone else timers.add)((name, at))
        for name in {name for name, *_ in rows}:
            count, until_ms = counts.get(name, (0, NEVER))
            count = 0 if until_ms <= now_ms else count
            count += sum(other == name for other, *_ in rows)
            counts[name] = count, now_ms + ttl_ms if ttl_ms else NEVER
            assert f"{name} has {count}" in said
        fired = {timer for timer in timers if timer[1] <= clock_ms}
        timers -= fired
        assert sorted(t for t in said if " at " in t) == sorted(f"{n} at {at}" for n, at in fired)
        for group, state in slot.states.items():
            own = [at for name, at in timers if len(name) % 2 == group]
            soonest = min(own, default=NEVER)
            # never later than its first timer; as soon as that where nothing lives for a while only
            assert state.due_us <= min(soonest, NEVER // 1000) * 1000 or not own
        lines.append(f"{step} {watermark_us} {now_ms} {rows}: {said}")
        lines.append(
            f"  due {[state.due_us for state in slot.states.values()]} {served.touched_by_group}"
        )
    recorded(f"timers-{mode.name.lower()}-{ttl_ms}", lines)
    times = {time for time, _ in processor.seen}
    assert len(times) > 9
    assert all(len(watermarks) == 1 for _, watermarks in processor.seen)


@pytest.mark.parametrize("where", ["handleBatch", "handleExpired", "close"])
def test_a_processor_that_fails_is_told_with_its_place(where: str, recorded: Recorded) -> None:
    lines = []

    def bad(kind: Any) -> Any:
        if isinstance(kind, BaseException):
            raise kind
        return kind

    few = pa.RecordBatch.from_pydict({"other": ["x"]})
    wrong = pa.RecordBatch.from_pydict({"said": [5.5]})
    for kind in (ValueError("odd ‹x›"), SystemExit(2), EngineError("known."), None, 5, few, wrong):
        processor = Alarms(None)
        setattr(processor, where, lambda *_, kind=kind: bad(kind))
        slot = Slot(processor, TimeMode.PROCESSING)
        try:
            said = str(slot.serve([("a", 5, False)], 0, 10).output.to_pydict())
        except EngineError as error:
            said = f"{type(error).__name__} {error.transient}: {error}"
        lines.append(f"{kind!r}: {said}".replace(str(few), "<few>").replace(str(wrong), "<wrong>"))
        again = Slot(Alarms(None), TimeMode.PROCESSING)
        again.store, again.operator = slot.store, again.operator
        again.states = slot.states
        lines.append(f"  then {again.serve([('a', 50, False)], 0, 10).output.to_pydict()}")
    recorded(f"fails-{where}", [re.sub(r"line \d+", "line n", line) for line in lines])
