"""Channels between hosts: who has the key is heard, and what was altered on the way is not unpickled."""

from __future__ import annotations

import contextlib
import errno
import secrets
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client
from pathlib import Path
from typing import Any

import pytest

from headgate.spark.realtime import channels
from headgate.spark.realtime.channels import BrokenChannel, TcpDoor, UnixDoor, connect
from headgate.spark.realtime.words import Meeting

HERE = "127.0.0.1"
GREETING, PROOF, HEAD, MAC = 16 + 32, 32, 8 + 16, 16
Frames = list[bytes]


@pytest.fixture
def key() -> bytes:
    return secrets.token_bytes(32)


@pytest.fixture
def door(key: bytes) -> Iterator[TcpDoor]:
    with TcpDoor(HERE, key) as door:
        yield door


def place(address: str) -> tuple[str, int]:
    host, _, port = address.removeprefix("tcp://").partition("/")[0].rpartition(":")
    return host, int(port)


def read(end: socket.socket, size: int) -> bytes:
    found = b""
    while len(found) < size:
        more = end.recv(size - len(found))
        if not more:
            raise EOFError
        found += more
    return found


def test_who_is_late_is_not_let_in_at_another_door_with_the_same_port(
    door: TcpDoor, key: bytes
) -> None:
    late = f"{door.address.rpartition('/')[0]}/{'0' * 16}"
    with pytest.raises(AuthenticationError):
        connect(late, key)
    with connect(door.address, key) as caller, door.accept() as listener:
        caller.send("first in")
        assert listener.recv() == "first in"


def test_a_door_that_is_always_full_is_given_up(
    key: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channels, "_TRIES_S", 0.3)
    callers = []
    with socket.create_server((HERE, 0)) as full:

        def send_off() -> None:
            with contextlib.suppress(OSError):
                while True:
                    callers.append(full.accept()[0])
                    callers[-1].close()

        threading.Thread(target=send_off, daemon=True).start()
        with pytest.raises((EOFError, OSError)):
            connect(f"tcp://{HERE}:{full.getsockname()[1]}/0", key)
        full.shutdown(socket.SHUT_RDWR)
    assert len(callers) > 1


def test_messages_come_in_order_both_ways_from_any_thread(door: TcpDoor, key: bytes) -> None:
    with connect(door.address, key) as caller, door.accept() as listener:
        messages: list[Any] = [None, ("a", 1), b"x" * 3_000_000, list(range(1000))]
        sender = threading.Thread(target=lambda: [caller.send(one) for one in messages])
        sender.start()
        assert [listener.recv() for _ in messages] == messages
        sender.join()
        threads = [
            threading.Thread(target=lambda n=n: [listener.send((n, i)) for i in range(50)])
            for n in range(4)
        ]
        for thread in threads:
            thread.start()
        found = [caller.recv() for _ in range(200)]
        for n in range(4):
            assert [i for m, i in found if m == n] == list(range(50))
        assert not caller.poll(0)
        listener.close()
        assert caller.poll(5)
        with pytest.raises(EOFError):
            caller.recv()


def test_both_ends_are_closed_behind_their_block(door: TcpDoor, key: bytes) -> None:
    with connect(door.address, key) as caller, door.accept() as listener:
        assert caller.fileno() > 0
    assert (caller.fileno(), listener.fileno()) == (-1, -1)


@pytest.mark.parametrize(
    "says",
    [b"", b"GET / HTTP/1.1\r\n\r\n" * 10, b"headgate channel" + bytes(32) + bytes(32)],
    ids=["nothing", "something else", "a proof without the key"],
)
def test_a_stranger_is_not_let_in_and_keeps_nobody_out(
    door: TcpDoor, key: bytes, says: bytes
) -> None:
    with socket.create_connection(place(door.address)) as stranger:
        stranger.sendall(says)
        with connect(door.address, key) as caller:
            caller.send("first")
            with door.accept() as listener:
                assert listener.recv() == "first"
        assert door._let_in.empty()


def test_strangers_in_numbers_are_closed_and_a_peer_comes_in_when_they_are_gone(
    door: TcpDoor, key: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channels, "_GREETS_S", 1.0)
    with contextlib.ExitStack() as held:
        for _ in range(channels._STRANGERS_MAX):
            held.enter_context(socket.create_connection(place(door.address)))
        held.enter_context(connect(door.address, key)).send("in")
        assert held.enter_context(door.accept()).recv() == "in"


def test_strangers_who_come_back_at_once_do_not_hold_the_door(door: TcpDoor, key: bytes) -> None:
    over = threading.Event()

    def hold() -> None:
        while not over.is_set():
            with contextlib.suppress(OSError), socket.create_connection(place(door.address)) as end:
                while not over.is_set() and end.recv(1):
                    pass

    holders = [threading.Thread(target=hold) for _ in range(channels._STRANGERS_MAX)]
    for one in holders:
        one.start()
    try:
        while len(door._strangers) < channels._STRANGERS_MAX:
            over.wait(0.01)
        with connect(door.address, key) as caller, door.accept() as listener:
            caller.send("in")
            assert listener.recv() == "in"
    finally:
        over.set()
        for end in list(door._strangers):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        for one in holders:
            one.join()


@pytest.mark.parametrize(
    ("where", "name", "error"),
    [
        (socket.socket, "accept", OSError(errno.EMFILE, "Too many open files")),
        (threading.Thread, "start", RuntimeError("can't start new thread")),
    ],
    ids=["no descriptor", "no thread"],
)
def test_a_door_stays_open_when_a_caller_cannot_be_taken(
    key: bytes, where: type, name: str, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    with TcpDoor(HERE, key) as door:
        does, fails = getattr(where, name), [error]

        def failing(it: Any) -> Any:
            if fails and threading.current_thread().name == "headgate-door":
                raise fails.pop()
            return does(it)

        monkeypatch.setattr(where, name, failing)
        with (
            socket.create_connection(place(door.address)),  # the door waits in accept already
            connect(door.address, key) as caller,
            door.accept() as listener,
        ):
            caller.send("in")
            assert listener.recv() == "in"
        assert not fails


def test_a_door_within_a_host_stays_open_when_a_caller_has_gone(key: bytes, tmp_path: Path) -> None:
    with UnixDoor(str(tmp_path / "door"), key) as door:
        with socket.socket(socket.AF_UNIX) as caller:
            caller.connect(door.address)
        threading.Thread(target=connect, args=(door.address, key), daemon=True).start()
        door.accept().close()


def test_who_listens_without_the_key_hears_nothing(key: bytes) -> None:
    with (
        TcpDoor(HERE, secrets.token_bytes(32)) as other,
        pytest.raises((AuthenticationError, EOFError)),
    ):
        connect(other.address, key)
    assert other._let_in.get() is None


def test_a_port_is_bound_to_its_host_alone(door: TcpDoor) -> None:
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.2", place(door.address)[1]), timeout=5)


def test_pythons_own_client_is_a_stranger(
    door: TcpDoor, key: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channels, "_GREETS_S", 1.0)
    with pytest.raises((EOFError, OSError, AuthenticationError)):
        Client(place(door.address), "AF_INET", authkey=key).recv()


class Between:
    """Stands between two ends and does something to the frames that the caller sends."""

    def __init__(self, to: str, does: Callable[[Frames], Frames], count: int) -> None:
        self._door, self._to = to, place(to)
        self._does, self._count = does, count
        self._socket = socket.create_server((HERE, 0))
        self.address = f"tcp://{HERE}:{self._socket.getsockname()[1]}"
        self.heard = b""
        self._held = contextlib.ExitStack()
        self._held.enter_context(self._socket)
        threading.Thread(target=self._run, daemon=True).start()

    def __enter__(self) -> Between:
        return self

    def __exit__(self, *error: object) -> None:
        self._held.close()

    def connect(self, key: bytes) -> channels.TcpChannel:
        """Return the channel of a caller who was led here on the way to the door."""
        return channels._greeted(
            socket.create_connection(place(self.address)), key, self._door, calls=True
        )

    def _run(self) -> None:
        caller = self._held.enter_context(self._socket.accept()[0])
        listener = self._held.enter_context(socket.create_connection(self._to))
        threading.Thread(target=self._back, args=(listener, caller), daemon=True).start()
        greeting = read(caller, GREETING)
        listener.sendall(greeting)
        if not self._count:
            return
        proof = read(caller, PROOF)
        listener.sendall(proof)
        frames = [self._frame(caller) for _ in range(self._count)]
        self.heard = greeting + proof + b"".join(frames)
        listener.sendall(b"".join(self._does(frames)))

    def _frame(self, end: socket.socket) -> bytes:
        head = read(end, HEAD)
        return head + read(end, struct.unpack("!Q", head[:8])[0] + MAC)

    def _back(self, listener: socket.socket, caller: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := listener.recv(1 << 16):
                caller.sendall(data)
            caller.shutdown(socket.SHUT_RDWR)


sprung: list[int] = []


class Trap:
    """Tells when it is unpickled."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __reduce__(self) -> Any:
        return (_spring, (self.number,))


def _spring(number: int) -> None:
    sprung.append(number)


def flipped(frame: bytes, at: int) -> bytes:
    return frame[:at] + bytes([frame[at] ^ 1]) + frame[at + 1 :]


@pytest.mark.parametrize(
    ("does", "unharmed"),
    [
        (lambda f: f, 3),
        (lambda f: [f[0], flipped(f[1], 30), f[2]], 1),
        (lambda f: [flipped(f[0], 7), f[1], f[2]], 0),
        (lambda f: [f[0], flipped(f[1], len(f[1]) - 1), f[2]], 1),
        (lambda f: [f[0], f[0], f[1]], 1),
        (lambda f: [f[1], f[0], f[2]], 0),
        (lambda f: [f[0], f[2]], 1),
        (lambda f: [struct.pack("!Q", 1 << 62) + f[0][8:], *f[1:]], 0),
    ],
    ids=["as sent", "a byte", "a length", "a MAC", "repeated", "swapped", "left out", "endless"],
)
def test_nothing_is_unpickled_that_was_not_sent_so(
    door: TcpDoor, key: bytes, does: Callable[[Frames], Frames], unharmed: int
) -> None:
    sprung.clear()
    with (
        Between(door.address, does, 3) as between,
        between.connect(key) as caller,
        door.accept() as listener,
    ):
        for number in range(3):
            caller.send(Trap(number))
        for _ in range(unharmed):
            listener.recv()
        if unharmed < 3:
            with pytest.raises(BrokenChannel, match="was altered, repeated or left out on the way"):
                listener.recv()
            with pytest.raises((EOFError, OSError)):
                caller.recv()
    assert sprung == list(range(unharmed))


def test_a_body_is_not_taken_for_a_length(door: TcpDoor, key: bytes) -> None:
    def swapped(frames: Frames) -> Frames:
        head, body = frames[0][:HEAD], frames[0][HEAD:]
        return [body, head]

    with (
        Between(door.address, swapped, 1) as between,
        between.connect(key) as caller,
        door.accept() as listener,
    ):
        caller.send_bytes(struct.pack("!Q", 8))
        with pytest.raises(BrokenChannel):
            listener.recv_bytes()


def test_a_caller_is_not_led_to_another_door_of_the_same_key(door: TcpDoor, key: bytes) -> None:
    with TcpDoor(HERE, key) as other, Between(other.address, lambda frames: frames, 0) as between:
        end = socket.create_connection(place(between.address))
        with end, pytest.raises((AuthenticationError, EOFError)):
            channels._greeted(end, key, door.address, calls=True)


def test_a_key_is_in_no_text() -> None:
    made = Meeting("tcp://127.0.0.1:1", b"k" * 32)
    assert "kkk" not in f"{made!r}{made.of_run(b'r')!r}"


def test_what_was_heard_of_one_connection_is_of_no_use_on_another(
    door: TcpDoor, key: bytes
) -> None:
    with (
        Between(door.address, lambda frames: frames, 1) as between,
        between.connect(key) as caller,
        door.accept() as listener,
    ):
        caller.send(("scale", 4))
        assert listener.recv() == ("scale", 4)
    with socket.create_connection(place(door.address)) as stranger:
        stranger.sendall(between.heard)
        stranger.settimeout(10)
        with pytest.raises((ConnectionResetError, EOFError)):
            read(stranger, 1 << 20)
    assert door._let_in.empty()


def test_a_frame_back_to_its_sender_is_not_taken(door: TcpDoor, key: bytes) -> None:
    with connect(door.address, key) as caller, door.accept() as listener:
        keys = [end for one in (caller, listener) for end in (one._out_key, one._in_key)]
        assert keys[0] == keys[3] != keys[1] == keys[2]
