"""Writes the control loop's decisions as events of the journal."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

import numpy as np

from headgate.control.decision import Change, Decision
from headgate.control.observation import Observation, OperatorView
from headgate.journal.parts import Observed, Wish
from headgate.journal.schema import Applied, Decided, Event, NotReadyToDecide

_KEPT = 1000
"""Number of decisions that a query's handle keeps; the journal has all decisions."""


class DecisionWriter:
    """Writes the loop's decisions into the job's journal, and keeps the last ones.

    `write`: appends an event to the journal. `policy`: name and parameters.
    """

    def __init__(self, write: Callable[[Event], None], policy: str) -> None:
        self._write = write
        self._policy = policy
        self.reason = ""
        self.kept: list[Decided] = []

    def decided(self, observation: Observation, decision: Decision, *, acts: bool) -> None:
        """Write a decision with its inputs."""
        self.reason = decision.reason
        event = Decided(
            policy=self._policy,
            rule=decision.rule,
            reason=decision.reason,
            acts=acts,
            wishes=tuple(
                _wish(name, observation.operators[name], change)
                for name, change in decision.changes.items()
                if name in observation.operators
            ),
            observed=tuple(_observed(n, view) for n, view in observation.operators.items()),
            numbers={
                name: round(value, 6) if math.isfinite(value) else None
                for name, value in decision.numbers.items()
            },
            at_ms=time.time_ns() // 1_000_000,
        )
        self.kept = [*self.kept[1 - _KEPT :], event]
        self._write(event)

    def applied(self, operator: str, change: Change, took_s: float) -> None:
        """Write that a change is in force."""
        slots = change.assignment.slots
        self._write(Applied(operator, str(change.kind), slots, round(took_s * 1e3, 3)))

    def not_ready(self, operator: str, why: str) -> None:
        """Write that a cycle was skipped, and why."""
        self._write(NotReadyToDecide(operator, why))


def _wish(operator: str, view: OperatorView, change: Change) -> Wish:
    number = {old: new for new, old in enumerate(change.survivors) if old is not None}
    pairs = zip(view.assignment.slot_of, change.assignment.slot_of, strict=True)
    moved = sum(number.get(old) != new for old, new in pairs)
    return Wish(operator, str(change.kind), change.assignment.slots, moved)


def _observed(operator: str, view: OperatorView) -> Observed:
    known = view.latency_s[~np.isnan(view.latency_s)]
    return Observed(
        operator=operator,
        slots=view.slots,
        latency_ms=round(float(known.max()) * 1e3, 3) if len(known) else None,
        bound_ms=round(view.bound_s * 1e3, 3),
        floor_ms=round(view.floor_s * 1e3, 3),
        arrived_per_s=round(float(view.group_rate.sum()), 3),
        service_per_s=round(float(view.service_rate.sum()), 3),
        utilisation=round(float(view.utilisation.max()), 4),
        backlog=int(view.backlog.sum()),
    )
