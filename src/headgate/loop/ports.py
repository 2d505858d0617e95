"""Defines the ports between the control loop and an engine: counters in, decisions out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from headgate.control.decision import Change, Decision
from headgate.control.observation import Observation
from headgate.control.sample import Sample
from headgate.core.assignment import Assignment


class MetricsSource(Protocol):
    """Supplies the counters of all operators (StreamSwitch's metrics retriever)."""

    def collect(self) -> Mapping[str, Sequence[Sample]]:
        """Return the samples of each operator since the last call, oldest first."""


class Actuator(Protocol):
    """Carries decisions out (StreamSwitch's `scale` and `remap`; both are a new assignment).

    `apply` returns at once. The engine calls the loop's `applied` when the new assignment is in
    force, and `slot_failed` when a slot was lost and replaced.
    """

    def assignment(self, operator: str) -> Assignment:
        """Return the assignment in force."""

    def apply(self, operator: str, change: Change) -> None:
        """Begin to bring `change` into force."""


class DecisionJournal(Protocol):
    """Records decisions."""

    def decided(self, observation: Observation, decision: Decision, *, acts: bool) -> None:
        """Write a decision with its inputs; `acts` is False for advice only."""

    def applied(self, operator: str, change: Change, took_s: float) -> None:
        """Write that a change is in force."""

    def not_ready(self, operator: str, why: str) -> None:
        """Write that an operator is not ready for a decision, or that a change is refused; and why."""
