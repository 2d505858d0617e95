"""Describes simulated pools: stateless operators, the edges between them, and the settings of pools."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from headgate.control.limits import check_range
from headgate.core.errors import ConfigError
from headgate.whatif.model import ServiceTime, SlotPool


class GroupingKind(StrEnum):
    """Names the rule that chooses the active replica for an event."""

    LOAD_AWARE = "load-aware"
    """The replica with the lowest load: its events of this interval, and those that waited before."""
    PRINTED = "as printed"
    """The same, but with the events processed in the last interval instead of the waiting ones
    (equation 5)."""
    ROUND_ROBIN = "round-robin"
    SHUFFLE = "shuffle"
    """A random replica, as in Storm."""
    LEAST_WORK = "least-work"
    """The replica with the least expected work on the event's arrival."""


@dataclass(frozen=True)
class Edge:
    """Describes an edge from a parent operator.

    For every event that a parent completes, a random number in [0, 1) is drawn, and the event takes each
    of the parent's edges whose range contains it. So [0, 0.7) and [0.7, 1) split a stream, [0, 0.4) alone
    filters it, and [0, 1) twice sends a copy to both children.
    """

    parent: str
    low: float = 0.0
    """Begin of the range, in [0, 1)."""
    high: float = 1.0
    """End of the range, above `low`, at most 1."""

    def __post_init__(self) -> None:
        if not 0.0 <= self.low < self.high <= 1.0:
            msg = (
                f'edge from "{self.parent}" takes the range {self.low:g} to {self.high:g}; '
                "give 0 <= low < high <= 1."
            )
            raise ConfigError(msg)


@dataclass(frozen=True)
class StatelessOperator:
    """Describes an operator whose replicas serve any event."""

    service: ServiceTime
    """Service time of an event in one replica."""
    parents: tuple[Edge, ...] = ()
    """Edges from parents; empty for an operator that gets the whole input."""
    pool: int = 16
    """Replicas allocated at the start, active or not; >= 1."""
    replicas: SlotPool = field(default_factory=SlotPool)
    """Speeds of the replicas; unequal speeds stand for hosts that other processes use, too."""
    drift: float = 1.0
    """Cost of an event at the end of the run relative to the start; the factor grows linearly."""

    def __post_init__(self) -> None:
        check_range("stateless operator", "pool", self.pool, 1)
        check_range("stateless operator", "drift", self.drift, 0.0, above=True)


@dataclass(frozen=True)
class PoolJob:
    """Describes a graph of stateless operators."""

    operators: Mapping[str, StatelessOperator]
    """Operators by name, parents before children."""

    def __post_init__(self) -> None:
        seen: set[str] = set()
        for name, operator in self.operators.items():
            for edge in operator.parents:
                if edge.parent not in seen:
                    msg = (
                        f'operator "{name}" comes before its parent "{edge.parent}", or there is no '
                        "such parent; name parents first."
                    )
                    raise ConfigError(msg)
            seen.add(name)

    def children(self, name: str) -> list[tuple[str, Edge]]:
        """Return the operators that get events of `name`, with the edge of each."""
        return [
            (child, edge)
            for child, operator in self.operators.items()
            for edge in operator.parents
            if edge.parent == name
        ]


@dataclass(frozen=True)
class PoolSettings:
    """Holds the settings of pools.

    References
    ----------
    PSPS V-B: an interval of 30 s, load balancing, a timeout of 30 s and 100,000 queued events are its
    choices. Differs: by default no event is dropped.
    """

    interval_s: float = 30.0
    """td: time between two decisions; > 0."""

    grouping: GroupingKind = GroupingKind.LOAD_AWARE

    timeout_s: float = math.inf
    """t_out: an event that waits and is older than this, since its entry into the job, is dropped and
    counted; > 0."""
    queue_events: int | None = None
    """q_size: an event that arrives at an operator with this many waiting events is dropped and counted;
    None: no limit."""

    active: int = 1
    """Active replicas of each operator at the start; at most the pool."""

    restart_s: float = 10.0
    """Length of a restart, for a policy that restarts. Chosen, not tuned."""
    event_time_weight: float = 0.125
    """Weight of a new measurement in the estimated time of an event; 0: the estimate is constant, as in
    PSPS."""

    def __post_init__(self) -> None:
        check_range("pool", "interval_s", self.interval_s, 0.0, above=True)
        check_range("pool", "timeout_s", self.timeout_s, 0.0, above=True)
        if self.queue_events is not None:
            check_range("pool", "queue_events", self.queue_events, 1)
        check_range("pool", "active", self.active, 1)
        check_range("pool", "restart_s", self.restart_s, 0.0)
