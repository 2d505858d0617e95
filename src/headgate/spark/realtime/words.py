"""Defines the messages between the driver, feeders, routers, slots and agents of a pipe.

A peer connects to the driver, and its first message says who it is. A message is a tuple of a word and
values. All peers are processes of one user, and prove that they have the key of their run.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import Any

from headgate.spark.realtime.channels import Channel, Door, TcpChannel, TcpDoor, UnixDoor, connect

FEEDER, COPY, SLOT, AGENT = "feeder", "copy", "slot", "agent"
"""First message of a peer: (word, number, process id). An agent sends its host instead of a number. A
feeder sends (node, process id), because it may be on another node than the driver. A copy, a task that
gets another task's records, sends its address instead of the process id, and no further message."""
LOST = "lost"
"""First message of a router that has lost a slot: (word, number of the router, address of the slot)."""

BEGIN = "begin"
"""To a feeder: (offsets, addresses of copies by task); to a slot: (pickled task, number of routers, files
of broadcasts by id)."""
READY = "ready"
"""From a slot: (address at which it accepts routers)."""
CUT = "cut"
"""To a feeder: (epoch, delay in s after which it cuts as soon as it has a record or None for at once,
whether to hold still, routes after the cut); from a feeder: (epoch, offsets, time at which it read the
epoch's first record in ms since 1970 or None)."""
GO = "go"
"""To a feeder that holds still: (routes)."""
REWIND = "rewind"
"""To a feeder after a loss of slots: (offsets); the feeder reads again from them, and holds still. From
the feeder, and in a marker to its routers after all earlier rows: how often it has read again."""
Routes = dict[str, dict[str, list[Any]]]
"""By operator: addresses of its slots, and the slot of each key group."""
SERVE = "serve"
"""To a slot: (pickled facts for all slots, this slot's own fields of the facts, its number in the
assignment)."""
REPORT = "report"
"""From a slot: (report, newest event time in microseconds by watermark)."""
FAILED = "failed"
"""From a slot: (exception)."""
END = "end"
"""To a feeder, slot or agent: ()."""
RECORDS, EPOCH = "records", "epoch"
"""From a router to a slot, `RECORDS` also from the driver: (bytes of an Arrow stream); (epoch, newest
event time in microseconds by watermark, bytes of the epoch's last records or None)."""
RELAY = "relay"
"""From a router to one slot of a host: (addresses of that host's other slots, a message for all of them).
Only where each slot gets every row: so a row crosses to a host once, and not once per slot."""

ALIVE = "alive"
"""To and from an agent, once a second: ()."""
START, KILL = "start", "kill"
"""To an agent: (number of a process, address of the run's driver, the run, operator, slot); (number of a
process). They have no key, because messages between hosts are not encrypted."""
ENDED = "ended"
"""From an agent: (number of a process, exit code)."""
STOPPED = "stopped"
"""To an agent: (the run, node and process id of feeders by name); from an agent, for a stopped process:
(the run, name, process id)."""
COPIES = "copies"
"""To an agent: (number, orders for key groups, time limit in s); from an agent: (the same number, answer
or text of an error)."""


@dataclass(frozen=True)
class Meeting:
    """Holds the address of a run's driver, and the key that peers need to connect.

    Attributes
    ----------
    driver : str
        Address of the driver.
    key : bytes
    directory : str
        Directory of the run's sockets if all peers are on one host; only their user may enter.
    host : str
        Name or address of this peer's host if the run has several hosts.
    run : bytes
        Random bytes from which, with the query's key, the run's key is computed; no secret.
    """

    driver: str
    key: bytes = field(repr=False)
    directory: str = ""
    host: str = ""
    run: bytes = b""

    def of_run(self, run: bytes, driver: str = "") -> Meeting:
        """Return the meeting of a run; this meeting's key and `run` give the run's key."""
        key = blake2b(run, key=self.key, person=b"run", digest_size=32).digest()
        return replace(self, driver=driver, key=key, run=run)

    def told(self) -> str:
        """Return a run's meeting as text without a key, for peers that have the query's meeting."""
        return json.dumps([self.run.hex(), self.driver, self.directory])

    def of_told(self, told: str) -> Meeting:
        """Return the meeting of a run from a text of `told`; must be called on the query's meeting."""
        run, driver, directory = json.loads(told)
        return replace(self.of_run(bytes.fromhex(run), driver), directory=directory)

    def door(self, name: str, driver: Channel) -> Door:
        """Return a door of this peer.

        Parameters
        ----------
        name : str
            Unique within the run.
        driver : Channel
            Channel to the driver; without `host`, its local address is the door's address.
        """
        if self.directory:
            return UnixDoor(f"{self.directory}/{name}", self.key)
        known = driver.own_host if isinstance(driver, TcpChannel) else ""
        return TcpDoor(self.host or known, self.key)

    def connect(self, address: str) -> Channel:
        """Return a channel to a peer."""
        return connect(address, self.key)
