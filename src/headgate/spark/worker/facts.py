"""Carries the driver's instructions to the tasks of a step, as JSON."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self, TypeVar

import pyarrow as pa
from pyspark import TaskContext

from headgate.checkpoint.checkpoint import Checkpoint
from headgate.operators.step import GroupState, Request
from headgate.spark.worker.payloads import read_table
from headgate.tables.ports import Chain

_LISTS = ("held", "snapshots")
_PER_GROUP = ("tokens", "steps", "emitted_us", "due_us")

T = TypeVar("T")
PerIndex = Sequence[T] | Mapping[int, T]
"""One value for each key group or slot; a mapping has values of some of them only."""


class _Told:
    """Travels as JSON in a local property of Spark; each operator has its own property."""

    PROPERTY: ClassVar[str]
    """Beginning of the property's name; the operator's name follows."""

    @classmethod
    def of(cls, context: TaskContext, operator: str) -> Self:
        """Return the instructions of a task of `operator`."""
        return cls.from_json(context.getLocalProperty(cls.PROPERTY + operator) or "{}")

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Return the instructions that `to_json` wrote."""
        return cls(**json.loads(text))

    def to_json(self) -> str:
        """Return JSON; does not copy the lists first, since some have an entry per key group."""
        fields = dataclasses.fields(self)  # type: ignore[arg-type]
        return json.dumps({field.name: getattr(self, field.name) for field in fields})


@dataclass(frozen=True)
class SlotFacts(_Told):
    """Holds the instructions to the slots of one operator in one attempt of a step.

    In the results of `of_slots`, mappings from key group or slot replace the sequences.
    """

    PROPERTY: ClassVar[str] = "headgate.step."

    step: int
    attempt: int
    arena_root: str | None
    """The driver's arena root; None if each host of slots has its own."""
    run_id: str
    checkpoint: str
    watermark_us: int
    """Watermark of the batch."""
    slot_of: PerIndex[int]
    """The slot of each key group."""
    held: Collection[int]
    """Key groups that a migration holds: no slot serves them."""
    tokens: PerIndex[str]
    steps: PerIndex[int]
    emitted_us: PerIndex[int]
    due_us: PerIndex[int]
    """`steps`, `emitted_us`, `due_us`: see `OperatorState`; one entry per key group."""
    snapshots: Collection[int]
    """Key groups that write a full section."""
    backlog: Mapping[str, Sequence[Sequence[Any]]]
    """Segments by key group; the keys are text, as in JSON."""
    waiting_crc32: Mapping[str, int]
    """CRC-32 of the files with the segments."""
    quotas: PerIndex[int] | None
    """Rows that each slot may serve; None for all."""
    next_slots: int
    """Number of slots of the operator that reads this operator's output; 0 without such an operator."""
    keep_late: bool
    delta_ms: float
    bound_ms: float
    """`delta_ms`, `bound_ms`: tick of the control loop, and bound of the SLO; 0 without a loop."""
    timestamp_ms: int
    """Processing time of the step, ms since 1970; the same in all attempts."""
    time_limit_s: float
    """Longest time of one call of a processor; 0 for no limit."""
    arrived_ms: float
    """Time at which the batch was read, ms since 1970."""
    faults: Sequence[Mapping[str, Any]]
    split: Mapping[str, Sequence[int]] = field(default_factory=dict)
    """As `Assignment.split`; the keys are text."""
    stands_us: Mapping[str, int] = field(default_factory=dict)
    """`GroupState.stands_us` of key groups that are split or were until now; the keys are text."""
    origins: bool = False
    """As `Request.origins`."""
    memory: Mapping[str, Any] | None = None
    """``byte_count`` and ``key_groups`` of `MemoryBound`, and ``spill_root``, which is used only
    with an `arena_root`; None if memory has no bound."""
    show_keys: bool = False
    """Whether slots report the value of their hottest key."""
    slots: int = 0
    """Number of slots that serve; 0: the number of slots in `slot_of`."""
    key_groups: int = 0
    """Number of the operator's key groups; 0: the length of `slot_of`."""
    slot_rate: float | None = None
    """In real time: records that a slot serves per second in an experiment; None for no limit."""

    def of_slots(self, count: int) -> tuple[Self, list[dict[str, Any]]]:
        """Return the instructions that `count` slots share, and for each slot its own fields.

        `dataclasses.replace` joins both. With all fields for each slot, the text would be `count` times
        as long.
        """
        mine: list[list[int]] = [[] for _ in range(count)]
        for group, slot in enumerate(self.slot_of):
            mine[slot].append(group)
        held, snapshots = frozenset(self.held), frozenset(self.snapshots)
        own = [self._of_slot(slot, of, held, snapshots) for slot, of in enumerate(mine)]
        empty: dict[str, Any] = {name: [] if name in _LISTS else {} for name in own[0]}
        shared = dataclasses.replace(self, slots=count, key_groups=len(self.slot_of), **empty)
        return shared, own

    def _of_slot(
        self, slot: int, groups: list[int], held: frozenset[int], snapshots: frozenset[int]
    ) -> dict[str, Any]:
        split = {g: shares for g, shares in self.split.items() if slot in shares}
        backlog, stands = self.backlog, self.stands_us
        if backlog:
            waits = map(str, (*groups, *self.shares_at(slot).values()))
            backlog = {key: backlog[key] for key in waits if key in backlog}
        if stands:
            stands = {g: stands[g] for g in (*map(str, groups), *split) if g in stands}
        files = {segment[0] for waiting in backlog.values() for segment in waiting}
        return {
            "slot_of": dict.fromkeys(groups, slot),
            "held": held.intersection(groups),
            **{name: _at(groups, getattr(self, name)) for name in _PER_GROUP},
            "snapshots": snapshots.intersection(groups),
            "backlog": backlog,
            "waiting_crc32": {name: self.waiting_crc32[name] for name in files},
            "quotas": None if self.quotas is None else {slot: self.quotas[slot]},
            "split": split,
            "stands_us": stands,
        }

    @property
    def slot_count(self) -> int:
        """Return the number of slots that serve."""
        return self.slots or max(self.slot_of) + 1

    def shares_at(self, slot: int) -> dict[int, int]:
        """Return the key groups of other slots of which a slot has a share, with their backlog keys."""
        split = self.split or {}
        groups = self.key_groups or len(self.slot_of)
        return {
            int(group): list(shares).index(slot) * groups + int(group)
            for group, shares in split.items()
            if slot in shares[1:]
        }

    def groups_of(self, slot: int) -> list[int]:
        """Return the key groups of a slot."""
        of = self.slot_of
        every = of.items() if isinstance(of, Mapping) else enumerate(of)
        return [g for g, s in every if s == slot]

    def request(
        self, slot: int, token: str, watermark_us: int, checkpoint: Checkpoint, operator: str
    ) -> Request:
        """Return the request to `slot`."""
        held, whole = frozenset(self.held), frozenset(self.snapshots)
        groups = {
            g: GroupState(
                self.tokens[g],
                self.emitted_us[g],
                self.due_us[g],
                snapshot=g in whole and g not in held,
                stands_us=self.stands_us.get(str(g)),
                split=str(g) in self.split,
            )
            for g in self.groups_of(slot)
        }

        def chain(group: int) -> Chain:
            return checkpoint.chain(operator, group, self.steps[group], self.tokens[group])

        return Request(
            token,
            watermark_us,
            groups,
            chain,
            self.quotas[slot] if self.quotas else None,
            turn=self.step,
            delta_ms=self.delta_ms,
            bound_ms=self.bound_ms,
            origins=self.origins,
            timestamp_ms=self.timestamp_ms,
            time_limit_s=self.time_limit_s,
            held=held & groups.keys(),
            shares={g: self.stands_us[str(g)] for g in self.shares_at(slot)},
        )

    def waiting(self, slot: int, checkpoint: Checkpoint) -> pa.Table | None:
        """Return the backlog of the slot's key groups that are not held, oldest first per group.

        Includes the backlog of the slot's shares of other slots' groups. Raises `CheckpointError`: a
        file of the backlog is damaged.
        """
        parts = []
        read: dict[str, pa.Table] = {}  # a file holds segments of many groups
        held = frozenset(self.held)
        owned = [group for group in self.groups_of(slot) if group not in held]
        for group in [*owned, *self.shares_at(slot).values()]:
            for name, start, count, *_ in self.backlog.get(str(group), ()):
                if name not in read:
                    crc32 = self.waiting_crc32[name]
                    read[name] = read_table(checkpoint.read_file("backlog", name, crc32=crc32))
                parts.append(read[name].slice(start, count))
        if not parts:
            return None
        return pa.concat_tables(parts, promote_options="default")


def _at(groups: list[int], values: Any) -> dict[int, Any]:
    """Return the values of some key groups."""
    return dict(zip(groups, map(values.__getitem__, groups), strict=True))


@dataclass(frozen=True)
class ReplicaFacts(_Told):
    """Holds the instructions to the replicas of a stage in one attempt; lists have an entry per lane."""

    PROPERTY: ClassVar[str] = "headgate.replicas."

    step: int
    attempt: int
    checkpoint: str
    backlog: Sequence[Sequence[Sequence[Any]]]
    """sequence of sequences of Segment: the backlog of each lane's replica."""
    waiting_crc32: Mapping[str, int]
    """CRC-32 of the files with the segments."""
    quotas: Sequence[int | None]
    """Rows that the lane's replica may serve; None for all."""
    box_s: float | None
    """Longest time that a replica may serve; None for no limit."""
    now_ms: float
    """Arrival of rows that have no time of arrival, ms since 1970."""
    timeout_s: float | None
    """Age above which a row is dropped; None to drop no row."""
