"""Keeps a fixed number of slots: the rival that other policies are compared with."""

from __future__ import annotations

from headgate.control.decision import NOTHING, Change, Decision
from headgate.control.limits import check_range
from headgate.control.observation import Observation
from headgate.control.slots.rescaling import rescaled


class Static:
    """Keeps every operator at n slots.

    `n`: slots per operator, at least 1; None: each operator keeps its number.

    References
    ----------
    StreamSwitch 6, "static solutions". Each slot gets about as many key groups, whatever their load.
    """

    def __init__(self, n: int | None = None) -> None:
        if n is not None:
            check_range("static", "n", n, 1)
        self._slots = n

    @property
    def name(self) -> str:
        """``static(8)``, or ``static``."""
        return "static" if self._slots is None else f"static({self._slots})"

    def decide(self, observation: Observation) -> Decision:
        """Return a change for each operator that has another number of slots."""
        slots = self._slots
        if slots is None:
            return NOTHING
        changes = {
            name: change
            for name, view in observation.operators.items()
            if (change := rescaled(view, slots))
        }
        if not changes:
            return NOTHING
        reason = f"{', '.join(changes)}: {slots} slots are configured."
        return Decision(changes, reason, "static", {"slots": float(slots)})

    def applied(self, operator: str, change: Change, took_s: float) -> None:
        """Do nothing: this policy has no state."""

    def slot_failed(self, operator: str, slot_id: int) -> None:
        """Do nothing: this policy has no state."""
