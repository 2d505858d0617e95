"""An agent without Spark: it starts slots and copies key groups, and nothing outlives its driver."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pyspark import cloudpickle
from share_slots import NAME
from test_real_time_pipe import SPEC, Driver, expected, feeders, routers, running
from test_real_time_pipe import _Context as Context

from headgate.spark.move.host_tasks import GroupOrder, TaskAnswer
from headgate.spark.realtime import agent as agent_of
from headgate.spark.realtime import agents as agents_of
from headgate.spark.realtime import pipe as pipes
from headgate.spark.realtime import run_slots, words
from headgate.spark.realtime.agent import Charge, launch
from headgate.spark.realtime.agents import Agents
from headgate.spark.realtime.channels import Channel, TcpChannel, TcpDoor
from headgate.spark.realtime.fork_server import LOST, ForkedProcess
from headgate.spark.realtime.pipe_run import JOINED
from headgate.spark.realtime.run_slots import PipeLost, SlotsLost
from headgate.spark.realtime.stopped import executors, find_stopped
from headgate.spark.worker.slot import SlotTask
from headgate.tables.ports import EMPTY_TOKEN

pytestmark = pytest.mark.slow  # processes of their own

HOST, RUN = "127.0.0.1", "0" * 32


@pytest.fixture
def door() -> Iterator[TcpDoor]:
    with TcpDoor(HOST, secrets.token_bytes(32)) as door:
        yield door


@pytest.fixture
def in_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have feeders and routers run in threads of the driver."""
    for module in (feeders, routers):
        monkeypatch.setattr(module, "TaskContext", Context)


@pytest.fixture
def arena(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    made = tmp_path / "arena"
    made.mkdir(mode=0o700)
    monkeypatch.setenv("HEADGATE_ARENA_DIR", str(made))
    return made


def charge(door: TcpDoor, tmp_path: Path, lease_s: float = 60.0) -> Charge:
    facts = {
        "arena_root": None,
        "run_id": RUN,
        "checkpoint": str(tmp_path / "checkpoint"),
        "memory": None,
    }
    return Charge(words.Meeting(door.address, door._key), {NAME: SPEC}, {}, facts, lease_s)


def met(door: TcpDoor, made: Charge) -> tuple[Channel, int]:
    """Return the channel of an agent that was launched, and its process."""
    assert launch(made, HOST) == ""
    agent = door.accept()
    word, host, process = agent.recv()
    assert (word, host) == (words.AGENT, HOST)
    return agent, process


def heard(agent: Channel, word: str) -> tuple[object, ...]:
    while True:
        found, *rest = agent.recv()
        if found == word:
            return tuple(rest)


def eventually(reached: Callable[[], bool]) -> None:
    until_s = time.monotonic() + 30
    while not reached():
        assert time.monotonic() < until_s
        time.sleep(0.02)


def runs(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_slots_and_memory_of_a_host_go_with_the_driver(
    door: TcpDoor, arena: Path, tmp_path: Path
) -> None:
    agent, process = met(door, made := charge(door, tmp_path))
    with agent, TcpDoor(HOST, made.meeting.of_run(b"run").key) as other:
        agent.send(
            (words.COPIES, 7, [GroupOrder(NAME, 1, EMPTY_TOKEN, 0), GroupOrder(NAME, 2)], 1.0)
        )
        number, answer = heard(agent, words.COPIES)
        assert (number, answer.host, len(answer.done)) == (7, HOST, 2)  # type: ignore[attr-defined]
        assert [one.problem for one in answer.done] == ["", ""]  # type: ignore[attr-defined]
        for slot in (0, 1):
            agent.send((words.START, slot, other.address, b"run", NAME, slot))
        slots = {}
        for _ in range(2):
            with other.accept() as peer:  # which ends the slot, too, unless it is stopped
                _, place, pid = peer.recv()
                slots[place] = pid
                if place == (NAME, 0):
                    continue
                agent.send((words.KILL, 1))
        assert {heard(agent, words.ENDED)[0] for _ in range(2)} == {0, 1}
        agent.send((words.START, 2, other.address, b"run", NAME, 2))
        with other.accept() as peer:
            _, _, last = peer.recv()
            assert list(arena.iterdir())
            assert runs(process)
            assert runs(last)
            agent.close()
            eventually(lambda: not runs(process) and not runs(last))
    assert list(arena.iterdir()) == []


def test_slots_end_with_an_agent_that_is_killed_though_their_driver_hears_them(
    door: TcpDoor, arena: Path, tmp_path: Path
) -> None:
    del arena
    agent, process = met(door, made := charge(door, tmp_path, lease_s=120.0))
    with agent, TcpDoor(HOST, made.meeting.of_run(b"run").key) as other:
        agent.send((words.START, 0, other.address, b"run", NAME, 0))
        with other.accept() as peer:
            _, _, slot = peer.recv()
            os.kill(process, signal.SIGKILL)
            eventually(lambda: not runs(slot))


def test_an_agent_whose_driver_is_silent_ends(door: TcpDoor, arena: Path, tmp_path: Path) -> None:
    agent, process = met(door, charge(door, tmp_path, lease_s=1.5))
    with agent, pytest.raises(EOFError):
        heard(agent, words.ENDED)  # it only says that it lives
    eventually(lambda: not runs(process))
    assert list(arena.iterdir()) == []


class Stored(SlotTask):
    """Needs the credentials of the store."""

    def answer(self, *asked: Any) -> Any:
        assert self.store["secretAccessKey"].count("SECRET") == 4
        return super().answer(*asked)


class AllOnOne:
    """Has all slots on one host."""

    def follow(self, hosts: object) -> None:
        """There is nothing to follow."""

    def hosts_of(self, slots: int) -> list[str]:
        return [HOST] * slots


STORE = {"secretAccessKey": "SECRET" * 4}
cloudpickle.register_pickle_by_value(sys.modules[__name__])


def agents_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Agents:
    """Return the agents of a query without Spark; who calls launches one."""
    conf = {"spark.driver.host": HOST, "spark.app.id": "app-1"}
    monkeypatch.setattr(agents_of, "driver_conf", lambda _: conf)
    facts = {"arena_root": None, "run_id": RUN, "checkpoint": str(tmp_path), "memory": None}
    agents = Agents(None, "test", {NAME: AllOnOne()}, {NAME: SPEC}, STORE, facts)  # type: ignore[arg-type, dict-item]
    monkeypatch.setattr(agents, "gather", lambda: eventually(lambda: bool(agents.hosts)))
    return agents


@pytest.mark.usefixtures("arena", "in_threads")
def test_a_slot_that_is_stopped_on_another_host_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its agent is well, so that the host does not count as lost."""
    monkeypatch.setattr(pipes, "_LOOK_S", 0.05)
    monkeypatch.setattr(pipes, "_ANSWERS_S", 20.0)
    agents = agents_in(tmp_path, monkeypatch)
    try:
        assert launch(agents._charge, HOST) == ""
        driver = Driver(tmp_path / "checkpoint", 1, 2, hosts=agents)
        driver.start()
        driver.epoch()
        os.kill(driver.pipe.processes["slot 1"], signal.SIGSTOP)
        with pytest.raises(PipeLost, match=r"slot 1 on host 127.0.0.1 is stopped \(process \d+\)"):
            driver.epochs_without_end()
        driver.pipe.stop(clean=False)
    finally:
        agents.close()


@pytest.mark.usefixtures("in_threads")
def test_slots_that_end_on_another_host_are_replaced_while_the_pipe_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    agents = agents_in(tmp_path, monkeypatch)
    try:
        assert launch(agents._charge, HOST) == ""
        driver = Driver(tmp_path / "checkpoint", 1, 2, hosts=agents)
        with running(driver):
            run = driver.pipe._running
            for until in (300, 600):
                driver.feed.until[:] = [until]
                slots = [pid for name, pid in driver.pipe.processes.items() if "slot" in name]
                os.kill(slots[-1], signal.SIGKILL)
                with pytest.raises(SlotsLost, match="ended unexpectedly"):
                    driver.epochs_without_end()
                driver.start()
                while json.loads(driver.offsets)[0] != [until]:
                    driver.epoch()
                assert driver.totals() == expected([until])
            assert driver.pipe._running is run
            monkeypatch.setattr(run_slots, "_SAYS_S", 0.1)
            lives = run.slots.that_serve(NAME)[0]
            run.said.put((JOINED, words.LOST, 0, None, lives.address))
            with pytest.raises(PipeLost, match="a router cannot reach it") as raised:
                driver.epochs_without_end()
            assert not isinstance(raised.value, SlotsLost)
            os.kill(driver.pipe.processes[f"agent {HOST}"], signal.SIGKILL)
            with pytest.raises(PipeLost) as raised:
                driver.epochs_without_end()
            assert not isinstance(raised.value, SlotsLost)
    finally:
        agents.close()


@contextlib.contextmanager
def started_as(application: str, host: str) -> Iterator[subprocess.Popen[bytes]]:
    """Start what looks like an executor."""
    told = ["--executor-id", "7", "--hostname", host, "--cores", "2", "--app-id", application]
    with subprocess.Popen([sys.executable, "-c", "input()", *told], stdin=subprocess.PIPE) as made:
        try:
            eventually(lambda: executors(application, host) == {"executor 7": made.pid})
            yield made
        finally:
            made.kill()


@pytest.mark.usefixtures("arena", "in_threads")
def test_an_executor_that_is_stopped_is_ended_and_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python workers and the agent go on, while records wait in the JVM between them."""
    agents = agents_in(tmp_path, monkeypatch)
    try:
        assert launch(agents._charge, HOST) == ""
        lost: queue.SimpleQueue[str] = queue.SimpleQueue()
        meeting, door = agents.begin(lost.put)
        with door, started_as("app-1", HOST) as ours:
            with started_as("app-1", "127.0.0.2") as other, started_as("app-2", HOST) as theirs:
                for process in (ours, other, theirs):
                    os.kill(process.pid, signal.SIGSTOP)
                    eventually(lambda p=process: find_stopped({"": p.pid}) is not None)
                agents.look_for_stopped({})
                assert lost.get(timeout=30) == (
                    f"executor 7 on host {HOST} is stopped (process {ours.pid}), and is ended."
                )
                assert ours.wait(30) == -signal.SIGKILL
                assert runs(other.pid)
                assert runs(theirs.pid)
        assert lost.empty()
        agents.end(meeting)
    finally:
        agents.close()


def test_what_was_stopped_in_the_run_before_is_no_loss_of_this_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An agent that is slow answers when that run has ended, and all of it with it."""
    agents = agents_in(tmp_path, monkeypatch)
    lost: queue.SimpleQueue[str] = queue.SimpleQueue()
    try:
        with agents._charge.meeting.connect(agents._door.address) as agent:
            agent.send((words.AGENT, HOST, os.getpid()))
            runs_of: list[bytes] = []
            for _ in range(2):
                agents.begin(lost.put)[1].close()
                agents.look_for_stopped({})
                runs_of.append(heard(agent, words.STOPPED)[0])
            for run in runs_of:
                agent.send((words.STOPPED, run, f"slot {run == runs_of[1]}", 1))
            assert lost.get(timeout=30).startswith("slot True on host")
            assert lost.empty()
            agents._ending.set()
    finally:
        agents.close()


def test_a_worker_behind_a_feeder_is_found_where_it_is_stopped() -> None:
    """As that of a router, or of a user's function: no driver knows their processes."""
    program = "import os; print([os.fork() or input() for _ in range(2)], flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as parent:
        assert parent.stdin is not None
        assert parent.stdout is not None
        feeder, other = json.loads(parent.stdout.readline())
        try:
            assert find_stopped({"feeder 0": feeder}) is None
            os.kill(other, signal.SIGSTOP)
            eventually(lambda: find_stopped({"feeder 0": feeder}) is not None)
            assert find_stopped({"feeder 0": feeder}) == ("a Python worker behind feeder 0", other)
            assert find_stopped({"slot 0": feeder}) is None
        finally:
            for child in (feeder, other):
                os.kill(child, signal.SIGKILL)
            parent.stdin.write(b"\n")


@pytest.mark.usefixtures("arena", "in_threads")
def test_neither_a_key_nor_credentials_pass_between_hosts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent, send = [], TcpChannel.send_bytes
    monkeypatch.setattr(
        TcpChannel, "send_bytes", lambda self, data: (sent.append(data), send(self, data))
    )
    agents = agents_in(tmp_path, monkeypatch)
    try:
        assert launch(agents._charge, HOST) == ""
        driver = Driver(tmp_path / "checkpoint", 1, 2, partial(Stored, store=STORE), agents)
        with running(driver):
            driver.feed.until[:] = [100]
            while json.loads(driver.offsets)[0] != [100]:
                driver.epoch()
            keys = [agents._key, driver.pipe._running.meeting.key, *map(str.encode, STORE.values())]
        assert driver.totals() == expected([100])
    finally:
        agents.close()
    assert sent
    assert not [one for one in sent for key in keys if key in one]


def test_an_agent_that_lacks_the_key_does_not_come_up(
    door: TcpDoor, arena: Path, tmp_path: Path
) -> None:
    del arena
    other = words.Meeting(door.address, secrets.token_bytes(32))
    made = charge(door, tmp_path)
    said = launch(Charge(other, made.specs, made.store, made.facts), HOST)
    assert "does not have its key" in said
    assert door._let_in.empty()


def test_a_host_that_cannot_copy_key_groups_says_so(
    door: TcpDoor, arena: Path, tmp_path: Path
) -> None:
    """As where its memory is full: the driver waits for an answer, for ever without one."""
    del arena
    agent, _ = met(door, charge(door, tmp_path))
    with agent:
        agent.send((words.COPIES, 7, [GroupOrder("unknown", 1)], 1.0))
        assert heard(agent, words.COPIES) == (7, "KeyError: 'unknown'")


def test_a_host_that_is_lost_or_cannot_copy_holds_up_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    agents, done = agents_in(tmp_path, monkeypatch), TaskAnswer("d", "d", "arena")
    said = {"a": (1, "OSError: No space left on device"), "b": None, "d": (1, done)}
    for host, answer in said.items():
        agents._agents[host] = agents_of._Agent(host, Silent(), 1)  # type: ignore[arg-type]
        agents._agents[host].copied.put(answer)
    try:
        answers = agents.run(dict.fromkeys("abcd", ()), 1.0)
    finally:
        agents._agents.clear()
        agents.close()
    assert [(one.wished, one.host, one.problem) for one in answers] == [
        ("a", "", "OSError: No space left on device"),
        ("b", "", "host b is lost"),
        ("c", "", "host c is lost"),
        ("d", "d", ""),
    ]


class Silent:
    """A channel to an agent that hears nothing."""

    def send(self, message: object) -> None:
        """Send nothing."""


def test_a_slot_that_begins_while_its_host_is_lost_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else who ends the pipe waits for that slot for ever."""
    agents = agents_in(tmp_path, monkeypatch)
    agent = agents._agents[HOST] = agents_of._Agent(HOST, Silent(), 1)  # type: ignore[arg-type]
    lost = threading.Thread(target=agents._lose, args=(agent, "has ended"))

    def begins(kill: Callable[[], None]) -> ForkedProcess:
        lost.start()
        lost.join(0.2)
        return ForkedProcess(kill)

    monkeypatch.setattr(agents_of, "ForkedProcess", begins)
    try:
        slot = agents.start(agents._charge.meeting, NAME, 0, HOST)
        lost.join()
        assert slot.wait(10.0) == LOST
    finally:
        agents.close()


class Starts:
    """A fork server whose slots run without a process."""

    pid, is_alive = 1, True

    def __init__(self, specs: object) -> None:
        """Take what a fork server takes."""

    def start(self, *_: object) -> ForkedProcess:
        made = ForkedProcess(lambda: None)
        made.pid = 1
        return made


def test_slots_of_several_operators_are_all_looked_at(
    door: TcpDoor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []
    monkeypatch.setattr(agent_of, "find_stopped", seen.extend)
    monkeypatch.setattr(agent_of, "ForkServer", Starts)
    made = replace(charge(door, tmp_path), specs={NAME: SPEC, "other": SPEC})
    agent = agent_of.Agent(made, HOST, Silent())  # type: ignore[arg-type]
    for number, operator in enumerate(made.specs):
        agent._start(number, door.address, b"run", operator, 0)
    agent._look_for_stopped(b"run", {})
    assert seen == [f"{NAME} slot 0", "other slot 0", "fork server"]
    for _, process in list(agent._slots.values()):
        process.end(0)
    eventually(lambda: not agent._slots)


def test_an_agent_looks_for_what_is_stopped_once_at_a_time(
    door: TcpDoor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a busy host a look takes longer than it is to the next word for it."""
    monkeypatch.setattr(agent_of, "ForkServer", Starts)
    agent = agent_of.Agent(charge(door, tmp_path), HOST, Silent())  # type: ignore[arg-type]
    looks: list[bytes] = []

    def look(run: bytes, feeders: object) -> None:
        looks.append(run)
        agent._look(b"meanwhile", {})
        if run == b"broken":
            raise OSError("the driver is gone")

    monkeypatch.setattr(agent, "_look_for_stopped", look)
    agent._look(b"one", {})
    with pytest.raises(OSError, match="gone"):
        agent._look(b"broken", {})
    agent._look(b"next", {})
    assert looks == [b"one", b"broken", b"next"]
