"""Computes the number of records that a slot serves in a step, and the share of each queue."""

from __future__ import annotations

import numpy as np

from headgate.tables.ports import I64

_BURST_S = 10.0
"""The most that a slot at a fixed rate makes up for after a pause; a server would have gone on serving
meanwhile, so only a pause that is no batch's is cut. Chosen, not tuned."""


def timed_quota(rate_per_s: float, elapsed_s: float) -> int:
    """Return how many records a slot may serve that serves a fixed rate, in an experiment.

    `elapsed_s`: time since the last step. A slot that had too little to do has lost the time, as a
    server has: what it did not serve of a quota is not added to the next.
    """
    return max(1, int(rate_per_s * min(elapsed_s, _BURST_S)))


def fair_shares(counts: I64, quota: int, turn: int = 0) -> I64:
    """Return how many of each queue's records are served: as equal as the queues allow.

    Parameters
    ----------
    counts : int64[n]    Records waiting per queue.
    quota : int    Records to serve in all; below ``counts.sum()``.
    turn : int
        Who gets the odd record moves on with it, so that with fewer records than queues none starves.
    """
    ascending = np.sort(counts)
    before = np.concatenate([[0], np.cumsum(ascending)[:-1]])
    left = np.arange(len(counts), 0, -1)
    # the first queue that an equal share of what remains would not empty
    level_index = int(np.argmax(ascending * left + before > quota))
    level = (quota - int(before[level_index])) // int(left[level_index])
    shares = np.minimum(counts, level)
    spare = quota - int(shares.sum())
    longer = np.flatnonzero(counts > level)
    shares[np.roll(longer, -turn * spare)[:spare]] += 1
    return shares
