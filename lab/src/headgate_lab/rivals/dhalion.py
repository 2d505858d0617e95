"""Implements Dhalion: symptoms, a diagnosis, one resolution at a time, a blacklist of failed ones."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from headgate.control.decision import NOTHING, Change, Decision
from headgate.control.limits import check_range
from headgate.control.observation import Observation, OperatorView
from headgate.control.slots.projection import F64
from headgate.control.slots.rescaling import rescaled
from headgate.control.slots.strategies import best_balance, change_of
from headgate_lab.rivals.averages import is_whole

_NOISE = 0.05
"""Share of cycles up to which backpressure is ignored; chosen, not tuned."""

_FACTOR = 1.5
"""Factor from which the worst slot counts as different from the median; chosen, not tuned."""

_EMPTY = 0.1
"""Queue length, as a share of the bound, up to which a queue counts as empty; chosen, not tuned."""

_GROWTH = 2.0
"""Largest factor of an action, since the formula has no limit for shares of backpressure near 1."""


class Diagnosis(StrEnum):
    """Names the fault of an operator."""

    SKEW = "skew"
    SLOW_SLOT = "slow slot"
    UNDERPROVISIONED = "under-provisioned"
    OVERPROVISIONED = "over-provisioned"


@dataclass
class _Symptoms:
    """Holds the symptoms of an operator in the present interval.

    Attributes
    ----------
    cycles, pressed : int
        Number of cycles, and of those under backpressure.
    peak : float
        The longest queue, as a share of the bound.
    """

    cycles: int = 0
    pressed: int = 0
    peak: float = 0.0

    @property
    def share(self) -> float:
        """Share of the cycles under backpressure."""
        return self.pressed / self.cycles if self.cycles else 0.0


@dataclass(frozen=True)
class _Action:
    """Holds the last action, which is judged at the end of the next interval."""

    operator: str
    diagnosis: Diagnosis
    share: float


class Dhalion:
    """Acts on the operator with most backpressure, once per interval.

    An operator is under backpressure while the time to serve a slot's backlog is longer than the bound.
    Diagnoses are tried in this order, without blacklisted ones:

    - *skew*: the worst slot gets far more records than the others: move key groups away from it;
    - *slow slot*: it gets as many, but its service rate is far lower: the same;
    - *under-provisioned*: the slots are alike: slots x (1 + share of backpressure / share without).

    Without backpressure anywhere, an operator with empty queues is *over-provisioned*: slots x `shrink`.
    An action that did not help within an interval is blacklisted with its diagnosis.

    Parameters
    ----------
    interval_s : float
        Length of an interval, in seconds, from the last change on; > 0. Minutes in the paper.
    shrink : float
        Factor of slots of an over-provisioned operator, in (0, 1).
    blacklist_s : float
        Time for which a diagnosis stays blacklisted, in seconds; >= 0. The paper names no time.

    References
    ----------
    Floratou et al., "Dhalion: self-regulating streaming in Heron", PVLDB 10(12), 2017, 4 and 5.
    Differs: backpressure is derived from the backlog, since sources do not stop here; key groups move by
    StreamSwitch's best balance, where Heron restarts containers and changes hash functions; one failure
    blacklists, where the paper uses a ratio of failures.
    """

    def __init__(
        self, interval_s: float = 120.0, shrink: float = 0.8, blacklist_s: float = 3600.0
    ) -> None:
        check_range("dhalion", "interval_s", interval_s, 0.0, above=True)
        check_range("dhalion", "shrink", shrink, 0.0, 1.0 - 1e-9, above=True)
        check_range("dhalion", "blacklist_s", blacklist_s, 0.0)
        self._interval_s, self._shrink, self._blacklist_s = interval_s, shrink, blacklist_s
        self._barred_s: dict[tuple[str, Diagnosis], float] = {}
        self._last: _Action | None = None
        self._ends_s: float | None = None
        self._symptoms: defaultdict[str, _Symptoms] = defaultdict(_Symptoms)

    @property
    def name(self) -> str:
        """``dhalion``."""
        return "dhalion"

    def decide(self, observation: Observation) -> Decision:
        """Return at most one action, at the end of an interval."""
        if not is_whole(observation):
            return NOTHING
        if self._ends_s is None:
            self._ends_s = observation.time_s + self._interval_s
        for name, view in observation.operators.items():
            self._look(self._symptoms[name], view)
        if observation.time_s < self._ends_s:
            return NOTHING
        self._judge(observation.time_s)
        decision = self._resolve(observation)
        self._begin()
        return decision

    def applied(self, operator: str, change: Change, took_s: float) -> None:
        """Start a new interval."""
        self._begin()

    def slot_failed(self, operator: str, slot_id: int) -> None:
        """Do nothing; no state depends on it."""

    def _begin(self) -> None:
        """Drop the symptoms; the next interval begins with the next cycle."""
        self._ends_s = None
        self._symptoms.clear()

    @staticmethod
    def _look(symptoms: _Symptoms, view: OperatorView) -> None:
        longest = float(_queues_s(view).max()) / view.bound_s
        symptoms.cycles += 1
        symptoms.pressed += longest > 1.0
        symptoms.peak = max(symptoms.peak, longest)

    def _judge(self, now_s: float) -> None:
        """Blacklist the last action if it did not help."""
        last, self._last = self._last, None
        if last is None or last.operator not in self._symptoms:
            return
        share = self._symptoms[last.operator].share
        # An action against backpressure must reduce it, one that removes slots must not cause it.
        if share > _NOISE and share >= last.share:
            self._barred_s[last.operator, last.diagnosis] = now_s + self._blacklist_s

    def _resolve(self, observation: Observation) -> Decision:
        """Return the first action that is possible, operators under most backpressure first."""
        views = observation.operators
        pressed = [name for name in views if self._symptoms[name].share > _NOISE]
        pressed.sort(key=lambda name: -self._symptoms[name].share)
        for name in pressed or views:
            view, symptoms = views[name], self._symptoms[name]
            for diagnosis in _diagnoses(view) if pressed else (Diagnosis.OVERPROVISIONED,):
                if observation.time_s < self._barred_s.get((name, diagnosis), -math.inf):
                    continue
                change = self._resolution(diagnosis, view, symptoms)
                if change is not None:
                    self._last = _Action(name, diagnosis, symptoms.share)
                    return _decision(name, diagnosis, change, view, symptoms)
        return NOTHING

    def _resolution(
        self, diagnosis: Diagnosis, view: OperatorView, symptoms: _Symptoms
    ) -> Change | None:
        """Return the action against a diagnosis; None where there is none."""
        if diagnosis is Diagnosis.OVERPROVISIONED:
            if symptoms.peak > _EMPTY:
                return None
            change = rescaled(view, math.floor(view.slots * self._shrink))
        elif diagnosis is Diagnosis.UNDERPROVISIONED:
            without = max(1.0 - symptoms.share, 1e-9)
            factor = min(1.0 + symptoms.share / without, _GROWTH)
            change = rescaled(view, math.ceil(view.slots * factor))
        else:
            worst = int(np.argmax(_queues_s(view)))
            strategy = best_balance(view, 0.0, worst)
            change = None if strategy is None else change_of(view, strategy)
        return change


def _queues_s(view: OperatorView) -> F64:
    """Return the time that each slot needs for its backlog, shape [N]; infinite at service rate 0."""
    backlog = np.bincount(view.assignment.slot_of, weights=view.backlog, minlength=view.slots)
    queues: F64 = np.full(view.slots, np.inf)
    queues[backlog <= 0.0] = 0.0
    with np.errstate(over="ignore"):
        np.divide(backlog, view.service_rate, out=queues, where=view.service_rate > 0.0)
    return queues


def _diagnoses(view: OperatorView) -> Iterator[Diagnosis]:
    """Yield the possible diagnoses of an operator under backpressure, the likeliest first."""
    worst = int(np.argmax(_queues_s(view)))
    if view.slot_rate[worst] > _FACTOR * np.median(view.slot_rate):
        yield Diagnosis.SKEW
    if view.service_rate[worst] * _FACTOR < np.median(view.service_rate):
        yield Diagnosis.SLOW_SLOT
    yield Diagnosis.UNDERPROVISIONED


def _decision(
    name: str, diagnosis: Diagnosis, change: Change, view: OperatorView, symptoms: _Symptoms
) -> Decision:
    reason = (
        f"{name} is {diagnosis}, under backpressure in {symptoms.share:.0%} of the time: "
        f"{change.kind}, {view.slots} -> {change.assignment.slots} slots."
    )
    numbers = {f"{name}.backpressure": symptoms.share, f"{name}.queue": symptoms.peak}
    return Decision({name: change}, reason, f"{diagnosis} -> {change.kind}", numbers)
