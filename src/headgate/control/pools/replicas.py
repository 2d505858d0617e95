"""Holds the input and output of a policy over pools of replicas of stateless operators."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter
from typing import Protocol

from headgate.core.errors import ConfigError, UnsupportedQuery


@dataclass(frozen=True)
class OperatorInterval:
    """Counts the events of one operator in an interval."""

    active: int
    """Active replicas; 1 <= active <= `pool`."""
    pool: int
    """Replicas of the pool, active or not, allocated at the start."""
    event_s: float
    """et: mean time of one event, in seconds; > 0."""
    processed: float
    """mu: events processed."""
    received: Mapping[str, float] = field(default_factory=dict)
    """lambda^p: events received from each predecessor; empty for an initial operator."""
    from_source: float = 0.0
    """Events received from the input data; 0 for an operator with predecessors."""
    queued: float = 0.0
    """q: events received and not processed at the end, over all its replicas, also inactive ones."""
    stateful: bool = False
    """Whether the operator keeps state from event to event."""
    least: int = 1
    """Least number of active replicas; 1 <= least <= `pool`."""


@dataclass(frozen=True)
class Interval:
    """Counts the events of a job in one interval."""

    duration_s: float
    """td, in seconds; > 0."""
    input_events: float
    """lambda_G: events sent by the input data."""
    operators: Mapping[str, OperatorInterval]

    @property
    def valid(self) -> bool:
        """Return whether every count is finite and not negative, and every event takes some time."""
        counts = [self.input_events]
        for operator in self.operators.values():
            counts += [operator.processed, operator.queued, operator.from_source]
            counts += operator.received.values()
        times = [operator.event_s for operator in self.operators.values()]
        return all(math.isfinite(count) and count >= 0.0 for count in counts) and all(
            math.isfinite(time_s) and time_s > 0.0 for time_s in times
        )

    @property
    def upstream_first(self) -> list[str]:
        """The operators, predecessors first; raises ConfigError where the graph has a cycle."""
        graph = {name: list(operator.received) for name, operator in self.operators.items()}
        try:
            return list(TopologicalSorter(graph).static_order())
        except CycleError as error:
            msg = f"operators {error.args[1]} form a cycle; a job's graph must have none."
            raise ConfigError(msg) from error

    @property
    def event_through_s(self) -> float:
        """Time of one event through the graph without waiting: its longest path, in seconds."""
        until: dict[str, float] = {}
        for name in self.upstream_first:
            operator = self.operators[name]
            start = max((until[parent] for parent in operator.received), default=0.0)
            until[name] = start + operator.event_s
        return max(until.values(), default=0.0)


@dataclass(frozen=True)
class ReplicaDecision:
    """Holds the active replicas that a replica policy wants in the next interval."""

    active: Mapping[str, int] = field(default_factory=dict)
    """Active replicas of the operators that change."""
    restart: bool = False
    """Whether the change restarts the job, which loses queued events (DABS); pools never restart."""
    reason: str = ""
    """One sentence with its numbers."""
    numbers: Mapping[str, float] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.active)


class ReplicaPolicy(Protocol):
    """Decides at the end of every interval how many replicas of each operator are active."""

    @property
    def name(self) -> str:
        """Name and main parameters, as figures print it."""

    def decide(self, interval: Interval) -> ReplicaDecision:
        """Return the decision for the next interval."""


@dataclass(frozen=True)
class ReplicaPool:
    """Holds the replicas of one operator, allocated at the start; each is active or inactive.

    References
    ----------
    PSPS IV, figure 2. The paper does not say which replica is activated or deactivated.
    """

    active: tuple[bool, ...]
    """One entry per replica; at least one is active."""

    def __post_init__(self) -> None:
        if not any(self.active):
            msg = f"a pool of {len(self.active)} replicas has none active; activate at least one."
            raise ConfigError(msg)

    def resized(self, wanted: int, queued: Sequence[float]) -> ReplicaPool:
        """Return the pool with `wanted` active replicas, with the fewest changes.

        `wanted`: clamped to 1 and the size of the pool. `queued`: events waiting at each replica. A
        replica with more queued events is activated earlier and deactivated later; of equal ones the
        lower number is active. A deactivated replica keeps and serves its queue.
        """
        wanted = max(1, min(wanted, len(self.active)))
        numbers = range(len(self.active))
        keep = sorted(numbers, key=lambda j: (not self.active[j], -queued[j], j))[:wanted]
        return ReplicaPool(tuple(j in keep for j in numbers))


def refuse_stateful(policy: str, interval: Interval) -> None:
    """Raise UnsupportedQuery where an operator keeps state."""
    for name, operator in interval.operators.items():
        if operator.stateful:
            msg = (
                f'{policy} cannot run operator "{name}", which keeps state: its replicas take any '
                'event. Use the policy "streamswitch" for it.'
            )
            raise UnsupportedQuery(msg)
