"""Tests in what order a thread delivers, how a connection is set, and what is unknown of a lost stage."""

from __future__ import annotations

import socket
from types import SimpleNamespace
from typing import Any

import pytest

from headgate.spark.realtime import channels, deliveries
from headgate.spark.realtime.channels import TcpChannel
from headgate.spark.realtime.deliveries import Deliveries
from headgate.spark.step.batch_thread import BatchThreads
from headgate.spark.step.losses import stages_beside


def manifest(step: int) -> Any:
    return SimpleNamespace(step=step)


def test_a_thread_begins_before_it_delivers(monkeypatch: pytest.MonkeyPatch) -> None:
    did: list[Any] = []
    now_s = iter([1.0, 1.25, 2.0, 2.5, 3.0, 3.5])
    monkeypatch.setattr(deliveries, "time", SimpleNamespace(perf_counter=lambda: next(now_s)))
    threads = BatchThreads()
    made = Deliveries(
        threads,
        lambda some: did.append(("rows", [one.step for one in some], threads.is_this)),
        lambda some: did.append(("noted", [one.step for one in some])),
        lambda: did.append("begin"), 5,
    )  # fmt: skip
    made.put_rows(manifest(1))
    assert threads.idle.wait(5)
    assert made.took_ms() == 250.0
    assert made.took_ms() == 0.0
    made.put_committed(manifest(1))
    assert threads.idle.wait(5)
    made.close()
    assert made.took_ms() == 500.0
    assert did == ["begin", ("rows", [1], True), ("noted", [1])]
    assert not made.has_failed
    assert not made._thread.is_alive()


def test_a_thread_that_cannot_begin_delivers_nothing() -> None:
    did: list[Any] = []

    def begin() -> None:
        raise OSError("no session")

    threads = BatchThreads()
    made = Deliveries(threads, did.append, did.append, begin, 5)
    made._thread.join(5)
    assert made.has_failed
    made.put_rows(manifest(1))
    assert threads.idle.is_set()
    for ask in (made.check, made.close):
        with pytest.raises(OSError, match="no session"):
            ask()
    assert did == []


class Ends:
    """One end of a connection, which notes how it is set."""

    def __init__(self) -> None:
        self.sets: dict[Any, Any] = {}
        self.limits_s: list[Any] = []

    def setsockopt(self, level: int, name: int, value: int) -> None:
        self.sets[level, name] = value

    def sendall(self, data: bytes) -> None:
        pass

    def settimeout(self, limit_s: float | None) -> None:
        self.limits_s.append(limit_s)

    def getsockname(self) -> tuple[str, int]:
        return "10.0.0.7", 99


@pytest.mark.parametrize("calls", [True, False])
def test_a_connection_sends_at_once_and_notices_a_dead_host(
    monkeypatch: pytest.MonkeyPatch, calls: bool
) -> None:
    end: Any = Ends()
    monkeypatch.setattr(
        channels, "_read", lambda end, size, until_s: channels._GREETING[:size].ljust(size, b"0")
    )
    monkeypatch.setattr(channels.hmac, "compare_digest", lambda one, other: True)  # type: ignore[attr-defined]
    channel = channels._greeted(end, b"k" * 32, "10.0.0.8:1", calls=calls)
    assert end.limits_s[-1] is None
    assert channel.own_host == "10.0.0.7"
    tcp = socket.IPPROTO_TCP
    wanted = {(socket.SOL_SOCKET, socket.SO_KEEPALIVE): 1, (tcp, socket.TCP_NODELAY): 1}
    for name, value in (("KEEPIDLE", 5), ("KEEPINTVL", 5), ("KEEPCNT", 3)):
        if hasattr(socket, f"TCP_{name}"):
            wanted[tcp, getattr(socket, f"TCP_{name}")] = value
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        wanted[tcp, socket.TCP_USER_TIMEOUT] = channels._UNANSWERED_MS
    assert end.sets == wanted


def test_a_channel_is_closed_behind_its_block() -> None:
    closed: list[str] = []
    end: Any = SimpleNamespace(close=lambda: closed.append("closed"))
    channel = TcpChannel(end, b"o", b"i")
    with channel as same:
        assert same is channel
        assert closed == []
    assert closed == ["closed"]


def test_stages_beside_a_stage_are_those_of_the_newest_job_that_has_it() -> None:
    jobs = {1: [5, 4], 2: None, 3: [9, 5, 7], 4: [8]}
    infos = {job: ids and SimpleNamespace(stageIds=ids) for job, ids in jobs.items()}
    groups: list[str] = []

    def jobs_of(group: str) -> list[int]:
        groups.append(group)
        return [1, 3, 2, 4]

    tracker = SimpleNamespace(getJobIdsForGroup=jobs_of, getJobInfo=infos.__getitem__)
    context: Any = SimpleNamespace(
        statusTracker=lambda: tracker, getLocalProperty=lambda key: f"of {key}"
    )
    beside = stages_beside(context)
    assert [beside(stage) for stage in (5, 4, 8, 6)] == [[5, 7, 9], [4, 5], [8], []]
    assert set(groups) == {"of spark.jobGroup.id"}
