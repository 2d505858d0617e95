"""Implements Kubernetes' horizontal autoscaler: slots in proportion to measured utilisation."""

from __future__ import annotations

import math

from headgate.control.decision import NOTHING, Change, Decision
from headgate.control.limits import check_range
from headgate.control.observation import Observation, OperatorView
from headgate.control.slots.hindsight.demand import Most
from headgate.control.slots.rescaling import rescaled

_TOLERANCE = 0.1
"""Relative difference of utilisation from the target up to which slots do not change."""

_AT_ONCE, _TIMES = 4, 2
"""A period adds at most `_AT_ONCE` slots, or multiplies them by `_TIMES`, whichever is more."""

_ROUNDING = 1e-9


class Hpa:
    """Sets slots x utilisation / target every period; scale-in only to the most wanted in a window.

    Parameters
    ----------
    target : float
        Target utilisation, in (0, 1].
    window_s : float
        Stabilisation window of scale-in, in seconds.
    period_s : float
        Time between two decisions, in seconds.

    References
    ----------
    Kubernetes, Horizontal Pod Autoscaling: ``ceil(current x metric / target)``, a tolerance of 0.1, a
    period of 15 s, 300 s of stabilisation before a scale-in, at most 4 pods or 100 % per period
    upwards. Differs: utilisation is that of the last window of the SLO; none is below the first pod's.
    """

    def __init__(
        self, target: float = 0.7, window_s: float = 300.0, period_s: float = 15.0
    ) -> None:
        check_range("hpa", "target", target, 0.0, 1.0, above=True)
        check_range("hpa", "window_s", window_s, 0.0)
        check_range("hpa", "period_s", period_s, 0.0, above=True)
        self._target, self._window_s, self._period_s = target, window_s, period_s
        self._most: dict[str, Most] = {}
        self._due_s = -math.inf

    @property
    def name(self) -> str:
        """``hpa(0.7, 300, 15)``."""
        return f"hpa({self._target:g}, {self._window_s:g}, {self._period_s:g})"

    def decide(self, observation: Observation) -> Decision:
        """Return the changes at the end of a period."""
        time_s = observation.time_s
        if time_s < self._due_s - _ROUNDING:
            return NOTHING
        self._due_s = time_s + self._period_s
        changes: dict[str, Change] = {}
        reasons, numbers = [], {}
        for name, view in observation.operators.items():
            used = float(view.utilisation.mean())
            wanted = self._wanted(view, used)
            most = self._most.setdefault(name, Most(self._window_s)).add(time_s, wanted)
            slots = wanted if wanted > view.slots else min(most, view.slots)
            change = rescaled(view, slots)
            if change is not None:
                changes[name] = change
                numbers[f"{name}.utilisation"] = used
                reasons.append(
                    f"{name} is busy to {used:.0%}, {self._target:.0%} is wanted: {view.slots} -> "
                    f"{change.assignment.slots} slots"
                )
        return Decision(changes, "; ".join(reasons) + ".", "hpa", numbers) if changes else NOTHING

    def _wanted(self, view: OperatorView, used: float) -> float:
        ratio = used / self._target
        if abs(ratio - 1.0) <= _TOLERANCE:
            return float(view.slots)
        wanted = math.ceil(view.slots * ratio - _ROUNDING)
        return float(max(1, min(wanted, max(view.slots + _AT_ONCE, view.slots * _TIMES))))

    def applied(self, operator: str, change: Change, took_s: float) -> None:
        """Do nothing; no state depends on it."""

    def slot_failed(self, operator: str, slot_id: int) -> None:
        """Do nothing; no state depends on it."""
