"""Estimates an operator's time per event: corrects a benchmark's value while the operator runs."""

from __future__ import annotations

import math

from headgate.control.limits import check_range


class ServiceTimeEstimate:
    """Estimates a mean time per event that follows the measurements.

    `event_s`: the benchmark's value, in seconds; > 0. `weight`: weight of a new interval, in [0,
    1]; 0 keeps the benchmark's value, as PSPS does.

    References
    ----------
    PSPS IV, Table I: et_i. Differs: the paper never corrects it; where the events of a trace take
    longer with time, it then has too few replicas for ever. StreamSwitch 4.2 has the weight 1/8.
    """

    def __init__(self, event_s: float, weight: float = 0.125) -> None:
        check_range("service time", "event_s", event_s, 0.0, above=True)
        check_range("service time", "weight", weight, 0.0, 1.0)
        self._event_s = event_s
        self._weight = weight

    @property
    def event_s(self) -> float:
        """et: the mean time of one event, in seconds."""
        return self._event_s

    def observe(self, processed: float, useful_s: float) -> None:
        """Add the events processed in an interval and the useful time that they took, in seconds.

        An interval without events or useful time, or with a value that is not finite, changes nothing.
        """
        valid = math.isfinite(processed) and math.isfinite(useful_s)
        if valid and processed > 0.0 and useful_s > 0.0:
            self._event_s += self._weight * (useful_s / processed - self._event_s)
