"""What the papers' policies know, in one decision: forecast, latency model, as many moves as it takes."""

from __future__ import annotations

from dataclasses import replace

from headgate.control.decision import Change, Decision
from headgate.control.estimators.trend import Trend
from headgate.control.limits import check_range
from headgate.control.observation import Observation, OperatorView
from headgate.control.policies.streamswitch import StreamSwitch

_STEPS = 64
"""Unit strategies per decision: enough for any leap that a load makes within a second."""

_LOOK_BACK_S = 5.0
"""What the trend of arrivals is taken over. Chosen on figure 5's workload, as the defaults below."""


class Unified:
    """StreamSwitch, told what is coming, and free to do all that follows from it at once.

    The arrivals of every operator are taken to grow on as they have for the last seconds; their
    projected latencies then are what StreamSwitch diagnoses, and one decision has as many of its
    unit strategies as that asks for. So a rise is met before it is late, a leap with one change, and
    the same success needs a smaller safety margin. What a change costs is for the migration to keep
    low, how many slots there are for the fleet to say.

    Parameters
    ----------
    epsilon : float
        Safety margin, as of `StreamSwitch`.
    ahead_s : float
        How far arrivals are forecast, seconds; 0: not at all.

    References
    ----------
    Ours. StreamSwitch 3 and 4.2 (diagnosis, projection), PSPS IV (forecast), STRETCH 8.4 (all slots
    in one step). Left out after trying: making room for the backlog as STRETCH 8.5 does, and spreading
    a slot over several others. Both stop more key groups at once, and on figure 5's workload success
    fell by 1 to 2 points with more slots.
    """

    def __init__(self, epsilon: float = 0.1, ahead_s: float = 1.0) -> None:
        check_range("unified", "ahead_s", ahead_s, 0.0)
        self._inner = StreamSwitch(epsilon, _STEPS)
        self._epsilon, self._ahead_s = epsilon, ahead_s
        self._trends: dict[str, Trend] = {}

    @property
    def name(self) -> str:
        """``unified(0.1, 1)``."""
        return f"unified({self._epsilon:g}, {self._ahead_s:g})"

    def decide(self, observation: Observation) -> Decision:
        """Return at most one change per operator."""
        expected = {
            name: self._expected(name, observation.time_s, view)
            for name, view in observation.operators.items()
        }
        return self._inner.decide(replace(observation, operators=expected))

    def applied(self, operator: str, change: Change, took_s: float) -> None:
        """Keep nothing: the next observation shows it."""

    def slot_failed(self, operator: str, slot_id: int) -> None:
        """Keep nothing: the next observation shows it."""

    def _expected(self, name: str, time_s: float, view: OperatorView) -> OperatorView:
        trend = self._trends.setdefault(name, Trend(_LOOK_BACK_S))
        trend.observe(time_s, float(view.group_rate.sum()))
        return replace(view, group_rate=view.group_rate * trend.growth(self._ahead_s))
