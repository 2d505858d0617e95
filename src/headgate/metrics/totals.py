"""Adds up the lines of a journal, so that counters continue over restarts of the driver."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict, deque
from collections.abc import Callable
from itertools import accumulate
from typing import Any

from headgate.journal.fleet import FleetDecided, FleetRound, GrantChange, SlotRequest
from headgate.journal.histogram import completed
from headgate.journal.hosts import ExecutorChange, MigrationStep, SlotLost
from headgate.journal.parts import SloState, SlotStats
from headgate.journal.schema import (
    Applied,
    AssignmentChange,
    Batch,
    ControlAct,
    Decided,
    Event,
    Restart,
    Retry,
    Start,
    Stop,
)

RECENT_BATCHES = 10
"""Last batches over which ratios are computed: a single batch varies too much for an alert."""

HOT_RANKS = 5
"""Hottest key groups that metrics name; bounds the number of series."""


BATCH_EDGES_S = (0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 300.0)
"""Upper edges of a batch's duration, in s."""

LATENCY_EDGES_S = (
    0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.35, 0.5, 0.75, 1.0, 2.0, 5.0, 10.0, 30.0, 120.0, 600.0,
)  # fmt: skip
"""Upper edges of a record's latency, in s."""


class Buckets:
    """Counts durations by upper edge, in the form of Prometheus' histograms.

    Attributes
    ----------
    sum_s : float    Sum of all durations, in s; the caller adds to it.
    """

    def __init__(self, edges_s: tuple[float, ...]) -> None:
        self._edges_s = edges_s
        self._counts = [0] * (len(edges_s) + 1)
        self.sum_s = 0.0

    def add(self, duration_s: float, count: int = 1) -> None:
        """Count a duration `count` times, without adding it to `sum_s`."""
        self._counts[bisect_left(self._edges_s, duration_s)] += count

    def cumulative(self) -> list[tuple[str, int]]:
        """Return the number of durations up to each edge; the last edge is infinity."""
        edges = [*map(str, self._edges_s), "+Inf"]
        return list(zip(edges, accumulate(self._counts), strict=True))


class QueryTotals:
    """Adds up the events of a query's journal since its first line.

    A step that comes a second time is the redelivery of a committed batch, and counts once.

    Attributes
    ----------
    start : Start    The latest start event; every journal begins with one.
    batch : Batch or None    The latest committed batch.
    recent : deque of Batch    The last `RECENT_BATCHES`.
    slots : dict of (str, int) to SlotSums
        Sums by operator and slot, of the slots of the latest batch.
    """

    def __init__(self) -> None:
        self.start: Start
        self.batch: Batch | None = None
        self.recent: deque[Batch] = deque(maxlen=RECENT_BATCHES)
        self.is_up = False
        self.last_event_ms = 0
        self.starts = self.restarts = self.batches = self.attempts = 0
        self.arrived = self.served = self.emitted = self.changelog_bytes = 0
        self.store_requests = self.store_bytes = 0
        self.retries = 0
        self.loop_cpu_ms = 0.0
        self.durations = Buckets(BATCH_EDGES_S)
        self.latencies = Buckets(LATENCY_EDGES_S)
        self.phase_ms: dict[str, float] = defaultdict(float)
        self.dropped: Counter[str] = Counter()
        self.slots: dict[tuple[str, int], SlotSums] = {}
        self.windows: Counter[str] = Counter()
        self.windows_met: Counter[str] = Counter()
        self._windows_before: dict[str, tuple[int, int]] = {}
        self.decisions: Counter[tuple[str, str, str]] = Counter()
        self.rescales: Counter[tuple[str, str]] = Counter()
        self.rescale_durations = Buckets(BATCH_EDGES_S)
        self.groups_moved: Counter[str] = Counter()
        self.bytes_moved: Counter[str] = Counter()
        self.suspended_s: dict[str, float] = defaultdict(float)
        self.state_moves: Counter[str] = Counter()
        self.slots_lost: Counter[str] = Counter()
        self.controls: Counter[tuple[str, str]] = Counter()
        self.slots_now: dict[str, int] = {}
        self.slots_granted: dict[str, int] = {}
        self.slots_wanted: dict[str, int] = {}
        self.executors: int | None = None
        self._take: dict[type, Callable[[Any], None]] = {
            Start: self._add_start,
            Restart: self._add_restart,
            Batch: self._add_batch,
            Stop: self._add_stop,
            AssignmentChange: self._add_assignment,
            Applied: self._add_applied_change,
            Decided: self._add_decision,
            MigrationStep: self._add_migration_step,
            Retry: self._add_retry,
            SlotLost: self._add_slot_lost,
            ControlAct: self._add_control_act,
            GrantChange: self._add_grant,
            SlotRequest: self._add_request,
            ExecutorChange: self._add_executor_change,
        }

    def absorb(self, event: Event) -> None:
        """Add an event."""
        self.last_event_ms = max(self.last_event_ms, event.at_ms)
        take = self._take.get(type(event))
        if take is not None:
            take(event)

    def hot_groups(self) -> dict[str, list[tuple[int, float]]]:
        """Return the hottest key groups over the last batches and their share, by operator."""
        records: dict[str, Counter[int]] = defaultdict(Counter)
        for batch in self.recent:
            for groups in batch.served_groups:
                records[groups.operator].update(
                    dict(zip(groups.groups, groups.records, strict=True))
                )
        return {
            operator: [(g, n / counts.total()) for g, n in counts.most_common(HOT_RANKS)]
            for operator, counts in records.items()
        }

    @property
    def skew(self) -> dict[str, float]:
        """Useful time of the busiest slot over the mean of all, by operator."""
        useful: dict[str, dict[int, float]] = defaultdict(lambda: defaultdict(float))
        for batch in self.recent:
            for stats in batch.slot_stats:
                useful[stats.operator][stats.slot] += stats.useful_ms
        return {
            operator: max(times.values()) * len(times) / total
            for operator, times in useful.items()
            if (total := sum(times.values())) > 0
        }

    @property
    def backlog_s(self) -> float | None:
        """Time to serve all waiting records at the last batches' rate, in s; None without a rate."""
        if not self.recent:
            return None
        first, *rest = self.recent
        spent_ms = self.recent[-1].at_ms - first.at_ms
        served = sum(batch.served for batch in rest)
        waiting = self.recent[-1].backlog + sum(self.recent[-1].lag.values())
        if not waiting:
            return 0.0
        return waiting * spent_ms / 1e3 / served if served else None

    def _add_start(self, start: Start) -> None:
        self.start, self.is_up = start, True
        self.starts += 1
        self._windows_before = {}
        if not self.slots_now:
            self.slots_now = {operator.id: start.slots for operator in start.operators}

    def _add_restart(self, _: Restart) -> None:
        self.restarts += 1

    def _add_stop(self, _: Stop) -> None:
        self.is_up = False

    def _add_batch(self, batch: Batch) -> None:
        self.is_up = True
        if self.batch is not None and batch.step <= self.batch.step:
            return
        self.batch = batch
        self.recent.append(batch)
        self.batches += 1
        self.attempts += batch.attempts
        self.arrived += batch.arrived
        self.served += batch.served
        self.emitted += batch.emitted
        self.changelog_bytes += batch.changelog_bytes
        self.store_requests += batch.store_requests or 0
        self.store_bytes += batch.store_bytes or 0
        self.durations.add(batch.duration_ms / 1e3)
        self.durations.sum_s += batch.duration_ms / 1e3
        for phase, spent_ms in batch.phases_ms.items():
            self.phase_ms[phase] += spent_ms
        self.dropped.update({"late": batch.late, **batch.dropped})
        for edge_ms, count in batch.histogram:
            self.latencies.add(edge_ms / 1e3, count)
        if batch.latency_ms is not None:
            self.latencies.sum_s += batch.latency_ms.mean * completed(batch.histogram) / 1e3
        self._serve(batch.slot_stats)
        if batch.slo is not None:
            self._judge(batch.slo)
        if batch.memory is not None:
            self.state_moves.update(
                {
                    "in": batch.memory.groups_back,
                    "out": batch.memory.groups_away,
                    "cold": batch.memory.groups_cold,
                }
            )

    def _serve(self, stats: tuple[SlotStats, ...]) -> None:
        """Add to the sums of each slot, and forget slots that are gone."""
        before, self.slots = self.slots, {}
        for slot in stats:
            key = (slot.operator, slot.slot)
            sums = self.slots[key] = before.get(key) or SlotSums()
            sums.add(slot)

    def _judge(self, slo: SloState) -> None:
        """Add the windows judged since the batch before; the driver counts them from its start."""
        self.loop_cpu_ms += slo.loop_ms
        for operator, (judged, met) in slo.windows_of.items():
            judged_before, met_before = self._windows_before.get(operator, (0, 0))
            self.windows[operator] += judged - judged_before
            self.windows_met[operator] += met - met_before
        self._windows_before = dict(slo.windows_of)

    def _add_assignment(self, change: AssignmentChange) -> None:
        self.slots_now[change.operator] = change.slots_after
        if change.slots_before != change.slots_after:
            by = {"user": "user", "--scale-at": "schedule"}.get(change.by, "policy")
            self.rescales[change.operator, by] += 1
        self.groups_moved[change.operator] += change.groups_moved
        self.bytes_moved[change.operator] += change.bytes_moved

    def _add_applied_change(self, applied: Applied) -> None:
        self.rescale_durations.add(applied.took_ms / 1e3)
        self.rescale_durations.sum_s += applied.took_ms / 1e3

    def _add_decision(self, decided: Decided) -> None:
        policy = decided.policy.partition("(")[0]
        for wish in decided.wishes:
            self.decisions[policy, wish.kind, str(decided.acts).lower()] += 1
            self.slots_wanted[wish.operator] = wish.slots

    def _add_migration_step(self, step: MigrationStep) -> None:
        self.suspended_s[step.operator] += step.suspended_s

    def _add_retry(self, _: Retry) -> None:
        self.retries += 1

    def _add_slot_lost(self, lost: SlotLost) -> None:
        self.slots_lost[lost.operator] += 1

    def _add_control_act(self, act: ControlAct) -> None:
        self.controls[act.act, str(act.refused is not None).lower()] += 1

    def _add_grant(self, grant: GrantChange) -> None:
        self.slots_granted = dict(grant.granted)

    def _add_request(self, request: SlotRequest) -> None:
        self.slots_wanted |= request.requested

    def _add_executor_change(self, change: ExecutorChange) -> None:
        self.executors = change.executors_after


class SlotSums:
    """Adds up the figures of one slot while it exists.

    Attributes
    ----------
    useful_ms, cpu_ms, waited_ms : float    Time on records, on a core, and waiting for a core, in ms.
    served, backlog : int    Records served, and records that wait now.
    """

    def __init__(self) -> None:
        self.useful_ms = self.cpu_ms = self.waited_ms = 0.0
        self.served = self.backlog = 0

    def add(self, stats: SlotStats) -> None:
        """Add the figures of a batch."""
        self.useful_ms += stats.useful_ms
        self.cpu_ms += stats.computing_ms or 0.0
        self.waited_ms += stats.waited_ms or 0.0
        self.served += stats.served
        self.backlog = stats.backlog


class FleetTotals:
    """Adds up the events of a fleet's journal.

    Attributes
    ----------
    round : FleetRound or None    The latest round.
    decisions : Counter of str    Number of decisions by action.
    """

    def __init__(self) -> None:
        self.round: FleetRound | None = None
        self.decisions: Counter[str] = Counter()

    def absorb(self, event: Event) -> None:
        """Add an event."""
        if isinstance(event, FleetRound):
            self.round = event
        elif isinstance(event, FleetDecided):
            self.decisions[event.action] += 1
