"""Streams the arrivals of records with their key groups: from a rate, or from a trace of counts."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from headgate.core.errors import ConfigError
from headgate.workloads.traces import KeyedRows, Trace

F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]

Chunk = tuple[F64, I64]
"""Arrival times in seconds since the start, ascending, and the key group of each record."""

CHUNK = 8192
"""Records per piece of a stream, about. Chosen, not tuned."""


class ArrivalStream(ABC):
    """Streams records, each with a time and a key group."""

    @property
    @abstractmethod
    def key_groups(self) -> int:
        """G: key groups are 0 to G - 1."""

    @property
    def costs(self) -> F64 | None:
        """Return each record's multiple of the service time, in stream order; None: all the same."""
        return None

    @abstractmethod
    def chunks(self, generator: np.random.Generator) -> Iterator[Chunk]:
        """Yield the stream from its start, piece by piece; times never decrease.

        `generator`: the only source of randomness.
        """


class ArrivalFeed:
    """Reads a stream step by step, up to a given time.

    Attributes
    ----------
    costs : float64[n] or None    As `ArrivalStream.costs`.
    """

    def __init__(self, arrivals: ArrivalStream, generator: np.random.Generator) -> None:
        self._chunks = arrivals.chunks(generator)
        self.costs = arrivals.costs
        self._times_s: F64 = np.zeros(0)
        self._groups: I64 = np.zeros(0, dtype=np.int64)
        self._start = 0
        self._ended = False

    def until(self, time_s: float) -> Chunk:
        """Return the records that arrive after the last call's time and not after `time_s`."""
        while not self._ended and (not len(self._times_s) or self._times_s[-1] <= time_s):
            self._extend()
        start = self._start
        stop = int(np.searchsorted(self._times_s, time_s, side="right"))
        self._start = max(start, stop)
        return self._times_s[start:stop], self._groups[start:stop]

    def _extend(self) -> None:
        chunk = next(self._chunks, None)
        if chunk is None:
            self._ended = True
            return
        self._times_s = np.concatenate([self._times_s[self._start :], chunk[0]])
        self._groups = np.concatenate([self._groups[self._start :], chunk[1]])
        self._start = 0


class RecordedArrivals(ArrivalStream):
    """Streams records that are known one by one, each with its own cost.

    Parameters
    ----------
    arrival_s : float64[n]    Seconds since the start, ascending.
    groups : int64[n]
    costs : float64[n] or None
        Multiples of the service time; >= 0. None: all the same.
    """

    def __init__(self, arrival_s: F64, groups: I64, costs: F64 | None, key_groups: int) -> None:
        count = len(arrival_s) if costs is None else len(costs)
        if not len(arrival_s) == len(groups) == count:
            msg = (
                f"{len(arrival_s)} arrivals have {len(groups)} key groups and {count} costs; "
                "give one of each for every record."
            )
            raise ConfigError(msg)
        self._arrival_s, self._groups, self._costs = arrival_s, groups, costs
        self._key_groups = key_groups

    @property
    def key_groups(self) -> int:
        """G."""
        return self._key_groups

    @property
    def costs(self) -> F64 | None:
        """Costs that the constructor got."""
        return self._costs

    @classmethod
    def of_rows(
        cls, rows: KeyedRows, key_groups: int, speed: float, generator: np.random.Generator
    ) -> RecordedArrivals:
        """Return the records of a log's rows, at the log's times or at random times in their slices.

        Costs become multiples of the mean cost. In a log without costs, all records cost the same.
        """
        each = None if rows.counts is None else np.rint(rows.counts).astype(np.int64)
        row = np.arange(len(rows.slices)) if each is None else np.repeat(np.arange(len(each)), each)
        if rows.times_s is None:
            at = (rows.slices[row] + generator.random(len(row))) * rows.slice_s / speed
        else:
            at = rows.times_s[row] / speed
        order = np.argsort(at, kind="stable")
        if rows.costs is None:
            return cls(at[order], rows.groups[row[order]], None, key_groups)
        costs = rows.costs[row]
        mean = float(costs.mean()) if len(costs) else 0.0
        if not mean > 0.0:
            msg = "the costs of all records are 0; give some of them a cost."
            raise ConfigError(msg)
        row = row[order]
        return cls(at[order], rows.groups[row], costs[order] / mean, key_groups)

    def chunks(self, generator: np.random.Generator) -> Iterator[Chunk]:
        """Yield all records at once; uses no randomness."""
        yield self._arrival_s, self._groups


class TraceArrivals(ArrivalStream):
    """Streams the records of a trace, at random times within its slices."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace

    @property
    def key_groups(self) -> int:
        """G of the trace."""
        return int(self.trace.counts.shape[1])

    def chunks(self, generator: np.random.Generator) -> Iterator[Chunk]:
        """Yield some slices at a time, with about `CHUNK` records."""
        trace = self.trace
        ends = np.cumsum(trace.counts.sum(axis=1, dtype=np.int64))
        start, done = 0, 0
        while start < len(ends):
            stop = max(int(np.searchsorted(ends, done + CHUNK, side="right")), start + 1)
            done = int(ends[stop - 1])
            yield self._slices(start, stop, generator)
            start = stop

    def _slices(self, start: int, stop: int, generator: np.random.Generator) -> Chunk:
        counts = self.trace.counts[start:stop]
        cell = np.repeat(np.arange(counts.size), counts.ravel())
        slices, groups = np.divmod(cell, self.key_groups)
        at = start + slices + generator.random(len(cell))
        order = np.argsort(at)
        return at[order] * self.trace.slice_s, groups[order]


def groups_at(edges: F64, draws: F64) -> I64:
    """Return the key groups that uniform draws in [0, 1) fall on.

    `edges` (float64[G]): cumulative shares. `draws`: float64[n].
    """
    groups: I64 = np.searchsorted(edges, draws * edges[-1], side="right").astype(np.int64)
    return np.minimum(groups, len(edges) - 1)
