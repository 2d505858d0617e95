"""Keeps an operator's load within a band: computes the number of slots that brings the load back."""

from __future__ import annotations

import math
from dataclasses import dataclass

from headgate.control.observation import OperatorView
from headgate.core.errors import ConfigError

_ROUNDING = 1e-9
"""0.3 x 70 / 0.7 is 30, also in floating point."""

_SLACK_MAX = 0.01
"""Of a load, however few records it was counted from."""


@dataclass(frozen=True)
class Band:
    """Holds the loads at which slots are added and removed; a load is demand over capacity, maybe over 1.

    References
    ----------
    STRETCH 8.4, 8.5. Out to ceil(demand / target). In to floor(demand / target), as table 4 has it
    (70 -> 30 slots), although the text ("keep below the target") asks for the ceiling. Differs: never
    in to a number whose load would be above `high`, which would scale out again at once (3 slots at
    44 % would become 1 at 132 %); and a rate counted over a window is known to a record, so a load
    that is on an edge but for one record is on it (table 4's 9 -> 3 is, at 90 %, and 70 -> 30, at 70).
    """

    high: float
    """Scale out above this load."""
    target: float
    """The load to arrive at."""
    low: float
    """Scale in below this load; ``0 < low < target < high``."""

    def check(self, where: str) -> None:
        """Raise ConfigError, in the name of policy `where`, unless the loads ascend from above 0."""
        if not 0.0 < self.low < self.target < self.high:
            msg = (
                f"{where}: low={self.low!r}, target={self.target!r}, high={self.high!r} do not "
                "ascend from above 0; use 0 < low < target < high."
            )
            raise ConfigError(msg)

    def slots(self, view: OperatorView, demand: float) -> int:
        """Return the number of slots for `demand`, the slots' worth of work to be done."""
        load = demand / view.slots
        slack = _slack(view)
        # No operator has more slots than key groups: ceil of an absurd demand stays a number.
        ratio = min(demand / self.target, float(view.assignment.key_groups))
        if load > self.high * (1.0 + slack):
            return math.ceil(ratio * (1.0 - slack) - _ROUNDING)
        if load < self.low * (1.0 - slack):
            least = math.ceil(demand / self.high * (1.0 - slack) - _ROUNDING)
            return max(math.floor(ratio * (1.0 + slack) + _ROUNDING), least)
        return view.slots


def _slack(view: OperatorView) -> float:
    """Return the share of the arrivals of a window that one record is; of many records next to none."""
    records = float(view.group_rate.sum()) * view.window_s
    return min(1.0 / records, _SLACK_MAX) if records > 1.0 else _SLACK_MAX
