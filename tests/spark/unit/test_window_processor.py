"""O+ as a processor over made-up state, against the windows of one key that are never put away."""

from __future__ import annotations

import datetime as dt
import random
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import Row
from pyspark.sql import types as T

from headgate.operators.key_windows import KeyWindows
from headgate.operators.operator_plus import OperatorPlus, Record, WindowType
from headgate.spark.worker.window_processor import EPOCH, InputColumns, WindowProcessor

NUMBER, TEXT = (
    T.StructType().add("a", "long"),
    T.StructType().add("b", "string").add("c", "integer"),
)
ROW = Row("input", "at_us", "tie", "left_us", "a", "b", "c")


class FakeMap:
    """A map of state, whose values come back as plain tuples."""

    def __init__(self, key: T.StructType, value: T.StructType) -> None:
        self.key, self.value, self.held = key, value, dict[Any, Any]()

    def iterator(self) -> Iterator[Any]:
        return iter(list(self.held.items()))

    def keys(self) -> Iterator[Any]:
        return iter(list(self.held))

    def containsKey(self, key: Any) -> bool:
        return key in self.held

    def removeKey(self, key: Any) -> None:
        del self.held[key]

    def updateValue(self, key: Any, value: Any) -> None:
        assert len(key) == len(self.key)
        assert len(value) == len(self.value)
        self.held[key] = self.value.toInternal(value) and value


class FakeHandle:
    """The state and the timers of one key."""

    def __init__(self) -> None:
        self.maps: dict[str, FakeMap] = {}
        self.timers: set[int] = set()

    def getMapState(self, name: str, key: T.StructType, value: T.StructType) -> FakeMap:
        return self.maps.setdefault(name, FakeMap(key, value))

    def listTimers(self) -> Iterator[int]:
        return iter(sorted(self.timers))

    def registerTimer(self, at_ms: int) -> None:
        assert at_ms not in self.timers
        self.timers.add(at_ms)

    def deleteTimer(self, at_ms: int) -> None:
        self.timers.remove(at_ms)


def described(record: Record) -> str:
    return f"{record.input}:{record.time}:{tuple(record.payload)}"


def concatenated(windows: Any, record: Record) -> Any:
    """f_U that depends on the order of records, and emits."""
    states = [window.state for window in windows]
    states[record.input] = f"{states[record.input] or ''}|{described(record)}"
    return states, [(windows[0].key, states[record.input])]


def texts(windows: Any) -> Any:
    return [(windows[0].key, str([window.state for window in windows]))]


def kept(windows: Any) -> Any:
    return [(windows[0].key, str([described(r) for w in windows for r in w.state or ()]))]


OPERATORS = {
    "texts": OperatorPlus(3000, 7000, inputs=2, update=concatenated, output=texts),
    "records": OperatorPlus(4000, 4000, inputs=2, output=kept),
    "single": OperatorPlus(2500, 7500, inputs=2, output=kept, window_type=WindowType.SINGLE),
}


def processor(operator: OperatorPlus, *, ordered: bool, keys: Sequence[str]) -> WindowProcessor:
    state = T.StringType() if operator.update is not None else None
    inputs = [
        InputColumns(["a"], 4, pa.schema([("a", pa.int64())]), NUMBER, state),
        InputColumns(["b", "c"], 5, pa.schema([("b", "string"), ("c", "int32")]), TEXT, state),
    ]
    kinds = pa.schema([(name, pa.string()) for name in keys])
    return WindowProcessor(operator, kinds, inputs, ["at", "k", "text"], ordered=ordered)


def drawn(dice: random.Random, watermark_us: int) -> Any:
    """Return a record that is not late; some are equal, some of one time."""
    at_us, number = watermark_us + dice.choice([0, 1, 999, 1000, 5000, 12_345]), dice.randrange(2)
    values = (7, None, None) if number == 0 else (None, dice.choice("xy"), dice.randrange(2))
    return (number, at_us, dice.randrange(3), None, *values)


def in_order(row: Any) -> tuple[int, int, int]:
    """Sort by time, then input, then content."""
    number, at_us, tie, *_ = row
    return at_us, number, tie


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize(("name", "ordered"), [*((n, True) for n in OPERATORS), ("texts", False)])
def test_windows_that_are_put_away_between_batches_emit_the_same(
    name: str, seed: int, *, ordered: bool
) -> None:
    dice, operator = random.Random(seed), OPERATORS[name]
    keys = ("k", "l")[: dice.randint(1, 2)]
    handle, served = FakeHandle(), processor(operator, ordered=ordered, keys=keys)
    key = Row(*keys)(*("one", "two")[: len(keys)])
    group: Any = "one" if len(keys) == 1 else ("one", "two")
    model, waiting = KeyWindows(operator, group, {}), list[Any]()
    found, wanted, watermark_ms = list[Any](), list[Record](), 20
    kinds = [Row("a"), Row("b", "c")]

    def record(row: Any) -> Record:
        number, at_us, _, _, *values = row
        return Record(at_us, kinds[number](*(values[:1] if number == 0 else values[1:])), number)

    for _ in range(12):
        now: Any = SimpleNamespace(getCurrentWatermarkInMs=lambda ms=watermark_ms: ms)
        served.init(handle)  # as each batch has it
        rows = [drawn(dice, watermark_ms * 1000) for _ in range(dice.randrange(5))]
        if not ordered:
            starts = {
                row: range(
                    operator.earliest_left(row[1]), row[1] + 1, operator.window_advance
                )
                for row in rows
            }  # fmt: skip
            rows = [(*row[:3], left, *row[4:]) for row in rows for left in starts[row]]
            for row in sorted(rows, key=in_order):
                wanted += model.update(row[3], record(row))
        waiting += rows
        found += served.handleInputRows(key, iter([ROW(*row) for row in rows]), now)
        watermark_ms += dice.choice([0, 1, 3, 8])
        after_us = watermark_ms * 1000
        now = SimpleNamespace(getCurrentWatermarkInMs=lambda ms=watermark_ms: ms)
        while due := [at_ms for at_ms in handle.listTimers() if at_ms <= watermark_ms]:
            handle.timers.remove(due[0])
            expired: Any = SimpleNamespace(getExpiryTimeInMs=lambda at_ms=due[0]: at_ms)
            found += served.handleExpiredTimer(key, now, expired)
        if ordered:
            ready = sorted((row for row in waiting if row[1] <= after_us), key=in_order)
            waiting = [row for row in waiting if row[1] > after_us]
            for row in ready:
                wanted += model.take(record(row))
        wanted += model.advance(after_us)
        assert len(handle.timers) <= 1
        assert len(handle.maps["windows"].held) == len(model._states)
    expected = [(EPOCH + dt.timedelta(microseconds=r.time), *r.payload) for r in wanted]
    assert expected
    assert [tuple(row) for row in found] == expected
    assert not found or [*found[0].__fields__] == ["at", "k", "text"]


def test_the_windows_of_a_processor_in_words() -> None:
    made = processor(OPERATORS["single"], ordered=True, keys=("k",))
    assert made.window == "single window of 7500 us every 2500 us"
