"""Tests how agents are started by a job, and whom a run of several hosts asks; without Spark."""

from __future__ import annotations

import json
import queue
import threading
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from noted_calls import Calls
from said_columns import F

from headgate.core.errors import EngineError
from headgate.spark.jvm.hosts import THIS_HOST
from headgate.spark.move.host_tasks import TaskAnswer
from headgate.spark.realtime import agents, words
from headgate.spark.realtime.channels import TcpChannel


def _without_threads() -> Any:
    return object.__new__(agents.Agents)


class Made:
    """Agents of a query, without a thread."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls = calls = Calls(monkeypatch)
        self.context = calls.several(setJobGroup=None, cancelJobGroup=None)
        self.answers = ['""', '"no core of y"', '"no memory"']
        self.error: Exception | None = None
        self.of = _without_threads()
        rows = calls.several(select="named")
        self.of._spark = SimpleNamespace(
            sparkContext=self.context, range=calls.one("range", "rows"), name="the session"
        )
        self.of._name, self.of._charge = "q", SimpleNamespace(meeting="the meeting")
        self.of._agents, self.of._changed = {}, threading.Condition()
        self.of._numbers = self.of._errands = 0
        calls.put(agents, wait_for_hosts=None, pinned=rows)
        monkeypatch.setattr(agents, "F", F)
        monkeypatch.setattr(agents, "uuid", SimpleNamespace(uuid4=lambda: "8e"))
        monkeypatch.setattr(agents, "_LOOK_S", 0.0)
        monkeypatch.setattr(agents, "ArrowMap", self._map)

    def _map(self, start: Any, schema: Any) -> Any:
        self.calls.did.append(("ArrowMap", start, schema.simpleString()))

        def collect() -> list[Any]:
            if self.error is not None:
                raise self.error
            return [SimpleNamespace(answer=answer) for answer in self.answers]

        return SimpleNamespace(apply=lambda named: SimpleNamespace(collect=collect))


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Made:
    return Made(monkeypatch)


def test_a_task_on_each_host_starts_an_agent(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agents, "_in_background", _at_once)
    assert made.of._launch(["x", "y"], 0.0) == "no core of y"
    select = made.calls.did[4]
    assert made.calls.did == [
        ("wait_for_hosts", made.of._spark),
        ("setJobGroup", "headgate-8e", "q: agents on x, y", True), ("range", 0, 2, 1, 2),
        ("pinned", "rows", ["x", "y"]), select,
        ("ArrowMap", agents._Start(made.of._charge, ("x", "y")), "struct<answer:string>"),
    ]  # fmt: skip
    assert list(map(str, select[1:])) == ["id", f"{THIS_HOST}.alias(host)"]
    made.answers = ['""', '""']
    assert made.of._launch(["x"], 0.0) == ""
    made.error = OSError("an executor has ended\nTraceback")
    assert made.of._launch(["x"], 0.0) == "an executor has ended"


def _at_once(work: Any) -> Any:
    work()
    return SimpleNamespace(is_alive=lambda: False, join=lambda limit_s: None)


@pytest.mark.parametrize("comes", [True, False])
def test_a_job_that_starts_agents_is_cancelled_where_they_do_not_come(
    made: Made, monkeypatch: pytest.MonkeyPatch, comes: bool
) -> None:
    now_s, joins = [100.0], list[Any]()
    monkeypatch.setattr(agents, "time", SimpleNamespace(monotonic=lambda: now_s[0]))
    monkeypatch.setattr(agents, "_LOOK_S", 0.25)
    changed: Any = type("Changed", (), {
        "__enter__": lambda one: one, "__exit__": lambda one, *_: None,
        "wait_for": lambda one, is_there, limit_s: joins.append((is_there(), limit_s)),
    })  # fmt: skip
    made.of._changed = changed()

    def join(limit_s: float) -> None:
        joins.append(limit_s)
        now_s[0] += limit_s
        if comes and len(joins) == 2:
            made.of._agents = {"x": 1}

    thread = SimpleNamespace(is_alive=lambda: True, join=join)
    monkeypatch.setattr(agents, "_in_background", lambda work: thread)
    monkeypatch.setattr(agents.Agents, "hosts", property(lambda of: list(of._agents)))
    assert made.of._launch(["x"], 101.0) == ""
    cancelled = ("cancelJobGroup", "headgate-8e") in made.calls.did
    assert cancelled is not comes
    assert joins == ([0.25, 0.25, 0.5] if comes else [0.25] * 5) + [(comes, 2.5)]


def test_a_task_starts_an_agent_on_the_host_that_it_was_meant_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(agents, "launch", lambda charge, host: f"{charge} on {host}")
    charge: Any = "a charge"
    start = agents._Start(charge, ("x", "y"))
    batch = pa.RecordBatch.from_pydict({"id": [1, 0], "host": ["y", "z"]})
    answers = [one.to_pylist() for one in start(iter([batch]))]
    assert answers == [
        [{"answer": json.dumps("a charge on y")}], [{"answer": json.dumps("no core of x")}],
    ]  # fmt: skip


def test_a_host_that_is_gone_starts_no_slot(made: Made) -> None:
    assert made.of.meeting == "the meeting"
    made.of._placements = {"a": SimpleNamespace(hosts_of=lambda slots: ["x"] * slots)}
    assert made.of.places("a", 2) == ["x", "x"]
    with pytest.raises(EngineError, match=r"^no host of q answers\."):
        made.of.places("a", 0)
    meeting = words.Meeting("door", b"k", run=b"r")
    with pytest.raises(EngineError, match=r"^host x is lost\."):
        made.of.start(meeting, "a", 3, "x")
    told: list[Any] = []
    agent = SimpleNamespace(slots={}, tell=lambda *message: told.append(message))
    made.of._agents = {"x": agent}
    process = made.of.start(meeting, "a", 3, "x")
    assert agent.slots == {1: process}
    assert told == [(words.START, 1, "door", b"r", "a", 3)]
    process.kill()
    assert told[1:] == [(words.KILL, 1)]


def test_copies_are_answered_by_their_errand_or_by_a_loss(made: Made) -> None:
    copied: queue.SimpleQueue[Any] = queue.SimpleQueue()
    told: list[Any] = []
    agent = SimpleNamespace(copied=copied, tell=lambda *message: told.append(message))
    made.of._agents = {"x": agent}
    answer = TaskAnswer("x", "", "")
    copied.put((0, "an older errand"))
    copied.put((1, answer))
    lost = TaskAnswer("y", "", "", problem="host y is lost")
    assert made.of.run({"x": ["order"], "y": []}, 0.5) == [answer, lost]
    assert told == [(words.COPIES, 1, ["order"], 0.5)]
    copied.put((2, "it is full"))
    assert made.of.run({"x": []}, 0.5) == [TaskAnswer("x", "", "", problem="it is full")]
    copied.put(None)
    assert made.of.run({"x": []}, 0.5) == [TaskAnswer("x", "", "", problem="host x is lost")]


# --- Where peers meet ---------------------------------------------------------------------------------


def test_a_run_s_meeting_is_told_without_its_key() -> None:
    query = words.Meeting("", b"k" * 32)
    run = words.Meeting("door", b"other", directory="d", run=b"\x01\xff")
    assert json.loads(run.told()) == ["01ff", "door", "d"]
    found = query.of_told(run.told())
    assert (found.driver, found.directory, found.run) == ("door", "d", b"\x01\xff")
    assert found.key == query.of_run(b"\x01\xff").key != query.key


def test_a_peer_s_door_is_where_others_reach_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(words, "UnixDoor", lambda *told: ("unix", *told))
    monkeypatch.setattr(words, "TcpDoor", lambda *told: ("tcp", *told))
    end: Any = SimpleNamespace(getsockname=lambda: ("10.0.0.7", 99))
    far, near = TcpChannel(end, b"o", b"i"), SimpleNamespace()
    doors: list[Any] = [
        words.Meeting("driver", b"k", directory="d").door("slot", far),
        words.Meeting("driver", b"k", host="h").door("slot", far),
        words.Meeting("driver", b"k").door("slot", far),
        words.Meeting("driver", b"k").door("slot", near),
    ]
    assert doors == [
        ("unix", "d/slot", b"k"), ("tcp", "h", b"k"), ("tcp", "10.0.0.7", b"k"), ("tcp", "", b"k"),
    ]  # fmt: skip
