"""Names the words between the driver, feeders, routers and slots of a pipe.

A peer opens a connection to the driver's socket and says who it is; messages are tuples of a word and
what belongs to it. All peers are processes of one user on one host, and show the key of their run.
"""

from __future__ import annotations

from dataclasses import dataclass
from multiprocessing.connection import Client, Connection

FEEDER, SLOT = "feeder", "slot"
"""Peers, as they say who they are: the word, a number and the process."""

BEGIN = "begin"
"""To a feeder: (offsets); to a slot: (pickled task, number of routers, files of broadcasts by id)."""
READY = "ready"
"""Of a slot: (address at which it takes routers)."""
RECORDS_WAIT = "records wait"
"""Of a feeder that has passed on the first record behind a cut: (ms since 1970)."""
CUT = "cut"
"""To a feeder: (epoch, whether to hold still behind it); of it: (epoch, offsets)."""
GO = "go"
"""To a feeder that holds still: (text: addresses of slots and slots of key groups, by operator)."""
SERVE = "serve"
"""To a slot: (facts)."""
REPORT = "report"
"""Of a slot: (report, newest event time in microseconds, by watermark)."""
FAILED = "failed"
"""Of a slot: (exception)."""
END = "end"
"""To a feeder or slot."""
RECORDS, EPOCH = "records", "epoch"
"""Of a router to a slot, the first of the driver, too: (bytes of an Arrow stream); (epoch, newest event
time in microseconds, by watermark)."""


@dataclass(frozen=True)
class Meeting:
    """Says where the driver of a run listens, and what a peer shows there.

    Attributes
    ----------
    directory : str
        Of the run's sockets; only its user may enter.
    key : bytes
    """

    directory: str
    key: bytes

    @property
    def driver(self) -> str:
        """Address of the driver."""
        return f"{self.directory}/driver"

    def slot(self, operator: str, number: int) -> str:
        """Return the address at which a slot takes routers."""
        return f"{self.directory}/{operator}-slot-{number}"

    def copy(self, task: int) -> str:
        """Return the address at which a task takes what another one reads."""
        return f"{self.directory}/copy-{task}"

    def connect(self, address: str) -> Connection:
        """Return a connection to a peer."""
        return Client(address, "AF_UNIX", authkey=self.key)
