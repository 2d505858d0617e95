"""Computes latency from markers, and the scaling period, for the simulator and for Spark (DRRS V)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

F64 = npt.NDArray[np.float64]

STABLE_SHARE = 1.1
"""Latency up to this multiple of the level before scaling counts as stable (DRRS V-B)."""

STABLE_S = 100.0
"""Time for which latency must be stable, in seconds (DRRS V-B)."""


@dataclass(frozen=True)
class Latencies:
    """Holds the latencies of markers, in the order of their creation.

    Attributes
    ----------
    created_s : float64[n]
        Due time of a marker's record at its source, so that waiting there counts (DRRS V-A).
    latency_s : float64[n]
        Time from then to the arrival at the sink.
    """

    created_s: F64
    latency_s: F64

    def between(self, start_s: float, end_s: float) -> F64:
        """Return the latencies of markers created in [start_s, end_s)."""
        chosen = (self.created_s >= start_s) & (self.created_s < end_s)
        return self.latency_s[chosen]


def level_s(latencies: Latencies, start_s: float, end_s: float) -> float:
    """Return the largest latency of an interval before scaling; 0 without markers.

    References
    ----------
    DRRS V-B says "pre-scaling level"; its code takes the largest of 200 to 280 s.
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
        Time for which latency must keep within `share`.

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
