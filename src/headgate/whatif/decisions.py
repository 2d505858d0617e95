"""Records the decisions of the loop in a simulated run, with their reasons."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from headgate.control.decision import Change, Decision
from headgate.control.observation import Observation, OperatorView
from headgate.core.assignment import Assignment
from headgate.whatif.measures import moved_groups


@dataclass
class DecisionLog:
    """Keeps the journal of a simulated run in memory: a `DecisionJournal`."""

    clock: Callable[[], float]
    """Returns the time since the start, in seconds."""
    entries: list[dict[str, Any]] = field(default_factory=list)
    """Entries for a JSON file, oldest first. Every entry has ``at_s`` and ``event``: *decided*
    (rule, reason, numbers, acts, changes), *applied* (operator, change, took_s) or *not ready*
    (operator, why)."""

    def decided(self, observation: Observation, decision: Decision, *, acts: bool) -> None:
        """Write a decision with its inputs."""
        entry = {
            "at_s": observation.time_s,
            "event": "decided",
            "rule": decision.rule,
            "reason": decision.reason,
            "numbers": {key: finite(value) for key, value in decision.numbers.items()},
            "acts": acts,
            "changes": {
                name: _described(observation.operators[name].assignment, change)
                for name, change in decision.changes.items()
            },
            "seen": {name: _seen(view) for name, view in observation.operators.items()},
        }
        self.entries.append(entry)

    def applied(self, operator: str, change: Change, took_s: float) -> None:
        """Write that a change is in force."""
        entry = {
            "at_s": self.clock(),
            "event": "applied",
            "operator": operator,
            "kind": str(change.kind),
            "epoch": change.assignment.epoch,
            "took_s": took_s,
        }
        self.entries.append(entry)

    def not_ready(self, operator: str, why: str) -> None:
        """Write that a cycle decided nothing, and why."""
        entry = {"at_s": self.clock(), "event": "not ready", "operator": operator, "why": why}
        self.entries.append(entry)


def finite(value: float) -> float | None:
    """Return a number, or None where JSON has none: NaN and the infinities."""
    return value if math.isfinite(value) else None


def _described(before: Assignment, change: Change) -> dict[str, Any]:
    return {
        "kind": str(change.kind),
        "epoch": change.assignment.epoch,
        "source": change.source,
        "destination": change.destination,
        "groups": list(moved_groups(before, change)),
        "slots_before": before.slots,
        "slots_after": change.assignment.slots,
    }


def _seen(view: OperatorView) -> dict[str, Any]:
    """Return the inputs that a decision rests on, per slot."""
    return {
        "latency_s": [finite(value) for value in view.latency_s.tolist()],
        "rate": view.slot_rate.tolist(),
        "service_rate": view.service_rate.tolist(),
        "slot_ids": list(view.slot_ids),
    }
