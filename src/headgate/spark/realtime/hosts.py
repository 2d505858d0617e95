"""Starts the processes of slots; this module those beside the driver, where a run has one host."""

from __future__ import annotations

import os
import secrets
import shutil
import tempfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Protocol

from headgate.operators.build import Spec
from headgate.spark.realtime import words
from headgate.spark.realtime.channels import Door, UnixDoor
from headgate.spark.realtime.fork_server import ForkServer

FORK_SERVER = "fork server"
"""Its name, for people."""

_LENGTH_MAX = 24
"""Bytes of the directory's path: a Unix socket's has at most 103, and the name of an operator 64."""


class SlotProgram(Protocol):
    """A process that was started; `subprocess.Popen` is one."""

    def poll(self) -> int | None:
        """Return the code that it ended with, None while it runs."""

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end; raise `subprocess.TimeoutExpired`."""

    def kill(self) -> None:
        """End it at once."""


class SlotHosts(Protocol):
    """The hosts of slots."""

    @property
    def processes(self) -> Mapping[str, int]:
        """Process ids of what starts slots, by a name for people."""

    def begin(self, lost: Callable[[str], None]) -> tuple[words.Meeting, Door]:
        """Make ready to start slots; return where the driver of a run is met, and its door.

        Parameters
        ----------
        lost : callable
            Called, by any thread, with a sentence when a host is lost.
        """

    def places(self, operator: str, slots: int) -> list[str]:
        """Return the host of each slot of an operator."""

    def start(self, meeting: words.Meeting, operator: str, slot: int, host: str) -> SlotProgram:
        """Start the process of a slot on a host."""

    def look_for_stopped(self, feeders: Mapping[str, tuple[str, int]]) -> None:
        """Have each other host say that it is lost if a process of the pipe is stopped on it.

        Parameters
        ----------
        feeders : mapping of str to (str, int)
            Their nodes and processes, by name.
        """

    def end(self, meeting: words.Meeting) -> None:
        """Clean up behind a run."""

    def close(self) -> None:
        """Clean up behind the query."""


class OneHost:
    """The host of the driver; it prepares for slots as soon as it is made.

    Parameters
    ----------
    specs : iterable of Spec
        Of the operators whose slots it starts.
    store : mapping of str to str, optional
        Options of the checkpoint's store.

    Attributes
    ----------
    meeting : words.Meeting
        Of the query, from whose key those of its runs are computed.
    """

    def __init__(self, specs: Iterable[Spec], store: Mapping[str, str] | None = None) -> None:
        self._specs, self._store = list(specs), store or {}
        self._server = ForkServer(self._specs)
        self.meeting = words.Meeting("", secrets.token_bytes(32))

    @property
    def processes(self) -> Mapping[str, int]:
        """Return the process that starts slots."""
        return {FORK_SERVER: self._server.pid}

    def begin(self, lost: Callable[[str], None]) -> tuple[words.Meeting, Door]:
        """Return where the driver of a run is met, and its door."""
        del lost
        self._server.wait_until_loaded()
        directory = tempfile.mkdtemp(prefix="headgate-")
        if len(os.fsencode(directory)) > _LENGTH_MAX:
            os.rmdir(directory)
            directory = tempfile.mkdtemp(prefix="headgate-", dir="/tmp")
        made = self.meeting.of_run(secrets.token_bytes(32), f"{directory}/driver")
        meeting = replace(made, directory=directory)
        return meeting, UnixDoor(meeting.driver, meeting.key)

    def places(self, operator: str, slots: int) -> list[str]:
        """Return one host for all."""
        del operator
        return [""] * slots

    def start(self, meeting: words.Meeting, operator: str, slot: int, host: str) -> SlotProgram:
        """Start the process of a slot; another one starts slots where that has ended."""
        del host
        if not self._server.is_alive:
            self._server.close()
            self._server = ForkServer(self._specs)
        return self._server.start(meeting, operator, slot, self._store)

    def look_for_stopped(self, feeders: Mapping[str, tuple[str, int]]) -> None:
        """Do nothing: there is no other host."""

    def end(self, meeting: words.Meeting) -> None:
        """Remove the sockets of a run."""
        shutil.rmtree(meeting.directory, ignore_errors=True)

    def close(self) -> None:
        """End the process that starts slots."""
        self._server.close()
