"""Keeps the state of a running job between two batches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from headgate.checkpoint.manifest import Manifest
from headgate.checkpoint.snapshots import LEAST, due, steps_between
from headgate.control.estimators.task_cost import FIXED_MS
from headgate.core.assignment import Assignment, spread
from headgate.operators.quota import timed_quota
from headgate.operators.spec import NEVER_US
from headgate.spark.job.reports import Report
from headgate.tables.ports import EMPTY_TOKEN

Segment = list[Any]
"""[file in the checkpoint's backlog, first row, rows, when they began to wait (ms)]. Rows that a share
has merged for the owner of a split group have a fifth entry: the records that they stand for."""


@dataclass(frozen=True)
class JobConfig:
    """Holds the settings of a job."""

    name: str
    """The query's name."""
    key_groups: int = 128
    """G, fixed in the checkpoint."""
    slots: int = 2
    """Slots to start with."""
    slots_max: int = 128
    """The most slots that `scale` accepts."""
    budget_s: float | None = None
    """Time a slot may serve per batch; None serves everything, as plain Spark does."""
    mode: str = "append"
    """append, update or complete."""
    snapshot_every: int | None = None
    """Steps between two full sections of a key group; None: `headgate.checkpoint.snapshots`
    computes them."""
    attempts: int = 4
    """Executions of a batch before the query fails."""
    preaggregate: str = "auto"
    """auto, on or off: aggregation before the exchange."""
    keep_late: bool = False
    """Keep late records in the checkpoint, for `headgate verify`."""
    show_keys: bool = False
    """Write the value of the hottest key into the journal."""
    backlog_bytes_max: int = 256 * 2**20
    """With more bytes in its backlog, a slot serves all rows in spite of its budget."""
    backlog_age_max_s: float = 60.0
    """With an older record in its backlog, a slot serves all rows in spite of its budget."""
    slot_rate: float | None = None
    """Experiment: records per wall second that a slot of an operator that reads the source serves."""
    delta_ms: float = 0.0
    """Length of the control loop's tick; 0 without a loop."""
    processor_limit_s: float = 0.0
    """The longest that one call of a processor may take; 0 for any time."""
    memory_max: int | None = None
    """Bytes of a host's memory that state may take; None for any number."""
    migration: str = ""
    """Strategy for changes of assignment, as `headgate.migration.registry.strategy` reads it;
    empty: the default for each change."""
    faults: list[dict[str, Any]] = field(default_factory=list)
    """Faults that `headgate_lab.testing.faults` describes; empty outside tests."""


@dataclass
class OperatorState:
    """Holds an operator's assignment and key groups; lists have one entry per key group."""

    assignment: Assignment
    tokens: list[str]
    """Token of each group's state."""
    steps: list[int]
    """Step whose manifest has the group's newest section; -1 for none."""
    full_steps: list[int]
    """Step of the group's newest full section; -1 for none."""
    emitted_us: list[int]
    due_us: list[int]
    rows: list[int]
    """Entries in the group's table."""
    backlog: dict[int, list[Segment]] = field(default_factory=dict)
    """Waiting records, oldest first, by key group. Records that wait for a share of a split group
    other than the owner's are under `Assignment.share_key`."""
    rate_per_s: dict[int, float] = field(default_factory=dict)
    """Rows each slot serves per second of useful time; absent if unknown."""
    held: frozenset[int] = frozenset()
    """Key groups on hold by a migration; not in the manifest, because the manifest's migration
    implies them."""
    stands_us: dict[int, int] = field(default_factory=dict)
    """Watermark of each key group that was split in the last step: the least that the records
    accepted until then allow."""
    changed_rows: float | None = None
    """Entries that a step changes, smoothed; None before the first step. Not in the manifest."""

    @classmethod
    def fresh(cls, slots: int, key_groups: int) -> OperatorState:
        """Return the state of an operator at a query's first start."""
        return cls(
            assignment=spread(slots, key_groups),
            tokens=[EMPTY_TOKEN] * key_groups,
            steps=[-1] * key_groups,
            full_steps=[-1] * key_groups,
            emitted_us=[0] * key_groups,
            due_us=[int(NEVER_US)] * key_groups,
            rows=[0] * key_groups,
        )

    @classmethod
    def recovered(cls, manifest: Manifest, operator: str) -> OperatorState:
        """Return the state that a manifest describes."""
        facts = manifest.engine["operators"][operator]
        assignment = manifest.assignments[operator]
        heads = manifest.heads[operator]
        return cls(
            assignment=Assignment(
                tuple(assignment["slot_of"]),
                assignment["slots"],
                manifest.epoch,
                split_of(assignment),
            ),
            tokens=list(heads.tokens),
            steps=list(heads.steps),
            full_steps=list(facts["full_steps"]),
            emitted_us=list(facts["emitted_us"]),
            due_us=list(facts["due_us"]),
            rows=list(facts["rows"]),
            backlog={int(g): list(s) for g, s in facts["backlog"].items()},
            rate_per_s={int(s): float(r) for s, r in facts.get("rates", {}).items()},
            stands_us={int(g): int(us) for g, us in facts.get("stands_us", {}).items()},
        )

    def engine_facts(self) -> dict[str, Any]:
        """Return the operator's entries in the manifest, except heads and assignment."""
        return {
            "full_steps": self.full_steps,
            "emitted_us": self.emitted_us,
            "due_us": self.due_us,
            "rows": self.rows,
            "backlog": {str(g): s for g, s in self.backlog.items() if s},
            "rates": {str(s): round(r, 1) for s, r in self.rate_per_s.items()},
            "stands_us": {str(g): us for g, us in self.stands_us.items()},
        }

    def standing(self) -> dict[int, int]:
        """Return `GroupState.stands_us` of each group that is split or was split in the last step."""
        return {
            group: max(self.emitted_us[group], self.stands_us.get(group, 0))
            for group in self.assignment.split.keys() | self.stands_us.keys()
        }

    def waiting_rows(self) -> int:
        """Return the number of rows in the backlog."""
        return sum(segment[2] for segments in self.backlog.values() for segment in segments)

    def waiting_rows_of(self, group: int) -> int:
        """Return the number of rows of one key group in the backlog."""
        return sum(segment[2] for segment in self.backlog.get(group, ()))

    def apply(self, report: Report, step: int, now_ms: int) -> None:
        """Take over the report of a committed slot task."""
        for group, (emitted_us, due_us, rows) in report.groups.items():
            self.tokens[group] = report.token
            self.steps[group] = step
            if report.sections[group].full:
                self.full_steps[group] = step
            self.emitted_us[group] = emitted_us
            self.due_us[group] = due_us
            self.rows[group] = rows
        for group, rows in report.taken.items():
            self._advance(group, rows)
        for group, (start, count) in report.segments.items():
            assert report.waiting is not None
            segment = [report.waiting.name, start, count, now_ms]
            if group in self.assignment.shares_at(report.slot):
                segment.append(report.apart_records[group])
            self.backlog.setdefault(group, []).append(segment)
        for group in self.assignment.groups_of(report.slot):
            idle = group not in report.groups and group not in self.backlog
            if idle and group not in self.held:
                # a group without rows to emit up to this watermark counts as emitted up to it
                until_us = report.watermark_us
                if group in self.assignment.split:
                    until_us = min(until_us, self.standing()[group])
                self.emitted_us[group] = max(self.emitted_us[group], until_us)
        self._learn_rate(report)

    def settle(self, reports: Sequence[Report]) -> None:
        """Learn from all reports of a step the watermarks of split groups, and the changed entries.

        In the next step the owner has all records accepted until now, except those in a backlog.
        """
        self.stands_us = {}
        for group, shares in self.assignment.split.items():
            own = [report for report in reports if report.slot in shares]
            allowed = [r.apart_holds_us.get(group, int(NEVER_US)) for r in own]
            self.stands_us[group] = min([*allowed, *(r.watermark_us for r in own)], default=0)
        sections = [ref for report in reports for ref in report.sections.values()]
        changed = float(sum(ref.row_count for ref in sections if not ref.full))
        known = changed if self.changed_rows is None else self.changed_rows
        self.changed_rows = known + _CHANGED_GAIN * (changed - known)

    def due_for_snapshot(self, step: int, every: int | None) -> list[int]:
        """Return the key groups that write a full section; `every`: see `JobConfig.snapshot_every`."""
        if every is not None:
            return due(step, self.steps, self.full_steps, every)
        every = LEAST
        if self.changed_rows is not None:
            every = steps_between(sum(self.rows), self.changed_rows, len(self.rows))
        return due(step, self.steps, self.full_steps, every, turn=every // LEAST)

    def nothing_due(self, watermark_us: int) -> None:
        """Note that key groups without a backlog had nothing to emit up to a watermark."""
        for group in range(len(self.emitted_us)):
            if not self._waits(group) and group not in self.held:
                self.emitted_us[group] = max(self.emitted_us[group], watermark_us)

    def _waits(self, group: int) -> bool:
        """Return whether records of a key group wait, for its owner or for another share."""
        shares = range(len(self.assignment.shares_of(group)))
        return any(self.assignment.share_key(group, n) in self.backlog for n in shares)

    def _learn_rate(self, report: Report) -> None:
        """Move a slot's rate half way to the measured rate, or all the way above a factor of 2.

        A slot that became ten times slower must not make more than one batch too long. A slot without
        a rate takes the measured rate. A task below `_TELLING_MS` is mostly fixed cost, which varies:
        it never lowers the rate, which grows by half as long as rows of the slot wait.
        """
        if report.served_rows == 0:
            return
        slot, useful_ms = report.slot, max(report.useful_ms, 0.1)
        known = self.rate_per_s.get(slot, 0.0)
        if useful_ms < _TELLING_MS:
            least = report.served_rows / useful_ms * 1e3
            held_up = any(key in self.backlog for key in self.assignment.waiting_at(slot))
            raised = min(known * 1.5, _RATE_MAX_PER_S) if held_up else known
            self.rate_per_s[slot] = max(least, raised)
            return
        rate = report.served_rows / (useful_ms - FIXED_MS) * 1e3
        near = known / 2 <= rate <= known * 2
        self.rate_per_s[slot] = (known + rate) / 2 if near else rate

    def assign(self, assignment: Assignment, survivors: Sequence[int | None] = ()) -> None:
        """Put an assignment in force; survivors keep their rate, new slots get the median rate.

        `survivors`: as `Change.survivors`; if empty, slots keep their numbers.
        """
        before_split, self.assignment = self.assignment.split, assignment
        for group in before_split.keys() | assignment.split.keys():
            self._deal(group, len(before_split.get(group, (0,))))
        if self.rate_per_s:
            before = survivors or range(assignment.slots)
            self.rate_per_s = {
                slot: self._expected_rate(-1 if old is None else old)
                for slot, old in enumerate(before)
            }

    def _expected_rate(self, slot: int) -> float:
        """Return the rate for a slot's quota, rows/s: its own, else the median of the other slots."""
        known = self.rate_per_s.get(slot)
        if known is None:
            others = sorted(self.rate_per_s.values()) or [_PROBE_RATE_PER_S]
            known = others[len(others) // 2]
        return known

    def _deal(self, group: int, shares_before: int) -> None:
        """Distribute a key group's waiting rows over its shares, if the number of shares has changed.

        In a group that may be split, any share may serve any row.
        """
        held, shares = self.assignment, len(self.assignment.shares_of(group))
        if shares == shares_before:
            return
        keys = [held.share_key(group, n) for n in range(shares_before)]
        segments = [segment for key in keys for segment in self.backlog.pop(key, ())]
        for n in range(shares):
            # merged rows stay with the owner: they may belong to windows that it emits next
            dealt = [segment for segment in segments if segment[4:] and n == 0]
            for name, start, count, since in (s for s in segments if not s[4:]):
                first, end = count * n // shares, count * (n + 1) // shares
                if end > first:
                    dealt.append([name, start + first, end - first, since])
            if dealt:
                self.backlog[held.share_key(group, n)] = dealt

    def _advance(self, group: int, rows: int) -> None:
        """Move the cursor of a group's backlog past `rows` served rows."""
        left = self.backlog[group]
        while rows:
            name, start, count, *rest = left[0]
            served = min(rows, count)
            rows -= served
            left[:1] = [[name, start + served, count - served, *rest]] if served < count else []
        if not left:
            del self.backlog[group]

    def limited(self, slot_rate: float, elapsed_s: float) -> list[int]:
        """Return each slot's quota in rows if all serve at one rate; see `timed_quota`.

        Rows are records here, because nothing is aggregated before the exchange.
        """
        return [timed_quota(slot_rate, elapsed_s)] * self.assignment.slots

    def quotas(self, config: JobConfig, cores: int, now_ms: int) -> list[int] | None:
        """Return each slot's quota in rows, or None for all rows."""
        if config.budget_s is None:
            return None
        slots = self.assignment.slots
        waves = -(-slots // max(cores, 1))
        quotas = []
        for slot in range(slots):
            quota = max(1, int(self._expected_rate(slot) * config.budget_s / waves))
            if self._overdue(slot, config, now_ms):
                quota = _EVERYTHING
            quotas.append(quota)
        return quotas

    def _overdue(self, slot: int, config: JobConfig, now_ms: int) -> bool:
        keys = self.assignment.waiting_at(slot)
        segments = [s for key in keys for s in self.backlog.get(key, ())]
        rows = sum(segment[2] for segment in segments)
        oldest = min((segment[3] for segment in segments), default=now_ms)
        too_old = now_ms - oldest > config.backlog_age_max_s * 1e3
        return too_old or rows * _ROW_BYTES > config.backlog_bytes_max


def split_of(assignment: Mapping[str, Any]) -> dict[int, tuple[int, ...]]:
    """Return the split of a manifest's assignment; empty if no group is split."""
    return {int(group): tuple(shares) for group, shares in assignment.get("split", {}).items()}


_PROBE_RATE_PER_S = 100.0
"""Assumed rate before any slot has served a row: records of 10 ms each, such as a remote call, then
just fill the budget. Cheap records wait one step. Chosen, not tuned."""

_CHANGED_GAIN = 0.25
"""Weight of a step in `OperatorState.changed_rows`. Chosen, not tuned."""

_RATE_MAX_PER_S = 10_000_000.0
"""Upper limit of a rate that grows without a measurement; no slot serves faster."""

_TELLING_MS = 50.0
"""A shorter task is mostly fixed cost, so it does not lower the known rate. Chosen, not
tuned."""

_ROW_BYTES = 64
"""Assumed size of a waiting row, for `JobConfig.backlog_bytes_max`; need not be exact."""

_EVERYTHING = 2**62
