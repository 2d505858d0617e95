"""Divides one end-to-end bound among the operators of each path from a source to a result."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from headgate.control.observation import OperatorView
from headgate.core.errors import ConfigError


class BoundSplit:
    """Divides an end-to-end bound among operators, so that all operators meet their bounds equally often.

    A record takes one path from a source to a result, so the operators of each path share the bound.
    An operator on several paths gets the least of its shares, so the bounds on a path never add up to
    more than the end-to-end bound.

    Read `bound_s` when the views of a cycle are made, and give the views to `observe`. Success of an
    operator is the share of its slots' latencies l_i within its bound. At the end of every interval,
    operators below the mean success of a path get time from operators above it. Raises `ConfigError`:
    there is no operator, or a parameter is out of range.

    Parameters
    ----------
    paths : sequence of sequence of str
        One or more, each with the operators on it; see `paths_of`.
    end_to_end_s : float    L, in seconds.
    interval_s : float    Time for which success is observed before the bounds move.
    gain : float
        Share of L that a bound changes by for a success 1 off the mean. Chosen, not tuned: at ten
        points off the mean a bound changes by 5 % of L per interval.
    least : float
        Least bound of an operator, as a share of an even division, in (0, 1). The bound must stay
        above the alert threshold. Chosen, not tuned; the paper tries down to half an even division.

    References
    ----------
    StreamSwitch 6.6: success grows with the bound, so the worst success is largest when all are equal.
    The paper does not give the rule of adjustment, and its operators form a chain.
    """

    def __init__(
        self,
        paths: Sequence[Sequence[str]],
        end_to_end_s: float,
        *,
        interval_s: float = 10.0,
        gain: float = 0.5,
        least: float = 0.25,
    ) -> None:
        if not paths or not all(paths):
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
        self._operators = tuple(dict.fromkeys(name for path in paths for name in path))
        self._total_s = end_to_end_s
        self._interval_s = interval_s
        self._gain = gain
        self._paths = [_Path(p, self._operators, end_to_end_s, least) for p in paths]
        self._since_s: float | None = None
        self._seen = np.zeros(len(self._operators))
        self._within = np.zeros(len(self._operators))
        self._bounds = self._least_of_paths()

    @property
    def bounds_s(self) -> dict[str, float]:
        """The bound of each operator now, in seconds."""
        return dict(zip(self._operators, self._bounds.tolist(), strict=True))

    def bound_s(self, operator: str) -> float:
        """Return the bound of one operator now, in seconds."""
        return float(self._bounds[self._operators.index(operator)])

    def observe(self, time_s: float, views: Mapping[str, OperatorView]) -> None:
        """Take note of one cycle at `time_s`, and move the bounds if an interval is over.

        Operators that are on no path are ignored; an operator without a view does not count now.
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
        """Move the bounds of each path towards equal success, and begin to count again."""
        for path in self._paths:
            seen = self._seen[path.places]
            if (seen > 0.0).all():
                path.move(self._within[path.places] / seen, self._gain)
        self._bounds = self._least_of_paths()
        self._seen[:] = 0.0
        self._within[:] = 0.0

    def _least_of_paths(self) -> npt.NDArray[np.float64]:
        bounds = np.full(len(self._operators), math.inf)
        for path in self._paths:
            bounds[path.places] = np.minimum(bounds[path.places], path.bounds)
        return bounds


class _Path:
    """Holds the bounds of the operators of one path, from source to result.

    Attributes
    ----------
    places : int64[O]    Indices of the path's operators among all operators.
    bounds : float64[O]    In seconds; they add up to the end-to-end bound.
    """

    def __init__(
        self, path: Sequence[str], operators: Sequence[str], total_s: float, least: float
    ) -> None:
        self.places = np.array([operators.index(name) for name in path])
        self.bounds = np.full(len(path), total_s / len(path))
        self._total_s = total_s
        self._least_s = least * total_s / len(path)

    def move(self, success: npt.NDArray[np.float64], gain: float) -> None:
        """Move the bounds towards equal success."""
        wanted = self.bounds + gain * self._total_s * (success.mean() - success)
        spare = np.maximum(wanted - self._least_s, 0.0)
        free_s = self._total_s - len(spare) * self._least_s
        self.bounds = self._least_s + spare * (free_s / spare.sum())


def paths_of(
    operators: Sequence[str], parents: Mapping[str, Sequence[str]]
) -> list[tuple[str, ...]]:
    """Return every path from an operator that reads a source to one that no other operator reads.

    `parents`: the operators that each operator reads; none for an operator that reads a source.
    """
    read = {parent for above in parents.values() for parent in above}

    def upto(operator: str) -> list[tuple[str, ...]]:
        above = parents.get(operator, ())
        return [(*path, operator) for parent in above for path in upto(parent)] or [(operator,)]

    return [path for operator in operators if operator not in read for path in upto(operator)]
