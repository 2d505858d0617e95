"""The port of a policy: deterministic, one method, no clock and no I/O."""

from __future__ import annotations

from typing import Protocol

from headgate.control.decision import Change, Decision
from headgate.control.observation import Observation


class Policy(Protocol):
    """Decides how many slots a job has and who owns which key group.

    `decide` is called once per control cycle with what is valid: an operator whose counters are not,
    or that has a change under way, is left out of the observation. The other two methods are told
    what became of a decision.
    """

    @property
    def name(self) -> str:
        """Name and main parameters, as figures print it: ``streamswitch(0.2)``."""

    def decide(self, observation: Observation) -> Decision:
        """Return what is wanted now; an empty decision for nothing."""

    def applied(self, operator: str, change: Change, took_s: float) -> None:
        """Take note that `change` is in force, `took_s` seconds after it was decided."""

    def slot_failed(self, operator: str, slot_id: int) -> None:
        """Take note that a slot failed and was replaced under the newest assignment."""
