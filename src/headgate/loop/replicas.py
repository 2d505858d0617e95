"""Runs the loop of PSPS over pools of replicas: monitor, analyse, plan, execute."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from headgate.control.pools.replicas import Interval, ReplicaDecision, ReplicaPolicy


class PoolEngine(Protocol):
    """Runs the pools of replicas; the engine's port."""

    def monitor(self) -> Interval:
        """Return the counts of the interval that just ended."""

    def resize(self, active: Mapping[str, int]) -> None:
        """Set the number of active replicas of the operators in `active` from the next interval on."""

    def restart(self, active: Mapping[str, int]) -> None:
        """Restart the job with these replicas; queued events are lost."""


def run_interval(policy: ReplicaPolicy, engine: PoolEngine) -> ReplicaDecision:
    """End one interval: measure it, decide, and carry the decision out.

    `policy`: analyses and plans. `engine`: monitors and executes.

    References
    ----------
    PSPS IV-B, where the four steps are four modules. Here analysis and plan are one call, because no
    other code needs the result of the analysis.
    """
    decision = policy.decide(engine.monitor())
    if decision:
        carry_out = engine.restart if decision.restart else engine.resize
        carry_out(decision.active)
    return decision
