"""Counts latencies in log-spaced buckets, so that batches and runs can be added up.

A percentile cannot be averaged; counts can be added. Bucket 0 holds ``0 .. FIRST_MS``; bucket i
holds ``(FIRST_MS * GROWTH**(i-1), FIRST_MS * GROWTH**i]``. In the journal a bucket is named by its
upper edge in milliseconds, which is the same float in every process, so that two journals merge
without conversion.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from headgate.core.errors import ConfigError

F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]
Sparse = tuple[tuple[float, int], ...]
"""Pairs of (upper edge in ms, count), ascending, counts > 0: what the journal stores."""

FIRST_MS = 0.1
"""Upper edge of bucket 0. Chosen, not tuned: no micro-batch has a latency near it."""

GROWTH = 1.05
"""Ratio of two neighbouring edges, which bounds the relative error of a percentile at 5 %."""

BUCKETS = 424
"""Buckets in all; the last edge is about 25 hours, and longer latencies are counted there."""

EDGES_MS: F64 = np.round(FIRST_MS * GROWTH ** np.arange(BUCKETS), 4)
"""Upper edges in ms, ascending; shape [BUCKETS]. Rounded, so that lines stay short."""

EDGES_MS.setflags(write=False)


def counts_of(latency_ms: npt.ArrayLike, weights: npt.ArrayLike | None = None) -> I64:
    """Return how many latencies fall into each bucket.

    Result: int64[BUCKETS]: dense counts; add arrays to merge, pass the sum to `sparse_of`.

    `latency_ms`: latencies; a negative value (clocks of two hosts differ) counts as zero, NaN is
    not counted. `weights`: how many records each latency stands for; one each when absent.
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
    """Return the buckets of dense `counts` that are not empty, as the journal stores them."""
    used = np.flatnonzero(counts)
    return tuple((float(EDGES_MS[i]), int(counts[i])) for i in used)


def merge(histograms: Iterable[Sparse]) -> Sparse:
    """Return the sum of several sparse histograms."""
    total: dict[float, int] = {}
    for histogram in histograms:
        for edge_ms, count in histogram:
            total[edge_ms] = total.get(edge_ms, 0) + count
    return tuple(sorted(total.items()))


def completed(histogram: Sparse) -> int:
    """Return how many records a histogram counts."""
    return sum(count for _, count in histogram)


def percentile_ms(histogram: Sparse, share: float) -> float | None:
    """Return the latency that a share of the records does not exceed.

    Inside a bucket records are taken as evenly spread, so the result is at most one bucket width, 5
    %, away from the exact order statistic (or 0.1 ms below the first edge). Milliseconds; None for
    an empty histogram.

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

    Inside a bucket records are taken as evenly spread, as of `percentile_ms`.
    """
    total, within = completed(histogram), 0.0
    for edge_ms, count in histogram:
        lower_ms = 0.0 if edge_ms <= FIRST_MS else edge_ms / GROWTH
        within += count * min(max((bound_ms - lower_ms) / (edge_ms - lower_ms), 0.0), 1.0)
    return within / total if total else None
