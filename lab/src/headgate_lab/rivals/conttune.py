"""ContTune: more than enough slots at once, then fewer by what was seen of every number of slots."""

from __future__ import annotations

import math
from collections import defaultdict, deque
from dataclasses import dataclass, field

import numpy as np

from headgate.control.decision import NOTHING, Change, Decision
from headgate.control.limits import check_range
from headgate.control.observation import Observation, OperatorView
from headgate.control.slots.projection import F64
from headgate.control.slots.rescaling import mean_service_rate, rescaled
from headgate_lab.rivals.averages import Averages, is_whole

_PRESSED = 0.1
"""Backpressure in a smaller share of the cycles is none: what Flink shows as OK."""

_KEPT = 5
"""Abilities kept per number of slots, of which the mean counts: as many as in the authors' table."""

_SCALES = (2.5, 1.25, 5.0, 10.0, 20.0, 40.0)
"""Length scales tried, in slots; the first, the authors' own, where observations prefer none."""

_NOISE = 1e-4
"""Variance of an observation over that of the prior; chosen: abilities are measured to about 1 %."""

_ROUNDING = 1e-9
"""A demand of exactly 3 slots is 3 slots, also in floating point."""


@dataclass
class _History:
    """Of one operator the newest abilities by slots, the most slots it had, whether it is tuned."""

    abilities: defaultdict[int, deque[float]] = field(
        default_factory=lambda: defaultdict(lambda: deque(maxlen=_KEPT))
    )
    most: int = 1
    tuning: bool = False


@dataclass
class _Interval:
    """Holds the observations of one operator since the last look; `pressed` and `late` count cycles."""

    averages: Averages = field(default_factory=Averages)
    pressed: int = 0
    late: bool = False

    @property
    def share(self) -> float:
        """Share of the cycles under backpressure."""
        return self.pressed / self.averages.cycles


class ContTune:
    """Big phase: double until nothing is held back. Small phase: fewer slots, conservatively.

    The processing ability of an operator is its number of slots times their true rate. Every look
    adds one observation: (slots, ability).

    - *Big*: an operator is under backpressure. Every operator gets the most slots it ever had; if
      one that is under backpressure has them, twice what it has if that is more. So the graph does
      not matter: nobody's input is held back afterwards, and each operator is tuned for itself.
    - *Small*: after Big, or if an operator is busy to less than `low`. A Gaussian process with zero
      mean and a squared exponential kernel says which ability each number of slots has; the fewest
      slots are taken whose mean is at least what arrives. If these are more than `alpha` slots from
      all that were tried, DS2's line through the origin says how many instead. Small ends where
      neither names fewer slots than there are.

    Parameters
    ----------
    interval_s : float
        Between two looks, more than 0, in seconds, counted from the last change.
    alpha : int
        Slots from the nearest observation up to which the process is trusted, at least 0; the paper
        has 3 and 0.
    low : float
        Share of its ability, in [0, 1], below which an operator at rest is tuned.
    target : float
        Share of its ability, in (0, 1], that an operator is left with; 1 in the paper.
    drain_s : float
        Within so many seconds what waits must be gone, or its operator is under backpressure;
        more than 0.

    References
    ----------
    Lian et al., "ContTune: continuous tuning by conservative Bayesian optimization for distributed
    stream data processing systems", PVLDB 16(13), 2023: algorithm 1 (Big-small), the acquisition
    ``argmax (p* - p) I(mu(p) - lambda)``, the score ``d_nearest <= alpha``, the newest K
    observations and their mean; the Gaussian process as in the authors' code. Differs:

    - The SLA is a throughput there; here it is a latency. An operator keeps up if no slot has work
      for longer than the bound which is not gone within `drain_s` at its spare rate; that share of
      the cycles stands for Flink's time under backpressure. While work waits that is about to be
      gone nothing is decided.
    - `target`, for at a share of 1 queues have no bound. The three states of CPU use are two, below
      `low` or not. The authors' controller, with its thresholds, is not published.
    - Big goes to the most slots ever had before it doubles: read off the paper's bound on
      reconfigurations, log2 of that number in all and one per tuning.
    - Small only ever takes slots, for only then is the acquisition above 0.
    - True rates hold under backpressure as well, so abilities are noted there, too; the authors note
      them of jobs that keep up. Without it, too few slots would be tried again and again.
    - The length scale is the likeliest of six, with the variance that goes with each in closed form
      (it does not change the mean), where the authors search both by gradient from 2.5 slots;
      observations have a noise of 1 %, where theirs have next to none, and a little drawn.
    - Observations are kept as long as the job runs; there is no database of other jobs'.
    """

    def __init__(
        self,
        interval_s: float = 10.0,
        alpha: int = 3,
        low: float = 0.5,
        target: float = 1.0,
        drain_s: float = 10.0,
    ) -> None:
        check_range("conttune", "interval_s", interval_s, 0.0, above=True)
        check_range("conttune", "alpha", alpha, 0)
        check_range("conttune", "low", low, 0.0, 1.0)
        check_range("conttune", "target", target, 0.0, 1.0, above=True)
        check_range("conttune", "drain_s", drain_s, 0.0, above=True)
        self._interval_s, self._alpha, self._low = interval_s, alpha, low
        self._target, self._drain_s = target, drain_s
        self._ends_s: float | None = None
        self._seen: defaultdict[str, _Interval] = defaultdict(_Interval)
        self._history: defaultdict[str, _History] = defaultdict(_History)

    @property
    def name(self) -> str:
        """``conttune``."""
        return "conttune"

    def decide(self, observation: Observation) -> Decision:
        """Return the next step of a tuning, at the end of an interval."""
        if not is_whole(observation):
            return NOTHING
        if self._ends_s is None:
            self._ends_s = observation.time_s + self._interval_s
        for name, view in observation.operators.items():
            self._look(self._seen[name], view)
        if observation.time_s < self._ends_s:
            return NOTHING
        decision = self._tuned(observation)
        self._begin()
        return decision

    def applied(self, operator: str, change: Change, took_s: float) -> None:
        """Look again an interval from now: what was seen is of another number of slots."""
        self._begin()

    def slot_failed(self, operator: str, slot_id: int) -> None:
        """Keep nothing."""

    def _begin(self) -> None:
        """Forget the interval; the next one begins with the next cycle."""
        self._ends_s = None
        self._seen.clear()

    def _look(self, seen: _Interval, view: OperatorView) -> None:
        seen.averages.add(view)
        rate = np.where(view.service_rate > 0.0, view.service_rate, mean_service_rate(view))
        waits = view.by_slot(view.backlog)
        late = (waits > view.bound_s * rate) & (rate > 0.0)
        stays = waits > self._drain_s * np.maximum(rate - view.slot_rate, 0.0)
        seen.late = bool(late.any())
        seen.pressed += bool((late & stays).any())

    def _tuned(self, observation: Observation) -> Decision:
        """Note what each operator can do, and return the step of the phase that it is time for."""
        views = observation.operators
        for name, view in views.items():
            history, rate = self._history[name], self._seen[name].averages.service_rate
            history.most = max(history.most, view.slots)
            if rate:
                history.abilities[view.slots].append(view.slots * rate)
        if any(self._seen[name].share >= _PRESSED for name in views):
            return self._big(observation)
        late = any(self._seen[name].late for name in views)
        return NOTHING if late else self._small(observation)

    def _big(self, observation: Observation) -> Decision:
        """Return the most slots it had for every operator, or twice that; see the class."""
        views = observation.operators
        shares = {name: self._seen[name].share for name in views}
        pressed = {name: share for name, share in shares.items() if share >= _PRESSED}
        # One that has all it may have gets no further, whatever the others do.
        short = [name for name in pressed if views[name].slots < _limit(views[name])]
        doubled = any(views[name].slots >= self._history[name].most for name in short)
        changes: dict[str, Change] = {}
        for name in views if short else ():
            history, now = self._history[name], views[name].slots
            history.tuning = True
            change = rescaled(views[name], max(history.most, 2 * now if doubled else 0))
            if change is not None:
                changes[name] = change
        if not changes:
            return NOTHING
        held = ", ".join(f"{name} in {share:.0%} of the time" for name, share in pressed.items())
        slots = (
            f"{name} {views[name].slots} -> {changes[name].assignment.slots}" for name in changes
        )
        reason = f"Big phase, backpressure at {held}: {', '.join(slots)} slots."
        return Decision(changes, reason, "big", {f"{n}.pressed": s for n, s in pressed.items()})

    def _small(self, observation: Observation) -> Decision:
        """Return fewer slots for each operator that is being tuned, until none are too many."""
        changes: dict[str, Change] = {}
        parts: list[str] = []
        numbers: dict[str, float] = {}
        for name, view in observation.operators.items():
            history, means = self._history[name], self._seen[name].averages
            ability = view.slots * means.service_rate
            if not ability or (not history.tuning and means.rate >= self._low * ability):
                continue
            wanted, why = self._fewest(history, view.slots, means.rate / self._target)
            change = rescaled(view, wanted)
            history.tuning = change is not None
            if change is not None:
                changes[name] = change
                numbers |= {f"{name}.rate": means.rate, f"{name}.ability": ability}
                parts.append(
                    f"{name} gets {means.rate:.4g} of the {ability:.4g} records/s it can do, and by "
                    f"{why} fewer slots will do: {view.slots} -> {change.assignment.slots} slots"
                )
        if not changes:
            return NOTHING
        return Decision(changes, f"Small phase: {'; '.join(parts)}.", "small", numbers)

    def _fewest(self, history: _History, now: int, need: float) -> tuple[int, str]:
        """Return how few slots, up to `now`, serve `need` records per second, and who says so."""
        tried = {p: sum(seen) / len(seen) for p, seen in sorted(history.abilities.items())}
        enough = np.flatnonzero(_expected(tried, now) >= need)
        if enough.size:
            fewest = 1 + int(enough[0])
            nearest = min(abs(fewest - p) for p in tried)
            if nearest <= self._alpha:
                return fewest, f"a Gaussian process (nearest tried {nearest} off)"
        demand = need * now / tried[now]
        return max(1, math.ceil(min(demand, now) - _ROUNDING)), "DS2's line"


def _limit(view: OperatorView) -> int:
    return min(view.slots_max, view.assignment.key_groups)


def _expected(tried: dict[int, float], most: int) -> F64:
    """Return the ability to be expected of 1 to `most` slots, records per second, shape [most].

    The mean of a Gaussian process of zero mean; its length scale is the likeliest of `_SCALES`.
    """
    slots = np.array(list(tried), dtype=np.float64)
    unit = max(tried.values())
    found = np.array(list(tried.values())) / unit
    best, weights, chosen = -math.inf, found, _SCALES[0]
    for scale in _SCALES:
        factor = np.linalg.cholesky(_kernel(slots, slots, scale) + _NOISE * np.eye(slots.size))
        half = np.linalg.solve(factor, found)
        # Of all variances the likeliest is mean(half ** 2), which leaves these two terms.
        spread = 0.5 * slots.size * math.log(float(half @ half))
        likelihood = -spread - float(np.log(np.diag(factor)).sum())
        if likelihood > best + _ROUNDING:
            best, weights, chosen = likelihood, np.linalg.solve(factor.T, half), scale
    means: F64 = unit * (_kernel(np.arange(1.0, most + 1.0), slots, chosen) @ weights)
    return means


def _kernel(left: F64, right: F64, scale: float) -> F64:
    """Return the squared exponential kernel of two lists of numbers of slots."""
    distances = (left[:, None] - right[None, :]) / scale
    found: F64 = np.exp(-0.5 * distances**2)
    return found
