"""Latency by markers, and how long scaling lasts: one definition for simulator and Spark (DRRS V)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

F64 = npt.NDArray[np.float64]

STABLE_SHARE = 1.1
"""Latency within this share of the level before scaling counts as stable (DRRS V-B)."""

STABLE_S = 100.0
"""For how long it has to be (DRRS V-B)."""


@dataclass(frozen=True)
class Latencies:
    """Markers in the order of their creation.

    Attributes
    ----------
    created_s : float64[n]
        When a marker's record was due at its source: what it waited there counts (DRRS V-A).
    latency_s : float64[n]
        Until it reached the sink.
    """

    created_s: F64
    latency_s: F64

    def between(self, start_s: float, end_s: float) -> F64:
        """Return the latencies of markers created in [start_s, end_s)."""
        chosen = (self.created_s >= start_s) & (self.created_s < end_s)
        return self.latency_s[chosen]


def level_s(latencies: Latencies, start_s: float, end_s: float) -> float:
    """Return the greatest latency of an interval before scaling; 0 without markers.

    References
    ----------
    DRRS V-B says "pre-scaling level"; its code takes the greatest of 200 to 280 s.
    """
    found = latencies.between(start_s, end_s)
    return float(found.max()) if len(found) else 0.0


def stable_from_s(
    latencies: Latencies,
    level: float,
    *,
    from_s: float,
    stable_s: float = STABLE_S,
    share: float = STABLE_SHARE,
) -> float | None:
    """Return the first time from `from_s` after which latency keeps within `share` of a level.

    Parameters
    ----------
    level : float
        Latency before scaling, in seconds.
    from_s : float
        The request, or the last acknowledgement.
    stable_s : float
        How long it has to keep within.

    Returns
    -------
    float or None
        None if the markers do not reach `stable_s` beyond any such time.

    References
    ----------
    DRRS V-B: the end of the scaling period, 110 % for 100 s.
    """
    times = latencies.created_s
    above = times[(latencies.latency_s > share * level) & (times >= from_s)]
    edges = np.concatenate(([from_s], above, [times[-1] if len(times) else from_s]))
    calm = np.flatnonzero(np.diff(edges) >= stable_s)
    return float(edges[calm[0]]) if len(calm) else None
