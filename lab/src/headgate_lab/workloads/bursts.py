"""Generates a load with three bursts, in place of PSPS's sample of tweets."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

F64 = npt.NDArray[np.float64]

LENGTH_S = 1080.0
"""PSPS's figures 8 to 11 end somewhat above 1,000 s [P]; whole intervals of 30, 60, 120 and 180 s."""

_BURSTS = ((6.0, 200.0), (6.5, 510.0), (8.0, 900.0))
"""(height, time in s): inflections at 200, 500 and 900 s [P]; the last is the peak of 8 replicas [P]."""

_WIDTH_S = 45.0
"""[D] with which one replica processes about the paper's 33 % (table VIII)."""


def replicas_needed(at_s: npt.ArrayLike) -> F64:
    """Return the replicas of an operator that the load needs, 1 to 8, at times since its start.

    Parameters
    ----------
    at_s : float64[...]
        Seconds, up to `LENGTH_S`.

    References
    ----------
    PSPS V-A, figures 8 and 9. Differs: the tweets are not available; the shape is chosen.
    """
    time_s = np.asarray(at_s, dtype=np.float64)
    load = np.ones(time_s.shape)
    for height, centre_s in _BURSTS:
        load += (height - 1.0) * np.exp(-(((time_s - centre_s) / _WIDTH_S) ** 2) / 2.0)
    return load


def steps(length_s: float, replica_rate: float, count: int = 72) -> str:
    """Return the load as a rate text, compressed into `length_s`, for replicas of a given rate.

    Parameters
    ----------
    replica_rate : float
        Records per second that a replica serves.
    count : int
        Number of steps of the rate.
    """
    edges = np.arange(count)
    needed = replicas_needed((edges + 0.5) * LENGTH_S / count) * replica_rate
    first, *others = [f"{rate:.6g}" for rate in needed]
    starts_s = edges[1:] * length_s / count
    pairs = [f"{at_s:g}s={rate}" for at_s, rate in zip(starts_s, others, strict=True)]
    return f"steps({', '.join([first, *pairs])})"
