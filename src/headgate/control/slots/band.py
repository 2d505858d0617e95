"""Keeps an operator's load within a band: computes the number of slots that brings the load back."""

from __future__ import annotations

import math
from dataclasses import dataclass

from headgate.control.observation import OperatorView
from headgate.core.errors import ConfigError

_ROUNDING = 1e-9
"""Tolerance of `ceil` and `floor`, in slots: 0.3 x 70 / 0.7 is 30, also in floating point."""

_SLACK_MAX = 0.01
"""Largest tolerance of a load, as a share of it, however few records were counted."""


@dataclass(frozen=True)
class Band:
    """Holds the loads at which slots are added and removed; load is demand over capacity, can exceed 1.

    References
    ----------
    STRETCH 8.4, 8.5. Scale-out: ceil(demand / target) slots. Scale-in: floor(demand / target) slots, as
    in table 4 (70 -> 30 slots); the text ("keep below the target") asks for the ceiling. Differs: a
    scale-in never ends with a load above `high`, which would scale out again at once (3 slots at 44 %
    would become 1 at 132 %). A rate over a window is exact only to one record, so a load within a record
    of a threshold counts as on the threshold (in table 4: 9 -> 3 slots at 90 %, 70 -> 30 at 70 %).
    """

    high: float
    """Scale out above this load."""
    target: float
    """Load that a change aims at."""
    low: float
    """Scale in below this load; ``0 < low < target < high``."""

    def check(self, where: str) -> None:
        """Raise ConfigError, which names the policy `where`, unless ``0 < low < target < high``."""
        if not 0.0 < self.low < self.target < self.high:
            msg = (
                f"{where}: low={self.low!r}, target={self.target!r}, high={self.high!r} do not "
                "ascend from above 0; use 0 < low < target < high."
            )
            raise ConfigError(msg)

    def slots(self, view: OperatorView, demand: float) -> int:
        """Return the number of slots for `demand`: arrival rate over service rate, in slots."""
        load = demand / view.slots
        slack = _slack(view)
        # No operator has more slots than key groups; the limit keeps `ceil` finite for any demand.
        ratio = min(demand / self.target, float(view.assignment.key_groups))
        if load > self.high * (1.0 + slack):
            return math.ceil(ratio * (1.0 - slack) - _ROUNDING)
        if load < self.low * (1.0 - slack):
            least = math.ceil(demand / self.high * (1.0 - slack) - _ROUNDING)
            return max(math.floor(ratio * (1.0 + slack) + _ROUNDING), least)
        return view.slots


def _slack(view: OperatorView) -> float:
    """Return one record as a share of a window's arrivals, at most `_SLACK_MAX`."""
    records = float(view.group_rate.sum()) * view.window_s
    return min(1.0 / records, _SLACK_MAX) if records > 1.0 else _SLACK_MAX
