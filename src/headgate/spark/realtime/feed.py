"""Defines the protocol by which a pipe reads sources, and combines the sources of a pipe.

A data source of the entry point group ``headgate.sources`` is read through its class method
``feed(options)``, which returns a `SourceFeed`.

Offsets are texts in the form of Spark's log, so that a checkpoint can continue in either mode.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Protocol

import pyarrow as pa


class Reader(Protocol):
    """Reads a share of a source, in a worker."""

    def poll(self, timeout_s: float) -> pa.RecordBatch | None:
        """Return records in the order of the source; None if none came in `timeout_s`, which may be 0.

        A batch without rows: the reader has passed offsets without a record, which must be committed.
        """

    def offsets(self) -> str:
        """Return the offsets after the records that `poll` has returned."""

    def close(self) -> None:
        """Release the reader's resources."""


class SourceFeed(Protocol):
    """Describes a source; the driver has it, and feeders get a pickled copy."""

    @property
    def schema(self) -> pa.Schema:
        """The columns of the source's records."""

    @property
    def readers(self) -> int:
        """The most readers that may share the source."""

    @property
    def keeps_first(self) -> bool:
        """Return whether the first offsets are kept in Spark's log, as Spark's own source does."""

    def first(self) -> str:
        """Return the offsets at which a query begins."""

    def grown(self, offsets: str) -> str:
        """Return `offsets`, with the beginnings of the source's new partitions."""

    def newest(self, since: str) -> str:
        """Return the offsets after the source's newest records, at least `since`."""

    def reader(self, start: str, number: int, count: int) -> Reader:
        """Return one of `count` readers that share the records from the offsets `start` on."""

    def merged(self, parts: Iterable[str]) -> str:
        """Return the offsets of all readers together."""

    def reached(self, offsets: str, wanted: str) -> bool:
        """Return whether `offsets` are at or after `wanted`; raise ConfigError if not readable."""


@dataclass(frozen=True)
class BranchTasks:
    """Assigns the tasks of a pipe to a branch of the plan."""

    source: int
    """Index of the branch's source."""
    first: int
    count: int
    """`first`, `count`: the branch's first task, and its number of tasks."""
    reader: int
    """Number of the branch's first reader among all readers."""
    copies_of: int | None = None
    """First task of another branch that reads the same source and copies its records to this branch:
    both get the same records in each epoch. None if this branch reads itself."""
    copied_to: tuple[int, ...] = ()
    """First tasks of the branches that get copies of this branch's records."""


@dataclass(frozen=True)
class Feeds:
    """Describes the sources of a pipe together; their offsets are a list as JSON."""

    feeds: tuple[SourceFeed, ...]
    """One for each of Spark's sources, in their order; twice for a source that is read twice."""
    same_as: tuple[int, ...]
    """For each feed, the index of the first feed of the same source."""

    @property
    def shares(self) -> list[BranchTasks]:
        """Tasks of each feed's branch."""
        found: list[BranchTasks] = []
        reader = 0
        for number, feed in enumerate(self.feeds):
            first = sum(one.count for one in found)
            same = self.same_as[number]
            if same == number:
                found.append(BranchTasks(number, first, feed.readers, reader))
                reader += feed.readers
            else:
                of = found[same]
                found.append(BranchTasks(same, first, of.count, of.reader, copies_of=of.first))
                found[same] = replace(of, copied_to=(*of.copied_to, first))
        return found

    @property
    def tasks(self) -> int:
        """Number of tasks of the pipe."""
        return sum(one.count for one in self.shares)

    @property
    def readers(self) -> int:
        """Number of tasks that read a source."""
        return sum(one.count for one in self.shares if one.copies_of is None)

    @property
    def copies(self) -> int:
        """Number of tasks that get copies of another task's records."""
        return self.tasks - self.readers

    def each(self, offsets: str | None, ask: Callable[[SourceFeed, str], str]) -> str:
        """Return the list of `ask`'s answers, called with each source and its own offsets."""
        given = json.loads(offsets) if offsets is not None else [""] * len(self.feeds)
        found: list[str] = []
        for number, (feed, one) in enumerate(zip(self.feeds, given, strict=True)):
            same = self.same_as[number]
            found.append(ask(feed, one) if same == number else found[same])
        return json.dumps(found)

    def grown(self, offsets: str) -> str:
        """Return `offsets`, with the beginnings of the sources' new partitions."""
        return self.each(offsets, lambda feed, one: feed.grown(one))

    def newest(self, since: str) -> str:
        """Return the offsets after the sources' newest records."""
        return self.each(since, lambda feed, one: feed.newest(one))

    def merged(self, parts: Iterable[str]) -> str:
        """Return the offsets of all readers together, in the order of their numbers."""
        given = list(parts)
        found: list[str] = []
        for share in self.shares:
            if share.copies_of is None:
                mine = given[share.reader : share.reader + share.count]
                found.append(self.feeds[share.source].merged(mine))
            else:
                found.append(found[share.source])
        return json.dumps(found)

    def check(self, offsets: str) -> None:
        """Refuse offsets that the sources cannot go on from; raises `ConfigError`."""
        self.reached(offsets, offsets)

    def reached(self, offsets: str, wanted: str) -> bool:
        """Return whether `offsets` are at or after `wanted` in all sources."""
        both = zip(self.feeds, json.loads(offsets), json.loads(wanted), strict=True)
        return all(feed.reached(one, other) for feed, one, other in both)
