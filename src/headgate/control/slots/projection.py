"""Projects the steady-state latency of a slot from its arrival rate and its service rate."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

F64 = npt.NDArray[np.float64]


def projected_latency_s(
    rate: npt.ArrayLike, service_rate: npt.ArrayLike, epsilon: float = 0.0
) -> F64:
    """Return the steady-state latency of servers with a queue, in seconds.

    Result: float64[...]: ``1 / ((1 - epsilon) mu - lambda)``; infinite where lambda >= (1 -
    epsilon) mu.

    Parameters
    ----------
    rate : float64[...]    lambda: arrivals per second; >= 0.
    service_rate : float64[...]
        mu: records per second that the server can complete; >= 0. Broadcast against `rate`.
    epsilon : float
        Safety margin in [0, 1): the share of the service rate that stays unused.

    References
    ----------
    StreamSwitch 4.2: M/M/1 sojourn time. Differs: the printed formula turns negative in overload.
    """
    gap = (1.0 - epsilon) * np.asarray(service_rate, dtype=np.float64) - np.asarray(rate)
    with np.errstate(divide="ignore", over="ignore"):
        latency: F64 = np.where(gap > 0.0, 1.0 / gap, np.inf)
    return latency


def pressure(rate: npt.ArrayLike, service_rate: npt.ArrayLike, epsilon: float = 0.0) -> F64:
    """Return a number that orders servers by projected latency, and overloaded ones as well.

    Where the projected latency is finite, the number is ``lambda - (1 - epsilon) mu``, which is
    negative. In overload, where all latencies are infinite, it is ``lambda / mu``, which is not. For
    one service rate the number never falls as the rate grows. Result: float64[...], without a unit,
    for comparison only. Infinite where `service_rate` is 0.

    `rate`, `service_rate`, `epsilon`: as for `projected_latency_s`.
    """
    rates = np.asarray(rate, dtype=np.float64)
    service = np.asarray(service_rate, dtype=np.float64)
    gap = (1.0 - epsilon) * service - rates
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        ratio = np.where(service > 0.0, rates / service, np.inf)
    ordered: F64 = np.where(gap > 0.0, -gap, ratio)
    return ordered
