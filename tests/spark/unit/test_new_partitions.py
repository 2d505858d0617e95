"""Sources are asked now and then whether partitions have come, beside the epochs."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from headgate.core.errors import EngineError
from headgate.spark.realtime import new_partitions
from headgate.spark.realtime.new_partitions import EVERY_S, NewPartitions


class Source:
    """A source whose partitions grow when told to; says when it was asked."""

    def __init__(self) -> None:
        self.has, self.asked, self.away = "a:0", 0, False

    def grown(self, offsets: str) -> str:
        self.asked += 1
        if self.away:
            raise EngineError("no answer.")
        assert offsets == "a:0"
        return self.has


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Return the time, and have threads run at once."""
    now = [1000.0]
    monkeypatch.setattr(new_partitions.time, "monotonic", lambda: now[0])

    class AtOnce:
        def __init__(self, target: Callable[[], None], **_: object) -> None:
            self.start = target

    monkeypatch.setattr(threading, "Thread", AtOnce)
    return now


def test_a_source_is_asked_every_so_often_until_partitions_have_come(clock: list[float]) -> None:
    source = Source()
    looked = NewPartitions(source.grown, "a:0")
    assert not looked.have_come()
    assert source.asked == 0, "what was there at the start is known"
    for asked in (1, 2):
        clock[0] += EVERY_S
        assert not looked.have_come()
        assert not looked.have_come()
        assert source.asked == asked
    source.has = "a:0 b:0"
    assert not looked.have_come()
    clock[0] += EVERY_S
    assert looked.have_come()
    clock[0] += 1
    assert looked.have_come()


def test_a_source_that_does_not_answer_is_asked_again(clock: list[float]) -> None:
    source = Source()
    looked = NewPartitions(source.grown, "a:0")
    source.away, source.has = True, "a:0 b:0"
    clock[0] += EVERY_S
    assert not looked.have_come()
    source.away = False
    clock[0] += EVERY_S
    assert looked.have_come()
