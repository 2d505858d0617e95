"""The tuple buffer's methods, and what they promise whoever implements them.

Order: all readers see the records of all sources by (time, rank of the source, position in the
source), whatever the interleaving of calls. A source's rank is when it joined; a source that joins
later is behind the earlier ones at equal times.

Ready: a record is handed out once its place in that order is final, that is when no source can add
anything before it. So a record needs its time to be at most the least of all sources' latest times
(STRETCH's definition 3), and at equality it waits for sources of lower rank: definition 3 alone would
leave the order of equal times to chance. Each source must have added something before anything is
ready.

The buffer keeps four kinds of record, and `get` returns two of them, data and control:

===========  =====================================================================================
DATA         what a source added
CONTROL      a reconfiguration, put before the next record of each source (`add_stretch`)
DUMMY        moves a source's time and carries nothing: the first record of a source that joins, and
             what `advance` adds
FLUSH        the last record of a source that leaves: nothing waits for this source any more
===========  =====================================================================================
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Protocol


class Kind(IntEnum):
    """Names the kinds of records in the buffer."""

    DATA = 0
    CONTROL = 1
    DUMMY = 2
    FLUSH = 3


@dataclass(frozen=True)
class Reconfiguration:
    """Holds the content of a control record: the next epoch.

    Parameters
    ----------
    number : int                  The epoch's, from 1; later requests have higher numbers.
    instances : frozenset of int  O*.
    slot_of : tuple of int        f_mu*: key group -> one of `instances`.
    """

    number: int
    instances: frozenset[int]
    slot_of: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Entry:
    """A record on its way through the buffer.

    Parameters
    ----------
    time : int       Event time; of one source never decreasing.
    values : Any     The payload; in shared memory one scalar for each column.
    source : int     Who added it; set by the buffer.
    control : Reconfiguration or None    Set for control records, whose `values` are None.
    """

    time: int
    values: Any
    source: int = -1
    control: Reconfiguration | None = None


class TupleBuffer(Protocol):
    """A buffer between sources and readers, both named by small integers.

    Capacity is counted per source: how many of its records the slowest reader has not got yet. A full
    source never keeps another one from adding what the order waits for. But it stays full while the
    others, silent, hold its records back: who makes the others wait for it, as a barrier does, needs
    capacity for all it adds meanwhile.

    Methods that change who is connected take effect at once and wholly, or not at all. Of concurrent
    callers one gets True. `by`, whose name table 2 leaves out for three of them, is the caller; a caller
    that is not connected changes nothing and gets False.

    References
    ----------
    [STRETCH] definition 6, table 2, section 6, algorithm 5.
    """

    def add(self, entry: Entry, source: int) -> bool:
        """Add a record; False, and nothing is added, while the source's share is full.

        Raises
        ------
        ProtocolError    `source` is none, or the record is before the source's latest.
        """

    def add_stretch(self, entry: Entry, source: int) -> bool:
        """Put the source's waiting reconfigurations, then the record; False if there is no room.

        The control records bear the record's time, so that the source stays sorted (algorithm 5).
        """

    def advance(self, time: int, source: int) -> bool:
        """Say that the source adds nothing before `time` any more; False if there is no room.

        A time that is not above the source's latest changes nothing and succeeds.
        """

    def get(self, reader: int) -> Entry | None:
        """Return the next record and move on; None if none is ready or the reader is not connected."""

    def peek(self, reader: int) -> Entry | None:
        """Return what `get` would, without moving on."""

    def add_readers(self, new: Collection[int], by: int) -> bool:
        """Add readers that get what reader `by` gets next, and all after it.

        True if some of `new` were no readers; all of those are now.
        """

    def remove_readers(self, old: Collection[int], by: int) -> bool:
        """Remove readers; True if some of `old` were readers; none of them is any more.

        Raises
        ------
        ProtocolError    Nobody would be left, and what sources add would be lost.
        """

    def add_sources(self, new: Collection[int], by: int) -> bool:
        """Add sources whose first record may be at the latest time of source `by`.

        A source that comes back goes on no earlier than where it had left off itself. True if some of
        `new` were no sources; all of those are now.
        """

    def remove_sources(self, old: Collection[int], by: int) -> bool:
        """Remove sources, with a flush: what they added becomes ready without them.

        True if some of `old` were sources; none of them is any more.
        """

    def reconfigure(self, instances: Collection[int], slot_of: Sequence[int]) -> int | None:
        """Put a request into every source's control queue; return its epoch, None if that is full."""


def not_a_source(source: int) -> str:
    """Return the message for a record of somebody who is not connected."""
    return f"{source} is no source of this tuple buffer; add it with add_sources first."


def not_sorted(time: int, latest: int, source: int) -> str:
    """Return the message for a record that goes back in time."""
    return (
        f"source {source} added a record at {time} after one at {latest}; "
        "a source adds its records in time order."
    )


def no_reader_left() -> str:
    """Return the message for the removal of all readers."""
    return "the last readers of a tuple buffer cannot be removed; add others first."
