"""Declares the port to hosts that start slots, and implements it for the driver's host."""

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
"""Name of the fork server in messages."""

_LENGTH_MAX = 24
"""Most bytes of the directory's path: a Unix socket's path has at most 103, an operator's name 64."""


class SlotProgram(Protocol):
    """Represents a started process, as `subprocess.Popen` does."""

    def poll(self) -> int | None:
        """Return the exit code, None while the process runs."""

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the process's end; raise `subprocess.TimeoutExpired`."""

    def kill(self) -> None:
        """Kill the process."""


class SlotHosts(Protocol):
    """Starts slots on hosts."""

    @property
    def processes(self) -> Mapping[str, int]:
        """Process ids of the programs that start slots, by a name for messages."""

    def begin(self, lost: Callable[[str], None]) -> tuple[words.Meeting, Door]:
        """Prepare to start slots; return the meeting of a new run, and the driver's door.

        Parameters
        ----------
        lost : callable
            Called in any thread with a message when a host is lost.
        """

    def places(self, operator: str, slots: int) -> list[str]:
        """Return the host of each slot of an operator."""

    def start(self, meeting: words.Meeting, operator: str, slot: int, host: str) -> SlotProgram:
        """Start the process of a slot on a host."""

    def look_for_stopped(self, feeders: Mapping[str, tuple[str, int]]) -> None:
        """Have each remote host report a stopped process of the pipe as a loss.

        Parameters
        ----------
        feeders : mapping of str to (str, int)
            Node and process id of each feeder, by name.
        """

    def end(self, meeting: words.Meeting) -> None:
        """Clean up after a run."""

    def close(self) -> None:
        """Clean up after the query."""


class OneHost:
    """Starts slots on the driver's host; a new object starts its fork server at once.

    Parameters
    ----------
    specs : iterable of Spec
        Specs of the operators whose slots it starts.
    store : mapping of str to str, optional
        Options of the checkpoint's store.

    Attributes
    ----------
    meeting : words.Meeting
        Meeting of the query; its key derives the keys of the runs.
    """

    def __init__(self, specs: Iterable[Spec], store: Mapping[str, str] | None = None) -> None:
        self._specs, self._store = list(specs), store or {}
        self._server = ForkServer(self._specs)
        self.meeting = words.Meeting("", secrets.token_bytes(32))

    @property
    def processes(self) -> Mapping[str, int]:
        """Return the process id of the fork server."""
        return {FORK_SERVER: self._server.pid}

    def begin(self, lost: Callable[[str], None]) -> tuple[words.Meeting, Door]:
        """Return the meeting of a new run, and the driver's door."""
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
        """Return the empty name, of the driver's host, for each slot."""
        del operator
        return [""] * slots

    def start(self, meeting: words.Meeting, operator: str, slot: int, host: str) -> SlotProgram:
        """Start the process of a slot; first replace a fork server that has ended."""
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
        """End the fork server."""
        self._server.close()
