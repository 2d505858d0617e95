"""Implements PSPS: activates replicas of stateless operators before the next interval's events come."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from headgate.control.estimators.forecast import Forecaster, Naive
from headgate.control.pools.replicas import Interval, ReplicaDecision, refuse_stateful
from headgate.core.errors import ConfigError

Edge = tuple[str, str]
"""The names of a predecessor and its successor."""

INPUT = ""
"""Name of the input data, as the predecessor of the initial operators."""

_ROUNDING = 1e-9
"""Tolerance of `ceil`: thirty events of 100 ms need 3 replicas in 1 s, also in floating point."""


@dataclass(frozen=True)
class Prediction:
    """Holds the predicted events of one operator in the next interval.

    References
    ----------
    PSPS IV, equations 2 to 4.
    """

    theta: float
    """Events received per event of the input data; above 1 behind an operator that replicates."""
    received: float
    """Events that the operator will receive, rounded up."""
    queued: float
    """Events that the operator has received and not processed."""

    @property
    def total(self) -> float:
        """Events to process."""
        return self.received + self.queued


def edge_shares(interval: Interval, before: Mapping[Edge, float]) -> dict[Edge, float]:
    """Return theta_i^p of every edge: events sent along it per event its predecessor processed.

    `before`: the shares of the last interval. They stay where a predecessor processed no event in this
    interval; a share is 1 before the first event.

    References
    ----------
    PSPS IV, equation 2c, which does not define the share for mu_p = 0. The paper has one initial
    operator, whose theta is 1; each of several initial operators has its share of the input data.
    """
    shares = {}
    initial = [name for name, operator in interval.operators.items() if not operator.received]
    for name, operator in interval.operators.items():
        for parent, received in operator.received.items():
            sent_by = interval.operators[parent].processed
            shares[parent, name] = _ratio(received, sent_by, before.get((parent, name), 1.0))
    alone = len(initial) == 1
    for name in initial:
        read, last = interval.operators[name].from_source, before.get((INPUT, name), 1.0)
        shares[INPUT, name] = 1.0 if alone else _ratio(read, interval.input_events, last)
    return shares


def _ratio(part: float, whole: float, before: float) -> float:
    return part / whole if whole > 0.0 else before


def predict(
    interval: Interval,
    shares: Mapping[Edge, float],
    input_events: float,
    *,
    predecessor_queues: bool = False,
) -> dict[str, Prediction]:
    """Return the predicted events of each operator in the next interval, predecessors first.

    `shares`: see `edge_shares`. `input_events`: lambda_G, the events that the input data will send.
    `predecessor_queues`: whether events that wait upstream also count as received in the next interval
    (future work in PSPS VI).

    References
    ----------
    PSPS IV, equations 2 to 4: all predictions follow from the input, so that more replicas upstream do
    not change the predictions downstream. Received events are rounded up, as in Table II b.
    """
    theta = {INPUT: 1.0}
    upstream = {INPUT: 0.0}
    predictions = {}
    for name in interval.upstream_first:
        operator = interval.operators[name]
        into = [(parent, shares[parent, name]) for parent in operator.received or (INPUT,)]
        theta[name] = sum(theta[parent] * share for parent, share in into)
        waiting = sum(upstream[parent] * share for parent, share in into)
        upstream[name] = waiting + operator.queued
        received = input_events * theta[name] + (waiting if predecessor_queues else 0.0)
        rounded = math.ceil(received - _ROUNDING)
        predictions[name] = Prediction(theta[name], max(0.0, rounded), operator.queued)
    return predictions


def replicas_needed(events: float, event_s: float, duration_s: float) -> int:
    """Return the number of replicas that process `events` in an interval: ceil(events et / td).

    References
    ----------
    PSPS IV, equation 1; rounded up, as Table II b shows.
    """
    return math.ceil(events * event_s / duration_s - _ROUNDING)


def plan(interval: Interval, predictions: Mapping[str, Prediction]) -> dict[str, int]:
    """Return the active replicas of the operators that change, within each operator's limits.

    References
    ----------
    PSPS IV-B, Algorithm 2.
    """
    wanted = {}
    for name, prediction in predictions.items():
        operator = interval.operators[name]
        needed = replicas_needed(prediction.total, operator.event_s, interval.duration_s)
        replicas = max(operator.least, min(needed, operator.pool))
        if replicas != operator.active:
            wanted[name] = replicas
    return wanted


class Psps:
    """Keeps as many replicas active as the events of the next interval will need.

    Monitor: the engine measures the interval. Analyse: `edge_shares` and `predict`, from the first
    operator to the last. Plan: `plan`. Execute: the engine activates and deactivates replicas of the
    pool, without a restart.

    `forecaster`: forecasts lambda_G; None forecasts the last value, as PSPS does.
    `predecessor_queues`: see `predict`.

    References
    ----------
    PSPS IV. Stateless operators only; the interval must be longer than the time that one event needs
    through the job.
    """

    def __init__(
        self, forecaster: Forecaster | None = None, *, predecessor_queues: bool = False
    ) -> None:
        self._forecaster = forecaster or Naive()
        self._predecessor_queues = predecessor_queues
        self._shares: dict[Edge, float] = {}
        self._checked = False

    @property
    def name(self) -> str:
        """``psps(naive)``."""
        return f"psps({self._forecaster.name})"

    def decide(self, interval: Interval) -> ReplicaDecision:
        """Return the replicas that must be active in the next interval.

        An interval with a missing or invalid count changes nothing. Raises `UnsupportedQuery`: an
        operator keeps state; `ConfigError`: the first valid interval is not longer than one event needs
        through the job, or the graph has a cycle.
        """
        if not interval.valid:
            return ReplicaDecision(reason="A sample is missing or absurd: nothing is changed.")
        if not self._checked:
            check_interval(interval)
            self._checked = True
        self._forecaster.observe(interval.input_events)
        self._shares = edge_shares(interval, self._shares)
        expected = self._forecaster.forecast()
        predictions = predict(
            interval, self._shares, expected, predecessor_queues=self._predecessor_queues
        )
        wanted = plan(interval, predictions)
        numbers = {f"{name}.events": prediction.total for name, prediction in predictions.items()}
        changes = ", ".join(
            f"{name} {interval.operators[name].active} -> {replicas} for {predictions[name].total:g}"
            for name, replicas in wanted.items()
        )
        reason = f"{expected:g} events expected: {changes}." if wanted else ""
        return ReplicaDecision(wanted, reason=reason, numbers={"input_events": expected, **numbers})


def check_interval(interval: Interval, policy: str = "psps") -> None:
    """Raise if `policy` cannot run a job: an operator keeps state, or the interval is too short."""
    refuse_stateful(policy, interval)
    through_s = interval.event_through_s
    if interval.duration_s <= through_s:
        msg = (
            f"{policy}: interval={interval.duration_s:g} s is not longer than the {through_s:g} s that "
            f"one event needs through the job; use more than {through_s:g} s."
        )
        raise ConfigError(msg)
