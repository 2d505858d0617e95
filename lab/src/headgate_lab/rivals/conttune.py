"""Implements ContTune: first more than enough slots, then fewer by a model of every number of slots."""

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
"""Share of cycles below which backpressure is ignored: what Flink shows as OK."""

_KEPT = 5
"""Newest observations per number of slots, whose mean counts; as many as in the authors' table."""

_SCALES = (2.5, 1.25, 5.0, 10.0, 20.0, 40.0)
"""Length scales of the kernel, in slots; the likeliest is used, of a tie the first, the authors' own."""

_NOISE = 1e-4
"""Variance of an observation relative to the prior's; chosen: abilities are measured to about 1 %."""

_ROUNDING = 1e-9
"""A demand of exactly 3 slots is 3 slots, also in floating point."""


@dataclass
class _History:
    """Holds for one operator the newest abilities by slots, the most slots so far, the tuning state."""

    abilities: defaultdict[int, deque[float]] = field(
        default_factory=lambda: defaultdict(lambda: deque(maxlen=_KEPT))
    )
    most: int = 1
    tuning: bool = False


@dataclass
class _Interval:
    """Holds the observations of one operator in an interval; `late` is that of the last cycle."""

    averages: Averages = field(default_factory=Averages)
    pressed: int = 0
    late: bool = False

    @property
    def share(self) -> float:
        """Share of the cycles under backpressure."""
        return self.pressed / self.averages.cycles


class ContTune:
    """Doubles slots until no input is held back (Big), then removes slots conservatively (Small).

    The processing ability of an operator is its number of slots times their true rate. Every interval
    adds one observation: (slots, ability).

    - *Big*: an operator is under backpressure. Every operator gets the most slots it ever had; if an
      operator under backpressure has them already, twice its slots if that is more. So the graph does not
      matter: no input is held back afterwards, and each operator is tuned alone.
    - *Small*: after Big, or if an operator uses less than `low` of its ability. A Gaussian process with
      zero mean and a squared exponential kernel estimates the ability of each number of slots; the
      operator gets the fewest slots whose mean is at least the arrival rate. If these are more than
      `alpha` slots from all tried numbers, DS2's line through the origin is used instead. Small ends when
      neither gives fewer slots than the present ones.

    Parameters
    ----------
    interval_s : float
        Time between two decisions, in seconds, from the last change on; > 0.
    alpha : int
        Largest distance in slots from the nearest observation at which the process is trusted; >= 0. The
        paper has 3 and 0.
    low : float
        Share of its ability, in [0, 1], below which an operator at rest is tuned.
    target : float
        Share of its ability, in (0, 1], that an operator should use; 1 in the paper.
    drain_s : float
        Time in which the backlog must drain, otherwise the operator is under backpressure, in seconds;
        > 0.

    References
    ----------
    Lian et al., "ContTune: continuous tuning by conservative Bayesian optimization for distributed
    stream data processing systems", PVLDB 16(13), 2023: algorithm 1 (Big-small), the acquisition
    ``argmax (p* - p) I(mu(p) - lambda)``, the score ``d_nearest <= alpha``, the newest K
    observations and their mean; the Gaussian process as in the authors' code. Differs:

    - The SLA is a latency, not a throughput. An operator is under backpressure in a cycle if the backlog
      of a slot needs longer than the bound, and would not drain within `drain_s` at its spare rate; the
      share of these cycles replaces Flink's time under backpressure. While a backlog that will drain is
      still there, no decision is made.
    - `target` is new, since at a share of 1 queues have no bound. The three states of CPU use are two,
      below `low` or not. The authors' controller, with its thresholds, is not published.
    - Big goes to the most slots so far before it doubles, as follows from the paper's bound on
      reconfigurations: log2 of that number in total, and one per tuning.
    - Small only removes slots, since otherwise the acquisition is not above 0.
    - Abilities are also recorded under backpressure, since true rates hold there, too; the authors record
      them for jobs that keep up. Otherwise too few slots would be tried again and again.
    - The length scale is the likeliest of six, with its variance in closed form (which does not change
    the
      mean); the authors search both by gradient from 2.5 slots. Observations have a noise of 1 %; the
      authors' have nearly none, plus a small random one.
    - Observations are stored as long as the job runs; there is no database of other jobs.
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
        """Start a new interval, since the observations are of another number of slots."""
        self._begin()

    def slot_failed(self, operator: str, slot_id: int) -> None:
        """Do nothing; no state depends on it."""

    def _begin(self) -> None:
        """Drop the observations; the next interval begins with the next cycle."""
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
        """Record the ability of each operator, and return the next decision of the phase."""
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
        """Return for every operator the most slots so far, or twice its slots; see the class."""
        views = observation.operators
        shares = {name: self._seen[name].share for name in views}
        pressed = {name: share for name, share in shares.items() if share >= _PRESSED}
        # An operator at its limit cannot get more slots.
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
        """Return fewer slots for each operator that is being tuned."""
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
        """Return the fewest slots, up to `now`, that serve `need` records/s, and the model's name."""
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
    """Return the expected ability of 1 to `most` slots, records per second, shape [most].

    It is the mean of a Gaussian process of zero mean with the likeliest length scale of `_SCALES`.
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
