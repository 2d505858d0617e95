"""Implements STRETCH's controller: three thresholds on the load of an operator."""

from __future__ import annotations

from headgate.control.decision import NOTHING, Change, Decision
from headgate.control.observation import Observation
from headgate.control.slots.band import Band
from headgate.control.slots.rescaling import arrival_rate, mean_service_rate, rescaled


class Threshold:
    """Brings the load of an operator to `target` when it leaves the band from `low` to `high`.

    Load is demand over capacity, lambda / (N mu), which exceeds 1 in overload. Measured utilisation
    cannot exceed 1 and would ask for too few slots.

    `high`, `target`, `low`: as `Band`.

    References
    ----------
    STRETCH 8.4, Q4: the defaults 90 %, 70 %, 45 %.
    """

    def __init__(self, high: float = 0.9, target: float = 0.7, low: float = 0.45) -> None:
        self._band = Band(high, target, low)
        self._band.check("threshold")

    @property
    def name(self) -> str:
        """``threshold(0.9, 0.7, 0.45)``."""
        return f"threshold({self._band.high:g}, {self._band.target:g}, {self._band.low:g})"

    def decide(self, observation: Observation) -> Decision:
        """Return a change for each operator whose load is outside the band."""
        changes: dict[str, Change] = {}
        reasons, numbers = [], {}
        for name, view in observation.operators.items():
            rate = mean_service_rate(view)
            if not rate:
                continue
            demand = arrival_rate(view) / rate
            change = rescaled(view, self._band.slots(view, demand))
            if change is not None:
                load = demand / view.slots
                changes[name] = change
                numbers[f"{name}.load"] = load
                reasons.append(
                    f"{name} is loaded to {load:.0%}: {view.slots} -> "
                    f"{change.assignment.slots} slots to come near {self._band.target:.0%}"
                )
        if not changes:
            return NOTHING
        return Decision(changes, "; ".join(reasons) + ".", "threshold", numbers)

    def applied(self, operator: str, change: Change, took_s: float) -> None:
        """Do nothing: this policy has no state."""

    def slot_failed(self, operator: str, slot_id: int) -> None:
        """Do nothing: this policy has no state."""
