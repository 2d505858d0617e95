"""Records a run as lines, one JSON object each, which are appended and never changed.

Belongs here: the meaning of a line (schema, with the objects inside a line in parts; hosts and fleet for
lines about hosts and about many jobs), its encoding (codec), writing lines (writer), reading them, also
while they are being written (reader), the user's functions that are called with each line (listeners),
and the latency histogram that lines carry (histogram). Does not belong here: the views of a journal
(report), anything of Spark. Imports `headgate.core` only.
"""

from __future__ import annotations

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
from headgate.journal.hosts import ExecutorChange, MigrationStep, SlotLost
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
from headgate.journal.reader import follow, locate, read
from headgate.journal.schema import (
    Applied,
    AssignmentChange,
    Batch,
    BatchBegun,
    ControlAct,
    Decided,
    Event,
    NotReadyToDecide,
    Restart,
    Retry,
    Start,
    Stop,
)
from headgate.journal.writer import JournalWriter

__all__ = [
    "Applied",
    "AssignmentChange",
    "Batch",
    "BatchBegun",
    "ControlAct",
    "Decided",
    "Event",
    "ExecutorChange",
    "FleetDecided",
    "FleetGranted",
    "FleetHostState",
    "FleetJobChanged",
    "FleetJobState",
    "FleetRound",
    "FleetStart",
    "GrantChange",
    "GroupRecords",
    "JournalWriter",
    "Latency",
    "MemoryUse",
    "MigrationStep",
    "NotReadyToDecide",
    "Observed",
    "OperatorInfo",
    "Restart",
    "Retry",
    "SloState",
    "SlotLost",
    "SlotRequest",
    "SlotStats",
    "Start",
    "Stop",
    "Wish",
    "follow",
    "locate",
    "read",
]
