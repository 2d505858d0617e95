"""Holds one run of a pipe: its connected peers, and the queue of their messages.

A thread for each peer puts the peer's messages into the queue; the thread of epochs reads it.
"""

from __future__ import annotations

import queue
import threading
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

from headgate.spark.realtime import words
from headgate.spark.realtime.channels import BrokenChannel, Channel, Door
from headgate.spark.realtime.run_slots import RunSlots, in_background

JOB, WAKE, GONE, JOINED = "job", "wake", "gone", "joined"
"""First words of messages in the queue that no peer sends: Spark's job has ended (error or None); wake
up; a peer is lost (kind, number, reason); a peer has connected (kind, number, channel, its value)."""


class Job(Protocol):
    """Runs feeders and routers."""

    def run(self, meeting: words.Meeting, group: str) -> None:
        """Run the tasks until the feeders end; raise their error."""

    def cancel(self, group: str) -> None:
        """End a run during its work."""

    def failure(self, group: str) -> BaseException | None:
        """Return the error of a failed task of a run; None if no task has failed."""


@dataclass
class PipeRun:
    """Holds one run of a pipe, from its start to its end.

    Attributes
    ----------
    group : str
        Job group of the pipe's Spark job.
    copies : dict of int to str
        Addresses of the tasks that get copies of a feeder's records.
    slots : RunSlots
    next_serving : dict of str to list of int
        As `RunSlots.serving`, for operators whose records go to new slots since the last cut.
    may_cut : int
        The newest epoch that feeders may cut by themselves.
    cuts : dict of int to (str, float or None)
        By feeder that has cut the next epoch: offsets, and time at which the first record was read.
    nodes : dict of str to (str, int)
        Node and process id of feeders, by name.
    flows : bool
        Whether feeders have begun to read.
    rewound : int
        Number of requests to the feeders to read again.
    rewinding : set of int
        Feeders that have not confirmed the newest request; their earlier cuts do not count.
    ended : Event
        Set when the Spark job has ended.
    """

    meeting: words.Meeting
    door: Door
    group: str
    said: queue.SimpleQueue[tuple[Any, ...]]
    slots: RunSlots
    feeders: dict[int, Channel] = field(default_factory=dict)
    copies: dict[int, str] = field(default_factory=dict)
    next_serving: dict[str, list[int]] = field(default_factory=dict)
    may_cut: int = -1
    cuts: dict[int, tuple[str, float | None]] = field(default_factory=dict)
    processes: dict[str, int] = field(default_factory=dict)
    nodes: dict[str, tuple[str, int]] = field(default_factory=dict)
    flows: bool = False
    rewound: int = 0
    rewinding: set[int] = field(default_factory=set)
    ended: threading.Event = field(default_factory=threading.Event)
    closing: bool = False

    def flow(self, job: Job) -> None:
        """Run Spark's job, until it ends."""
        error: BaseException | None = None
        try:
            job.run(self.meeting, self.group)
        except BaseException as failed:  # the thread of epochs raises the error
            error = failed
        finally:
            self.ended.set()
            self.said.put((JOB, error))

    def let_in(self) -> None:
        """Accept peers, each with a thread of its own, until the run ends."""
        while not self.closing:
            with suppress(OSError, EOFError):  # the door is closed
                in_background(partial(self._hear, self.door.accept()))

    def _hear(self, peer: Channel) -> None:
        """Queue a peer's first message, which names the peer, and then its later messages."""
        try:
            kind, number, process = peer.recv()
        except (OSError, EOFError):
            return  # the peer has closed already
        self.said.put((JOINED, kind, number, peer, process))
        if kind not in (words.COPY, words.LOST):
            self.listen(kind, number, peer)

    def listen(self, kind: str, number: Any, peer: Channel) -> None:
        """Put a peer's messages into the queue, each followed by the peer's number, until it ends."""
        try:
            while True:
                self.said.put((*peer.recv(), number))
        except BrokenChannel as error:
            self.said.put((GONE, kind, number, str(error).rstrip(".")))
        except TimeoutError:  # the host has not acknowledged sent bytes for a minute
            self.said.put((GONE, kind, number, "its host does not answer"))
        except (OSError, EOFError):
            self.said.put((GONE, kind, number, ""))
