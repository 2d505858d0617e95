"""An agent does what each word of its driver says; the processes that it starts are made up."""

from __future__ import annotations

import os
import platform
import signal
import subprocess
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from headgate.spark.realtime import agent as module
from headgate.spark.realtime import words
from headgate.spark.realtime.agent import Agent, Charge, launch

LONG = b"x" * 600
FACTS = {"arena_root": "/arenas", "run_id": "run-1", "memory": None}


class Driver:
    """A driver that says some words and then nothing more, or goes."""

    def __init__(self, *says: tuple[Any, ...], goes: bool = False) -> None:
        self.says, self.goes = list(says), goes
        self.heard: list[Any] = []
        self.waited: list[float] = []

    def poll(self, seconds: float) -> bool:
        self.waited.append(seconds)
        return bool(self.says) or self.goes

    def recv(self) -> tuple[Any, ...]:
        if not self.says:
            raise EOFError
        return self.says.pop(0)

    def send(self, message: Any) -> None:
        self.heard.append(message)


class Process:
    """The process of a slot, which ends with code 3 when it is told so or killed."""

    pid = 77

    def __init__(self) -> None:
        self.code: int | None = None
        self.killed = False
        self.ended = threading.Event()

    def poll(self) -> int | None:
        return self.code

    def wait(self) -> int:
        self.ended.wait(5)
        return 3

    def kill(self) -> None:
        self.killed = True


class Server:
    """A fork server that keeps what it was asked."""

    pid = 50

    def __init__(self, specs: Any) -> None:
        self.specs, self.is_alive, self.closed = list(specs), True, 0
        self.started: list[Any] = []
        self.process = Process()

    def start(self, *told: Any) -> Process:
        self.started.append(told)
        return self.process

    def close(self) -> None:
        self.closed += 1


@pytest.fixture(autouse=True)
def runs(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Return the runs that agents have named, and left."""
    named: list[Any] = []
    monkeypatch.setattr(module, "run_named", lambda *told: named.append(told))
    monkeypatch.setattr(module, "leave_runs", lambda: named.append("left"))
    monkeypatch.setattr(module, "ForkServer", Server)
    monkeypatch.setattr(module, "executors", lambda *_: {})
    return named


def charge(**specs: Any) -> Charge:
    meeting = words.Meeting("driver:1", b"key", host="driver")
    return Charge(meeting, specs or {"counts": "spec"}, {"k": "v"}, FACTS, 4.0, "app")


def agent_of(driver: Driver, made: Charge | None = None) -> Any:
    """Return an agent whose background work is done at once."""
    agent: Any = Agent(made or charge(), "host", driver)  # type: ignore[arg-type]
    agent._in_background = lambda work: work()
    agent._beat = lambda: driver.heard.append("beats")
    return agent


@pytest.mark.parametrize(
    "driver",
    [Driver((words.END,), (words.KILL, 1)), Driver(), Driver(goes=True)],
    ids=["says the end", "is silent", "is gone"],
)
def test_an_agent_works_until_its_driver_is_gone_and_leaves_its_run(
    driver: Driver, runs: list[Any]
) -> None:
    agent = agent_of(driver)
    agent.run()
    assert driver.heard == ["beats"]
    assert driver.waited == [4.0]
    assert runs == [("/arenas", "run-1", None), "left"]
    assert agent._server.closed == 1


def test_each_word_is_done_in_turn() -> None:
    did: list[Any] = []
    says: list[tuple[Any, ...]] = [
        (words.START, 1),
        (words.STOPPED, b"run", {}),
        (words.COPIES, 7, [], 1.0),
    ]
    driver = Driver(*says, (words.KILL, 9), (words.KILL, 1), (words.END,))
    agent = agent_of(driver)
    agent._start = lambda *told: did.append(("start", *told))
    agent._look = lambda *told: did.append(("look", *told))
    agent._copy = lambda *told: did.append(("copy", *told))
    process = Process()
    agent._slots[1] = ("slot 0", process)
    agent.run()
    assert did == [("start", 1), ("look", b"run", {}), ("copy", 7, [], 1.0)]
    assert process.killed


@pytest.mark.parametrize(
    ("specs", "name"),
    [({"counts": "a"}, "slot 4"), ({"counts": "a", "join": "b"}, "counts slot 4")],
)
def test_a_slot_is_started_with_the_runs_key_and_told_when_it_ends(
    specs: dict[str, str], name: str
) -> None:
    driver = Driver()
    agent = agent_of(driver, charge(**specs))
    later: list[Any] = []
    agent._in_background = later.append
    agent._start(6, "driver:9", b"run", "counts", 4)
    (meeting, *told) = agent._server.started[0]
    assert told == ["counts", 4, {"k": "v"}]
    assert (meeting.host, meeting.driver, meeting.run) == ("host", "driver:9", b"run")
    assert meeting.key == charge().meeting.of_run(b"run").key
    assert agent._slots[6][0] == name
    agent._server.process.ended.set()
    later.pop()()
    assert (driver.heard, agent._slots) == ([(words.ENDED, 6, 3)], {})


def test_a_fork_server_that_has_ended_gets_a_successor() -> None:
    agent = agent_of(Driver(), charge(counts="a", join="b"))
    agent._in_background = lambda work: None
    first = agent._server
    agent._start(1, "driver:9", b"run", "counts", 0)
    assert agent._server is first
    first.is_alive = False
    agent._start(2, "driver:9", b"run", "counts", 1)
    assert (first.closed, agent._server.specs) == (1, ["a", "b"])
    assert [len(one.started) for one in (first, agent._server)] == [1, 1]


@pytest.mark.parametrize(
    ("stopped", "killed"), [(None, []), (("slot 0", 77), []), (("executor 2", 90), [90])]
)
def test_what_is_stopped_is_told_and_an_executor_is_ended(
    stopped: tuple[str, int] | None, killed: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    driver, asked, ended = Driver(), list[Any](), list[Any]()

    def find(processes: dict[str, int]) -> tuple[str, int] | None:
        asked.append(processes)
        return stopped

    def kill(pid: int, sign: int) -> None:
        ended.append((pid, sign))
        raise ProcessLookupError

    monkeypatch.setattr(module, "find_stopped", find)
    monkeypatch.setattr(
        module,
        "executors",
        lambda *of: {"executor 2": 90} if of == ("app", "host") else {},
    )
    monkeypatch.setattr(os, "kill", kill)
    agent = agent_of(driver)
    over = Process()
    over.code = 0
    unborn: Any = SimpleNamespace(pid=None, poll=lambda: None)
    agent._slots |= {1: ("slot 0", Process()), 2: ("slot 1", over), 3: ("slot 2", unborn)}
    feeders = {"feeder 0": (platform.node(), 60), "feeder 1": ("elsewhere", 61)}
    agent._look(b"run", feeders)
    assert asked == [{"slot 0": 77, "fork server": 50, "feeder 0": 60, "executor 2": 90}]
    assert driver.heard == ([] if stopped is None else [(words.STOPPED, b"run", *stopped)])
    assert ended == [(pid, signal.SIGKILL) for pid in killed]


def test_copies_are_carried_out_with_their_time_and_answered_always(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    driver, made = Driver(), charge()

    def carry_out(*told: Any) -> str:
        if told[-1] == ["bad"]:
            raise ValueError("no such group")
        assert told == (made.specs, {"k": "v"}, {**FACTS, "slice_s": 0.5}, "host", ["order"])
        return "answer"

    monkeypatch.setattr(module, "carry_out", carry_out)
    agent = agent_of(driver, made)
    agent._copy(1, ["order"], 0.5)
    agent._copy(2, ["bad"], 0.5)
    assert driver.heard == [
        (words.COPIES, 1, "answer"),
        (words.COPIES, 2, "ValueError: no such group"),
    ]


def test_work_in_the_background_ends_with_the_driver() -> None:
    agent = Agent(charge(), "host", Driver())  # type: ignore[arg-type]
    threads: list[Any] = []

    def work() -> None:
        threads.append(threading.current_thread())
        raise OSError("the driver is gone")  # any other error would be shown by pytest

    agent._in_background(work)
    threading.Event().wait(0.01)
    while not threads or threads[0].is_alive():
        threading.Event().wait(0.001)
    assert threads[0].daemon


@pytest.mark.parametrize(
    ("done", "said"),
    [
        (SimpleNamespace(returncode=0, stderr=b"a warning"), ""),
        (
            SimpleNamespace(returncode=1, stderr=b"x" * 600 + b"no key \xff\n"),
            "x" * 492 + "no key \ufffd",
        ),
        (OSError("no program"), "no program"),
        (subprocess.TimeoutExpired("agent", 60), "60 seconds"),
    ],
)
def test_why_an_agent_does_not_start_is_told_in_short(
    done: Any, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []

    def run(command: list[str], **options: Any) -> Any:
        asked.append((command, options))
        if isinstance(done, Exception):
            raise done
        return done

    monkeypatch.setattr(subprocess, "run", run)
    assert said in (found := launch(charge(), "host"))
    assert bool(found) == bool(said)
    ((command, options),) = asked
    assert command[1:] == ["-m", "headgate.spark.realtime.agent"]
    assert (options["timeout"], options["start_new_session"]) == (60.0, True)
