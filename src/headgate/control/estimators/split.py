"""One end-to-end bound, divided among the operators on the way."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from headgate.control.observation import OperatorView
from headgate.core.errors import ConfigError


class BoundSplit:
    """Bounds per operator that add up to the end-to-end bound, each met about equally often.

    Ask for `bound_s` when the views of a cycle are made, and give the views to `observe`. Success
    of an operator is the share of its slots' latencies l_i that are within its bound; at the end of
    every interval, operators below the mean success take from those above it.

    Parameters
    ----------
    operators : sequence of str
        The operators on the path, one or more.
    end_to_end_s : float
        L, in seconds.
    interval_s : float
        How long success is observed before the bounds move.
    gain : float
        Share of L that moves for a difference in success of 1. Chosen, not tuned: operators that
        differ by ten points move 5 % of L per interval.
    least : float
        The least that an operator keeps, as a share of an even split, in (0, 1). It has to stay
        above the alert threshold. Chosen, not tuned; the paper tries down to half an even split.

    Raises
    ------
    ConfigError
        There is no operator, or a parameter is out of range.

    References
    ----------
    StreamSwitch 6.6: success grows with the bound, so that the worst success is largest when all
    are equal; the paper leaves the rule of adjustment open.
    """

    def __init__(
        self,
        operators: Sequence[str],
        end_to_end_s: float,
        *,
        interval_s: float = 10.0,
        gain: float = 0.5,
        least: float = 0.25,
    ) -> None:
        if not operators:
            msg = "an end-to-end bound has no operators to be split among; name one or more."
            raise ConfigError(msg)
        for name, value, most in (
            ("end_to_end_s", end_to_end_s, math.inf),
            ("interval_s", interval_s, math.inf),
            ("gain", gain, math.inf),
            ("least", least, 1.0),
        ):
            if not 0.0 < value < most:
                msg = f"{name}={value:g} is out of range; use more than 0 and less than {most:g}."
                raise ConfigError(msg)
        self._operators = tuple(operators)
        self._total_s = end_to_end_s
        self._interval_s = interval_s
        self._gain = gain
        self._least_s = least * end_to_end_s / len(operators)
        self._bounds = np.full(len(operators), end_to_end_s / len(operators))
        self._since_s: float | None = None
        self._seen = np.zeros(len(operators))
        self._within = np.zeros(len(operators))

    @property
    def bounds_s(self) -> dict[str, float]:
        """The bound of each operator now, in seconds; they add up to the end-to-end bound."""
        return dict(zip(self._operators, self._bounds.tolist(), strict=True))

    def bound_s(self, operator: str) -> float:
        """Return the bound of one operator now, in seconds."""
        return float(self._bounds[self._operators.index(operator)])

    def observe(self, time_s: float, views: Mapping[str, OperatorView]) -> None:
        """Take note of one cycle at `time_s`, and move the bounds if an interval is over.

        Operators that are not on the path are ignored; those without a view are not counted.
        """
        if self._since_s is None:
            self._since_s = time_s
        for place, operator in enumerate(self._operators):
            if operator in views:
                latency_s = views[operator].latency_s
                self._seen[place] += np.count_nonzero(~np.isnan(latency_s))
                self._within[place] += np.count_nonzero(latency_s <= self._bounds[place])
        if time_s - self._since_s >= self._interval_s:
            self._since_s = time_s
            self._move()

    def _move(self) -> None:
        """Move the bounds towards equal success, and begin to count again."""
        known = self._seen > 0.0
        if known.all():
            success = self._within / self._seen
            wanted = self._bounds + self._gain * self._total_s * (success.mean() - success)
            spare = np.maximum(wanted - self._least_s, 0.0)
            free_s = self._total_s - len(spare) * self._least_s
            self._bounds = self._least_s + spare * (free_s / spare.sum())
        self._seen[:] = 0.0
        self._within[:] = 0.0
