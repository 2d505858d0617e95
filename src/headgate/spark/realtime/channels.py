"""Connects the processes of a pipe: Unix sockets within a host, TCP between hosts.

Both kinds of channel have the interface of `multiprocessing.connection.Connection`. Over TCP both ends
first prove that they have the key of the run. Each frame has a MAC over its number and its bytes, under
keys of this one connection. So a receiver unpickles only frames of its peer, unaltered, in order and
complete. Frames are not encrypted. The socket's buffer bounds a channel: if the receiver does not read,
the sender waits.
"""

from __future__ import annotations

import contextlib
import hmac
import os
import pickle
import queue
import secrets
import socket
import struct
import threading
import time
from hashlib import blake2b
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client, Listener, wait
from typing import Any, Protocol, Self

_GREETING = b"headgate channel"
_NONCE_BYTES, _MAC_BYTES = 32, 16
_LENGTH = struct.Struct("!Q")
_GREETS_S = 10.0
"""Time limit of both ends for the proof of the key; then the connection is closed. Chosen, not tuned."""

_TRIES_S = 30.0
"""Time for which a caller tries again while its connections are closed early. Chosen, not tuned."""

_STRANGERS_MAX = 64
"""Most connections that have not proved the key yet; a further one closes the oldest. Not tuned."""

_PAUSE_S = 0.05
"""Pause of a door after a failed accept, and of a caller before it tries again. Chosen, not tuned."""

_UNANSWERED_MS = 60_000
"""The connection ends if the other host does not acknowledge sent bytes for this time. Chosen, not tuned:
longer than any pause that a process of a host survives."""

_SMALL_BYTES = 1 << 16
"""Frames below this size are copied and sent in one call; copying a larger one costs more. Not tuned."""

_TCP = "tcp://"


def host_of(address: str) -> str | None:
    """Return the host of an address of a `TcpDoor`; None for a socket of this host."""
    return _host_and_port(address)[0] if address.startswith(_TCP) else None


def _host_and_port(address: str) -> tuple[str, str]:
    host, _, port = address.removeprefix(_TCP).partition("/")[0].rpartition(":")
    return host, port


class BrokenChannel(ConnectionError):
    """Reports a frame whose MAC is wrong; the connection is closed."""


class Channel(Protocol):
    """Carries messages between two processes, in order."""

    def send(self, message: Any) -> None:
        """Pickle and send a message."""

    def recv(self) -> Any:
        """Return the next message; raise EOFError if the other end has closed."""

    def send_bytes(self, data: bytes) -> None:
        """Send bytes."""

    def recv_bytes(self) -> bytes:
        """Return the bytes of the next message."""

    def poll(self, timeout: float | None = 0.0) -> bool:
        """Return whether a message, or the end, comes within `timeout` seconds; None waits."""

    def fileno(self) -> int:
        """Return the descriptor of the channel's socket."""

    def close(self) -> None:
        """Close this end."""

    def __enter__(self) -> Self:
        """Return itself."""

    def __exit__(self, kind: Any, error: Any, trace: Any, /) -> None:
        """Close this end."""


class Door(Protocol):
    """Accepts connections of peers that have the key.

    Attributes
    ----------
    address : str    For `connect`.
    """

    @property
    def address(self) -> str:
        """Return the address at which others connect."""

    def accept(self) -> Channel:
        """Return the next channel; raise OSError once the door is closed."""

    def close(self) -> None:
        """Accept no further connection."""

    def __enter__(self) -> Self:
        """Return itself."""

    def __exit__(self, kind: Any, error: Any, trace: Any, /) -> None:
        """Close the door."""


def connect(address: str, key: bytes) -> Channel:
    """Return a channel to the process that listens at an address.

    Raises `OSError`: no process listens there; `AuthenticationError`: the process does not have the
    key.
    """
    if not address.startswith(_TCP):
        return Client(address, "AF_UNIX", authkey=key)
    host, port = _host_and_port(address)
    until_s = time.monotonic() + _TRIES_S
    while True:
        end = socket.create_connection((host.strip("[]"), int(port)), timeout=_GREETS_S)
        try:
            return _greeted(end, key, address, calls=True)
        except (EOFError, ConnectionResetError, BrokenPipeError):  # too many wait for the proof
            end.close()
            if time.monotonic() > until_s:
                raise
            time.sleep(_PAUSE_S)
        except BaseException:
            end.close()
            raise


def hang_up(channel: Channel) -> None:
    """Shut down a channel that a thread reads; `close` would not wake that thread."""
    with contextlib.suppress(OSError), socket.socket(fileno=os.dup(channel.fileno())) as end:
        end.shutdown(socket.SHUT_RDWR)


class UnixDoor:
    """Accepts processes of this host, on a Unix socket.

    `path`: in a directory that only the processes' user may enter.
    """

    def __init__(self, path: str, key: bytes) -> None:
        self.address = path
        self._listener, self._closing = Listener(path, "AF_UNIX", 64, key), False

    def accept(self) -> Channel:
        """Return the next channel."""
        while not self._closing:
            try:
                return self._listener.accept()
            except (EOFError, AuthenticationError):
                continue
            except OSError:  # the caller has closed, or no descriptor is free
                time.sleep(_PAUSE_S)
        raise OSError("the door is closed.")

    def close(self) -> None:
        """Accept no further connection, and wake a thread that waits in `accept`."""
        self._closing = True
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as visitor:
            visitor.connect(self.address)
        self._listener.close()

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any, /) -> None:
        """Close the door."""
        self.close()


class TcpDoor:
    """Accepts processes of other hosts, on a TCP port.

    `host`: name or address of this host; the port is bound to it alone. `shown`: name or address
    at which other hosts connect.
    """

    def __init__(self, host: str, key: bytes, shown: str = "") -> None:
        family, _, _, _, place = socket.getaddrinfo(host.strip("[]"), 0, type=socket.SOCK_STREAM)[0]
        self._socket, self._key = socket.socket(family), key
        self._socket.bind(place)
        self._socket.listen(64)
        # a port alone is not unique: a later door may reuse it, and must refuse late callers
        port, own = self._socket.getsockname()[1], secrets.token_hex(8)
        self.address = f"{_TCP}{shown or host}:{port}/{own}"
        self._let_in: queue.SimpleQueue[Channel | None] = queue.SimpleQueue()
        self._changes, self._closing = threading.Lock(), False
        self._strangers: dict[socket.socket, None] = {}
        """Connections that have not proved the key yet, oldest first."""
        threading.Thread(target=self._open, name="headgate-door", daemon=True).start()

    def _open(self) -> None:
        while not self._closing:
            try:
                end, _ = self._socket.accept()
            except OSError:  # the door is closed, or no descriptor is free
                time.sleep(_PAUSE_S)
                continue
            with self._changes:
                if len(self._strangers) >= _STRANGERS_MAX:
                    self._send_off(next(iter(self._strangers)))
                self._strangers[end] = None
            try:
                threading.Thread(target=self._greet, args=(end,), daemon=True).start()
            except RuntimeError:  # no thread is free
                with self._changes:
                    self._strangers.pop(end, None)
                end.close()
        self._let_in.put(None)

    def _send_off(self, stranger: socket.socket) -> None:
        """Shut down a connection; its thread then closes it."""
        del self._strangers[stranger]
        with contextlib.suppress(OSError):
            stranger.shutdown(socket.SHUT_RDWR)

    def _greet(self, end: socket.socket) -> None:
        """Let a caller with the key in; a caller without it gets no answer."""
        channel = None
        with contextlib.suppress(OSError, EOFError, AuthenticationError):
            channel = _greeted(end, self._key, self.address, calls=False)
        with self._changes:
            self._strangers.pop(end, None)
        if channel is None:
            end.close()
        else:
            self._let_in.put(channel)

    def accept(self) -> Channel:
        """Return the next channel."""
        found = self._let_in.get()
        if found is None:
            self._let_in.put(None)
            raise OSError("the door is closed.")
        return found

    def close(self) -> None:
        """Accept no further connection."""
        self._closing = True
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any, /) -> None:
        """Close the door."""
        self.close()


class TcpChannel:
    """Carries messages over TCP; several threads may send, one thread receives.

    `out_key`, `in_key`: keys of the MACs of sent and of received frames.
    """

    def __init__(self, end: socket.socket, out_key: bytes, in_key: bytes) -> None:
        self._socket, self._out_key, self._in_key = end, out_key, in_key
        self._sent = self._received = 0
        self._sends = threading.Lock()

    @property
    def own_host(self) -> str:
        """The address of this host on the way to the other end."""
        return str(self._socket.getsockname()[0])

    def send(self, message: Any) -> None:
        """Pickle and send a message."""
        self.send_bytes(pickle.dumps(message, pickle.HIGHEST_PROTOCOL))

    def send_bytes(self, data: bytes) -> None:
        """Send bytes."""
        with self._sends:
            number, self._sent = self._sent, self._sent + 1
            length = _LENGTH.pack(len(data))
            head = length + _mac(self._out_key, b"length", number, length)
            mac = _mac(self._out_key, b"body", number, data)
            parts = [b"".join((head, data, mac))] if len(data) < _SMALL_BYTES else [head, data, mac]
            for part in parts:
                self._socket.sendall(part)

    def recv(self) -> Any:
        """Return the next message."""
        return pickle.loads(self.recv_bytes())

    def recv_bytes(self) -> bytes:
        """Return the bytes of the next message.

        Raises `EOFError`: the other end has closed; `BrokenChannel`: a MAC is wrong.
        """
        number, self._received = self._received, self._received + 1
        head = _read(self._socket, _LENGTH.size + _MAC_BYTES)
        length = head[: _LENGTH.size]
        self._check(b"length", number, length, head[_LENGTH.size :])
        size = _LENGTH.unpack(length)[0]
        body = memoryview(_read(self._socket, size + _MAC_BYTES))
        self._check(b"body", number, body[:size], body[size:])
        return bytes(body[:size])

    def _check(
        self, part: bytes, number: int, data: bytes | memoryview, mac: bytes | memoryview
    ) -> None:
        if not hmac.compare_digest(_mac(self._in_key, part, number, data), bytes(mac)):
            host, port, *_ = self._socket.getpeername()
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)
            msg = (
                f"a message from {host}:{port} was altered, repeated or left out on the way; the "
                "connection is closed."
            )
            raise BrokenChannel(msg)

    def poll(self, timeout: float | None = 0.0) -> bool:
        """Return whether a message, or the end, comes within `timeout` seconds; None waits."""
        return bool(wait([self._socket], timeout))

    def fileno(self) -> int:
        """Return the descriptor of the socket."""
        return self._socket.fileno()

    def close(self) -> None:
        """Close this end."""
        self._socket.close()

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any, /) -> None:
        """Close this end."""
        self.close()


def _greeted(end: socket.socket, key: bytes, address: str, *, calls: bool) -> TcpChannel:
    """Have both ends prove that they have the key; return the channel.

    The caller sends its nonce. The listener answers with its own nonce and a proof over both nonces;
    then the caller sends its proof. The two proofs differ, so neither can be sent back. The proofs and
    the keys of the channel contain the address of one door, so nobody in between can redirect a
    caller to another door.
    """
    until_s = time.monotonic() + _GREETS_S
    mine = secrets.token_bytes(_NONCE_BYTES)
    if calls:
        end.sendall(_GREETING + mine)
        theirs = _read(end, _NONCE_BYTES, until_s)
    else:
        if _read(end, len(_GREETING), until_s) != _GREETING:
            raise AuthenticationError("no peer of a pipe.")
        theirs = _read(end, _NONCE_BYTES, until_s)
        end.sendall(mine)
    about = (mine + theirs if calls else theirs + mine) + address.encode()

    def derived(what: bytes) -> bytes:
        return blake2b(about, key=key, person=what, digest_size=_NONCE_BYTES).digest()

    if not calls:
        end.sendall(derived(b"listens"))
    if not hmac.compare_digest(
        _read(end, _NONCE_BYTES, until_s), derived(b"listens" if calls else b"calls")
    ):
        raise AuthenticationError("the other end of a channel does not have its key.")
    if calls:
        end.sendall(derived(b"calls"))
    end.settimeout(None)
    end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    _notice_dead(end)
    keys = derived(b"from caller"), derived(b"to caller")
    return TcpChannel(end, *(keys if calls else keys[::-1]))


def _notice_dead(end: socket.socket) -> None:
    """Have the kernel end a connection whose other host does not answer.

    An idle connection ends within about 20 s. A connection with unacknowledged bytes ends within
    `_UNANSWERED_MS`; by default the kernel would try for 15 minutes.
    """
    end.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    after = {"TCP_KEEPIDLE": 5, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3}
    for name, value in (after | {"TCP_USER_TIMEOUT": _UNANSWERED_MS}).items():
        if hasattr(socket, name):
            end.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def _read(end: socket.socket, size: int, until_s: float | None = None) -> bytes:
    """Return `size` bytes; raise EOFError if the connection ends before."""
    found, at = bytearray(size), 0
    view = memoryview(found)
    while at < size:
        if until_s is not None:
            end.settimeout(max(until_s - time.monotonic(), 0.001))
        count = end.recv_into(view[at:])
        if not count:
            raise EOFError
        at += count
    return bytes(found)


def _mac(key: bytes, part: bytes, number: int, data: bytes | memoryview) -> bytes:
    """Return the MAC of a part of a frame; `part` makes the MACs of equal length and body differ."""
    made = blake2b(_LENGTH.pack(number), key=key, person=part, digest_size=_MAC_BYTES)
    made.update(data)
    return made.digest()
