"""Defines the lines of the journal: one frozen dataclass per kind of event.

Every line is a JSON object with ``"event"`` (the kind, below as `KIND`) and ``"at_ms"``. A reader
ignores unknown fields and kinds; a change of a meaning increases `VERSION`.
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
    """Id of the job: a uuid that the checkpoint stores."""
    name: str
    """The query's name."""
    key_groups: Groups
    """Key groups G per operator, fixed in the checkpoint."""
    slots: Groups
    """Slots at the start."""
    workload: str | None = None
    """Built-in workload or ``module:function``; null for a query started from Python."""
    seed: Whole | None = None
    """Seed of the load generator; null without a generator."""
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
    """A batch began to run; the query works on it until its commit."""

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
    """Time of the whole trigger inside headgate, in ms."""
    phases_ms: dict[str, Number]
    """Parts of the batch, in ms: plan, slots, manifest, sink; optionally cut, wait and logs."""
    arrived: Count
    """New records that slots received, after filters and expansions of the query below the operator."""
    served: Count
    """Records applied to state, from the source or from backlog."""
    emitted: Count
    """Rows that the sink received."""
    late: Count
    """Records dropped because their window had ended."""
    backlog: Count
    """Records waiting after the batch, all slots."""
    backlog_bytes: Count
    """Size of the backlog, in bytes."""
    latency_ms: Latency | None = None
    """Latency of the records completed in this batch, in ms; null if none was completed."""
    histogram: Sparse = ()
    """The same latencies as [bucket_ms, count], ascending; bucket_ms is the bucket's upper edge."""
    watermark_us: Whole | None = None
    """Event-time watermark after the batch, microseconds since 1970; null without a watermark."""
    slot_stats: tuple[SlotStats, ...] = ()
    """One object per slot."""
    hottest: tuple[tuple[Whole, Whole], ...] = ()
    """The key groups with most served records, as [key group, records], descending."""
    hottest_key: str | None = None
    """The most frequent key of the new records, and its number of records; null unless
    ``headgate.showKeys`` allows it."""
    arrivals: tuple[GroupRecords, ...] = ()
    """New records by key group, without late ones, of operators that read a source; empty without new
    records, or if no SLO needs counts."""
    served_groups: tuple[GroupRecords, ...] = ()
    """Served records by key group, of every operator."""
    state_rows: Count = 0
    """Rows of state, all operators."""
    state_bytes: Count = 0
    """Size of the state, in bytes."""
    changelog_bytes: Count = 0
    """Bytes that the batch appended to the changelog."""
    attempts: Whole = 1
    """Number of executions of the batch; 1 without a failure."""
    dropped: dict[str, Whole] = field(default_factory=dict)
    """Rows that pools of replicas dropped, by reason: too_old, queue_full or restart."""
    watermark_holder: Whole | None = None
    """Slot whose backlog holds the watermark back; null if no slot does."""
    watermark_operator: str = ""
    """The operator of that slot."""
    slo: SloState | None = None
    """State of the job's SLO when the batch ended; null without an SLO."""
    lag: dict[str, Whole] = field(default_factory=dict)
    """Records that Kafka had and the job had not read, by topic and partition, as ``clicks-0``; Spark's
    report of the batch before. Empty if no source reports them."""
    store_requests: Whole | None = None
    """Requests to the checkpoint's store since the batch before: the driver's, without repetitions, and
    one for each file that a slot wrote; null if the checkpoint is a directory."""
    store_bytes: Whole | None = None
    """Bytes that these requests have written; null if the checkpoint is a directory."""
    memory: MemoryUse | None = None
    """State in memory and on disk; null if memory has no bound."""
    epochs: Count = 0
    """Epochs of a query in real time that this line sums up, about those of a second; 0 for a batch. The
    newest epoch has the step above. ``duration_ms`` and the phases are sums; the sink writes an epoch's
    output while the next epochs run."""
    at_ms: Instant = 0
    """Wall clock at the batch's end, ms since 1970; the writer fills it in when 0."""


@dataclass(frozen=True)
class AssignmentChange:
    """A new assignment came into force."""

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
    """Bytes of state that were copied for the change; 0 if slots share memory."""
    by: str
    """Who requested the change: ``--scale-at``, ``user`` or the name of a policy."""
    reason: str = ""
    """Reason, in words."""
    operator: str = ""
    """The operator; empty in journals of an earlier release."""
    slot_of: tuple[Whole, ...] = ()
    """The slot of each key group from now on; empty in journals of an earlier release."""
    split: tuple[tuple[Whole, ...], ...] = ()
    """Key groups that are split from now on, each with the slots that have a share, the owner first."""
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
    """What failed; null if the end was clean."""
    summary: dict[str, Any] = field(default_factory=dict)
    """Totals of the run; may be empty."""
    at_ms: Instant = 0
    """Wall clock, ms since 1970; the writer fills it in when 0."""


@dataclass(frozen=True)
class Restart:
    """The query continued the work of an earlier run; follows its start event."""

    KIND: ClassVar[str] = "restart"

    step: Whole
    """First batch that runs again."""
    recovered_from: Whole | None
    """Last committed batch, whose state the query begins from; null without a committed batch."""
    at_ms: Instant = 0
    """Wall clock, ms since 1970; the writer fills it in when 0."""


@dataclass(frozen=True)
class Decided:
    """A policy decided, or gave advice; a decision for no change is written once until it changes."""

    KIND: ClassVar[str] = "decision"

    policy: str
    """Name and parameters of the policy."""
    rule: str
    """The rule that fired."""
    reason: str
    """Reason, in words."""
    acts: bool
    """Whether the decision is carried out; false for advice, and for a decision for no change."""
    wishes: tuple[Wish, ...] = ()
    """Changes that the policy asks for, by operator."""
    observed: tuple[Observed, ...] = ()
    """Figures that the policy observed, by operator."""
    numbers: dict[str, Number | None] = field(default_factory=dict)
    """The policy's own figures; null for an infinite figure."""
    at_ms: Instant = 0
    """Wall clock, ms since 1970; the writer fills it in when 0."""


@dataclass(frozen=True)
class Applied:
    """A change that a policy decided came into force."""

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
    """The control loop makes no decision about an operator until the missing facts are known."""

    KIND: ClassVar[str] = "not-ready"

    operator: str
    """The operator; empty for all."""
    why: str
    """What is missing, in words."""
    at_ms: Instant = 0
    """Wall clock, ms since 1970; the writer fills it in when 0."""


@dataclass(frozen=True)
class ControlAct:
    """A user made a request to the query, through its handle or a control file."""

    KIND: ClassVar[str] = "control"

    act: str
    """freeze, thaw, scale, rollback, slo or stop; request, if a control file could not be read."""
    by: str
    """Who made the request."""
    reason: str = ""
    """Reason, in words."""
    detail: str = ""
    """Details: the slots, the epoch, the duration."""
    refused: str | None = None
    """Reason of a refusal; null if the request was carried out."""
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
