"""Describes simulated pools: stateless operators, how events run between them, and what a pool does."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from headgate.control.limits import check_range
from headgate.core.errors import ConfigError
from headgate.whatif.model import ServiceTime, SlotPool


class GroupingKind(StrEnum):
    """Names the rule by which an active replica takes an event."""

    LOAD_AWARE = "load-aware"
    """The one of lowest load, which is what it was given in this interval and what waited before."""

    PRINTED = "as printed"
    """The same, but what it processed in the last interval in place of what waited (equation 5)."""

    ROUND_ROBIN = "round-robin"
    SHUFFLE = "shuffle"
    """A random one, as Storm."""

    LEAST_WORK = "least-work"
    """The one with the least expected work waiting, also from earlier intervals."""


@dataclass(frozen=True)
class Edge:
    """Describes an origin of an operator's events.

    Every event that a parent completes draws one number in [0, 1), and takes each of the parent's
    edges whose range holds it. So [0, 0.7) and [0.7, 1) split a stream, [0, 0.4) alone filters it,
    and [0, 1) twice sends a copy to both.
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
    """One operator whose replicas take any event."""

    service: ServiceTime
    """Work per event of one replica."""

    parents: tuple[Edge, ...] = ()
    """Empty for an operator that takes the whole input."""

    pool: int = 16
    """Replicas allocated at the start, active or not; >= 1."""

    replicas: SlotPool = field(default_factory=SlotPool)
    """How fast they are; unequal ones stand for hosts that others use too."""

    drift: float = 1.0
    """What an event costs at the end of the run, times its cost at the start; in between the factor
    grows linearly. Above 1 events grow dearer."""

    def __post_init__(self) -> None:
        check_range("stateless operator", "pool", self.pool, 1)
        check_range("stateless operator", "drift", self.drift, 0.0, above=True)


@dataclass(frozen=True)
class PoolJob:
    """A graph of stateless operators."""

    operators: Mapping[str, StatelessOperator]
    """By name, parents before children."""

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
        """Return the operators that take events of `name`, and by which edge."""
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
    PSPS V-B: 30 s, load balancing, 30 s and 100,000 events are its own choices. Differs: nothing is
    ever dropped unless asked for.
    """

    interval_s: float = 30.0
    """td: time between two decisions; > 0."""

    grouping: GroupingKind = GroupingKind.LOAD_AWARE

    timeout_s: float = math.inf
    """t_out: an event that is older than this, since it entered the job, and not in service is
    dropped and counted; > 0."""

    queue_events: int | None = None
    """q_size: an event that finds so many waiting at an operator is dropped and counted; None for no
    bound."""

    active: int = 1
    """Active replicas of each operator at the start; at most the pool."""

    restart_s: float = 10.0
    """How long a restart lasts, for a policy that restarts. Chosen, not tuned."""

    event_time_weight: float = 0.125
    """How fast the known time of an event follows what is measured; 0 keeps the first, as PSPS."""

    def __post_init__(self) -> None:
        check_range("pool", "interval_s", self.interval_s, 0.0, above=True)
        check_range("pool", "timeout_s", self.timeout_s, 0.0, above=True)
        if self.queue_events is not None:
            check_range("pool", "queue_events", self.queue_events, 1)
        check_range("pool", "active", self.active, 1)
        check_range("pool", "restart_s", self.restart_s, 0.0)
