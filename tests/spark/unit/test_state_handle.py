"""State of a key within one call: it reads what the call has written, and hands over the changes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from headgate.core.errors import ProcessorError
from headgate.operators.processor import TIMERS, Keyed, State, TimeMode, Variable
from headgate.spark.worker.state_handle import SlotHandle

NONE, NUMBER = pa.schema([]), pa.schema([("n", pa.int64())])
VALUE = Variable("value", NONE, NUMBER)
LIST = Variable("list", NONE, NUMBER, ordered=True)
MAP = Variable("map", pa.schema([("k", pa.string())]), NUMBER)


class Call:
    """A call of two keys: 0, which has state, and 1, which has none."""

    def __init__(self, mode: TimeMode = TimeMode.EVENT) -> None:
        def before(variable: Variable, *rows: tuple[Any, ...]) -> Keyed:
            columns = dict(zip(variable.schema.names, zip(*rows, strict=True), strict=True))
            batch = pa.RecordBatch.from_pydict(columns, schema=variable.schema)
            return Keyed(np.zeros(len(rows), dtype=np.int64), batch)

        variables = (VALUE, LIST, MAP, TIMERS)
        here = {
            "value": before(VALUE, (7,)), "list": before(LIST, (1,), (2,)),
            "map": before(MAP, ("a", 1), ("b", 2)), TIMERS.name: before(TIMERS, (100,), (200,)),
        }  # fmt: skip
        self.state = State(variables, here, 2)
        self.handle = SlotHandle((VALUE, LIST, MAP), mode)
        self.handle.begin(self.state)
        self.value = self.handle.getValueState("value", None)
        self.list = self.handle.getListState("list", None)
        self.map = self.handle.getMapState("map", None, None)

    def changes(self, name: str) -> tuple[list[int], list[Any], list[Any]]:
        """Return the keys that are cleared, and what is removed and put, as (key, its entry)."""
        found = self.state.changes[name]

        def told(parts: Any) -> list[Any]:
            return [
                (key, tuple(row.values()))
                for of, rows in parts
                for key, row in zip(of.tolist(), rows.to_pylist(), strict=True)
            ]

        cleared = [key for of in found.cleared for key in of.tolist()]
        return cleared, sorted(told(found.removed)), sorted(told(found.put))


@pytest.fixture
def call() -> Call:
    return Call()


def test_a_value_is_what_was_written_last(call: Call) -> None:
    assert (call.value.exists(), call.value.get()) == (True, (7,))
    call.value.update((8,))
    assert call.value.get() == (8,)
    call.handle.turn(1)
    assert (call.value.exists(), call.value.get()) == (False, None)
    call.value.update((9,))
    call.handle.turn(0)
    call.value.clear()
    assert (call.value.exists(), call.value.get()) == (False, None)
    call.handle.finish(call.state)
    assert call.changes("value") == ([0], [], [(1, (9,))])


def test_a_list_has_its_items_and_those_behind_them(call: Call) -> None:
    assert call.list.exists() is True
    call.list.appendValue((3,))
    call.list.appendList([(4,), (5,)])
    assert list(call.list.get()) == [(1,), (2,), (3,), (4,), (5,)]
    call.handle.turn(1)
    assert (call.list.exists(), list(call.list.get())) == (False, [])
    call.list.put([(6,)])
    call.list.appendValue((7,))
    assert list(call.list.get()) == [(6,), (7,)]
    call.handle.finish(call.state)
    appended = [(0, (3,)), (0, (4,)), (0, (5,)), (1, (6,)), (1, (7,))]
    assert call.changes("list") == ([1], [], appended)


def test_a_list_that_was_cleared_begins_anew(call: Call) -> None:
    call.list.clear()
    assert (call.list.exists(), list(call.list.get())) == (False, [])
    call.list.appendValue((3,))
    assert list(call.list.get()) == [(3,)]
    call.handle.finish(call.state)
    assert call.changes("list") == ([0], [], [(0, (3,))])
    for put in (call.list.put, call.list.appendList):
        with pytest.raises(ProcessorError, match='into state "list" must not be empty; use clear'):
            put([])


def test_a_map_has_the_entries_that_there_are_now(call: Call) -> None:
    assert call.map.exists() is True
    call.map.updateValue(("c",), (3,))
    call.map.updateValue(("a",), (10,))
    call.map.removeKey(("b",))
    call.map.removeKey(("never there",))
    assert list(call.map.keys()) == [("a",), ("c",)]
    assert list(call.map.values()) == [(10,), (3,)]
    assert list(call.map.iterator()) == [(("a",), (10,)), (("c",), (3,))]
    assert (call.map.containsKey(("c",)), call.map.containsKey(("b",))) == (True, False)
    assert (call.map.getValue(("a",)), call.map.getValue(("b",))) == ((10,), None)
    assert call.map.getValue(("a",)).n == 10
    call.handle.turn(1)
    assert (call.map.exists(), list(call.map.keys())) == (False, [])
    call.handle.finish(call.state)
    assert call.changes("map") == ([], [(0, ("b",))], [(0, ("a", 10)), (0, ("c", 3))])


def test_of_a_map_only_what_it_has_in_the_end_is_put(call: Call) -> None:
    call.map.updateValue(("c",), (3,))
    call.map.removeKey(("c",))
    call.map.removeKey(("a",))
    call.map.updateValue(("a",), (5,))
    call.handle.turn(1)
    call.map.updateValue(("x",), (1,))
    call.map.clear()
    assert call.map.exists() is False
    call.map.updateValue(("y",), (2,))
    call.handle.finish(call.state)
    cleared, removed, put = call.changes("map")
    assert cleared == [1]
    assert (0, ("b",)) not in removed
    assert put == [(0, ("a", 5)), (1, ("y", 2))]


def test_timers_are_listed_in_order_and_only_changes_are_handed_over(call: Call) -> None:
    call.handle.registerTimer(50)
    call.handle.registerTimer(100)
    call.handle.deleteTimer(200)
    call.handle.deleteTimer(999)
    assert list(call.handle.listTimers()) == [50, 100]
    call.handle.turn(1)
    assert list(call.handle.listTimers()) == []
    call.handle.registerTimer(7)
    call.handle.registerTimer(8)
    call.handle.deleteTimer(8)
    call.handle.finish(call.state)
    assert call.changes(TIMERS.name) == ([], [(0, (200,))], [(0, (50,)), (1, (7,))])


def test_without_a_time_mode_there_are_no_timers() -> None:
    handle = Call(TimeMode.NONE).handle
    for ask in (handle.listTimers, lambda: handle.registerTimer(1), lambda: handle.deleteTimer(1)):
        with pytest.raises(ProcessorError, match='no timers in time mode "None"'):
            ask()


def test_a_state_that_was_not_declared_at_the_start_is_refused(call: Call) -> None:
    with pytest.raises(ProcessorError, match='declares state "other" now and did not'):
        call.handle.getValueState("other", None)


@pytest.mark.parametrize(
    ("write", "says"),
    [
        (lambda c: c.value.update(5), r'a value of state "value" must be a tuple of 1 \(n\), got int'),
        (lambda c: c.value.update((1, 2)), "got 2 values"),
        (lambda c: c.list.appendValue("x"), 'an item of state "list" .* got str'),
        (lambda c: c.list.put([(1,), 2]), 'an item of state "list" .* got int'),
        (lambda c: c.map.updateValue("k", (1,)), r'a key of state "map" .* 1 \(k\), got str'),
        (lambda c: c.map.updateValue(("k",), 1), r'a value of state "map" .* 1 \(n\), got int'),
        (lambda c: c.map.removeKey("k"), 'a key of state "map"'),
    ],
)  # fmt: skip
def test_what_is_no_tuple_of_the_declared_length_is_refused(
    call: Call, write: Any, says: str
) -> None:
    with pytest.raises(ProcessorError, match=says):
        write(call)
    call.handle.finish(call.state)
    assert all(call.changes(name)[2] == [] for name in ("value", "list", "map"))
