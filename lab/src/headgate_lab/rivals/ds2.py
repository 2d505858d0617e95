"""Implements DS2: numbers of slots from true rates, for all operators at once."""

from __future__ import annotations

import math
from collections import defaultdict

from headgate.control.decision import NOTHING, Change, Decision
from headgate.control.limits import check_range
from headgate.control.observation import Observation
from headgate.control.slots.rescaling import rescaled
from headgate_lab.rivals.averages import Averages, is_whole

_ROUNDING = 1e-9
"""A demand of exactly 3 slots is 3 slots, also in floating point."""


class Ds2:
    """Gives every operator the slots that its input needs at the slots' true rate.

    The true rate of a slot is records per second of useful time. An operator needs
    ``ceil(target input / mean true rate)`` slots. The target input of an operator without parents is its
    arrival rate; for other operators it is the parents' target input times the operator's arrivals per
    record that the parents process. So one decision suffices, even if a slow parent limits the input of
    its children.

    Parameters
    ----------
    interval_s : float
        Policy interval over which rates are averaged, in seconds; > 0. Chosen, not tuned.
    warmup : int
        Intervals that are ignored at the start and after each change; >= 0.
    activation : int
        Number of decisions whose median is carried out; >= 1.

    References
    ----------
    Kalavri et al., "Three steps is all you need", OSDI 2018, 3 and 4.2. Differs: selectivity is
    computed per operator over all its parents, not per edge. As in the paper, the backlog is ignored.
    """

    def __init__(self, interval_s: float = 10.0, warmup: int = 1, activation: int = 1) -> None:
        check_range("ds2", "interval_s", interval_s, 0.0, above=True)
        check_range("ds2", "warmup", warmup, 0)
        check_range("ds2", "activation", activation, 1)
        self._interval_s, self._warmup, self._activation = interval_s, warmup, activation
        self._ends_s: float | None = None
        self._ignored = warmup
        self._averages: defaultdict[str, Averages] = defaultdict(Averages)
        self._collected = 0
        self._wanted: defaultdict[str, list[float]] = defaultdict(list)

    @property
    def name(self) -> str:
        """``ds2``."""
        return "ds2"

    def decide(self, observation: Observation) -> Decision:
        """Return the optimal number of slots, at the end of an interval."""
        if not is_whole(observation):
            return NOTHING
        if self._ends_s is None:
            self._ends_s = observation.time_s + self._interval_s
        for name, view in observation.operators.items():
            self._averages[name].add(view)
        if observation.time_s < self._ends_s:
            return NOTHING
        self._ends_s = observation.time_s + self._interval_s
        wanted = self._optimum(observation)
        self._averages.clear()
        if self._ignored:
            self._ignored -= 1
            return NOTHING
        for name, slots in wanted.items():
            self._wanted[name].append(slots)
        self._collected += 1
        return self._act(observation) if self._collected >= self._activation else NOTHING

    def applied(self, operator: str, change: Change, took_s: float) -> None:
        """Start a new interval and warm up, since the averages are of another number of slots."""
        self._ends_s = None
        self._ignored = self._warmup
        self._averages.clear()
        self._forget()

    def slot_failed(self, operator: str, slot_id: int) -> None:
        """Do nothing; no state depends on it."""

    def _forget(self) -> None:
        """Drop the decisions collected so far."""
        self._collected = 0
        self._wanted.clear()

    def _optimum(self, observation: Observation) -> dict[str, float]:
        """Return the slots that each operator needs, upstream first, for operators with a true rate."""
        wanted: dict[str, float] = {}
        target: dict[str, float] = {}
        for name in observation.operators:
            means = self._averages[name]
            parents = observation.parents.get(name, ())
            processed = sum(self._averages[parent].processing_rate for parent in parents)
            growth = sum(target[parent] for parent in parents) / processed if processed else 1.0
            target[name] = means.rate * growth
            if means.service_rate:
                wanted[name] = max(1.0, target[name] / means.service_rate - _ROUNDING)
        return wanted

    def _act(self, observation: Observation) -> Decision:
        changes: dict[str, Change] = {}
        numbers: dict[str, float] = {}
        for name, decisions in self._wanted.items():
            view = observation.operators.get(name)
            demand = sorted(decisions)[len(decisions) // 2]
            most = 1.0 if view is None else float(view.assignment.key_groups)
            change = rescaled(view, math.ceil(min(demand, most))) if view else None
            if change is not None:
                changes[name] = change
                numbers[f"{name}.demand"] = demand
        self._forget()
        if not changes:
            return NOTHING
        parts = [
            f"{name} needs {numbers[f'{name}.demand']:.2f} slots' worth of true rate: "
            f"{observation.operators[name].slots} -> {change.assignment.slots} slots"
            for name, change in changes.items()
        ]
        return Decision(changes, "; ".join(parts) + ".", "ds2", numbers)
