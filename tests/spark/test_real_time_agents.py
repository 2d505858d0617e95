"""An agent without Spark: it starts slots and copies key groups, and nothing outlives its driver."""

from __future__ import annotations

import os
import secrets
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from share_slots import NAME
from test_real_time_pipe import SPEC

from headgate.spark.move.host_tasks import GroupOrder
from headgate.spark.realtime import words
from headgate.spark.realtime.agent import Charge, launch
from headgate.spark.realtime.channels import Channel, TcpDoor
from headgate.tables.ports import EMPTY_TOKEN

HOST, RUN = "127.0.0.1", "0" * 32


@pytest.fixture
def door() -> Iterator[TcpDoor]:
    with TcpDoor(HOST, secrets.token_bytes(32)) as door:
        yield door


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
    agent, process = met(door, charge(door, tmp_path))
    with agent, TcpDoor(HOST, secrets.token_bytes(32)) as other:
        agent.send(
            (words.COPIES, 7, [GroupOrder(NAME, 1, EMPTY_TOKEN, 0), GroupOrder(NAME, 2)], 1.0)
        )
        number, answer = heard(agent, words.COPIES)
        assert (number, answer.host, len(answer.done)) == (7, HOST, 2)  # type: ignore[attr-defined]
        assert [one.problem for one in answer.done] == ["", ""]  # type: ignore[attr-defined]
        meeting = words.Meeting(other.address, other._key)
        for slot in (0, 1):
            agent.send((words.START, slot, meeting, NAME, slot))
        slots = {}
        for _ in range(2):
            with other.accept() as peer:  # which ends the slot, too, unless it is stopped
                _, place, pid = peer.recv()
                slots[place] = pid
                if place == (NAME, 0):
                    continue
                agent.send((words.KILL, 1))
        assert {heard(agent, words.ENDED)[0] for _ in range(2)} == {0, 1}
        agent.send((words.START, 2, meeting, NAME, 2))
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
    agent, process = met(door, charge(door, tmp_path))
    with agent, TcpDoor(HOST, secrets.token_bytes(32)) as other:
        agent.send((words.START, 0, words.Meeting(other.address, other._key), NAME, 0))
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


def test_an_agent_that_lacks_the_key_does_not_come_up(
    door: TcpDoor, arena: Path, tmp_path: Path
) -> None:
    del arena
    other = words.Meeting(door.address, secrets.token_bytes(32))
    made = charge(door, tmp_path)
    said = launch(Charge(other, made.specs, made.store, made.facts), HOST)
    assert "does not have its key" in said
    assert door._let_in.empty()
