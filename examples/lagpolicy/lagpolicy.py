"""A policy of one's own for headgate: an operator is never behind by more than so many seconds."""

from __future__ import annotations

import math

import headgate as hg
from headgate.control import (
    Decision,
    Observation,
    OperatorView,
    arrival_rate,
    mean_service_rate,
    scaled,
)

_BUSY = 0.7
"""A slot is given back if those that stay would be busy for less than this share of the time."""


class Lag(hg.Policy):
    """Add slots while what waits is more than `behind_s` seconds of work, give them back one by one.

    Parameters
    ----------
    behind_s : float
        How much work may wait, in seconds; more than 0.
    """

    def __init__(self, behind_s: float = 2.0) -> None:
        if not behind_s > 0.0:
            msg = f"lag: behind_s={behind_s:g} is out of range; use more than 0."
            raise hg.ConfigError(msg)
        self._behind_s = behind_s

    @property
    def name(self) -> str:
        """``lag(2)``: what makes the same policy again."""
        return f"lag({self._behind_s:g})"

    def decide(self, observation: Observation) -> Decision:
        """Return what is wanted now; nothing where every operator has it."""
        operators = observation.operators
        wanted = {name: self._slots(view) for name, view in operators.items()}
        behind_s = {name: _behind_s(view) for name, view in operators.items()}
        said = [
            f"{name} is behind by {seconds:.1f} s of work" for name, seconds in behind_s.items()
        ]
        reason = f"{', '.join(said)}; {self._behind_s:g} s are allowed."
        numbers = {f"{name}.behind_s": seconds for name, seconds in behind_s.items()}
        return scaled(observation, wanted, reason, "lag", numbers)

    def _slots(self, view: OperatorView) -> int:
        """Return how many slots an operator should have."""
        behind_s, per_slot = _behind_s(view), mean_service_rate(view)
        if behind_s > self._behind_s:
            return max(view.slots + 1, math.ceil(arrival_rate(view) / per_slot))
        fewer = view.slots - 1
        if 2.0 * behind_s < self._behind_s and arrival_rate(view) < _BUSY * fewer * per_slot:
            return fewer
        return view.slots


def _behind_s(view: OperatorView) -> float:
    """Return how long the slots need for what waits; 0 while their rate is not known."""
    capacity = view.slots * mean_service_rate(view)
    return float(view.backlog.sum()) / capacity if capacity else 0.0
