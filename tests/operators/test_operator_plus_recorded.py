"""The words of O+: what an operator is made of, what it refuses, and its defaults, as recorded."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from headgate.core.errors import HeadgateError
from headgate.operators.operator_plus import OperatorPlus, Record, Window, WindowType

Recorded = Callable[[str, Iterable[str]], None]


def told(do: Callable[[], Any]) -> str:
    try:
        return str(do())
    except HeadgateError as error:
        return re.sub(r"line \d+", "line n", f"{type(error).__name__}: {error}")


def emit(windows: Any) -> list[Any]:
    return [(window.left, window.state) for window in windows]


def test_operators_are_made_or_refused_as_recorded(recorded: Recorded) -> None:
    lines = []
    given: list[dict[str, Any]] = [
        {}, {"output": emit}, {"slide": emit}, {"update": emit}, {"output": emit, "inputs": 0},
        {"output": emit, "inputs": 3}, {"output": lambda: 1}, {"update": 5},
        {"keys": lambda a, b: 1},
        {"update": lambda windows, record: 1, "keys": list, "window_type": WindowType.SINGLE},
    ]  # fmt: skip

    def parts(made: OperatorPlus) -> str:
        kept = (
            made.window_advance,
            made.window_size,
            made.window_type.value,
            made.inputs,
            made.schema,
        )
        return (
            f"{kept} {made.distinct} {[made.keys is None, made.update is None, made.slide is None]}"
        )

    for words in given:
        lines.append(f"{sorted(words)}: {told(lambda w=words: parts(OperatorPlus(5, 10, **w)))}")
    for advance, size in ((1, 1), (0, 1), (2, 1), (10, 10), (-1, 5), (1, 0)):
        made = told(lambda a=advance, s=size: parts(OperatorPlus(a, s, output=emit)))
        lines.append(f"{advance} {size}: {made}")
    for kind in ("single", "multi", "singel", "", WindowType.SINGLE, None):
        over = {"output": emit} | ({} if kind is None else {"window_type": kind})
        lines.append(
            f"{kind}: {told(lambda o=over: parts(OperatorPlus.over('1 s', '2500 ms', **o)))}"
        )
    lines.append(told(lambda: OperatorPlus.over("1", "2 s", output=emit)))
    recorded("operator-plus", lines)


@pytest.mark.parametrize(("advance", "size"), [(1, 1), (5, 10), (4, 10), (10, 10)])
def test_the_windows_of_a_time_are_those_that_hold_it(advance: int, size: int) -> None:
    made = OperatorPlus(advance, size, output=emit)
    for time in range(-35, 35):
        lefts = [w * advance for w in range(-99, 99) if w * advance <= time < w * advance + size]
        assert (made.earliest_left(time), made.latest_left(time)) == (lefts[0], lefts[-1])


def test_functions_that_are_not_given_keep_records_and_drop_those_that_are_stale() -> None:
    made = OperatorPlus(5, 10, output=emit, inputs=2)
    records = [Record(n, (n,), 1) for n in (3, 5, 9)]
    windows: Any = (Window(None, 0, 10, "k"), Window(None, 0, 10, "k"))
    for record in records:
        states, payloads = made.updated(windows, record)
        assert payloads == []
        windows = tuple(Window(state, 5, 15, "k") for state in states)
    assert [window.state for window in windows] == [None, tuple(records)]
    assert made.slid(windows) == [None, tuple(records[1:])]
    assert made.slid(tuple(Window(w.state, 10, 20, "k") for w in windows)) == [None, None]
    assert made.emitted(windows) == [(5, None), (5, tuple(records))]
    assert OperatorPlus(5, 10, slide=emit).emitted(windows) == []
    with pytest.raises(HeadgateError, match=r"^the state of key 'k' is no tuple of records"):
        made.slid((Window(7, 0, 10, "k"),))


def test_functions_that_are_given_return_a_state_for_each_input() -> None:
    windows: Any = (Window(1, 0, 10, "k"), Window(2, 0, 10, "k"))
    states: list[Any] = [3, 4]
    made = OperatorPlus(
        5, 10, inputs=2, slide=lambda windows: states,
        update=lambda windows, record: (states, iter([(record.time,)])),
    )  # fmt: skip
    assert made.updated(windows, Record(7, ())) == ([3, 4], [(7,)])
    assert made.slid(windows) == [3, 4]
    states.pop()
    with pytest.raises(
        HeadgateError, match=r"^slide returned 1 states for an operator of 2 inputs"
    ):
        made.slid(windows)
    with pytest.raises(
        HeadgateError, match=r"^update returned 1 states for an operator of 2 inputs"
    ):
        made.updated(windows, Record(7, ()))


def test_the_keys_of_a_record_are_a_bag_or_a_set() -> None:
    def keys(record: Record) -> Iterable[Any]:
        return iter(record.payload)

    record = Record(1, ("b", "a", "b"))
    assert record.input == 0
    assert OperatorPlus(5, 10, keys, output=emit).keys_of(record) == ("b", "a", "b")
    assert OperatorPlus(5, 10, keys, output=emit, distinct=True).keys_of(record) == ("b", "a")
    with pytest.raises(HeadgateError, match="without keys cannot tell a record's keys"):
        OperatorPlus(5, 10, output=emit).keys_of(record)
