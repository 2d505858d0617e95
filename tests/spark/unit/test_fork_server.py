"""The fork server starts slots, says how they end, and leaves none behind, whatever ends first."""

from __future__ import annotations

import contextlib
import errno
import multiprocessing
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pytest
from test_shares import MERGED

from headgate.operators.processor import Processor, ProcessorSpec, TimeMode
from headgate.operators.spec import AggregateSpec, Kind, Leaf, OutputMode
from headgate.spark.realtime import fork_server, words
from headgate.spark.realtime.channels import Channel, UnixDoor
from headgate.spark.realtime.fork_server import ForkedProcess, ForkServer
from headgate.spark.worker.user_processor import RowProcessor

pytestmark = pytest.mark.slow  # processes of their own

NAME, KEY = "op", b"k" * 32
SPEC = AggregateSpec((Leaf(Kind.BYTES),), None, MERGED, OutputMode.UPDATE)
LIMIT_S = 60.0


class Users(Processor):
    """A processor of somebody's own."""

    states: ClassVar[dict[str, Any]] = {}


class Driver:
    """A driver that meets slots and tells them nothing."""

    def __init__(self, path: Path) -> None:
        path.mkdir()
        self.meeting = words.Meeting(str(path / "driver"), KEY, str(path))
        self.door = UnixDoor(self.meeting.driver, KEY)
        self.server = ForkServer([SPEC])

    def slot(self, number: int = 0) -> tuple[ForkedProcess, Channel, int]:
        """Start a slot and meet it; return also the process that it says it is."""
        process = self.server.start(self.meeting, NAME, number, {})
        peer = self.door.accept()
        word, who, pid = peer.recv()
        assert (word, who) == (words.SLOT, (NAME, number))
        return process, peer, pid


@pytest.fixture
def driver(tmp_path: Path) -> Iterator[Driver]:
    made = Driver(tmp_path / "run")
    yield made
    made.server.close()
    with contextlib.suppress(FileNotFoundError):
        made.door.close()


def test_ctrl_c_in_a_terminal_reaches_neither_the_server_nor_slots(driver: Driver) -> None:
    assert os.getpgid(driver.server.pid) == driver.server.pid != os.getpgrp()
    _, _, slot = driver.slot()
    assert os.getpgid(slot) == driver.server.pid


def lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_for_end(pid: int) -> None:
    until_s = time.monotonic() + LIMIT_S
    while lives(pid):
        assert time.monotonic() < until_s
        time.sleep(0.01)


def test_a_slot_is_a_process_of_its_own_that_ends_with_its_driver(driver: Driver) -> None:
    slots = [driver.slot(number) for number in range(3)]
    assert len({pid for _, _, pid in slots} | {driver.server.pid, os.getpid()}) == 5
    assert driver.server.is_alive
    for process, peer, pid in slots:
        assert process.pid == pid
        assert process.poll() is None
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.01)
        peer.close()
        assert process.wait(LIMIT_S) == 0
        assert process.poll() == 0


def test_a_slot_that_is_killed_is_told_with_its_signal(driver: Driver) -> None:
    slots = [driver.slot(number) for number in range(2)]
    (by_us, _, _), (by_others, _, pid) = slots
    by_us.kill()
    assert by_us.poll() == -signal.SIGKILL
    by_us.kill()
    os.kill(pid, signal.SIGKILL)
    assert by_others.wait(LIMIT_S) == -signal.SIGKILL
    driver.slot(2)


def test_slots_end_with_their_server(driver: Driver) -> None:
    process, _, pid = driver.slot()
    driver.server.close()
    wait_for_end(pid)
    assert process.wait(LIMIT_S) != 0
    assert not driver.server.is_alive
    assert not Path(driver.meeting.directory).exists(), "a driver that is killed leaves sockets"
    late = driver.server.start(driver.meeting, NAME, 1, {})
    assert late.wait(LIMIT_S) != 0


@pytest.mark.parametrize("slot_is_stopped", [False, True])
def test_slots_are_gone_when_a_killed_server_is_noticed(
    driver: Driver, slot_is_stopped: bool
) -> None:
    """What they write could else meet what the next run's slots write."""
    process, _, pid = driver.slot()
    if slot_is_stopped:
        os.kill(pid, signal.SIGSTOP)
    os.kill(driver.server.pid, signal.SIGKILL)
    assert process.wait(LIMIT_S) != 0
    assert not lives(pid)


def test_a_server_that_is_stopped_is_ended_with_what_it_cannot_end(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fork_server, "_HEEDS_S", 0.1)
    process, _, pid = driver.slot()
    os.kill(driver.server.pid, signal.SIGSTOP)
    process.kill()
    assert process.wait(LIMIT_S) != 0
    wait_for_end(pid)
    assert not driver.server.is_alive


def test_code_of_the_users_stays_out_of_the_server() -> None:
    """A thread that it began would be missing in each slot."""
    nothing = pa.schema([])
    rows = RowProcessor(None, nothing, nothing, nothing, nothing, {}, TimeMode.NONE)  # type: ignore[arg-type]
    processors = [ProcessorSpec((), nothing, one) for one in (rows, Users())]
    specs, modules = fork_server._loaded_ahead([SPEC, *processors])
    assert (specs, modules) == ([SPEC], [RowProcessor.__module__])


def test_a_slot_that_cannot_be_forked_is_told_as_one_that_has_ended(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """The slots that there are go on."""

    def too_many() -> int:
        raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")

    monkeypatch.setattr(fork_server, "_forked", too_many)
    ours, theirs = multiprocessing.Pipe()
    fork_server._Server(theirs)._fork(3, [])
    number, _, code = ours.recv()
    assert number == 3
    assert code not in (None, 0)
    assert "a slot cannot be started" in capfd.readouterr().err


@pytest.mark.jit
def test_a_server_tells_that_it_compiles_and_then_that_it_has_loaded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A first start takes half a minute, which must not look like a fault."""
    import numba

    monkeypatch.setattr(fork_server, "warm", numba.njit(lambda spec: spec))
    ours, theirs = multiprocessing.Pipe()
    ours.send(([1], ["json"]))
    fork_server._load(theirs)
    theirs.close()
    word, line, _ = ours.recv()
    assert word == fork_server._SAYS
    assert "compiling its kernels" in line
    assert ours.recv()[0] == fork_server._LOADED
    with pytest.raises(EOFError):
        ours.recv()


@pytest.mark.parametrize("dies", [False, True])
def test_whoever_waits_for_a_server_hears_that_it_can_start_slots_or_is_gone(
    driver: Driver, dies: bool
) -> None:
    if dies:
        driver.server.close()
    waiting = threading.Thread(target=driver.server.wait_until_loaded, daemon=True)
    waiting.start()
    waiting.join(LIMIT_S)
    assert not waiting.is_alive()


def test_what_a_server_says_is_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    server = ForkServer([])
    ours, theirs = multiprocessing.Pipe()
    server.close()
    monkeypatch.setattr(server, "_channel", ours)
    theirs.send((fork_server._SAYS, "compiling", None))
    theirs.close()
    with caplog.at_level("WARNING", "headgate"):
        server._listen()
    assert caplog.messages == ["compiling"]


def test_a_process_that_never_began_has_ended(driver: Driver) -> None:
    process = driver.server.start(driver.meeting, NAME, 0, {})
    driver.door.accept().close()
    assert process.wait(LIMIT_S) == 0
