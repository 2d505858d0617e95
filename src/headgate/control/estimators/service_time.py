"""Estimates an operator's time per event: a benchmark's value, corrected while the operator runs."""

from __future__ import annotations

import math

from headgate.control.limits import check_range


class ServiceTimeEstimate:
    """Estimates a mean time per event that follows the measurements.

    `event_s`: the benchmark's value, in seconds; > 0. `weight`: weight of a new interval, in [0,
    1]; 0 keeps the benchmark's value, as PSPS does.

    References
    ----------
    PSPS IV, Table I: et_i. Differs: the paper never corrects it, and a trace whose events grow
    dearer is then under-provisioned for ever. The weight 1/8 is StreamSwitch's (4.2).
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
        """Take the events processed in an interval and the useful time they took, in seconds.

        An interval without events, without useful time, or with an absurd sample changes nothing.
        """
        valid = math.isfinite(processed) and math.isfinite(useful_s)
        if valid and processed > 0.0 and useful_s > 0.0:
            self._event_s += self._weight * (useful_s / processed - self._event_s)
