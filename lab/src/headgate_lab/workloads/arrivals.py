"""Makes arrivals from a rate function and shares of key groups, and traces from logs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from headgate.core.errors import ConfigError
from headgate.workloads.arrivals import CHUNK, ArrivalStream, Chunk, groups_at
from headgate.workloads.rates import RateFunction
from headgate.workloads.traces import Trace, groups_of_keys, read_rows, trace_of

F64 = npt.NDArray[np.float64]


class RateArrivals(ArrivalStream):
    """Streams records at a given rate, with random key groups.

    Parameters
    ----------
    shares : float64[G]    Probability of each key group, adding up to 1.
    poisson : bool
        Whether gaps are random (a Poisson process of that rate); otherwise each record arrives exactly
        when it is due.
    """

    def __init__(self, rate: RateFunction, shares: npt.ArrayLike, *, poisson: bool = False) -> None:
        self.rate = rate
        self.shares: F64 = np.asarray(shares, dtype=np.float64)
        self.poisson = poisson
        if not (np.all(self.shares >= 0.0) and np.isclose(self.shares.sum(), 1.0, rtol=1e-6)):
            total = float(self.shares.sum())
            msg = f"shares of the key groups add up to {total:g}; give numbers >= 0 that make 1."
            raise ConfigError(msg)

    @property
    def key_groups(self) -> int:
        """G: one for each share."""
        return len(self.shares)

    def chunks(self, generator: np.random.Generator) -> Iterator[Chunk]:
        """Yield records without end.

        A Poisson process of any rate is a process of rate 1 over the number of due records.
        """
        edges = np.cumsum(self.shares)
        due = 0.0
        while True:
            gaps = generator.standard_exponential(CHUNK) if self.poisson else np.ones(CHUNK)
            at = due + np.cumsum(gaps)
            due = float(at[-1])
            # `time_of(i)` is the time at which i + 1 records are due.
            yield self.rate.time_of(at - 1.0), groups_at(edges, generator.random(CHUNK))


def group_shares(key_shares: npt.ArrayLike, key_groups: int) -> F64:
    """Return the share of each key group, from the share of each key (numbered from 0)."""
    weights = np.asarray(key_shares, dtype=np.float64)
    groups = groups_of_keys(np.arange(len(weights)), key_groups)
    return np.bincount(groups, weights=weights, minlength=key_groups).astype(np.float64)


def read_keyed(path: str, key_groups: int, *, speed: float = 1.0, **columns: Any) -> Trace:
    """Return the trace of a log with one row per record, or per key and time with a count.

    Parameters
    ----------
    speed : float    Log seconds per second of the trace; > 0.
    **columns    Arguments of `headgate.workloads.traces.read_rows`.
    """
    return trace_of(read_rows(path, key_groups, **columns), path, key_groups, speed)
