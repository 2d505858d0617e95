"""Simulates micro-batch mode: records that arrived before a boundary are served together, as on Spark."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from headgate.control.batch_times import BatchTimes, TaskLog
from headgate.control.decision import Change
from headgate.control.estimators.task_cost import FIXED_MS
from headgate.control.sample import Sample
from headgate.core.assignment import Assignment
from headgate.loop.batch_floor import BatchFloor
from headgate.operators.quota import fair_shares, timed_quota
from headgate.whatif.model import MicroBatch, OperatorModel
from headgate.whatif.operators import SimulatedOperator
from headgate.whatif.streams import Inflow

F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]

_PLANNED = 0.05
"""Weight of a batch in the moving mean of the time before slots: about twenty batches. Not tuned."""

_TELLING_S = 0.05
"""Shortest task from which a slot's rate is measured, in s; as in `headgate.spark.job`."""

_TICK_S = 1.0
"""Time after which an idle engine begins an empty batch, in s, as headgate's tick source does."""


class BatchOperator(SimulatedOperator):
    """Simulates an operator whose slots serve once per batch.

    Attributes
    ----------
    busy_s : float    Time of the slowest slot in the last batch.
    came : int    Records that have arrived for the next batch.
    """

    def __init__(
        self,
        name: str,
        model: OperatorModel,
        inflow: Inflow,
        generator: np.random.Generator,
        *,
        engine: MicroBatch,
        ticks: int,
        delta_s: float,
    ) -> None:
        super().__init__(name, model, inflow, generator, ticks=ticks, delta_s=delta_s)
        self._engine = engine
        self._rate = dict.fromkeys(self.slot_ids, engine.initial_rate_per_s)
        self._wanted: tuple[Change, F64, float] | None = None
        self._just_moved: tuple[int, ...] = ()
        self._step = 0
        self._served_s = 0.0
        self._tasks = TaskLog()
        self._times: BatchTimes | None = None
        self.busy_s: float  # as soon as there was a batch
        self.came = 0
        # Useful time, by the tick in which a task ended and the slot's identity.
        self._useful_s: dict[int, dict[int, float]] = defaultdict(lambda: defaultdict(float))
        # Assignments with the time since which each is in force: the last in a sample, and newer ones.
        self._held = [(0.0, self.queues.assignment, self.slot_ids)]
        self._arrived = np.zeros(model.key_groups)
        self._completed = np.zeros(model.key_groups)
        # By split key group, records that other slots merged; the owner completes them in the next batch.
        self._apart: dict[int, list[I64]] = defaultdict(list)

    @property
    def waves(self) -> int:
        """Return the number of rounds of tasks that the cores need for the slots in force."""
        return -(-self.queues.slots // self._engine.cores)

    def ask(self, change: Change, now_s: float) -> None:
        """Take a change to bring into force at the next boundary."""
        speeds = self.allocate(change, busy=self._wanted is not None)
        self._wanted = (change, speeds, now_s)

    def cross_boundary(self, begin_s: float) -> bool:
        """Bring the wanted change, if any, into force: no slot serves now, so none stops."""
        self._just_moved = ()
        if self._wanted is None:
            return False
        change, speeds, decided_s = self._wanted
        self._wanted = None
        known = sorted(self._rate[identity] for identity in self.slot_ids)
        applied = self.enforce(change, speeds, decided_s=decided_s, at_s=begin_s)
        typical = known[len(known) // 2]
        self._rate = {identity: self._rate.get(identity, typical) for identity in self.slot_ids}
        self._held.append((begin_s, change.assignment, self.slot_ids))
        self._just_moved = applied.moved
        return True

    def arrive(self, time_s: float, feeds: Sequence[F64]) -> None:
        """Add the arrivals up to `time_s`."""
        records = self.inflow.until(time_s, feeds)
        measures = self.measures
        self.queues.enqueue(records, np.zeros(self.model.key_groups, dtype=np.int32))
        self.came += len(records[0])
        ticks = _ticks_of(records[0], measures.delta_s)
        inside = ticks <= measures.ticks
        np.add.at(measures.arrived, (ticks[inside] - 1, records[3][inside]), 1)

    def serve(self, start_s: float, turn: int, stretch: float) -> tuple[float, F64]:
        """Run one task per slot on the engine's cores.

        Parameters
        ----------
        start_s : float    Time from which the first tasks begin.
        turn : int    Number of the batch; see `fair_shares`.
        stretch : float    Seconds of useful time per second that a task serves.

        Returns
        -------
        end_s : float
            End of the last task.
        out : float64[n, 2]
            (completion, origin) of each record served, ascending.
        """
        self._close_steps(start_s)
        limited = self._limit(start_s)
        self.busy_s = 0.0
        out = np.empty((self.queues.held, 2))
        count = 0
        apart, self._apart = self._apart, defaultdict(list)
        free_s = [start_s] * min(self._engine.cores, self.queues.slots)
        for slot in range(self.queues.slots):
            core = free_s.index(min(free_s))
            taken, demand_s = self.queues.take(slot, self._shares(slot, start_s, turn, limited))
            serving_s = demand_s / self.queues.speed(slot)
            moved = sum(self.queues.assignment.slot_of[g] == slot for g in self._just_moved)
            fixed_s = self._engine.task_s + moved * self._engine.moved_group_s
            free_s[core] += fixed_s + serving_s
            self.busy_s = max(self.busy_s, fixed_s + serving_s)
            own, served = self._own(slot, taken), len(taken)
            # key group by key group, as the engine serves and counts them
            own = own[np.argsort(self.queues.groups(own), kind="stable")]
            since_s = free_s[core] - serving_s
            count = self._complete(own, since_s, free_s[core], out, count)
            # records that other slots have merged are a few rows for the owner, and cost almost nothing
            groups = [g for g in apart if self.queues.assignment.slot_of[g] == slot]
            for done in (part for g in groups for part in apart[g]):
                count = self._complete(done, free_s[core], free_s[core], out, count)
            self._learn(slot, served, fixed_s + serving_s)
            self._tasks.add(served, serving_s)
            useful_s = serving_s * stretch if limited is None else served / self._slot_rate
            self._charge(self.slot_ids[slot], useful_s, served, since_s, free_s[core])
        out = out[:count]
        return max(free_s), out[np.argsort(out[:, 0], kind="stable")]

    def note_times(self, before_s: float) -> None:
        """Store the times of a batch, `before_s` before its slots, for the next samples."""
        engine = self._engine
        if self._slot_rate < math.inf:
            return  # slots serve by the time that has passed, and do not wait for each other
        self._times = BatchTimes(
            before_s,
            engine.read_s,
            engine.task_s,
            engine.commit_s,
            engine.budget_s,
            engine.cores,
            self._tasks.newest(),
            self._tasks.seen,
        )

    def _charge(
        self, identity: int, useful_s: float, served: int, since_s: float, until_s: float
    ) -> None:
        """Count useful time in the ticks in which its records are done."""
        done_s = since_s + (until_s - since_s) * np.arange(1, served + 1) / max(served, 1)
        ticks, counts = np.unique(_ticks_of(done_s, self.measures.delta_s), return_counts=True)
        for tick, count in zip(ticks.tolist(), counts.tolist(), strict=True):
            self._useful_s[tick][identity] += useful_s * count / served

    def _complete(self, taken: I64, since_s: float, until_s: float, out: F64, count: int) -> int:
        """Complete records one after the other within a time; return where `out` goes on."""
        done_s = since_s + (until_s - since_s) * np.arange(1, len(taken) + 1) / max(len(taken), 1)
        ticks = _ticks_of(done_s, self.measures.delta_s)
        for part in np.split(np.arange(len(taken)), np.flatnonzero(np.diff(ticks)) + 1):
            if len(part):
                tick, histogram = int(ticks[part[0]]), self.queues.histogram
                before = histogram.copy() if tick > self.measures.ticks else None
                row = self.measures.row(tick)
                self.queues.complete(taken[part], done_s[part], row, out, count)
                if before is not None:  # completed after the run: left out, as in the rows
                    histogram[:] = before
            count += len(part)
        return count

    def _own(self, slot: int, taken: I64) -> I64:
        """Return the taken records that a slot completes; others' records wait for their owner."""
        groups = self.queues.groups(taken)
        own = np.ones(len(taken), dtype=np.bool_)
        for group in self.queues.assignment.shares_at(slot):
            of_share = groups == group
            if of_share.any():
                self._apart[group].append(taken[of_share])
                own &= ~of_share
        return taken[own]

    @property
    def _slot_rate(self) -> float:
        """Records per second that a slot may serve; infinite without a limit."""
        limited = self._engine.slot_rate_per_s if not self.model.parents else None
        return math.inf if limited is None else limited

    def _limit(self, now_s: float) -> int | None:
        """Return the quota of every slot under a limit by time; None without one."""
        elapsed_s, self._served_s = now_s - self._served_s, now_s
        if math.isinf(self._slot_rate):
            return None
        return timed_quota(self._slot_rate, elapsed_s)

    def _shares(self, slot: int, now_s: float, turn: int, limited: int | None) -> I64:
        """Return how many records of each key group a slot serves, int64[G]."""
        engine, queues = self._engine, self.queues
        groups = np.array(queues.assignment.groups_of(slot), dtype=np.int64)
        backlog = queues.backlog
        if queues.assignment.split:
            others = np.array([*queues.assignment.shares_at(slot)], dtype=np.int64)
            groups, backlog = np.union1d(groups, others), queues.waiting(slot)
        waiting = groups[backlog[groups] > 0]
        shares = np.zeros_like(backlog)
        shares[waiting] = backlog[waiting]
        if limited is not None:
            quota, overdue = limited, False
        elif math.isinf(engine.budget_s):
            return shares
        else:
            rate = self._rate[self.slot_ids[slot]]
            quota = max(1, int(rate * engine.budget_s / self.waves))
            overdue = now_s - queues.oldest_s(slot) > engine.backlog_age_max_s
        if int(shares.sum()) > quota and not overdue:
            shares[waiting] = fair_shares(backlog[waiting], quota, turn)
        return shares

    def _learn(self, slot: int, count: int, useful_s: float) -> None:
        """Move a slot's rate half way to its latest rate, or all the way from far off, as jobs do."""
        if count == 0 or useful_s <= 0.0:
            return
        identity = self.slot_ids[slot]
        known = self._rate[identity]
        if useful_s < _TELLING_S:
            waits = math.isfinite(self.queues.oldest_s(slot))
            raised = known * 1.5 if waits else known
            self._rate[identity] = max(count / useful_s, raised)
            return
        rate = count / (useful_s - FIXED_MS / 1e3)
        near = known / 2 <= rate <= known * 2
        self._rate[identity] = (known + rate) / 2 if near else rate

    def _close_steps(self, now_s: float) -> None:
        """Give latencies to the timeline where a step has ended.

        All records of a batch count for the step in which its first task began.
        """
        step = int(now_s / (self.measures.delta_s * self.measures.step_ticks))
        if step > self._step:
            self.measures.close_step(self._step, self.queues.histogram)
            self._step = step

    def hold(self, start_s: float, end_s: float) -> None:
        """Count the slots in force for the ticks that end in (start, end]."""
        measures = self.measures
        ticks = slice(int(start_s / measures.delta_s), int(end_s / measures.delta_s))
        measures.slots[ticks] = self.queues.slots
        measures.other_slots[ticks] = self.queues.other_slots

    def finish(self) -> None:
        """Close the last step."""
        self.measures.close_step(self._step, self.queues.histogram)

    def samples(self, first: int, last: int) -> list[Sample]:
        """Return the samples of ticks `first` to `last`; call it once for each tick, in order."""
        measures = self.measures
        samples = []
        for tick in range(first, min(last, measures.ticks) + 1):
            end_s = tick * measures.delta_s
            while len(self._held) > 1 and self._held[1][0] <= end_s:
                self._held.pop(0)
            _, assignment, slot_ids = self._held[0]
            self._arrived += measures.arrived[tick - 1]
            self._completed += measures.completed[tick - 1]
            useful = self._useful_s.pop(tick, {})
            useful_s = np.array([useful.get(identity, 0.0) for identity in slot_ids])
            arrived, completed = self._arrived.copy(), self._completed.copy()
            sample = Sample(tick, assignment, slot_ids, arrived, completed, useful_s)
            samples.append(replace(sample, batch=self._times))
        return samples


class MicroBatchEngine:
    """Runs a job in micro-batch mode, batch by batch: a `MetricsSource` and an `Actuator`.

    Samples end at the beginning of the last batch: the engine has not read later records yet, and
    nobody can count them.

    `operators`: upstream first; each is a stage of every batch.
    """

    def __init__(
        self, operators: Mapping[str, BatchOperator], model: MicroBatch, delta_s: float
    ) -> None:
        self.operators = operators
        self._model = model
        self._delta_s = delta_s
        self._next_begin_s = 0.0
        self._turn = 0
        self._told = 0
        self._floor = BatchFloor()
        self._left = False
        self._begin_s: float
        self._planned_s = model.planning_s(0)
        self.time_s = 0.0

    @property
    def floor_s(self) -> float:
        """The measured latency floor in seconds; 0 while too little is known."""
        return self._floor.value_s

    def advance(self) -> list[tuple[str, float]]:
        """Simulate one batch; without any record, one second of waiting.

        Returns the operators whose change came into force, with the time, in s.
        """
        model = self._model
        begin_s = self._await_records()
        applied = []
        for name, operator in self.operators.items():
            operator.hold(self.time_s, begin_s)
            if operator.cross_boundary(begin_s):
                applied.append((name, begin_s))
        end_s = begin_s
        if any(operator.queues.held for operator in self.operators.values()):
            end_s = self._batch(begin_s)
        for operator in self.operators.values():
            operator.hold(begin_s, end_s)
        self._begin_s = begin_s
        self.time_s = end_s
        self._next_begin_s = max(end_s, begin_s + model.trigger_s)
        return applied

    def _await_records(self) -> float:
        """Add the arrivals so far, and return the time at which the next batch begins."""
        begin_s = self._next_begin_s
        deadline_s = begin_s + _TICK_S
        while True:
            for operator in self.operators.values():
                if not operator.model.parents:
                    operator.arrive(begin_s, ())
            waits = any(operator.queues.held for operator in self.operators.values())
            if waits or begin_s >= deadline_s:
                return begin_s
            begin_s += self._model.poll_s

    def _batch(self, begin_s: float) -> float:
        """Run every stage of a batch; return when it ends."""
        model, operators = self._model, self.operators
        full_s = model.plan_s + model.commit_s + len(operators) * (model.task_s + model.budget_s)
        outputs: dict[str, F64] = {}
        read = sum(operator.came for operator in operators.values() if not operator.model.parents)
        at_s = begin_s + model.planning_s(self._turn) + read * model.read_s
        for name, operator in operators.items():
            if operator.model.parents:
                operator.arrive(at_s, [outputs[parent] for parent in operator.model.parents])
            stretch = float(operator.waves)
            if not math.isinf(model.budget_s):
                stretch *= max(full_s, model.trigger_s) / model.budget_s
            operator.came = 0
            at_s, outputs[name] = operator.serve(at_s, self._turn, stretch)
        self._measure_floor(begin_s, outputs)
        if len(operators) == 1:
            planned_s = model.planning_s(self._turn)
            self._planned_s += (planned_s - self._planned_s) * _PLANNED
            for operator in operators.values():
                operator.note_times(self._planned_s)
        self._turn += 1
        return at_s + model.commit_s

    def _measure_floor(self, begin_s: float, outputs: Mapping[str, F64]) -> None:
        """Take a batch into account, over all operators that read a source."""
        first = {name: op for name, op in self.operators.items() if not op.model.parents}
        out = np.concatenate([outputs[name] for name in first])
        latency_s = float((out[:, 0] - out[:, 1]).mean()) if len(out) else None
        left = sum(op.queues.held for op in first.values())
        waited, self._left = self._left, left > 0
        busy_s = max(op.busy_s for op in self.operators.values())
        behind = left > len(out)
        self._floor.add(begin_s * 1e3, latency_s, busy_s, waited or self._left, behind)

    def finish(self) -> None:
        """End the run: add the arrivals after the last boundary, to be counted as waiting."""
        for operator in self.operators.values():
            if not operator.model.parents:
                operator.arrive(self.time_s, ())
            operator.finish()

    def collect(self) -> Mapping[str, Sequence[Sample]]:
        """Return the samples of each operator since the last call, oldest first."""
        last = int(self._begin_s / self._delta_s + 1e-9)
        first, self._told = self._told + 1, max(self._told, last)
        return {name: op.samples(first, last) for name, op in self.operators.items()}

    def assignment(self, operator: str) -> Assignment:
        """Return the assignment in force."""
        return self.operators[operator].queues.assignment

    def apply(self, operator: str, change: Change) -> None:
        """Request `change`; it comes into force at the next boundary."""
        self.operators[operator].ask(change, self.time_s)


def _ticks_of(time_s: F64, delta_s: float) -> I64:
    """Return the tick, from 1, that each time lies in: ((m-1) delta, m delta]."""
    ticks: I64 = np.maximum(np.ceil(time_s / delta_s - 1e-9).astype(np.int64), 1)
    return ticks
