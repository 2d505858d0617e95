"""Tests the steps by which a query ends, each by itself, on a clock that the test moves."""

from __future__ import annotations

import queue
from types import SimpleNamespace
from typing import Any

import pytest

from headgate.core.errors import EngineError, EngineGone
from headgate.spark.api import ending
from headgate.spark.api.ending import Ending
from headgate.spark.step.batch_thread import BrokenOff
from headgate.spark.worker.failure import QueryFailed


class Flag:
    """An event of threads whose waits only move the clock; set at some time."""

    def __init__(self, world: World, at_s: float | None = None) -> None:
        self.world, self.at_s, self.held = world, at_s, False

    def is_set(self) -> bool:
        return self.held or (self.at_s is not None and self.world.now_s >= self.at_s)

    def set(self) -> None:
        self.held = True

    def wait(self, timeout_s: float) -> bool:
        if not self.is_set():
            self.world.now_s += timeout_s
        return self.is_set()


class World:
    """A query that ends, and what it did."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s, self.did = 1_000.0, list[Any]()
        self.asked_in_batch = False
        self.error: BaseException | None = None
        self.gone: Exception | None = None
        clock = SimpleNamespace(monotonic=lambda: self.now_s, sleep=self._sleep)
        monkeypatch.setattr(ending, "time", clock)
        monkeypatch.setattr("headgate.spark.api.ending.threading.Thread", self._thread)
        self.batches: Any = SimpleNamespace(
            stopping=Flag(self), idle=Flag(self), interrupted=Flag(self), failed=None,
            is_of_this_thread=False, cancel=self._cancel,
        )  # fmt: skip
        inner: Any = SimpleNamespace(
            runId="run", isActive=False, stop=self._stopped, awaitTermination=self._ended
        )
        life: Any = SimpleNamespace(meaning=lambda error: self.gone)
        made: Any = Ending
        self.end: Ending = made(
            inner, self.batches, life, rest=lambda: self.did.append("rest"),
            close=lambda failure: self.did.append(("close", failure)),
            before=lambda: self.did.append("before"), reads=lambda: ["a topic"],
        )  # fmt: skip

    def _sleep(self, seconds: float) -> None:
        self.now_s += seconds

    def _thread(self, *, target: Any, name: str, daemon: bool) -> Any:
        assert daemon
        return SimpleNamespace(
            start=lambda: name == "headgate-stop-now" and target(),
            is_alive=lambda: False, join=lambda seconds: self.did.append(("join", seconds)),
        )  # fmt: skip

    def _cancel(self, run: str, *, raising: bool) -> None:
        self.did.append((round(self.now_s - 1_000.0, 2), run, raising))

    def _stopped(self) -> None:
        self.did.append("stop")
        if self.error is not None:
            raise self.error

    def _ended(self) -> None:
        if self.error is not None:
            raise self.error


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    return World(monkeypatch)


def test_a_batch_is_waited_for_before_a_query_stops(world: World) -> None:
    world.batches.idle.at_s = 1_009.0
    world.end._asked.put(True)
    world.end._stop_if_asked()
    assert world.did == ["before", "stop"]
    assert world.batches.stopping.is_set()
    assert not world.batches.interrupted.is_set()


def test_a_batch_that_takes_too_long_is_cancelled_and_later_its_code_is_raised_from(
    world: World,
) -> None:
    world.batches.idle.at_s = 1_023.0
    world.end._asked.put(True)
    world.end._stop_if_asked()
    first, *cancelled = world.did
    assert first == "stop"
    assert world.batches.interrupted.is_set()
    assert [run for _, run, _ in cancelled] == ["run"] * len(cancelled)
    begun = [raising for _, _, raising in cancelled]
    assert begun == [at_s > 20.0 for at_s, _, _ in cancelled]
    assert (cancelled[0][0], begun[0], begun[-1]) == (10.02, False, True)
    assert len(cancelled) == 13


def test_nothing_is_stopped_in_a_query_that_has_ended(world: World) -> None:
    world.end._asked.put(False)
    world.end._stop_if_asked()
    assert (world.did, world.batches.stopping.is_set()) == ([], False)
    world.end._asked.put(True)
    world.end._over.set()
    world.end._stop_if_asked()
    assert world.did == [], "a batch that hangs after the end is not waited for"


def test_an_error_of_a_stop_is_kept_unless_the_jvm_is_gone(world: World) -> None:
    world.batches.idle.set()
    for gone in (EngineGone("gone"), None):
        world.error, world.gone = ValueError("no\nmore"), gone
        world.end._asked.put(True)
        world.end._stop_if_asked()
        assert (world.end._unstopped is None) == (gone is not None)
    with pytest.raises(EngineError, match=r"^Spark did not stop the query: no\.$") as caught:
        world.end.stop()
    assert isinstance(caught.value.__cause__, ValueError)
    world.end._unstopped, world.error = None, RuntimeError("java TimeoutException: x")
    world.end._stop_inner()
    assert str(world.end._unstopped) == (
        "Spark did not stop the query: its thread has not ended within spark.sql.streaming.stopTimeout."
    )
    world.end._unstopped, world.gone = None, EngineGone("gone")
    world.end._stop_inner()
    assert world.end._unstopped is None


def test_a_stop_gives_up_on_code_that_does_not_return(world: World) -> None:
    world.batches.interrupted.set()
    with pytest.raises(
        EngineError,
        match=r"^this query has not ended 30 s after stop\(\): its function for foreachB",
    ):
        world.end.stop()
    assert 1_030.0 < world.now_s < 1_030.1


def test_a_query_is_asked_to_stop_within_its_own_batch_and_goes_on(world: World) -> None:
    world.batches.is_of_this_thread = True
    world.end.stop()
    assert world.batches.stopping.is_set()
    assert world.end._asked.get_nowait() is True


def test_who_waits_sees_the_end_and_its_reason(world: World) -> None:
    assert (world.end.is_over, world.end.failure, world.end.wait(0)) == (False, None, False)
    world.error = ValueError("wrong")
    world.end._run()
    assert world.end.is_over
    failure = world.end.failure
    assert isinstance(failure, QueryFailed)
    assert world.did == [("close", failure)]
    with pytest.raises(QueryFailed, match="wrong"):
        world.end.wait(0)
    with pytest.raises(
        EngineError, match=r"^this query has ended \(.*wrong.*\), so it takes no scale"
    ):
        world.end.refuse_if_over("scale")
    with pytest.raises(queue.Empty):
        world.end._asked.get_nowait() or world.end._asked.get_nowait()


def test_a_finite_query_does_the_rest_unless_it_was_stopped(world: World) -> None:
    assert world.end._awaited() is None
    assert world.did == ["rest"]
    world.batches.stopping.set()
    assert world.end._awaited() is None
    assert world.did == ["rest"]


def test_an_error_after_a_batch_was_broken_off_is_no_failure(world: World) -> None:
    world.error = BrokenOff()
    assert world.end._awaited() is None
    world.error = ValueError("cancelled")
    assert isinstance(world.end._awaited(), QueryFailed)
    world.batches.interrupted.set()
    assert world.end._awaited() is None
    world.gone = EngineGone("gone")
    assert world.end._awaited() is world.gone
    assert world.now_s == 1_002.0, "the batch has two seconds to fail, too"


def test_a_stop_after_the_end_of_the_jvm_says_so(world: World) -> None:
    world.gone = world.error = EngineGone("gone")
    world.end._run()
    with pytest.raises(EngineGone, match="gone"):
        world.end.stop()
    assert world.did[1:] == [("join", 2.0), ("join", 2.0)]
