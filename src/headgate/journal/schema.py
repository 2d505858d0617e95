"""Defines the lines of the journal: one frozen dataclass per kind of event.

Every line is a JSON object with ``"event"`` (the kind, below as `KIND`) and ``"at_ms"``. A reader
ignores fields and kinds it does not know; a change of meaning raises `VERSION`.
"""

from __future__ import annotations

import typing
from dataclasses import dataclass, field
from typing import Any, ClassVar

from headgate.journal.fleet import (
    FleetDecided,
    FleetGranted,
    FleetHostState,
    FleetJobChanged,
    FleetJobState,
    FleetRound,
    FleetStart,
    GrantChange,
    SlotRequest,
)
from headgate.journal.histogram import Sparse
from headgate.journal.hosts import ExecutorChange, MigrationStep, SlotLost
from headgate.journal.numbers import Count, Groups, Instant, Number, Whole
from headgate.journal.parts import (
    GroupRecords,
    Latency,
    MemoryUse,
    Observed,
    OperatorInfo,
    SloState,
    SlotStats,
    Wish,
)

VERSION = 1
"""Version of the journal's format, stated by every start event."""


@dataclass(frozen=True)
class Start:
    """A query started, for the first time or again; the first line of every journal."""

    KIND: ClassVar[str] = "start"

    job: str
    """Identity of the job: a uuid kept in the checkpoint."""
    name: str
    """The query's name."""
    key_groups: Groups
    """Key groups G per operator, fixed in the checkpoint."""
    slots: Groups
    """Slots at the start."""
    workload: str | None = None
    """Built-in workload or ``module:function``; null for a query started from Python."""
    seed: Whole | None = None
    """Seed of the load generator; null where there is none."""
    parameters: dict[str, Any] = field(default_factory=dict)
    """Resolved settings of the run."""
    operators: tuple[OperatorInfo, ...] = ()
    """Stateful operators, sources first."""
    floor_ms: Number | None = None
    """Latency floor known from earlier runs, in ms; null when not measured yet."""
    versions: dict[str, str] = field(default_factory=dict)
    """Versions of headgate, of Spark and of Python."""
    version: Whole = VERSION
    """Version of this format."""
    at_ms: Instant = 0
    """Wall clock, ms since 1970; the writer fills it in when 0."""


@dataclass(frozen=True)
class BatchBegun:
    """A batch began to run; until it is committed, the query works on it."""

    KIND: ClassVar[str] = "begun"

    step: Whole
    """headgate's own number of the batch."""
    spark_batch: Whole
    """Spark's number of the batch."""
    at_ms: Instant = 0
    """Wall clock, ms since 1970; the writer fills it in when 0."""


@dataclass(frozen=True)
class Batch:
    """A batch was committed: its manifest exists."""

    KIND: ClassVar[str] = "batch"

    step: Whole
    """headgate's own number of the batch; grows by one, also over restarts."""
    spark_batch: Whole
    """Spark's number of the batch; starts at 0 again with a new Spark checkpoint."""
    epoch: Whole
    """Epoch of the assignment the batch ran under."""
    slots: Groups
    """Slots the batch ran with."""
    duration_ms: Number
    """The whole trigger inside headgate, in ms."""
    phases_ms: dict[str, Number]
    """Parts of the batch, in ms: plan, slots, manifest, sink; optionally cut, wait and logs."""
    arrived: Count
    """New records that reached slots: from the source, behind what is filtered or multiplied below."""
    served: Count
    """Records applied to state, from the source or from backlog."""
    emitted: Count
    """Rows handed to the sink."""
    late: Count
    """Records dropped because their window had closed."""
    backlog: Count
    """Records waiting after the batch, all slots."""
    backlog_bytes: Count
    """Size of that backlog, in bytes."""
    latency_ms: Latency | None = None
    """Latency of the records completed in this batch, in ms; null when none was."""
    histogram: Sparse = ()
    """The same latencies as [bucket_ms, count], ascending; bucket_ms is the bucket's upper edge."""
    watermark_us: Whole | None = None
    """Event-time watermark after the batch, microseconds since 1970; null when there is none."""
    slot_stats: tuple[SlotStats, ...] = ()
    """One entry per slot."""
    hottest: tuple[tuple[Whole, Whole], ...] = ()
    """The key groups that served most, as [key group, records], descending."""
    hottest_key: str | None = None
    """The most frequent key of the new records, and how many it has; null unless ``headgate.showKeys``
    allows it."""
    arrivals: tuple[GroupRecords, ...] = ()
    """New records by key group, late ones left out, of operators that read a source; empty where there
    were none, or no SLO asks for counts."""
    served_groups: tuple[GroupRecords, ...] = ()
    """Records that were served, by key group, of every operator."""
    state_rows: Count = 0
    """Rows of state, all operators."""
    state_bytes: Count = 0
    """Size of the state, in bytes."""
    changelog_bytes: Count = 0
    """What the batch appended to the changelog, in bytes."""
    attempts: Whole = 1
    """Executions it took; 1 when nothing failed."""
    dropped: dict[str, Whole] = field(default_factory=dict)
    """Rows that pools of replicas dropped, by reason: too_old, queue_full or restart."""
    watermark_holder: Whole | None = None
    """Slot whose backlog holds the watermark back; null when none does."""
    watermark_operator: str = ""
    """The operator of that slot."""
    slo: SloState | None = None
    """How the job stands to its SLO, as known when the batch ended; null without one."""
    lag: dict[str, Whole] = field(default_factory=dict)
    """Records by topic and partition, as ``clicks-0``, that Kafka had and the job had not read, as Spark
    told of the batch before; empty where no source says so."""
    store_requests: Whole | None = None
    """Requests to the checkpoint's store since the batch before: the driver's, repeated ones counted
    once, and a slot's for each file that it wrote; null where the checkpoint is a directory."""
    store_bytes: Whole | None = None
    """Bytes that these have written; null where the checkpoint is a directory."""
    memory: MemoryUse | None = None
    """Where state lies; null where memory has no bound."""
    epochs: Count = 0
    """Epochs that the line sums, of a query in real time: a second of them, of which the newest has the
    numbers above; 0 for a batch. ``duration_ms`` and the phases are sums, and outputs go out (sink)
    beside the next epochs."""
    at_ms: Instant = 0
    """Wall clock at the batch's end, ms since 1970; the writer fills it in when 0."""


@dataclass(frozen=True)
class AssignmentChange:
    """A new assignment took effect."""

    KIND: ClassVar[str] = "assignment"

    step: Whole
    """First batch under the new assignment."""
    epoch: Whole
    """Epoch of the new assignment."""
    slots_before: Count
    """Slots until now."""
    slots_after: Count
    """Slots from now on."""
    groups_moved: Count
    """Key groups whose slot changed."""
    bytes_moved: Count
    """State copied because of it, in bytes; 0 where slots share memory."""
    by: str
    """Who asked: ``--scale-at``, ``user`` or the name of a policy."""
    reason: str = ""
    """Why, in words."""
    operator: str = ""
    """The operator; empty in journals of an earlier release."""
    slot_of: tuple[Whole, ...] = ()
    """The slot of each key group from now on; empty in journals of an earlier release."""
    split: tuple[tuple[Whole, ...], ...] = ()
    """Key groups that are split from now on: each with the slots that have a share, its owner first."""
    at_ms: Instant = 0
    """Wall clock, ms since 1970; the writer fills it in when 0."""


@dataclass(frozen=True)
class Retry:
    """An execution of a batch failed and is repeated."""

    KIND: ClassVar[str] = "retry"

    step: Whole
    """The batch."""
    attempt: Whole
    """The execution that failed, from 1."""
    error: str
    """What failed, in one sentence."""
    at_ms: Instant = 0
    """Wall clock, ms since 1970; the writer fills it in when 0."""


@dataclass(frozen=True)
class Stop:
    """The query ended."""

    KIND: ClassVar[str] = "stop"

    reason: str
    """Who or what ended it."""
    error: str | None = None
    """What failed; null when the end was clean."""
    summary: dict[str, Any] = field(default_factory=dict)
    """Totals the engine wants to leave behind; may be empty."""
    at_ms: Instant = 0
    """Wall clock, ms since 1970; the writer fills it in when 0."""


@dataclass(frozen=True)
class Restart:
    """The query took up work that an earlier one left; follows its start event."""

    KIND: ClassVar[str] = "restart"

    step: Whole
    """First batch that runs again."""
    recovered_from: Whole | None
    """Last committed batch, whose state it begins from; null when there was none."""
    at_ms: Instant = 0
    """Wall clock, ms since 1970; the writer fills it in when 0."""


@dataclass(frozen=True)
class Decided:
    """A policy decided, or would have; one that wants nothing is written once until that changes."""

    KIND: ClassVar[str] = "decision"

    policy: str
    """Name and parameters of the policy."""
    rule: str
    """The rule that fired."""
    reason: str
    """Why, in words."""
    acts: bool
    """Whether it is carried out; false for advice, and where nothing is wanted."""
    wishes: tuple[Wish, ...] = ()
    """What it wants, per operator."""
    observed: tuple[Observed, ...] = ()
    """What it saw, per operator."""
    numbers: dict[str, Number | None] = field(default_factory=dict)
    """The policy's own figures; null where one is infinite."""
    at_ms: Instant = 0
    """Wall clock, ms since 1970; the writer fills it in when 0."""


@dataclass(frozen=True)
class Applied:
    """Records that a change that a policy decided is in force."""

    KIND: ClassVar[str] = "applied"

    operator: str
    """The operator."""
    kind: str
    """scale-out, scale-in, balance or rescale."""
    slots: Groups
    """Slots from now on."""
    took_ms: Number
    """Time since the decision, in ms."""
    at_ms: Instant = 0
    """Wall clock, ms since 1970; the writer fills it in when 0."""


@dataclass(frozen=True)
class NotReadyToDecide:
    """The control loop decides nothing about an operator until this changes."""

    KIND: ClassVar[str] = "not-ready"

    operator: str
    """The operator; empty for all."""
    why: str
    """What is missing, in words."""
    at_ms: Instant = 0
    """Wall clock, ms since 1970; the writer fills it in when 0."""


@dataclass(frozen=True)
class ControlAct:
    """Somebody told the query to do something, through its handle or a control file."""

    KIND: ClassVar[str] = "control"

    act: str
    """freeze, thaw, scale, rollback, slo or stop; request where a control file could not be read."""
    by: str
    """Who asked."""
    reason: str = ""
    """Why, in words."""
    detail: str = ""
    """What exactly: the slots, the epoch, how long."""
    refused: str | None = None
    """Why it was not done; null when it was."""
    at_ms: Instant = 0
    """Wall clock, ms since 1970; the writer fills it in when 0."""


Event = (
    Start
    | BatchBegun
    | Batch
    | AssignmentChange
    | MigrationStep
    | Retry
    | Stop
    | Restart
    | Decided
    | Applied
    | NotReadyToDecide
    | ControlAct
    | FleetStart
    | FleetRound
    | FleetDecided
    | FleetJobChanged
    | FleetGranted
    | GrantChange
    | SlotRequest
    | ExecutorChange
    | SlotLost
)
"""Any line of a journal."""

KINDS: dict[str, type[Event]] = {kind.KIND: kind for kind in typing.get_args(Event)}
"""Kinds by the text of their ``"event"`` field."""

NESTED = (
    OperatorInfo,
    Latency,
    SlotStats,
    SloState,
    MemoryUse,
    GroupRecords,
    Observed,
    Wish,
    FleetJobState,
    FleetHostState,
)
"""Objects that appear inside events."""
