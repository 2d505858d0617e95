"""Simulates a stream join, J+, in which every slot sees every record and work grows with the window.

The join shares the control loop, the policies and the log of decisions with other operators of continuous
mode, but not their queues, since a record has no key group. A record is compared with the whole opposite
window, of which each slot holds the share of its virtual keys; the record is complete when the last slot
is. With two streams of R/2 each, these are R^2 WS / 2 comparisons a second. A switch of epochs waits for
the next record, after at most the records of the bounded tuple buffer, and for all slots to reach it;
without the bound it would wait for the whole backlog of an overload.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from headgate.control.decision import Change
from headgate.control.limits import check_range
from headgate.control.policy import Policy
from headgate.control.sample import Sample
from headgate.core.assignment import Assignment, check_slots, spread
from headgate.core.errors import ProtocolError
from headgate.loop.loop import ControlLoop
from headgate.loop.settings import OperatorSettings
from headgate.whatif.decisions import DecisionLog
from headgate_lab.sim.kernels import serve_join

F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]

OPERATOR = "join"
"""Name of the operator in observations and decisions."""

_ROUNDING = 1e-9


@dataclass(frozen=True)
class JoinModel:
    """Describes a join of two streams, and the speed of its slots.

    References
    ----------
    STRETCH operator 3 (ScaleJoin), 8.3 to 8.6.
    """

    window_s: float
    """WS in seconds; > 0."""

    comparisons_per_s: float
    """Comparisons of one slot per second; > 0."""
    slots: int = 1
    """Slots at the start."""
    virtual_keys: int = 1000
    """Keys to which stored records are assigned in turn, so the number of key groups; default: the
    paper's."""
    stored_records: float | None = None
    """Fixed number of records with which every record is compared; > 0. None: the other stream's records
    of the last `window_s`, half of all."""
    buffer_records: int = 100
    """Most records in the tuple buffer that the slowest slot has not served; >= 0. Further records wait
    at their source, and so after a control record. Chosen: the paper gives no number."""
    switch_s: float = 0.012
    """Time from the meeting of all slots to the new epoch, in seconds; >= 0. Default: the paper's time
    for 30 -> 52 threads."""

    def __post_init__(self) -> None:
        check_range("join", "window_s", self.window_s, 0.0, above=True)
        check_range("join", "comparisons_per_s", self.comparisons_per_s, 0.0, above=True)
        check_range("join", "buffer_records", self.buffer_records, 0)
        check_range("join", "switch_s", self.switch_s, 0.0)
        if self.stored_records is not None:
            check_range("join", "stored_records", self.stored_records, 0.0, above=True)
        check_slots(self.slots, self.virtual_keys)

    def comparisons(self, arrival_s: F64) -> F64:
        """Return the number of stored records with which each record is compared, float64[n].

        Records belong to the two streams in turn.
        """
        if self.stored_records is not None:
            return np.full(len(arrival_s), self.stored_records)
        first = np.searchsorted(arrival_s, arrival_s - self.window_s)
        both: F64 = (np.arange(len(arrival_s)) - first).astype(np.float64)
        return both / 2.0

    def rate_at(self, slots: int) -> float:
        """Return the records per second that fully use `slots` slots once the window is full."""
        capacity = slots * self.comparisons_per_s
        if self.stored_records is not None:
            return capacity / self.stored_records
        return math.sqrt(2.0 * capacity / self.window_s)


@dataclass(frozen=True)
class Switch:
    """Holds the times of an epoch switch, and the numbers of slots before and after."""

    decided_s: float
    applied_s: float
    before: int
    after: int

    @property
    def took_s(self) -> float:
        """Reconfiguration time: from the request to the new epoch."""
        return self.applied_s - self.decided_s


class JoinEngine:
    """Runs the join on a virtual clock, tick by tick; a `MetricsSource` and an `Actuator`.

    Parameters
    ----------
    arrival_s : float64[n]
        Arrival of each record, in seconds, never decreasing. Records are in time order, and ready when
        they arrive.
    delta_s : float
        Length of a tick, in seconds.

    Attributes
    ----------
    done_s : float64[n]
        Completion of each record at its last slot so far; 0 if no slot has served the record.
    comparisons : float64[n]
        See `JoinModel.comparisons`.
    slots : list of int
        Slots at the end of each tick.
    spread : list of float
        Standard deviation over mean of the slots' useful time in each tick; NaN without useful time.

    References
    ----------
    STRETCH 5 and 7: after a request, the next record that a source adds brings the control record, and
    raises the watermark above its time. All slots complete the records before it, at most those of the
    buffer, and wait for each other; then one slot connects and disconnects slots, and the record is the
    first of the new epoch. No state moves, so the time of a switch does not depend on the window.
    """

    def __init__(self, model: JoinModel, arrival_s: F64, delta_s: float) -> None:
        self.comparisons = model.comparisons(arrival_s)
        self.done_s = np.zeros(len(arrival_s))
        self.slots: list[int] = []
        self.spread: list[float] = []
        self.switches: list[Switch] = []
        self._model, self._arrival_s, self._delta_s = model, arrival_s, delta_s
        self._assignment = spread(model.slots, model.virtual_keys)
        self._slot_ids = tuple(range(model.slots))
        self._next_id = model.slots
        self._position: I64 = np.zeros(model.slots, dtype=np.int64)
        self._clock_s: F64 = np.zeros(model.slots)
        self._useful_s: F64 = np.zeros(model.slots)
        self._tick = 0
        self._change: tuple[Change, float, int] | None = None
        self._samples: list[Sample] = []

    @property
    def time_s(self) -> float:
        """Virtual time, seconds since the start."""
        return self._tick * self._delta_s

    @property
    def served(self) -> int:
        """Number of records that every slot has served."""
        return int(self._position.min())

    def advance(self) -> float | None:
        """Simulate one tick; return the time at which a change came into force in it, if one did."""
        self._tick += 1
        arrived = int(np.searchsorted(self._arrival_s, self.time_s, side="right"))
        self._serve(arrived)
        applied_s = self._progress(arrived)
        if applied_s is not None:
            self._serve(arrived)
        self._sample(arrived)
        return applied_s

    def collect(self) -> Mapping[str, Sequence[Sample]]:
        """Return the samples since the last call, oldest first."""
        found, self._samples = self._samples, []
        return {OPERATOR: found}

    def assignment(self, operator: str) -> Assignment:
        """Return the assignment in force."""
        return self._assignment

    def apply(self, operator: str, change: Change) -> None:
        """Request `change`, which comes into force at the next record that a source adds."""
        if self._change is not None or change.assignment.epoch != self._assignment.epoch + 1:
            msg = (
                f"the join cannot take epoch {change.assignment.epoch} while epoch "
                f"{self._assignment.epoch} is in force or changing; decide again."
            )
            raise ProtocolError(msg)
        arrived = int(np.searchsorted(self._arrival_s, self.time_s, side="right"))
        trigger = min(arrived, self.served + self._model.buffer_records)
        self._change = change, self.time_s, trigger

    def _serve(self, arrived: int) -> None:
        limit = arrived if self._change is None else min(arrived, self._change[2])
        keys = np.bincount(self._assignment.slot_of, minlength=len(self._position))
        each_s = keys / (self._model.virtual_keys * self._model.comparisons_per_s)
        serve_join(
            self.time_s,
            limit,
            self._arrival_s,
            self.comparisons,
            each_s,
            self._position,
            self._clock_s,
            self._useful_s,
            self.done_s,
        )

    def _progress(self, arrived: int) -> float | None:
        """Switch the epoch if all slots have met and the switch is complete; return its time."""
        if self._change is None:
            return None
        change, decided_s, trigger = self._change
        if trigger >= arrived or (self._position < trigger).any():
            return None
        met_s = max(float(self._clock_s.max()), float(self._arrival_s[trigger]), decided_s)
        resume_s = met_s + self._model.switch_s
        if resume_s > self.time_s:
            return None
        survivors = [-1 if old is None else old for old in change.survivors]
        slots = len(survivors)
        # A sample has one assignment, here the new one: divide useful time by its keys.
        old_of, new_of = self._assignment.slot_of, change.assignment.slot_of
        of_key_s = (self._useful_s / np.bincount(old_of, minlength=len(self._useful_s)))[
            list(old_of)
        ]
        self._useful_s = np.bincount(new_of, of_key_s, slots).astype(np.float64)
        self._position = np.full(slots, trigger, dtype=np.int64)
        self._clock_s = np.full(slots, resume_s)
        new_ids = iter(range(self._next_id, self._next_id + slots))
        self._slot_ids = tuple(
            next(new_ids) if old < 0 else self._slot_ids[old] for old in survivors
        )
        self._next_id += survivors.count(-1)
        self.switches.append(
            Switch(decided_s, resume_s, self._assignment.slots, change.assignment.slots)
        )
        self._assignment, self._change = change.assignment, None
        return resume_s

    def _sample(self, arrived: int) -> None:
        """Append the sample of the tick; a record counts for every virtual key with the same share."""
        keys = self._model.virtual_keys
        useful_s, self._useful_s = self._useful_s, np.zeros(len(self._position))
        mean_s = float(useful_s.mean())
        self.slots.append(len(self._position))
        self.spread.append(float(useful_s.std()) / mean_s if mean_s else math.nan)
        self._samples.append(
            Sample(
                tick=self._tick,
                assignment=self._assignment,
                slot_ids=self._slot_ids,
                arrived=np.full(keys, arrived / keys),
                completed=self._position[list(self._assignment.slot_of)] / keys,
                useful_s=useful_s,
            )
        )


@dataclass(frozen=True)
class JoinRun:
    """Holds the results of a run of the join.

    Attributes
    ----------
    arrival_s, done_s, comparisons : float64[n]
        As in `JoinEngine`, for the records that all slots have served.
    slots : int64[ticks]
        Slots at the end of each tick.
    spread : float64[ticks]
        As in `JoinEngine`.
    decisions : list of dict
        See `DecisionLog`.
    """

    policy: str
    delta_s: float
    arrival_s: F64
    done_s: F64
    comparisons: F64
    slots: I64
    spread: F64
    switches: list[Switch]
    decisions: list[dict[str, object]]

    @property
    def latency_s(self) -> F64:
        """Completion minus arrival of each record, seconds."""
        return self.done_s - self.arrival_s

    def timeline(self, step_s: float = 1.0) -> dict[str, F64]:
        """Return series for a plot over time, with one entry per step.

        Returns
        -------
        dict of str to float64[steps]
            ``time_s`` (end of the step), ``rate_per_s`` (arrivals), ``comparisons_per_s`` (completed),
            ``latency_mean_s`` (of the records completed in the step; NaN without any), ``slots``
            (mean).
        """
        each = round(step_s / self.delta_s)
        steps = -(-len(self.slots) // each)

        def binned(at_s: F64, weights: F64 | None = None) -> F64:
            step = np.minimum((at_s / step_s).astype(np.int64), steps - 1)
            return np.bincount(step, weights, steps).astype(np.float64)

        completed = binned(self.done_s)
        with np.errstate(invalid="ignore"):
            mean_s: F64 = binned(self.done_s, self.latency_s) / completed
        starts = np.arange(0, len(self.slots), each)
        return {
            "time_s": np.arange(1, steps + 1, dtype=np.float64) * step_s,
            "rate_per_s": binned(self.arrival_s) / step_s,
            "comparisons_per_s": binned(self.done_s, self.comparisons) / step_s,
            "latency_mean_s": mean_s,
            "slots": np.add.reduceat(self.slots, starts)
            / np.diff(np.append(starts, len(self.slots))),
        }


def simulate_join(  # noqa: PLR0913 - a run has many sides
    model: JoinModel,
    arrival_s: F64,
    policy: Policy,
    until_s: float,
    *,
    slots_max: int,
    delta_s: float = 0.1,
    cycle_s: float = 0.5,
    from_s: float = 0.0,
    bound_s: float = 1.0,
) -> JoinRun:
    """Run the join under a policy from 0 to `until_s`.

    Parameters
    ----------
    arrival_s : float64[n]
        See `JoinEngine`.
    policy : Policy
        Cannot be used for another run.
    until_s : float
        End of the run; records that are not complete by then are excluded.
    delta_s : float
        Length of a tick of the counters, in seconds.
    cycle_s : float
        Length of a control cycle, in seconds; rounded to whole ticks.
    from_s : float
        Time before which no decision is made.
    bound_s : float
        Bound of the mean latency, for policies with a bound.
    """
    engine = JoinEngine(model, arrival_s, delta_s)
    log = DecisionLog(clock=lambda: engine.time_s)
    settings = OperatorSettings(bound_s, 1.0, slots_max, alert_s=bound_s / 10.0, floor_s=0.0)
    loop = ControlLoop(policy, engine, engine, log, {OPERATOR: settings}, delta_s=delta_s)
    loop.freeze(from_s)
    each = max(1, round(cycle_s / delta_s))
    for tick in range(1, math.ceil(until_s / delta_s - _ROUNDING) + 1):
        applied_s = engine.advance()
        if applied_s is not None:
            loop.applied(OPERATOR, applied_s)
        if tick % each == 0:
            loop.cycle(engine.time_s)
    served = engine.served
    return JoinRun(
        policy=policy.name,
        delta_s=delta_s,
        arrival_s=arrival_s[:served],
        done_s=engine.done_s[:served],
        comparisons=engine.comparisons[:served],
        slots=np.array(engine.slots, dtype=np.int64),
        spread=np.array(engine.spread),
        switches=engine.switches,
        decisions=log.entries,
    )
