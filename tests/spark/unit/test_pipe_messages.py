"""Tests what a pipe makes of each message of its peers, and which of its parts it takes for lost."""

from __future__ import annotations

import queue
from types import SimpleNamespace
from typing import Any

import pytest
from noted_calls import Calls

from headgate.core.errors import EngineError
from headgate.spark.realtime import pipe, run_slots, words
from headgate.spark.realtime.pipe import Pipe
from headgate.spark.realtime.pipe_run import GONE, JOB, JOINED, PipeRun
from headgate.spark.realtime.run_slots import PipeLost, RunSlot, RunSlots, SlotsLost

A0 = ("a", 0)


class Made:
    """A pipe of one operator, whose run has one slot."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, directory: str = "d") -> None:
        self.calls = calls = Calls(monkeypatch)
        self.ended = False
        self.slot: Any = SimpleNamespace(has_ended=lambda: self.ended, peer=None, address="")
        self.dead: Any = None
        slots: Any = SimpleNamespace(
            get=lambda operator, number: self.slot if (operator, number) == A0 else None,
            at=lambda address: A0 if address == "a0" else None, dead=lambda silent: self.dead,
        )  # fmt: skip
        self.job = calls.several(failure=None)
        self.pipe: Any = Pipe(self.job, SimpleNamespace(), {}, {"a": 3}, "q", calls.several(
            look_for_stopped=None))  # fmt: skip
        self.pipe._tasks, self.pipe._broadcasts = {"a": b"task"}, {7: "f"}
        meeting, nobody = words.Meeting("door", b"k", directory=directory), None
        self.run = PipeRun(meeting, nobody, "group", queue.SimpleQueue(), slots)  # type: ignore[arg-type]
        self.has_ended = False
        ended: Any = SimpleNamespace(wait=lambda limit_s: self.has_ended and limit_s == 1.0)
        self.run.ended = ended
        self.pipe._run = self.run
        calls.put(pipe, tell=None, hang_up=None)

    def says(self, *message: Any) -> Any:
        self.run.said.put(message)
        return self.pipe._next(0.0)


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Made:
    return Made(monkeypatch)


def test_nothing_comes_from_nobody(made: Made) -> None:
    assert made.pipe._next(-1.0) is None
    assert made.says("something", 1) == ("something", 1)


def test_peers_are_taken_in_by_their_kind(made: Made) -> None:
    peer = SimpleNamespace(name="peer")
    made.says(JOINED, words.COPY, 2, peer, "an address")
    assert made.run.copies == {2: "an address"}
    made.says(JOINED, words.FEEDER, 1, peer, ("host", 77))
    assert (made.run.feeders, made.run.nodes) == ({1: peer}, {"feeder 1": ("host", 77)})
    assert made.calls.did == []
    made.says(JOINED, words.SLOT, A0, peer, 78)
    assert made.slot.peer is peer
    assert made.calls.did == [("tell", peer, (words.BEGIN, b"task", 3, {7: "f"}))]
    assert made.pipe._run.processes == {"feeder 1": 77, "slot 0": 78}
    made.says(JOINED, words.SLOT, ("a", 9), peer, 79)
    assert made.calls.did[1:] == [("hang_up", peer)]
    assert "slot 9" not in made.run.processes
    with pytest.raises(PipeLost, match=r"^feeder 1 of q ended unexpectedly"):
        made.says(JOINED, words.FEEDER, 1, peer, ("host", 80))


def test_slots_have_the_name_of_their_operator_where_there_are_several(made: Made) -> None:
    made.pipe._tasks = {"a": b"", "b": b""}
    assert made.pipe._called(words.SLOT, A0) == f"a {words.SLOT} 0"
    assert made.pipe._called(words.FEEDER, 3) == "feeder 3"


def test_a_slot_is_ready_at_an_address_and_feeders_cut(made: Made) -> None:
    made.says(words.READY, "a0", A0)
    made.says(words.READY, "a9", ("a", 9))
    assert made.slot.address == "a0"
    assert not made.pipe.is_cut
    made.run.rewinding = {1, 2}
    made.run.rewound = 5
    made.says(words.CUT, 4, "offsets", 3.0, 1)
    assert made.run.cuts == {}
    made.says(words.REWIND, 4, 1)
    assert made.run.rewinding == {1, 2}
    made.says(words.REWIND, 5, 1)
    assert made.run.rewinding == {2}
    made.says(words.CUT, 4, "offsets", 3.0, 1)
    assert made.run.cuts == {1: ("offsets", 3.0)}
    assert made.pipe.is_cut


@pytest.mark.parametrize(
    ("flows", "directory", "ended", "kind"),
    [
        (False, "d", True, PipeLost), (True, "d", False, SlotsLost), (True, "", False, PipeLost),
        (True, "", True, SlotsLost),
    ],
)  # fmt: skip
def test_a_slot_that_is_lost_is_all_that_is_lost_where_its_host_is_there(
    monkeypatch: pytest.MonkeyPatch, flows: bool, directory: str, ended: bool, kind: Any
) -> None:
    made = Made(monkeypatch, directory)
    made.run.flows, made.ended = flows, ended
    with pytest.raises(PipeLost, match=r"^slot 0 of q is lost .it is odd.") as lost:
        made.says(GONE, words.SLOT, A0, "it is odd")
    assert type(lost.value) is kind
    error = EngineError("it broke")
    with pytest.raises(PipeLost, match="it broke") as lost:
        made.says(words.FAILED, error, A0)
    assert type(lost.value) is kind
    assert lost.value.__cause__ is error
    with pytest.raises(PipeLost, match="it broke") as lost:
        made.says(words.FAILED, error)
    assert type(lost.value) is PipeLost
    for old in ((words.FAILED, error, ("a", 9)), (GONE, words.SLOT, ("a", 9), "")):
        assert made.says(*old) == old, "of a slot that was given up"


def test_routers_tell_which_slot_they_do_not_reach(made: Made) -> None:
    made.says(JOINED, words.LOST, None, None, "a9")
    with pytest.raises(PipeLost, match=r"^slot 0 of q is lost .a router cannot reach it.") as lost:
        made.says(JOINED, words.LOST, None, None, "a0")
    assert isinstance(lost.value.__cause__, EngineError)
    made.ended = True
    with pytest.raises(PipeLost, match=r"^slot 0 of q ended unexpectedly\.$"):
        made.says(JOINED, words.LOST, None, None, "a0")


def test_a_feeder_that_is_lost_has_the_cause_of_its_job(made: Made) -> None:
    cause = EngineError("no such topic")
    made.job.failure = lambda group: cause if group == "group" else None
    with pytest.raises(PipeLost, match="no such topic"):
        made.says(GONE, words.FEEDER, 1, "")
    made.has_ended = True
    made.run.said.put((GONE, words.FEEDER, 1, ""))
    made.run.said.put(("something",))
    made.run.said.put((JOB, EngineError("it is full")))
    with pytest.raises(PipeLost, match="it is full"):
        made.pipe._next(0.0)
    made.run.said.put((GONE, words.FEEDER, 1, ""))
    made.run.said.put((JOB, None))
    with pytest.raises(PipeLost, match=r"^feeder 1 of q ended unexpectedly"):
        made.pipe._next(0.0)


def test_a_job_that_ends_is_the_end_of_its_pipe(made: Made) -> None:
    with pytest.raises(PipeLost, match=r"Spark's job of the pipe has ended\.") as lost:
        made.says(JOB, None)
    assert isinstance(lost.value.__cause__, EngineError)
    assert lost.value.__cause__.transient
    with pytest.raises(PipeLost, match="it is full"):
        made.says(JOB, EngineError("it is full"))


def test_whoever_waits_hears_of_a_stop_of_time_and_of_dead_slots(
    made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = iter(range(100))
    monkeypatch.setattr(pipe, "time", SimpleNamespace(monotonic=lambda: next(now_s)))
    monkeypatch.setattr(pipe, "_LOOK_S", 0.0)
    stops: list[int] = []
    monkeypatch.setattr(made.pipe, "_look_for_stopped", lambda: stops.append(1))
    made.pipe._await(lambda: True, 1.0)
    with pytest.raises(PipeLost, match=r"^a part of the pipe has not answered within 12 s\."):
        made.pipe._await(lambda: False, 12.0)
    assert len(stops) == 13 - pipe._STOPPED_LOOKS + 1
    made.dead = A0
    with pytest.raises(PipeLost, match=r"^slot 0 of q ended unexpectedly"):
        made.pipe._await(lambda: False, 12.0)
    made.pipe._halted = True
    with pytest.raises(PipeLost, match=r"^the query was stopped meanwhile\."):
        made.pipe._await(lambda: False, 12.0)


def test_processes_that_are_stopped_are_looked_for_on_their_hosts(
    made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[Any] = [None, ("slot 0", 78)]
    made.pipe._hosts.processes = {}
    monkeypatch.setattr(pipe, "find_stopped", lambda processes: found.pop(0))
    made.pipe._look_for_stopped()
    with pytest.raises(PipeLost, match=r"^slot 0 of q is stopped \(process 78\), and is ended\.$"):
        made.pipe._look_for_stopped()
    far = Made(monkeypatch, "")
    far.run.nodes = {"feeder 1": ("host", 77)}
    far.pipe._look_for_stopped()
    assert far.calls.did == [("look_for_stopped", far.run.nodes)]


# --- Slots of a run -----------------------------------------------------------------------------------


def test_slots_stay_in_their_places_and_others_are_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = Calls(monkeypatch)
    calls.put(run_slots, tell=None, in_background=None)
    hosts: Any = SimpleNamespace(places=lambda operator, count: ["x", "y", "x"][:count])
    slots = RunSlots(hosts, words.Meeting("", b"k"), "q")
    nobody: Any = None
    of = slots._slots["a"] = {n: RunSlot(nobody, host) for n, host in enumerate("xyxxy")}
    slots.serving = {"a": [4, 1]}
    assert slots.seated("a", 3) == [0, 1, 2]
    assert slots.seated("a", 1) == [0]
    slots.serving = {"a": [3, 4]}
    assert slots.seated("a", 3) == [3, 4, 0]
    peer: Any = "peer"
    of[2].peer = peer
    assert slots.end_spare({"a": 3}) == [("a", 1), ("a", 2)]
    assert sorted(of) == [0, 3, 4]
    assert calls.names() == ["in_background", "tell", "in_background"]
    assert calls.did[1] == ("tell", "peer", (words.END,))
    del of[0]
    with pytest.raises(PipeLost, match=r"^a host of q was lost\."):
        slots.seated("a", 3)
    hosts.places = calls.one("places", EngineError("no host"))
    with pytest.raises(PipeLost, match=r"^no host"):
        slots.seated("a", 3)
