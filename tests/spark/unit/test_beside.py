"""Calls to a store that no batch waits for: one after the other, and no failure is lost."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import wait

import pytest

from headgate.spark.job.phases import Beside


@pytest.fixture
def beside() -> Iterator[Beside]:
    made = Beside("test")
    yield made
    made.close()


def failing() -> None:
    raise OSError("the store is away")


def test_what_failed_is_raised_by_the_next_call(beside: Beside) -> None:
    did: list[str] = []
    beside.do(failing)
    assert beside._last is not None
    wait([beside._last])
    with pytest.raises(OSError, match="the store is away"):
        beside.do(lambda: did.append("next"))
    with pytest.raises(OSError, match="the store is away"):
        beside.wait()
    assert did == []


def test_what_fails_while_the_next_call_waits_is_raised_all_the_same(beside: Beside) -> None:
    go_on, did = threading.Event(), list[str]()

    def fail_later() -> None:
        go_on.wait()
        failing()

    beside.do(fail_later)
    try:
        beside.do(lambda: did.append("next"))
    finally:
        go_on.set()
    with pytest.raises(OSError, match="the store is away"):
        beside.wait()
    assert did == []


def test_calls_are_done_in_their_order(beside: Beside) -> None:
    did: list[int] = []
    beside.wait()
    for number in range(5):
        beside.do(lambda number=number: did.append(number))
    beside.wait()
    assert did == [0, 1, 2, 3, 4]
