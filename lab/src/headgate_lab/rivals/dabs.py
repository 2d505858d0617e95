"""Implements DABS-Storm, a rival of PSPS: replicas from a regression on each operator's input."""

from __future__ import annotations

from headgate.control.limits import check_range
from headgate.control.pools.psps import replicas_needed
from headgate.control.pools.replicas import Interval, ReplicaDecision, refuse_stateful
from headgate.core.errors import ConfigError
from headgate_lab.rivals.regression import Regression


class Dabs:
    """Changes the replicas of an operator when its activity leaves a band.

    Activity is what the operator has to do in the next interval, its predicted input and its
    queue, over what its replicas can do.

    Parameters
    ----------
    high : float
        Above this activity an operator gets the replicas that bring its activity down to `high`; > 0.
    low : float
        Below this activity it loses replicas, so that its activity rises to `high`; 0 <= low < high.
    window : int
        Number of intervals in the regression; >= 2.

    References
    ----------
    PSPS III and V-F, the only source used: input by regression, pending events, capacity of the operator;
    each change restarts the job, so that queued events are lost. Band and window are chosen, not tuned.
    """

    def __init__(self, high: float = 0.8, low: float = 0.3, window: int = 6) -> None:
        check_range("dabs", "high", high, 0.0, above=True)
        check_range("dabs", "low", low, 0.0)
        if low >= high:
            msg = f"dabs: low={low!r} is not below high={high!r}; use low < high."
            raise ConfigError(msg)
        check_range("dabs", "window", window, 2)
        self._high, self._low, self._window = high, low, window
        self._inputs: dict[str, Regression] = {}

    @property
    def name(self) -> str:
        """``dabs(0.8, 0.3)``."""
        return f"dabs({self._high:g}, {self._low:g})"

    def decide(self, interval: Interval) -> ReplicaDecision:
        """Return the replicas wanted; any change restarts the job.

        Raises
        ------
        UnsupportedQuery
            An operator keeps state.
        """
        refuse_stateful("dabs", interval)
        if not interval.valid:
            return ReplicaDecision(reason="A sample is missing or absurd: nothing is changed.")
        wanted, numbers = {}, {}
        for name, operator in interval.operators.items():
            series = self._inputs.setdefault(name, Regression(self._window))
            series.observe(operator.from_source + sum(operator.received.values()))
            events = series.forecast() + operator.queued
            can_s = interval.duration_s * self._high
            activity = events * operator.event_s / (interval.duration_s * operator.active)
            numbers[f"{name}.activity"] = activity
            if self._low <= activity <= self._high:
                continue
            needed = replicas_needed(events, operator.event_s, can_s)
            replicas = max(operator.least, min(needed, operator.pool))
            if replicas != operator.active:
                wanted[name] = replicas
        changes = ", ".join(f"{name} -> {replicas}" for name, replicas in wanted.items())
        reason = f"Activity left {self._low:g} to {self._high:g}: {changes}." if wanted else ""
        return ReplicaDecision(wanted, restart=bool(wanted), reason=reason, numbers=numbers)
