"""Computes figures of operators that several rival policies share, also over longer intervals."""

from __future__ import annotations

import math

from headgate.control.observation import Observation, OperatorView
from headgate.control.slots.rescaling import arrival_rate, mean_service_rate


def mean_latency_s(view: OperatorView) -> float:
    """Return the mean of l_i above the floor, weighted by arrivals; 0 where nothing completed."""
    pairs = zip(view.slot_rate.tolist(), view.latency_s.tolist(), strict=True)
    # A slot without arrivals can still complete its backlog, so it gets a very small weight.
    known = [(rate or 1e-9, latency) for rate, latency in pairs if not math.isnan(latency)]
    weight = sum(rate for rate, _ in known)
    if not known:
        return 0.0
    total = float(sum(rate * latency for rate, latency in known))
    return max(total / weight - view.floor_s, 0.0)


def processing_rate(view: OperatorView) -> list[float]:
    """Return the records per second that each slot completes: mu_i times its utilisation."""
    pairs = zip(view.service_rate.tolist(), view.utilisation.tolist(), strict=True)
    return [0.0 if math.isnan(share) else rate * share for rate, share in pairs]


def is_whole(observation: Observation) -> bool:
    """Return whether every operator that `parents` names can be seen.

    An observation lacks operators with invalid counters or with a change of assignment under way. A
    policy with a model of the whole job waits until all operators are back.
    """
    seen = observation.operators
    return all(
        name in seen and all(parent in seen for parent in parents)
        for name, parents in observation.parents.items()
    )


class Averages:
    """Computes the means of an operator's figures over the cycles of a longer interval.

    Attributes
    ----------
    cycles : int    Number of added cycles.
    """

    def __init__(self) -> None:
        self.cycles = 0
        self._rate = self._service = self._latency_s = self._processed = 0.0

    def add(self, view: OperatorView) -> None:
        """Add the figures of one cycle."""
        self.cycles += 1
        self._rate += arrival_rate(view)
        self._service += mean_service_rate(view)
        self._latency_s += mean_latency_s(view)
        self._processed += sum(processing_rate(view))

    @property
    def rate(self) -> float:
        """Arrivals per second."""
        return self._rate / self.cycles

    @property
    def service_rate(self) -> float:
        """Records per second of useful time, mean of the slots."""
        return self._service / self.cycles

    @property
    def latency_s(self) -> float:
        """Mean latency above the floor, in seconds."""
        return self._latency_s / self.cycles

    @property
    def processing_rate(self) -> float:
        """Records per second that the operator completed."""
        return self._processed / self.cycles
