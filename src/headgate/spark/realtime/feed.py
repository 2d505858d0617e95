"""Reads sources for a pipe: a small protocol, and the sources of a pipe together.

A data source of the entry point group ``headgate.sources`` is read through its class method
``feed(options)``, which returns a `SourceFeed`.

Offsets are texts, the very ones that Spark would have in its log, so that a checkpoint goes on in either
mode.
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
        """Return records in the order of the source; None where none came in `timeout_s`, perhaps 0.

        No rows where the reader has got on in the source without a record, which is to be committed.
        """

    def offsets(self) -> str:
        """Return the offsets behind the records that `poll` has returned."""

    def close(self) -> None:
        """Give back what it held."""


class SourceFeed(Protocol):
    """Describes a source; the driver has it, and feeders get it pickled."""

    @property
    def schema(self) -> pa.Schema:
        """The columns of its records."""

    @property
    def readers(self) -> int:
        """The most readers that may share the source."""

    @property
    def keeps_first(self) -> bool:
        """Return whether the first offsets are kept beside Spark's log, as its own source keeps them."""

    def first(self) -> str:
        """Return the offsets at which a query begins."""

    def grown(self, offsets: str) -> str:
        """Return `offsets`, and where to begin in what the source has got since."""

    def newest(self, since: str) -> str:
        """Return the offsets of all that the source has now, at least `since`."""

    def reader(self, start: str, number: int, count: int) -> Reader:
        """Return one of `count` readers that share what is behind the offsets `start`."""

    def merged(self, parts: Iterable[str]) -> str:
        """Return the offsets of all readers together."""

    def reached(self, offsets: str, wanted: str) -> bool:
        """Return whether `offsets` are as far as `wanted`; ConfigError where it cannot read them."""


@dataclass(frozen=True)
class BranchTasks:
    """Places a branch of the plan among the tasks of a pipe."""

    source: int
    """Which of the sources it reads."""
    first: int
    count: int
    """`first`, `count`: its first task, and how many tasks it has."""
    reader: int
    """The number of its first reader among all that read."""
    copies_of: int | None = None
    """The first task of another branch that reads the same source, and passes on what it reads:
    both see the same records in each epoch."""
    copied_to: tuple[int, ...] = ()
    """First tasks of the branches that it passes on to."""


@dataclass(frozen=True)
class Feeds:
    """Describes the sources of a pipe together; their offsets are a list as JSON."""

    feeds: tuple[SourceFeed, ...]
    """Of each source of Spark's, in its order; a source that is read twice is there twice."""
    same_as: tuple[int, ...]
    """For each, the first that is the same source."""

    @property
    def shares(self) -> list[BranchTasks]:
        """Places of their branches."""
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
        """Tasks of the pipe."""
        return sum(one.count for one in self.shares)

    @property
    def readers(self) -> int:
        """Tasks that read."""
        return sum(one.count for one in self.shares if one.copies_of is None)

    @property
    def copies(self) -> int:
        """Tasks that get what another one reads."""
        return self.tasks - self.readers

    def each(self, offsets: str | None, ask: Callable[[SourceFeed, str], str]) -> str:
        """Return the offsets that each source answers with, asked with its own."""
        given = json.loads(offsets) if offsets is not None else [""] * len(self.feeds)
        found: list[str] = []
        for number, (feed, one) in enumerate(zip(self.feeds, given, strict=True)):
            same = self.same_as[number]
            found.append(ask(feed, one) if same == number else found[same])
        return json.dumps(found)

    def grown(self, offsets: str) -> str:
        """Return `offsets`, and where to begin in what the sources have got since."""
        return self.each(offsets, lambda feed, one: feed.grown(one))

    def newest(self, since: str) -> str:
        """Return the offsets of all that the sources have now."""
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
        """Return whether `offsets` are as far as `wanted`."""
        both = zip(self.feeds, json.loads(offsets), json.loads(wanted), strict=True)
        return all(feed.reached(one, other) for feed, one, other in both)
