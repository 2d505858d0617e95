"""Defines the lines of a fleet's journal; `schema` defines those of its jobs' journals."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from headgate.journal.numbers import Count, Groups, Instant, Number, Whole


@dataclass(frozen=True)
class FleetStart:
    """A fleet was created; the first line of its journal."""

    KIND: ClassVar[str] = "fleet-start"

    policy: str
    """Name of the policy."""
    slots_max: Count
    """Budget of the fleet, in slots."""
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
    """Attained utility; null while it is unknown."""
    utility_max: Number
    """The job's priority."""
    met: bool
    """Whether every intent was met."""
    values: tuple[Number, ...] = ()
    """Measured value for each intent: seconds, a share, or records per second."""
    slots: dict[str, Whole] = field(default_factory=dict)
    """Slots per operator."""
    capacity: dict[str, Number] = field(default_factory=dict)
    """Capacity of each operator: the share of time in which its busiest slot worked."""
    input_rate: Number = 0.0
    """Records per second from the job's sources."""
    granted: dict[str, Whole] = field(default_factory=dict)
    """Largest number of slots of each operator; empty in journals of an earlier release."""
    requested: dict[str, Whole] = field(default_factory=dict)
    """Slots that the job's own policy requests, for operators with a request above the grant."""


@dataclass(frozen=True)
class FleetHostState:
    """Holds the load of one host of a fleet in a round."""

    host: str
    """Spark's name of the host; local, if tasks run on the driver's own machine."""
    cores: Whole
    """Cores of the host's executors."""
    runnable: Number
    """Tasks of the fleet's jobs that ran or waited for a core, mean of the round."""
    load: Number | None
    """Load average of the machine over a minute; null if no task reported it."""
    congested: bool
    """Whether `runnable` is larger than `cores`."""


@dataclass(frozen=True)
class FleetRound:
    """A fleet examined its jobs."""

    KIND: ClassVar[str] = "fleet-round"

    time_s: Number
    """Time since the fleet started, in seconds."""
    jobs: tuple[FleetJobState, ...]
    """Jobs of the fleet that have not ended."""
    utility: Number
    """Total utility of the jobs whose utility is known."""
    utility_max: Number
    """Largest possible total utility."""
    slots: Groups
    """Slots in force, of all jobs."""
    slots_max: Count
    """Budget of the fleet, in slots."""
    congested: bool
    """Whether most hosts were congested."""
    at_ms: Instant = 0
    """Wall clock, ms since 1970; the writer fills it in when 0."""
    hosts: tuple[FleetHostState, ...] = ()
    """Load of each host."""


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
    """Reason, in words."""
    acts: bool
    """Whether the decision is carried out."""
    slots: dict[str, dict[str, Whole]] = field(default_factory=dict)
    """New numbers of slots, by job and operator."""
    numbers: dict[str, Number] = field(default_factory=dict)
    """The policy's own figures."""
    time_s: Number = 0.0
    """Time since the fleet started, in seconds."""
    at_ms: Instant = 0
    """Wall clock, ms since 1970; the writer fills it in when 0."""


@dataclass(frozen=True)
class FleetJobChanged:
    """A job joined a fleet, left it, failed or hung, or refused a request of the fleet."""

    KIND: ClassVar[str] = "fleet-job"

    job: str
    """The query's name."""
    state: str
    """running, hung, failed, leaving or gone."""
    why: str
    """Reason, in words."""
    at_ms: Instant = 0
    """Wall clock, ms since 1970; the writer fills it in when 0."""


@dataclass(frozen=True)
class FleetGranted:
    """Records that the grant of a job changed."""

    KIND: ClassVar[str] = "fleet-grant"

    job: str
    """The query's name."""
    granted: dict[str, Whole]
    """Largest number of slots that each operator of the job may hold from now on."""
    held: dict[str, Whole]
    """Slots in force; the job gives back slots above the grant at its next batch boundary."""
    by: str
    """Name of the fleet's policy, ``user``, or ``budget`` if the budget changed."""
    reason: str = ""
    """Reason, in words."""
    requested: dict[str, Whole] = field(default_factory=dict)
    """Slots that the job's own policy requests, for operators with a request above the grant."""
    time_s: Number = 0.0
    """Time since the fleet started, in seconds."""
    at_ms: Instant = 0
    """Wall clock, ms since 1970; the writer fills it in when 0."""


@dataclass(frozen=True)
class GrantChange:
    """Records in the journal of a fleet's job that the job's grant changed."""

    KIND: ClassVar[str] = "grant"

    granted: dict[str, Whole]
    """Largest number of slots, or of active replicas, of each operator."""
    by: str
    """Who made the grant."""
    reason: str = ""
    """Reason, in words."""
    at_ms: Instant = 0
    """Wall clock, ms since 1970; the writer fills it in when 0."""


@dataclass(frozen=True)
class SlotRequest:
    """Records in the journal of a fleet's job that its own policy's request above the grant changed."""

    KIND: ClassVar[str] = "request"

    requested: dict[str, Whole]
    """Requested slots, for operators with a request above the grant; empty if there is none any more."""
    granted: dict[str, Whole]
    """The grant at that time."""
    at_ms: Instant = 0
    """Wall clock, ms since 1970; the writer fills it in when 0."""
