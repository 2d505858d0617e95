"""Computes the number of records that a slot serves in a step, and the share of each queue."""

from __future__ import annotations

import numpy as np

from headgate.tables.ports import I64

_BURST_S = 10.0
"""Longest pause that a slot at a fixed rate makes up for, seconds. A server would serve on during a
batch, so the limit must be longer than any batch. Chosen, not tuned."""


def timed_quota(rate_per_s: float, elapsed_s: float) -> int:
    """Return how many records a slot that serves at a fixed rate may serve, in an experiment.

    `elapsed_s`: time since the last step. As with a server, idle time is lost: the unused part of a
    quota is not added to the next quota.
    """
    return max(1, int(rate_per_s * min(elapsed_s, _BURST_S)))


def fair_shares(counts: I64, quota: int, turn: int = 0) -> I64:
    """Return how many of each queue's records are served: as equal as the queues allow.

    Parameters
    ----------
    counts : int64[n]    Records waiting per queue.
    quota : int    Records to serve in all; below ``counts.sum()``.
    turn : int
        Number of the step; it rotates the spare records over the queues, so no queue starves.
    """
    ascending = np.sort(counts)
    before = np.concatenate([[0], np.cumsum(ascending)[:-1]])
    left = np.arange(len(counts), 0, -1)
    # first queue, by length, that is longer than an equal share of the remaining quota
    level_index = int(np.argmax(ascending * left + before > quota))
    level = (quota - int(before[level_index])) // int(left[level_index])
    shares = np.minimum(counts, level)
    spare = quota - int(shares.sum())
    longer = np.flatnonzero(counts > level)
    shares[np.roll(longer, -turn * spare)[:spare]] += 1
    return shares
