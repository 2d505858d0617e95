"""Declares the tuple buffer's methods and what every implementation guarantees.

Order: all readers see the records of all sources by (time, rank of the source, position in the
source), whatever the interleaving of calls. Ranks follow the order in which sources joined: at equal
times a source that joined later comes after the earlier ones.

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
FLUSH        the last record of a source that leaves: readers wait for this source no longer
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
    source : int     The source that added it; set by the buffer.
    control : Reconfiguration or None    Set for control records, whose `values` are None.
    """

    time: int
    values: Any
    source: int = -1
    control: Reconfiguration | None = None


class TupleBuffer(Protocol):
    """Passes records from sources to readers, both named by small integers.

    Capacity is counted per source: the records that the slowest reader has not got yet. A full source
    never keeps another one from adding the records that the order waits for. But it stays full while
    silent sources hold its records back: a source that makes the others wait for it, as at a barrier,
    needs capacity for all that it adds meanwhile.

    Methods that connect or disconnect are atomic. Of concurrent callers one gets True. `by`, which table
    2 omits for three of them, is the caller; a caller that is not connected changes nothing and gets
    False.

    References
    ----------
    [STRETCH] definition 6, table 2, section 6, algorithm 5.
    """

    def add(self, entry: Entry, source: int) -> bool:
        """Add a record; return False, and add nothing, while the source's share is full.

        Raises
        ------
        ProtocolError    `source` is not connected, or the record precedes the source's latest.
        """

    def add_stretch(self, entry: Entry, source: int) -> bool:
        """Put the source's waiting reconfigurations, then the record; False if there is no room.

        The control records have the record's time, so that the source stays sorted (algorithm 5).
        """

    def advance(self, time: int, source: int) -> bool:
        """Promise that the source adds nothing before `time` any more; False if there is no room.

        A time that is not above the source's latest changes nothing and succeeds.
        """

    def get(self, reader: int) -> Entry | None:
        """Return the next record and move on; None if none is ready or the reader is not connected."""

    def peek(self, reader: int) -> Entry | None:
        """Return what `get` would return, without moving on."""

    def add_readers(self, new: Collection[int], by: int) -> bool:
        """Add readers that get what reader `by` gets next, and all after it.

        Return True if some of `new` were not connected; all of them are afterwards.
        """

    def remove_readers(self, old: Collection[int], by: int) -> bool:
        """Remove readers; return True if some of `old` were connected.

        Raises
        ------
        ProtocolError    No reader would be left, and what sources add would be lost.
        """

    def add_sources(self, new: Collection[int], by: int) -> bool:
        """Add sources whose first record may be at the latest time of source `by`.

        A source that comes back starts no earlier than where it had stopped. Return True if some of
        `new` were not connected; all of them are afterwards.
        """

    def remove_sources(self, old: Collection[int], by: int) -> bool:
        """Remove sources; a flush record ends each stream, so that its records become ready.

        Return True if some of `old` were connected.
        """

    def reconfigure(self, instances: Collection[int], slot_of: Sequence[int]) -> int | None:
        """Put a request into every source's control queue; return its epoch, None if a queue is full."""


def not_a_source(source: int) -> str:
    """Return the message for a record of a source that is not connected."""
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
