"""Holds one run of a pipe: who has come to it, and what they say.

Each peer has a thread here that puts what it says into one queue; what waits for something reads that.
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
"""First words of what stands in the queue, beside those of peers: Spark's job has ended (error or None);
look up; a peer is gone (kind, number, why); one has come (kind, number, channel, what it says)."""


class Job(Protocol):
    """Runs feeders and routers."""

    def run(self, meeting: words.Meeting, group: str) -> None:
        """Run them until the feeders end; raise what they failed with."""

    def cancel(self, group: str) -> None:
        """Have a run end, whatever it does."""

    def failure(self, group: str) -> BaseException | None:
        """Return what a part of a run has failed with; None of none."""


@dataclass
class PipeRun:
    """One run of a pipe, from a start to its end.

    Attributes
    ----------
    group : str
        Of the pipe's Spark job.
    copies : dict of int to str
        Addresses of tasks that take what a feeder reads.
    slots : RunSlots
    next_serving : dict of str to list of int
        As `RunSlots.serving`, of operators whose records go to others since the last cut.
    may_cut : int
        The newest epoch that feeders may cut by themselves.
    cuts : dict of int to (str, float or None)
        Offsets of feeders that have cut the next epoch, and when its first record was read.
    nodes : dict of str to (str, int)
        Node and process of feeders, by name.
    flows : bool
        Whether feeders have begun.
    rewound : int
        How often feeders were told to begin again.
    rewinding : set of int
        Feeders that have not done so yet; what they have cut before does not count.
    ended : Event
        Set once that job is over.
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
        except BaseException as failed:  # whoever waits for the pipe says so
            error = failed
        finally:
            self.ended.set()
            self.said.put((JOB, error))

    def let_in(self) -> None:
        """Take in all peers that come, each in a thread of its own, until the run ends."""
        while not self.closing:
            with suppress(OSError, EOFError):  # the door is closed
                in_background(partial(self._hear, self.door.accept()))

    def _hear(self, peer: Channel) -> None:
        """Take in a peer by the name that it says first, and all that it says afterwards."""
        try:
            kind, number, process = peer.recv()
        except (OSError, EOFError):
            return  # it is gone already
        self.said.put((JOINED, kind, number, peer, process))
        if kind not in (words.COPY, words.LOST):
            self.listen(kind, number, peer)

    def listen(self, kind: str, number: Any, peer: Channel) -> None:
        """Put all that a peer says into the queue, with its number behind it, until it is gone."""
        try:
            while True:
                self.said.put((*peer.recv(), number))
        except BrokenChannel as error:
            self.said.put((GONE, kind, number, str(error).rstrip(".")))
        except TimeoutError:  # what was sent there has not been taken for a minute
            self.said.put((GONE, kind, number, "its host does not answer"))
        except (OSError, EOFError):
            self.said.put((GONE, kind, number, ""))
