"""Simulates continuous mode: records flow between operators at once, as in Samza and Flink."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from headgate.control.decision import Change
from headgate.control.sample import Sample
from headgate.core.assignment import Assignment
from headgate.whatif.measures import moved_groups
from headgate.whatif.operators import SimulatedOperator
from headgate.whatif.queues import NO_OUTPUT

F64 = npt.NDArray[np.float64]


@dataclass
class _Treatment:
    """Holds a change under way."""

    change: Change
    decided_s: float
    involved: list[int]
    speeds: F64
    busy_s: float
    """Time for which all involved slots stand still together, in s."""


class ContinuousOperator(SimulatedOperator):
    """Simulates an operator whose slots serve all the time, except slots that a change stops.

    Attributes
    ----------
    resumed_s : float or None    Time at which a change came into force in the last tick.
    """

    resumed_s: float | None = None
    _treatment: _Treatment | None = None

    def tick(self, tick: int, feeds: Sequence[F64], *, has_children: bool) -> F64:
        """Simulate tick `tick` (from 1).

        Result: float64[n, 2]: (completion, origin) of the records completed here, ascending; empty
        without children.

        `feeds` (sequence of float64[n, 2]): (completion, origin) of the records that the parents
        completed in this tick.
        """
        queues, measure = self.queues, self.measures.row(tick)
        end_s = tick * self.measures.delta_s
        queues.enqueue(self.inflow.until(end_s, feeds), self.measures.arrived[tick - 1])
        out = np.empty((queues.held, 2)) if has_children else NO_OUTPUT
        count = queues.serve(end_s, measure, out)
        self.resumed_s = self._progress(end_s)
        if self.resumed_s is not None:
            # Only slots that stood still serve now: other slots have served up to the end already.
            count += queues.serve(end_s, measure, out[count:])
        return out[:count][np.argsort(out[:count, 0], kind="stable")]

    def apply(self, change: Change, now_s: float) -> None:
        """Begin a change: stop the slots that it concerns, and no others."""
        speeds = self.allocate(change, busy=self._treatment is not None)
        before = self.queues.assignment
        moved = moved_groups(before, change)
        survivors = set(change.survivors)
        gone = {slot for slot in range(before.slots) if slot not in survivors}
        losing = {before.slot_of[g] for g in moved}
        gaining = {change.survivors[change.assignment.slot_of[g]] for g in moved} - {None}
        involved = sorted(slot for slot in gone | losing | gaining if slot is not None)
        busy_s = self._busy_s(change, moved)
        self._treatment = _Treatment(change, now_s, involved, speeds, busy_s)
        self.queues.stop(involved, self.model.treatment.barrier_records)

    def _busy_s(self, change: Change, moved: tuple[int, ...]) -> float:
        """Return how long the slots stand still together; they move state at once: the busiest counts."""
        cost = self.model.treatment
        before = self.queues.assignment
        state = cost.group_bytes + cost.record_bytes * self.queues.completed[list(moved)]
        each_s = cost.per_group_s + state / cost.bandwidth_bytes_per_s
        busy: dict[tuple[str, int], float] = {}
        for group, group_s in zip(moved, each_s.tolist(), strict=True):
            new = change.assignment.slot_of[group]
            old = change.survivors[new]
            receiver = ("new", new) if old is None else ("old", old)
            for slot in (("old", before.slot_of[group]), receiver):
                busy[slot] = busy.get(slot, 0.0) + group_s
        return cost.sync_s + cost.delay_s + max(busy.values(), default=0.0)

    def _progress(self, end_s: float) -> float | None:
        """Bring the change under way into force if it is ready by `end_s`; return when it was."""
        treatment = self._treatment
        if treatment is None:
            return None
        involved = treatment.involved
        stopped_s = self.queues.stopped_s(involved, treatment.decided_s)
        if stopped_s is None:
            return None
        still_s = float(stopped_s.max()) if len(involved) else treatment.decided_s
        resume_s = still_s + treatment.busy_s
        if resume_s > end_s:
            return None
        self.enforce(
            treatment.change,
            treatment.speeds,
            decided_s=treatment.decided_s,
            at_s=resume_s,
            stopped_s=float((resume_s - stopped_s).sum()),
            involved=len(involved),
        )
        self._treatment = None
        return resume_s

    def sample(self, tick: int) -> Sample:
        """Return the counters at the end of tick `tick`, and note the slots in use."""
        queues, measures = self.queues, self.measures
        held, other = queues.slots, queues.other_slots
        if self._treatment is not None:
            held += len(self._treatment.speeds)
            other += int((self._treatment.speeds != 1.0).sum())
        measures.slots[tick - 1] = held
        measures.other_slots[tick - 1] = other
        if tick % measures.step_ticks == 0 or tick == measures.ticks:
            measures.close_step((tick - 1) // measures.step_ticks, queues.histogram)
        return Sample(
            tick=tick,
            assignment=queues.assignment,
            slot_ids=self.slot_ids,
            arrived=queues.arrived.copy(),
            completed=queues.completed.copy(),
            useful_s=queues.collect_useful_s(),
        )


class ContinuousEngine:
    """Runs a job in continuous mode, tick by tick: a `MetricsSource` and an `Actuator`.

    `operators`: upstream first.
    """

    def __init__(self, operators: Mapping[str, ContinuousOperator], delta_s: float) -> None:
        self.operators = operators
        self._delta_s = delta_s
        self._tick = 0
        self._samples: dict[str, list[Sample]] = {name: [] for name in operators}
        self._has_children = {
            name: any(name in other.model.parents for other in operators.values())
            for name in operators
        }

    @property
    def time_s(self) -> float:
        """The virtual clock: seconds since the start."""
        return self._tick * self._delta_s

    def advance(self) -> list[tuple[str, float]]:
        """Simulate one tick.

        Returns the operators whose change came into force, with the time, in s.
        """
        self._tick += 1
        applied: list[tuple[str, float]] = []
        outputs: dict[str, F64] = {}
        for name, operator in self.operators.items():
            feeds = [outputs[parent] for parent in operator.model.parents]
            has_children = self._has_children[name]
            outputs[name] = operator.tick(self._tick, feeds, has_children=has_children)
            self._samples[name].append(operator.sample(self._tick))
            if operator.resumed_s is not None:
                applied.append((name, operator.resumed_s))
        return applied

    def collect(self) -> Mapping[str, Sequence[Sample]]:
        """Return the samples of each operator since the last call, oldest first."""
        samples, self._samples = self._samples, {name: [] for name in self.operators}
        return samples

    def assignment(self, operator: str) -> Assignment:
        """Return the assignment in force."""
        return self.operators[operator].queues.assignment

    def apply(self, operator: str, change: Change) -> None:
        """Begin to bring `change` into force."""
        self.operators[operator].apply(change, self.time_s)

    def finish(self) -> None:
        """End the run; every tick is complete already."""
