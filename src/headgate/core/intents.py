"""Turns the SLOs of a job, as users write them, into the job's utility."""

from __future__ import annotations

from collections.abc import Sequence

from headgate.core.errors import ConfigError
from headgate.core.slo import Slo
from headgate.core.utility import Intent, Knee, Metric, Shape, Utility

MAX_PERCENTILE = 99.9
"""Percentile that replaces the statistic *max*: a single slowest record says little about a job."""


def intent_of(slo: Slo, shape: Shape | None = None) -> Intent:
    """Return the intent of one SLO: its metric, its threshold, and the cost of missing it."""
    metric = Metric.LATENCY if slo.is_latency else Metric(slo.statistic)
    return Intent(metric, slo.bound, shape or Knee(), _percentile(slo))


def _percentile(slo: Slo) -> float | None:
    if not slo.is_latency or slo.statistic == "mean":
        return None
    return MAX_PERCENTILE if slo.statistic == "max" else float(slo.statistic.removeprefix("p"))


def utility_of(slos: Sequence[Slo], priority: float, shape: Shape | None = None) -> Utility:
    """Return the utility of a job: its priority times the degree to which its SLOs are met.

    Raises `ConfigError`: there is no SLO, an SLO is about a single operator, or the priority or the
    shape is out of range.

    Parameters
    ----------
    slos : sequence of Slo    One SLO, or several; the utility is the mean of their utilities.
    priority : float    Utility of the job when all SLOs are met; > 0.
    shape : Shape, optional    The knee by default.
    """
    if not slos:
        msg = 'a job of a fleet needs an SLO; add .slo("mean < 1 s over 1 s") to its writer.'
        raise ConfigError(msg)
    for slo in slos:
        if slo.operator is not None:
            msg = (
                f'SLO "{slo}" is about one operator, and a fleet judges a job as a whole; leave out '
                f'"{slo.scope}:".'
            )
            raise ConfigError(msg)
    return Utility(priority, tuple(intent_of(slo, shape) for slo in slos))
