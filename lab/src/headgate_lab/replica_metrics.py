"""Judges a run over pools of replicas by the four measures of PSPS."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from headgate.control.limits import check_range

F64 = npt.NDArray[np.float64]


def saved_resources(active: F64, overprovisioned: float) -> float:
    """Return 1 - r / r_over.

    Parameters
    ----------
    active : float64[intervals]
        Active replicas of all operators together, one entry per interval.
    overprovisioned : float
        r_over: replicas that process everything at the highest peak; > 0.

    Returns
    -------
    float
        At most 1; negative where more were active on average.

    References
    ----------
    PSPS V-A3. r is read as the mean over the run.
    """
    check_range("saved resources", "overprovisioned", overprovisioned, 0.0, above=True)
    return 1.0 - float(np.mean(active)) / overprovisioned


def throughput_degradation(arrived: F64, processed: F64) -> float:
    """Return the mean of |in - out| / in over the intervals in which something arrived.

    Parameters
    ----------
    arrived, processed : float64[intervals]
        Events that entered and left the job per interval; >= 0.

    Returns
    -------
    float
        >= 0; 0 where nothing ever arrived. Above 1 where a backlog of many intervals drains.

    References
    ----------
    PSPS V-A3, which does not say how intervals are averaged.
    """
    some = arrived > 0.0
    if not some.any():
        return 0.0
    return float(np.mean(np.abs(arrived[some] - processed[some]) / arrived[some]))


def processed_share(received: float, processed: float) -> float:
    """Return processed / received events; 1 where nothing was received.

    References
    ----------
    PSPS V-A3 calls it a difference; its tables hold the ratio.
    """
    return processed / received if received else 1.0


def mean_latency_s(enter_s: F64, leave_s: F64) -> float:
    """Return the mean time from entering the job to leaving it, in seconds; NaN without events.

    Parameters
    ----------
    enter_s, leave_s : float64[events]
        Of the events that left, in seconds.
    """
    return float(np.mean(leave_s - enter_s)) if len(leave_s) else float("nan")
