"""Three thresholds on the load of an operator: STRETCH's controller."""

from __future__ import annotations

import math

from headgate.control.decision import NOTHING, Change, Decision
from headgate.control.limits import check_range
from headgate.control.observation import Observation, OperatorView
from headgate.control.rescaling import arrival_rate, mean_service_rate, rescaled
from headgate.core.errors import ConfigError

_ROUNDING = 1e-9
"""0.3 x 70 / 0.7 is 30, also in floating point."""


class Threshold:
    """Bring the load of an operator to `target` when it leaves the band from `low` to `high`.

    Load is demand over capacity, lambda / (N mu), so that it exceeds 1 in overload: measured
    utilisation cannot, and would ask for too few slots.

    Parameters
    ----------
    high : float
        Scale out above this load.
    target : float
        The load to arrive at.
    low : float
        Scale in below this load; ``0 < low < target < high``.

    References
    ----------
    STRETCH 8.4, Q4: 90 %, 70 %, 45 %. Out to ceil(demand / target). In to floor(demand / target),
    as the figures have it (70 -> 30 slots), although the text ("keep below the target") asks for
    the ceiling. Differs: never in to a number whose load would be above `high`, which would scale
    out again at once (3 slots at 44 % would become 1 at 132 %).
    """

    def __init__(self, high: float = 0.9, target: float = 0.7, low: float = 0.45) -> None:
        check_range("threshold", "low", low, 0.0, above=True)
        if not low < target < high:
            msg = (
                f"threshold: low={low!r}, target={target!r}, high={high!r} do not ascend; "
                "use low < target < high."
            )
            raise ConfigError(msg)
        self._high, self._target, self._low = high, target, low

    @property
    def name(self) -> str:
        """``threshold(0.9, 0.7, 0.45)``."""
        return f"threshold({self._high:g}, {self._target:g}, {self._low:g})"

    def decide(self, observation: Observation) -> Decision:
        """Return a change for each operator whose load is outside the band."""
        changes: dict[str, Change] = {}
        reasons, numbers = [], {}
        for name, view in observation.operators.items():
            rate = mean_service_rate(view)
            if not rate:
                continue
            demand = arrival_rate(view) / rate
            change = rescaled(view, self._wanted(view, demand))
            if change is not None:
                load = demand / view.slots
                changes[name] = change
                numbers[f"{name}.load"] = load
                reasons.append(
                    f"{name} is loaded to {load:.0%}: {view.slots} -> "
                    f"{change.assignment.slots} slots to come near {self._target:.0%}"
                )
        if not changes:
            return NOTHING
        return Decision(changes, "; ".join(reasons) + ".", "threshold", numbers)

    def applied(self, operator: str, change: Change, took_s: float) -> None:
        """Keep nothing."""

    def slot_failed(self, operator: str, slot_id: int) -> None:
        """Keep nothing."""

    def _wanted(self, view: OperatorView, demand: float) -> float:
        """Return the number of slots for `demand`, the slots' worth of work that arrives."""
        load = demand / view.slots
        # No operator has more slots than key groups: ceil of an absurd demand stays a number.
        ratio = min(demand / self._target, float(view.assignment.key_groups))
        if load > self._high:
            return math.ceil(ratio - _ROUNDING)
        if load < self._low:
            least = math.ceil(demand / self._high - _ROUNDING)
            return max(math.floor(ratio + _ROUNDING), least)
        return view.slots
