"""Implements the unified policy over pools of replicas: PSPS predicts arrivals, `Unified` decides."""

from __future__ import annotations

import numpy as np

from headgate.control.estimators.forecast import (
    Blend,
    Forecaster,
    LastChange,
    Naive,
    Smoothed,
)
from headgate.control.limits import check_range
from headgate.control.observation import Observation, OperatorView
from headgate.control.pools.psps import Edge, Prediction, check_interval, edge_shares, predict
from headgate.control.pools.replicas import Interval, OperatorInterval, ReplicaDecision
from headgate.control.slots.unified import Unified
from headgate.core.assignment import spread

_CLEAR = 9.0
"""Intervals within which the backlog is to be served. With 1, bursts of seconds activate replicas that
then are idle. Chosen on PSPS's raw tweets and DNS flows."""


class UnifiedPools:
    """Shows `Unified` with ``even=1`` each pool as an operator whose slots are its active replicas.

    PSPS's equations give the arrivals of the next interval from a forecast of the job's input, so that
    replicas upstream do not change them. `Unified` decides how many replicas these arrivals need.

    Parameters
    ----------
    bound_s : float    Bound on the mean time of an event in an operator, seconds; > 0.
    epsilon : float    See `Unified`.
    forecaster : Forecaster, optional    Forecasts the input; default: `burst_blend`.

    References
    ----------
    Ours; PSPS IV, equations 2 to 4 and algorithm 2.
    """

    def __init__(
        self, bound_s: float = 1.0, epsilon: float = 0.0, forecaster: Forecaster | None = None
    ) -> None:
        check_range("unified", "bound_s", bound_s, 0.0, above=True)
        self._bound_s = bound_s
        self._inner = Unified(epsilon, 0.0, even=1, clear=_CLEAR)
        self._forecaster = forecaster or burst_blend()
        self._shares: dict[Edge, float] = {}
        self._time_s = 0.0

    @property
    def name(self) -> str:
        """``unified-pools(1)``."""
        return f"unified-pools({self._bound_s:g})"

    def decide(self, interval: Interval) -> ReplicaDecision:
        """Return the replicas that must be active in the next interval.

        Raises `UnsupportedQuery`, `ConfigError`: as `check_interval`.
        """
        if not interval.valid:
            return ReplicaDecision(reason="A sample is missing or absurd: nothing is changed.")
        if not self._time_s:
            check_interval(interval, "unified-pools")
        self._time_s += interval.duration_s
        self._forecaster.observe(interval.input_events)
        self._shares = edge_shares(interval, self._shares)
        predictions = predict(interval, self._shares, self._forecaster.forecast())
        views = {
            name: _view(interval.operators[name], prediction, interval.duration_s, self._bound_s)
            for name, prediction in predictions.items()
        }
        decided = self._inner.decide(Observation(self._time_s, views))
        wanted = {name: change.assignment.slots for name, change in decided.changes.items()}
        return ReplicaDecision(wanted, reason=decided.reason, numbers=decided.numbers)


def burst_blend() -> Blend:
    """Return a forecast for intervals of some seconds: the slope of bursts, or the level of noise.

    A burst that ends within an interval does not show the next interval; the slow level is then the best
    forecast. The blend learns over a hundred intervals what the stream has. Chosen on PSPS's tweets and
    DNS flows.
    """
    levels = [Smoothed(0.5), Smoothed(0.05)]
    return Blend([Naive(), *levels, LastChange()], memory=0.99, power=12.0)


def _view(
    operator: OperatorInterval, expected: Prediction, interval_s: float, bound_s: float
) -> OperatorView:
    """Return a pool as an operator with one key group per replica, each with equal load."""
    groups, active = operator.pool, operator.active
    rate = expected.received / interval_s
    return OperatorView(
        assignment=spread(active, groups),
        slot_ids=tuple(range(active)),
        latency_s=np.full(active, operator.event_s),
        group_latency_s=np.full(groups, operator.event_s),
        group_rate=np.full(groups, rate / groups),
        service_rate=np.full(active, 1.0 / operator.event_s),
        utilisation=np.full(active, min(1.0, rate * operator.event_s / active)),
        backlog=np.full(groups, expected.queued / groups),
        bound_s=bound_s,
        window_s=interval_s,
        alert_s=bound_s / 10.0,
        slots_min=operator.least,
        slots_max=groups,
    )
