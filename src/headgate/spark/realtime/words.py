"""Names the words between the driver, feeders, routers, slots and agents of a pipe.

A peer opens a channel to the driver and says who it is; messages are tuples of a word and what belongs
to it. All peers are processes of one user, and show the key of their run.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import Any

from headgate.spark.realtime.channels import Channel, Door, TcpChannel, TcpDoor, UnixDoor, connect

FEEDER, COPY, SLOT, AGENT = "feeder", "copy", "slot", "agent"
"""Peers, as they say who they are: the word, a number and the process. An agent's number is its host; a
feeder says the node beside the process, since it may be on another one than the driver; a copy says its
address in place of the process, and nothing more."""
LOST = "lost"
"""Of a router that has lost a slot, in the place of a peer's word: its number, and the slot's address."""

BEGIN = "begin"
"""To a feeder: (offsets, addresses of copies by task); to a slot: (pickled task, number of routers, files
of broadcasts by id)."""
READY = "ready"
"""Of a slot: (address at which it takes routers)."""
CUT = "cut"
"""To a feeder: (epoch, seconds after which it cuts as soon as it has a record or None for at once,
whether to hold still, routes from there on); of it: (epoch, offsets, ms since 1970 at which its first
record was read or None)."""
GO = "go"
"""To a feeder that holds still: (routes)."""
REWIND = "rewind"
"""To a feeder, where slots were lost: (offsets), from which it reads again, and holds still; of it: (how
often it has); to routers, behind all that it had passed on before: the same."""
Routes = dict[str, dict[str, list[Any]]]
"""By operator: addresses of its slots, and the slot of each key group."""
SERVE = "serve"
"""To a slot: (pickled facts for all slots, fields of them that only it needs, its number among those that
serve)."""
REPORT = "report"
"""Of a slot: (report, newest event time in microseconds, by watermark)."""
FAILED = "failed"
"""Of a slot: (exception)."""
END = "end"
"""To a feeder or slot."""
RECORDS, EPOCH = "records", "epoch"
"""Of a router to a slot, the first of the driver, too: (bytes of an Arrow stream); (epoch, newest event
time in microseconds by watermark, bytes of its last records or None)."""

ALIVE = "alive"
"""To an agent and of it, once a second: ()."""
START, KILL = "start", "kill"
"""To an agent: (number of a process, address of the run's driver, the run, operator, slot); (number of a
process). No key is among them: what passes between hosts is not encrypted."""
ENDED = "ended"
"""Of an agent: (number of a process, exit code)."""
STOPPED = "stopped"
"""To an agent: (the run, node and process of feeders by name); of it: (that run, name, process) of one
that is stopped."""
COPIES = "copies"
"""To an agent: (number, orders for key groups, seconds for them); of it: (that number, answer or the
text of an error)."""


@dataclass(frozen=True)
class Meeting:
    """Says where the driver of a run listens, and what a peer shows there.

    Attributes
    ----------
    driver : str
        Address of the driver.
    key : bytes
    directory : str
        Of the run's sockets where all peers are on one host; only its user may enter.
    host : str
        Name or address of the host that this peer is on, where the run has several.
    run : bytes
        What the key was computed from, with the key of the query; no secret.
    """

    driver: str
    key: bytes = field(repr=False)
    directory: str = ""
    host: str = ""
    run: bytes = b""

    def of_run(self, run: bytes, driver: str = "") -> Meeting:
        """Return the meeting of a run; who has this key can compute that of the run."""
        key = blake2b(run, key=self.key, person=b"run", digest_size=32).digest()
        return replace(self, driver=driver, key=key, run=run)

    def told(self) -> str:
        """Return, without any key, what tells a run's meeting to those who have the query's."""
        return json.dumps([self.run.hex(), self.driver, self.directory])

    def of_told(self, told: str) -> Meeting:
        """Return the meeting of a run, which is told as `told` does."""
        run, driver, directory = json.loads(told)
        return replace(self.of_run(bytes.fromhex(run), driver), directory=directory)

    def door(self, name: str, driver: Channel) -> Door:
        """Return a door of this peer.

        Parameters
        ----------
        name : str
            Unique within the run.
        driver : Channel
            To the driver: where nothing else is known, the way there says which address others reach.
        """
        if self.directory:
            return UnixDoor(f"{self.directory}/{name}", self.key)
        known = driver.own_host if isinstance(driver, TcpChannel) else ""
        return TcpDoor(self.host or known, self.key)

    def connect(self, address: str) -> Channel:
        """Return a channel to a peer."""
        return connect(address, self.key)
