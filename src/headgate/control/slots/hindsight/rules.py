"""Defines the rules: each turns the number of slots that the load keeps busy into a number to have."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from headgate.control.slots.hindsight.demand import F64, Mean, Most, Quantiles

_CURVE = 0.0
"""Marks a signal without a window, the curve: the fewest slots with which no record would have waited
longer than `_ROOM` bounds."""

_SIGNALS = (
    (_CURVE, 0.0),
    (_CURVE, 3.0),
    (_CURVE, 10.0),
    (_CURVE, 30.0),
    (_CURVE, 100.0),
    (_CURVE, 300.0),
    (10.0, 0.0),
    (10.0, 60.0),
    (60.0, 0.0),
)
"""Signals: the curve, or a mean over so many bounds; and its maximum over so many bounds. Chosen."""

_WINDOWS = (0.3, 0.6, 1.0, 2.0, 4.0)
"""Lengths of the windows that make the curve, in bounds. Chosen."""

_ROOM, _LEAN_ROOM = 0.5, 0.75
"""Longest wait, in bounds, of a normal and a lean rule; a change and serving take the rest. Chosen."""

_SPARE = (0.1, 0.2, 0.4, 0.8, 1.3)
"""Margins of the rules, as shares of the signal. Chosen."""

_RUNGS = (1.0, 1.6)
"""Ratio of one allowed number of slots to the next; 1 allows all. Larger: fewer changes. Chosen."""

_SHARES = np.array([0.5, 0.9])
"""Quantiles over time of the curve that can be the base of a rule, the least that it wants. Chosen."""

_EARLY, _EARLY_S = 0.25, 100.0
"""Extra margin of every rule at the start, and seconds until about a third of it is left. Chosen."""


_MANY = 1e6
"""Cap on a number of slots before it is rounded: more than any operator may have."""

_SELDOM, _IDLE_MOST = 0.02, 0.4
"""Probability that a record waits too long in the queue model, and the largest idle share of a slot that
the model may want: for more, only measured misses count. Chosen."""


@dataclass(frozen=True)
class Rule:
    """Holds the parameters of one rule."""

    constant: int = 0
    """The number of slots of a constant rule; 0 for a rule that follows the load."""
    signal: int = 0
    """Index in `_SIGNALS` of the signal that the rule follows."""
    spare: float = 0.0
    """Margin, as a share of the signal."""
    base: int = 0
    """0: no base; n: the rule wants at least the n-th quantile of `_SHARES`."""
    rung: float = 1.0
    """1: any number of slots; else the number is the next power of `rung`."""
    lean: bool = False
    """Whether the rule adds slots late, and few."""

    def __str__(self) -> str:
        """Return the rule as half a sentence."""
        lean = ", added late" if self.lean else ""
        if self.constant:
            return f"{self.constant} slots, more only if that is less than what comes{lean}"
        window, hold = _SIGNALS[self.signal]
        what = f"the mean of the last {window:g} bounds"
        if window == _CURVE:
            what = "what half the bound needs"
        if hold:
            what += f", the most in {hold:g} bounds,"
        base = (
            f", at least what did for {_SHARES[self.base - 1]:.0%} of the time" if self.base else ""
        )
        steps = f", in steps of {self.rung - 1.0:.0%}" if self.rung > 1.0 else ""
        return f"{what} and {self.spare:.0%} more{base}{steps}{lean}"


class Rules:
    """Evaluates all rules over one operator's load.

    Parameters
    ----------
    most : int    Most slots of a constant rule.
    unit_s : float    Unit of the windows: the bound, seconds.
    memory_s : float    Time constant of the quantiles that are bases, seconds.
    epsilon : float    Least margin of every rule, as a share of the load.
    """

    def __init__(self, most: int, unit_s: float, memory_s: float, epsilon: float) -> None:
        following = [
            Rule(signal=signal, spare=spare, base=base, rung=rung, lean=lean)
            for lean in (False, True)
            for signal in range(len(_SIGNALS))
            for spare in _SPARE
            for base in range(len(_SHARES) + 1)
            for rung in _RUNGS
        ]
        self.all = [
            *(Rule(constant=n, lean=lean) for lean in (False, True) for n in range(1, most + 1)),
            *following,
        ]
        windows = {*_WINDOWS, *(window for window, _ in _SIGNALS if window != _CURVE)}
        self._means = {window: Mean(window * unit_s) for window in sorted(windows)}
        self.spare = self._epsilon = epsilon
        self._lean = np.array([rule.lean for rule in self.all])
        self._watched_s = 0.0
        self._mosts = [Most(hold * unit_s) for _, hold in _SIGNALS]
        self._quantiles = Quantiles(memory_s)
        self._constant: F64 = np.array([rule.constant for rule in self.all], dtype=float)
        self._signal = np.array([rule.signal for rule in self.all])
        self._more = 1.0 + np.array([max(rule.spare, epsilon) for rule in self.all])
        self._base = np.array([rule.base for rule in self.all])
        rungs = np.array([rule.rung for rule in self.all])
        self._stepped = np.flatnonzero(rungs > 1.0)
        self._rungs: F64 = np.log(rungs[self._stepped])

    def expect(self, record_s: float, variability: float, within_s: float) -> None:
        """Compute the idle share that a slot must keep so that records seldom wait too long.

        `record_s`, `variability`: mean service time of a record, seconds, and its squared coefficient
        of variation. `within_s`: latency that a record may have, seconds.

        References
        ----------
        Kingman (1962): in heavy traffic a G/G/1 queue's waiting time is exponential with a mean of
        ``(ca^2 + cs^2) / 2 x record_s / (1 - load)``; the arrivals at a slot count as a Poisson process.
        """
        room_s = within_s - record_s
        idle = _IDLE_MOST
        if room_s > 0.0:
            idle = math.log(1.0 / _SELDOM) * (1.0 + variability) / 2.0 * record_s / room_s
        self.spare = max(self._epsilon, 1.0 / (1.0 - min(idle, _IDLE_MOST)) - 1.0)

    def expect_batches(self, fixed_s: float, dear_s: float, bound_s: float) -> None:
        """Compute the idle share that a slot must keep so that batches stay short enough.

        A batch takes its fixed time, the extra time of costly records, and the time for the records of
        the batch before: ``(fixed + costly) / (1 - load)`` in the steady state. Records wait for half a
        batch and the next one serves them: 1.5 batches must be within the bound.

        `fixed_s`, `dear_s`: fixed time of a batch, and extra time of its costly records, seconds.
        """
        idle = min(1.5 * (fixed_s + dear_s) / bound_s, _IDLE_MOST)
        self.spare = max(self._epsilon, 1.0 / (1.0 - idle) - 1.0)

    @property
    def now(self) -> float:
        """Return the number of slots that the load of the last bound keeps busy."""
        return max(self._means[1.0].slots, self._means[_WINDOWS[0]].surely)

    @property
    def lately(self) -> float:
        """Return the number of slots that the load of the last sixty bounds kept busy."""
        return self._means[60.0].slots

    def wanted(
        self, time_s: float, elapsed_s: float, work_s: float, records: float
    ) -> tuple[F64, F64]:
        """Add the arrivals of the last `elapsed_s`, and return the slots that each rule wants.

        Result: float64[R], float64[R]: wanted slots, not rounded; and the slots that a rule takes, at
        least, once it wants more than it has.
        """
        for mean in self._means.values():
            mean.add(elapsed_s, work_s, records)
        means = {window: mean.slots for window, mean in self._means.items()}
        curve = max(means[w] * w / (w + _ROOM) for w in _WINDOWS)
        lean = max(means[w] * w / (w + _LEAN_ROOM) for w in _WINDOWS)
        self._quantiles.add(elapsed_s, curve)
        means[_CURVE] = curve
        signals = np.array(
            [most.add(time_s, means[w]) for (w, _), most in zip(_SIGNALS, self._mosts, strict=True)]
        )
        bases = np.concatenate([[0.0], self._quantiles.at(_SHARES)])
        wanted = np.maximum(signals[self._signal], bases[self._base]) * self._more
        wanted = np.where(self._constant > 0.0, self._constant, wanted)
        self._watched_s += elapsed_s
        early = _EARLY * math.exp(-self._watched_s / _EARLY_S)
        least = means[10.0] * (1.0 + self.spare + early)
        wanted = np.maximum(wanted, np.where(self._lean, max(least, lean), max(least, signals[1])))
        leap = np.where(self._lean, means[2.0] * (1.0 + self.spare), self.now * self._more)
        leap = np.maximum(wanted, leap)
        return self._on_rungs(np.minimum(wanted, _MANY)), self._on_rungs(np.minimum(leap, _MANY))

    def _on_rungs(self, slots: F64) -> F64:
        exact = np.log(np.maximum(slots[self._stepped], 1e-3))
        slots[self._stepped] = np.exp(np.ceil(exact / self._rungs) * self._rungs)
        return slots
