"""Turns committed reports of slots into samples of the control loop: arrivals, completions, times.

It counts only committed steps, so that retries and doubled tasks change nothing. A tick's sample is
complete when committed steps have all records that arrived until the tick's end. So a long batch
delays the samples, and never looks like a silent source.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from headgate.control.sample import Sample
from headgate.core.assignment import Assignment
from headgate.operators.counts import Binned
from headgate.spark.job.origins import Finished, Origins
from headgate.spark.job.reports import Report
from headgate.spark.steer.success import SuccessRate
from headgate.spark.steer.useful_time import UsefulTime

F64 = npt.NDArray[np.float64]

_HISTORY_TICKS = 1200
"""Most ticks that are open at once: older arrivals count in the oldest tick, and a longer pause leaves
a gap. Chosen, not tuned: two minutes at the default of 100 ms."""

_BEHIND_TICKS = 20
"""Longest delay of samples for a source that delivers late: 2 s at the default of 100 ms."""

_BEHIND_SHARE = 0.99
"""Share of the records that must have come after this delay; a few later records delay no sample."""

_BEHIND_DECAY = 0.97
"""Weight of a step over that of the next in the share: about thirty steps. All three not tuned."""


@dataclass
class Cell:
    """Holds the counts of one operator in one open tick."""

    arrived: F64
    completed: F64
    latency_ms: F64
    within: F64
    """`arrived`, `completed`, `latency_ms`, `within`: float64[G]: Records that arrived; records that
    were completed, the sum of their latencies, and the number of them within the bound."""
    useful_s: dict[int, float] = field(default_factory=dict)
    worked: dict[int, float] = field(default_factory=dict)
    """`useful_s`, `worked`: useful time and work by slot."""
    results: F64 = field(default_factory=lambda: np.zeros(3))
    """float64[3]: results put out, the sum of their ages, and the number of them within the
    bound."""

    def spend(self, slot: int, useful_s: float, worked: float) -> None:
        """Add useful time of a slot, and the work done in that time."""
        self.useful_s[slot] = self.useful_s.get(slot, 0.0) + useful_s
        self.worked[slot] = self.worked.get(slot, 0.0) + worked


@dataclass(frozen=True)
class Mapped:
    """Holds an assignment, and the identities of its slots."""

    assignment: Assignment
    slot_ids: tuple[int, ...]
    from_tick: int
    """First tick in which the assignment holds."""


class SourceDelay:
    """Tracks the delay of a source's records behind the clock, in ticks.

    A source of files, for example, shows a record half a file after its arrival. So when a batch has read
    all available records, the newest ticks are not complete, and rates that end with them would be too
    low, by varying amounts.
    """

    def __init__(self) -> None:
        self._records: F64 = np.zeros(_BEHIND_TICKS + 1)
        self._read_tick: int | None = None

    def add(self, tick: int, records: float) -> None:
        """Count records of a tick that came after the last call of `read`."""
        if self._read_tick is not None:
            behind = min(max(self._read_tick - tick, 0), _BEHIND_TICKS)
            self._records[behind] += records

    def read(self, tick: int) -> None:
        """Record that a batch has read all records that were available in a tick."""
        if self._read_tick is None or tick > self._read_tick:
            self._read_tick = tick
            self._records *= _BEHIND_DECAY

    @property
    def behind(self) -> int:
        """Number of the newest ticks that are not complete yet."""
        total = float(self._records.sum())
        if total <= 0.0:
            return 0
        return int(np.searchsorted(np.cumsum(self._records), _BEHIND_SHARE * total))


class OperatorCounters:
    """Turns the reports of one operator into samples.

    The first sample is that of tick 2, so that no arrival rate includes records that had arrived
    before and wait here or in the source.

    `waiting` (float64[G]): backlog that an earlier run has left, which arrived before the first tick.
    `first_tick`: number of the tick, counted from 1970, that becomes tick 2 of the samples.
    """

    def __init__(self, assignment: Assignment, waiting: F64, first_tick: int) -> None:
        self._origin = first_tick - 2
        self._first = first_tick
        self._told = first_tick - 1
        self._delivery = SourceDelay()
        self._arrived = waiting.astype(np.float64)
        self._completed = np.zeros(len(waiting))
        self._unread: F64 | None = None
        self._open: dict[int, Cell] = {}
        self._next_id = assignment.slots
        self._mapped = [Mapped(assignment, tuple(range(assignment.slots)), first_tick)]

    @property
    def slot_ids(self) -> tuple[int, ...]:
        """Identities of the present slots."""
        return self._mapped[-1].slot_ids

    def assign(
        self, assignment: Assignment, survivors: Sequence[int | None], from_tick: int
    ) -> None:
        """Record a new assignment that holds from `from_tick` on.

        `survivors`: as `Change.survivors`.
        """
        ids = []
        for survivor in survivors:
            if survivor is None:
                ids.append(self._next_id)
                self._next_id += 1
            else:
                ids.append(self.slot_ids[survivor])
        self._mapped.append(Mapped(assignment, tuple(ids), from_tick))

    def add(self, report: Report, useful_s: float) -> None:
        """Count the work of a slot task.

        `useful_s`: useful time of the task, spread over its completions.
        """
        assert report.counts is not None
        arrivals, completions = report.counts.arrivals, report.counts.completions
        for tick, rows in self._by_tick(arrivals):
            cell = self._cell(tick)
            np.add.at(cell.arrived, arrivals.group[rows], arrivals.records[rows])
            if tick >= self._first:
                self._delivery.add(tick, float(arrivals.records[rows].sum()))
        total = float(completions.records.sum())
        if total == 0.0 and useful_s > 0.0:
            # the task served a share of another slot's key group, whose owner completes the records
            self._cell(report.counts.end_tick).spend(report.slot, useful_s, report.work)
        for tick, rows in self._by_tick(completions):
            cell = self._cell(tick)
            groups, records = completions.group[rows], completions.records[rows]
            np.add.at(cell.completed, groups, records)
            np.add.at(cell.latency_ms, groups, completions.latency_ms[rows])
            np.add.at(cell.within, groups, completions.within[rows])
            share = float(records.sum()) / total
            cell.spend(report.slot, share * useful_s, share * report.work)

    def wait_at_source(self, records: float) -> None:
        """Record the number of unread records; divide them among key groups as earlier arrivals."""
        if records or self._unread is not None:
            weights = self._arrived if self._arrived.any() else np.ones(len(self._arrived))
            self._unread = records * weights / weights.sum()

    def add_results(self, tick: int, count: float, latency_ms: float, within: float) -> None:
        """Count results put out in a tick: their number, the sum of their ages, those in the bound."""
        self._cell(tick).results += (count, latency_ms, within)

    def read(self, tick: int) -> list[tuple[Sample, Cell]]:
        """Return the samples that are complete after a batch read all available records in `tick`."""
        self._delivery.read(tick)
        return self.until(tick - self._delivery.behind)

    def until(self, tick: int) -> list[tuple[Sample, Cell]]:
        """Return the samples of all ticks up to `tick` that were not returned before."""
        samples = []
        if tick - self._told > _HISTORY_TICKS:
            self._skip_to(tick - _HISTORY_TICKS)
        for now in range(self._told + 1, tick + 1):
            cell = self._open.pop(now, None) or self._empty()
            self._arrived = self._arrived + cell.arrived
            self._completed = self._completed + cell.completed
            # the backlog of an earlier run may turn out to stand for more records
            self._arrived = np.maximum(self._arrived, self._completed)
            mapped = self._mapped_in(now)
            samples.append((self._sample(now, mapped, cell), cell))
            self._told = now
        return samples

    def _sample(self, tick: int, mapped: Mapped, cell: Cell) -> Sample:
        useful_s, worked = np.zeros((2, mapped.assignment.slots))
        for slot, spent_s in cell.useful_s.items():
            if slot < len(useful_s):
                useful_s[slot], worked[slot] = spent_s, cell.worked[slot]
        return Sample(
            tick - self._origin,
            mapped.assignment,
            mapped.slot_ids,
            self._arrived,
            self._completed,
            useful_s,
            worked,
            self._unread,
        )

    def _mapped_in(self, tick: int) -> Mapped:
        while len(self._mapped) > 1 and self._mapped[1].from_tick <= tick:
            self._mapped.pop(0)
        return self._mapped[0]

    def _skip_to(self, tick: int) -> None:
        """Add the counts of earlier ticks to `tick`, and skip those ticks."""
        late = [t for t in self._open if t < tick]
        self._told = tick - 1
        for old in late:
            cell, into = self._open.pop(old), self._cell(tick)
            into.arrived += cell.arrived
            into.completed += cell.completed
            into.latency_ms += cell.latency_ms
            into.within += cell.within
            into.results += cell.results
            for slot, spent_s in cell.useful_s.items():
                into.spend(slot, spent_s, cell.worked[slot])

    def _by_tick(self, binned: Binned) -> Iterable[tuple[int, npt.NDArray[np.int64]]]:
        if not len(binned.tick):
            return ()
        order = np.argsort(binned.tick, kind="stable")
        ticks, starts = np.unique(binned.tick[order], return_index=True)
        return zip(ticks.tolist(), np.split(order, starts[1:]), strict=True)

    def _cell(self, tick: int) -> Cell:
        return self._open.setdefault(max(tick, self._told + 1), self._empty())

    def _empty(self) -> Cell:
        return Cell(*np.zeros((4, len(self._arrived))))


@dataclass
class _Metered:
    """Holds the counters of one operator."""

    counters: OperatorCounters
    useful: UsefulTime
    success: SuccessRate | None
    by_results: bool
    alone: bool
    samples: list[Sample] = field(default_factory=list)


class SparkMetrics:
    """Provides the control loop with the samples of a job on Spark.

    One thread calls it, with the job's events in their order.

    Parameters
    ----------
    delta_s : float    Length of a tick; ticks begin at multiples of this length since 1970.
    started_ms : float    Start of the job; tick 2 is the first tick that ends later.
    origins : Origins, optional    Follows results back to the source.
    """

    def __init__(self, delta_s: float, started_ms: float, origins: Origins | None = None) -> None:
        self._origins = origins
        self._delta_ms = delta_s * 1e3
        self._first_tick = math.floor(started_ms / self._delta_ms) + 1
        self._operators: dict[str, _Metered] = {}

    def add_operator(
        self,
        name: str,
        assignment: Assignment,
        waiting: F64,
        useful: UsefulTime,
        success: SuccessRate | None,
        *,
        by_results: bool = False,
        alone: bool = False,
    ) -> None:
        """Count an operator from now on; parameters as in `OperatorCounters`.

        `by_results`: whether success is from the ages of results, and not from latencies of records.
        `alone`: whether the job has no other operator; then samples say how batches spend their time.
        """
        counters = OperatorCounters(assignment, waiting, self._first_tick)
        self._operators[name] = _Metered(counters, useful, success, by_results, alone)

    def wait_at_sources(
        self, operators: Sequence[str], reports: Sequence[Report], records: float
    ) -> None:
        """Record the number of unread records at the sources.

        `operators`: operators that read sources; unread records are divided among them as the records
        that `reports` have. `reports`: reports of the newest step that read; empty if it read nothing.
        """
        read = {n: sum(r.arrived for r in reports if r.operator == n) for n in operators}
        total = sum(read.values())
        for name in read.keys() & self._operators.keys():
            share = read[name] / total if total else 1.0 / len(read)
            self._operators[name].counters.wait_at_source(records * share)

    def slot_id(self, operator: str, slot: int) -> int:
        """Return the identity of a present slot; for another slot return its number."""
        ids = self._operators[operator].counters.slot_ids
        return ids[slot] if slot < len(ids) else slot

    def success(self, operator: str) -> SuccessRate | None:
        """Return the operator's success in meeting its SLO; None if the operator has no SLO."""
        return self._operators[operator].success

    def record_cost(self, operator: str) -> tuple[float | None, float | None]:
        """Return the time per record at a slot of `operator`, and the share of it for computing."""
        useful = self._operators[operator].useful
        return useful.record_s, useful.computing

    def limit(self, operator: str, cores: int) -> tuple[int, str] | None:
        """Return the largest useful number of slots, and why not more; see `UsefulTime.limit`."""
        metered = self._operators[operator]
        return metered.useful.limit(len(metered.counters.slot_ids), cores)

    def assigned(
        self,
        operator: str,
        assignment: Assignment,
        survivors: Sequence[int | None],
        at_ms: float,
    ) -> None:
        """Record a new assignment, in force from the step that began at `at_ms` on."""
        metered = self._operators[operator]
        metered.counters.assign(assignment, survivors, math.ceil(at_ms / self._delta_ms))
        metered.useful.renumber(survivors)

    def committed(
        self,
        reports: Sequence[Report],
        started_ms: float,
        horizon_ms: float,
        ended_ms: float,
    ) -> None:
        """Count a committed step.

        `reports`: a consistent set: one per operator and slot. `horizon_ms`: all records that
        arrived until then are in this step or in an earlier one.
        """
        for name, metered in self._operators.items():
            counted = [r for r in reports if r.operator == name and r.counts is not None]
            spent_s = metered.useful.add(counted, started_ms, ended_ms, len(counted))
            for report, useful_s in zip(counted, spent_s, strict=True):
                metered.counters.add(report, useful_s)
        if self._origins is not None:
            self._count_results(self._origins.step(reports))
        self.known_until(horizon_ms)

    def _count_results(self, results: Mapping[str, Sequence[Finished]]) -> None:
        for name, finished in results.items():
            metered = self._operators.get(name)
            if metered is None or metered.success is None:
                continue
            for result in finished:
                within = result.count * (result.latency_ms <= metered.success.bound_ms)
                tick = math.ceil(result.at_ms / self._delta_ms)
                total_ms = result.count * result.latency_ms
                metered.counters.add_results(tick, result.count, total_ms, within)

    def known_until(self, horizon_ms: float) -> None:
        """Make the samples that are complete when the source has delivered up to `horizon_ms`."""
        tick = math.floor(horizon_ms / self._delta_ms)
        for metered in self._operators.values():
            for sample, cell in metered.counters.read(tick):
                metered.samples.append(sample)
                waiting = sample.arrived - sample.completed
                if metered.success is not None and metered.by_results:
                    count, ages_ms, within = (cell.results[i : i + 1] for i in range(3))
                    metered.success.add(count, ages_ms, within, waiting.sum(keepdims=True))
                elif metered.success is not None:
                    metered.success.add(cell.completed, cell.latency_ms, cell.within, waiting)

    def collect(self) -> Mapping[str, Sequence[Sample]]:
        """Return the samples of each operator since the last call, oldest first."""
        samples = {}
        for name, metered in self._operators.items():
            samples[name], metered.samples = metered.samples, []
            if samples[name] and metered.alone:
                samples[name][-1] = replace(samples[name][-1], batch=metered.useful.batch())
        return samples
