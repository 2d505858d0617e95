"""Counts latencies in log-spaced buckets, so that batches and runs can be added up.

A percentile cannot be averaged; counts can be added. Bucket 0 holds ``0 .. FIRST_MS``; bucket i
holds ``(FIRST_MS * GROWTH**(i-1), FIRST_MS * GROWTH**i]``. In the journal a bucket is named by its
upper edge in milliseconds, which is the same float in every process, so that two journals merge
without conversion.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from headgate.core.errors import ConfigError
from headgate.journal.numbers import Count, Number

F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]
Sparse = tuple[tuple[Number, Count], ...]
"""Pairs of (upper edge in ms, count), ascending, counts > 0: what the journal stores."""

FIRST_MS = 0.1
"""Upper edge of bucket 0. Chosen, not tuned: no micro-batch has a latency near it."""

GROWTH = 1.05
"""Ratio of two neighbouring edges, which bounds the relative error of a percentile at 5 %."""

BUCKETS = 424
"""Number of buckets; the last edge is about 25 hours, and the last bucket counts all longer latencies."""

_ASIDE_MAX = 64
"""Batches that `RunLatencies` adds up at a time; so few that their histograms fit a core's cache."""

EDGES_MS: F64 = np.round(FIRST_MS * GROWTH ** np.arange(BUCKETS), 4)
"""Upper edges in ms, ascending; shape [BUCKETS]. Rounded, so that lines stay short."""

EDGES_MS.setflags(write=False)


def counts_of(latency_ms: npt.ArrayLike, weights: npt.ArrayLike | None = None) -> I64:
    """Return how many latencies fall into each bucket.

    Returns int64[BUCKETS]: dense counts; add arrays to merge, pass the sum to `sparse_of`.

    `latency_ms`: latencies; a negative value (clocks of two hosts differ) counts as zero, NaN is
    not counted. `weights`: number of records of each latency; one each if None.
    """
    values = np.asarray(latency_ms, dtype=np.float64).ravel()
    known = ~np.isnan(values)
    index = np.minimum(np.searchsorted(EDGES_MS, values[known], side="left"), BUCKETS - 1)
    counts = np.zeros(BUCKETS, dtype=np.int64)
    if weights is None:
        np.add.at(counts, index, 1)
    else:
        np.add.at(counts, index, np.asarray(weights, dtype=np.int64).ravel()[known])
    return counts


def sparse_of(counts: I64) -> Sparse:
    """Return the non-empty buckets of dense `counts` in the form that the journal stores."""
    used = np.flatnonzero(counts)
    return tuple((float(EDGES_MS[i]), int(counts[i])) for i in used)


def merge(histograms: Iterable[Sparse]) -> Sparse:
    """Return the sum of several sparse histograms."""
    total: dict[float, int] = {}
    for histogram in histograms:
        for edge_ms, count in histogram:
            total[edge_ms] = total.get(edge_ms, 0) + count
    return tuple(sorted(total.items()))


class RunLatencies:
    """Adds up the histograms and the mean latencies of many batches.

    NumPy adds up many batches at a time: adding them one by one would take most of the time of
    reading a long journal.
    """

    def __init__(self) -> None:
        self._aside: list[tuple[Sparse, float | None, int]] = []
        self._counts: dict[float, int] = {}
        self._sum_ms = 0.0
        self._count = 0

    def add(self, histogram: Sparse, mean_ms: float | None, served: int) -> None:
        """Add a batch; `served`: number of records behind its mean if it has no histogram."""
        self._aside.append((histogram, mean_ms, served))
        if len(self._aside) == _ASIDE_MAX:
            self._add_up()

    @property
    def histogram(self) -> Sparse:
        """Return the sum of all histograms."""
        self._add_up()
        return tuple(sorted(self._counts.items()))

    @property
    def mean_ms(self) -> float | None:
        """Return the mean latency of all records, in ms; None if no record was completed."""
        self._add_up()
        return self._sum_ms / self._count if self._count else None

    def _add_up(self) -> None:
        aside, self._aside = self._aside, []
        pairs = itertools.chain.from_iterable(histogram for histogram, *_ in aside)
        flat = np.fromiter(itertools.chain.from_iterable(pairs), np.float64)
        edges_ms, index = np.unique(flat[::2], return_inverse=True)
        sums = np.bincount(index, flat[1::2], len(edges_ms))
        for edge_ms, count in zip(edges_ms.tolist(), sums.tolist(), strict=True):
            self._counts[edge_ms] = self._counts.get(edge_ms, 0) + round(count)
        ends = np.cumsum([len(histogram) for histogram, *_ in aside], dtype=np.int64)
        below = np.concatenate([[0.0], np.cumsum(flat[1::2])])
        in_buckets = np.diff(below[np.concatenate([[0], ends])]).tolist()
        for (_, mean_ms, served), records in zip(aside, in_buckets, strict=True):
            if mean_ms is not None:
                count = round(records) or served
                self._sum_ms += mean_ms * count
                self._count += count


def completed(histogram: Sparse) -> int:
    """Return how many records a histogram counts."""
    return sum(count for _, count in histogram)


def percentile_ms(histogram: Sparse, share: float) -> float | None:
    """Return the latency that a share of the records does not exceed.

    Records inside a bucket count as evenly spread, so the result differs by at most one bucket width,
    5 %, from the exact order statistic (or 0.1 ms below the first edge). Milliseconds; None for an
    empty histogram.

    `histogram` (sparse histogram): pairs of (upper edge in ms, count), ascending. `share`: in [0,
    1]; 0.95 gives p95.
    """
    if not 0.0 <= share <= 1.0:
        msg = f"percentile share {share} is out of range; use 0 to 1, as 0.95 for p95."
        raise ConfigError(msg)
    rank = share * completed(histogram)
    seen = 0
    for edge_ms, count in histogram:
        if seen + count >= rank:
            lower_ms = 0.0 if edge_ms <= FIRST_MS else edge_ms / GROWTH
            return lower_ms + (edge_ms - lower_ms) * (rank - seen) / count
        seen += count
    return histogram[-1][0] if histogram else None


def share_within(histogram: Sparse, bound_ms: float) -> float | None:
    """Return the share of the records whose latency is at most a bound; None for an empty histogram.

    Records inside a bucket count as evenly spread, as in `percentile_ms`.
    """
    total, within = completed(histogram), 0.0
    for edge_ms, count in histogram:
        lower_ms = 0.0 if edge_ms <= FIRST_MS else edge_ms / GROWTH
        within += count * min(max((bound_ms - lower_ms) / (edge_ms - lower_ms), 0.0), 1.0)
    return within / total if total else None
