"""Defines the lines of a fleet's journal; the journals of its jobs are as of `schema`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from headgate.journal.numbers import Count, Groups, Instant, Number, Whole


@dataclass(frozen=True)
class FleetStart:
    """A fleet was made; the first line of its journal."""

    KIND: ClassVar[str] = "fleet-start"

    policy: str
    """Name of the policy."""
    slots_max: Count
    """The budget."""
    round_s: Number
    """Time between two rounds, in seconds."""
    version: Whole
    """Version of the journal's format."""
    at_ms: Instant = 0
    """Wall clock, ms since 1970; the writer fills it in when 0."""


@dataclass(frozen=True)
class FleetJobState:
    """Holds the state of one job of a fleet at the end of a round."""

    job: str
    """The query's name."""
    state: str
    """running, hung or leaving."""
    utility: Number | None
    """Utility attained; null while nothing is known."""
    utility_max: Number
    """The job's priority."""
    met: bool
    """Whether every intent was met."""
    values: tuple[Number, ...] = ()
    """What was measured for each intent: seconds, a share, or records per second."""
    slots: dict[str, Whole] = field(default_factory=dict)
    """Slots per operator."""
    capacity: dict[str, Number] = field(default_factory=dict)
    """Share of the time that the busiest slot of each operator worked."""
    input_rate: Number = 0.0
    """Records per second that came from its sources."""
    granted: dict[str, Whole] = field(default_factory=dict)
    """The most slots that each operator may hold; empty in journals of an earlier release."""
    requested: dict[str, Whole] = field(default_factory=dict)
    """Slots that the job's own policy would like, of operators for which that is more than granted."""


@dataclass(frozen=True)
class FleetHostState:
    """Holds the load of one host of a fleet in a round."""

    host: str
    """As Spark names it; local, where tasks run in the driver's own machine."""
    cores: Whole
    """Of its executors."""
    runnable: Number
    """Tasks of the fleet's jobs that ran or waited for a core, mean of the round."""
    load: Number | None
    """The machine's own load average over a minute; null where no task told."""
    congested: bool
    """Whether more was runnable than it has cores."""


@dataclass(frozen=True)
class FleetRound:
    """A fleet looked at its jobs."""

    KIND: ClassVar[str] = "fleet-round"

    time_s: Number
    """Since the fleet was started, in seconds."""
    jobs: tuple[FleetJobState, ...]
    """Its jobs but those that ended."""
    utility: Number
    """Total utility of the jobs about which something is known."""
    utility_max: Number
    """The most there could be."""
    slots: Groups
    """Slots in force, all jobs."""
    slots_max: Count
    """The budget."""
    congested: bool
    """Whether most hosts were congested."""
    at_ms: Instant = 0
    """Wall clock, ms since 1970; the writer fills it in when 0."""
    hosts: tuple[FleetHostState, ...] = ()
    """How busy each host was."""


@dataclass(frozen=True)
class FleetDecided:
    """Records a fleet's decision, or its advice; repeated decisions for no change are written once."""

    KIND: ClassVar[str] = "fleet-decision"

    policy: str
    """Name of the policy."""
    action: str
    """nothing, reconfiguration, reduction or reversion."""
    rule: str
    """The rule that fired."""
    reason: str
    """Why, in words."""
    acts: bool
    """Whether it is carried out."""
    slots: dict[str, dict[str, Whole]] = field(default_factory=dict)
    """New numbers of slots, by job and operator."""
    numbers: dict[str, Number] = field(default_factory=dict)
    """The policy's own figures."""
    time_s: Number = 0.0
    """Since the fleet was started, in seconds."""
    at_ms: Instant = 0
    """Wall clock, ms since 1970; the writer fills it in when 0."""


@dataclass(frozen=True)
class FleetJobChanged:
    """A job joined a fleet, left it, failed or hung, or refused what the fleet wanted."""

    KIND: ClassVar[str] = "fleet-job"

    job: str
    """The query's name."""
    state: str
    """running, hung, failed, leaving or gone."""
    why: str
    """In words."""
    at_ms: Instant = 0
    """Wall clock, ms since 1970; the writer fills it in when 0."""


@dataclass(frozen=True)
class FleetGranted:
    """Records that the grant of a job changed."""

    KIND: ClassVar[str] = "fleet-grant"

    job: str
    """The query's name."""
    granted: dict[str, Whole]
    """The most slots that each operator of the job may hold from now on."""
    held: dict[str, Whole]
    """Slots in force; what is above the grant is given up at the job's next batch boundary."""
    by: str
    """The fleet's policy, ``user``, or ``budget`` where that changed."""
    reason: str = ""
    """Why, in words."""
    requested: dict[str, Whole] = field(default_factory=dict)
    """What the job's own policy would have liked beyond its grant."""
    time_s: Number = 0.0
    """Since the fleet was started, in seconds."""
    at_ms: Instant = 0
    """Wall clock, ms since 1970; the writer fills it in when 0."""


@dataclass(frozen=True)
class GrantChange:
    """Records in the journal of a fleet's job that the job's grant changed."""

    KIND: ClassVar[str] = "grant"

    granted: dict[str, Whole]
    """The most slots, or active replicas, of each operator."""
    by: str
    """Who granted it."""
    reason: str = ""
    """Why, in words."""
    at_ms: Instant = 0
    """Wall clock, ms since 1970; the writer fills it in when 0."""


@dataclass(frozen=True)
class SlotRequest:
    """Records in the journal of a fleet's job that its own policy's request beyond the grant changed."""

    KIND: ClassVar[str] = "request"

    requested: dict[str, Whole]
    """Slots by operator, of those that would like more; empty where none does any more."""
    granted: dict[str, Whole]
    """The grant at that time."""
    at_ms: Instant = 0
    """Wall clock, ms since 1970; the writer fills it in when 0."""
