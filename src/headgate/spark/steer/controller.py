"""Runs the control loop of a job on Spark, beside its batches.

The batches' thread only queues events. The controller's own thread counts, examines and decides after
each batch, so no batch ever waits for the loop.
"""

from __future__ import annotations

import queue
import threading
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from headgate.control.estimators.examiner import Examiner
from headgate.control.estimators.task_cost import makespan_ms
from headgate.control.fleet.grant import Grant
from headgate.control.fleet.granted import Granted
from headgate.control.policy import Policy
from headgate.control.sample import Sample
from headgate.core.assignment import spread
from headgate.core.errors import ConfigError
from headgate.core.slo import END_TO_END, Slo
from headgate.journal.parts import SloState
from headgate.journal.schema import Decided, Event
from headgate.loop import steering
from headgate.loop.batch_floor import BatchFloor
from headgate.loop.loop import ControlLoop, LoopState
from headgate.spark.job.assignment_request import AssignmentRequest, RequestState
from headgate.spark.job.changes import Changes
from headgate.spark.job.job import JobConfig, OperatorState
from headgate.spark.job.origins import Origins
from headgate.spark.job.reports import Report
from headgate.spark.steer.actuator import SparkActuator
from headgate.spark.steer.decisions import DecisionWriter
from headgate.spark.steer.entries import EntryRates
from headgate.spark.steer.metrics import SparkMetrics
from headgate.spark.steer.success import SuccessRate
from headgate.spark.steer.useful_time import UsefulTime

DELTA_S = 0.1
"""Tick of the control loop, in seconds: the "time slot" of StreamSwitch 6."""

_STOP_WAIT_S = 5.0
_WORST = (LoopState.UNREACHABLE, LoopState.NOT_READY, LoopState.CHANGING, LoopState.STEADY)
"""States of operators, in order: a job shows the first state that one of its operators has."""


@dataclass(frozen=True)
class ControlConfig:
    """Holds the settings of a job's control loop."""

    slos: tuple[Slo, ...]
    policy: Policy
    slots_min: int = 1
    slots_max: int = 1
    advise: bool = False
    """Whether the loop only writes its decisions into the journal, and changes nothing."""
    floor_s: float | None = None
    """Experiment: the latency floor in place of the measured one."""
    unsplittable: Mapping[str, str] = field(default_factory=dict)
    """By operator, why its key groups cannot be split; empty if they can."""
    windows_us: Mapping[str, int] = field(default_factory=dict)
    """As `Origins` takes it."""
    cycle_s: float = 0.0
    """Least time between two cycles of the loop, since epochs may be shorter than a tick."""


@dataclass(frozen=True)
class Cores:
    """Holds the cores and hosts that slots run on."""

    at_once: Callable[[], int]
    """Returns the number of slots that run at a time."""
    machine: int | None = None
    """Cores of the machine if all of Spark is on one; None if other machines may add cores."""


@dataclass
class _Spent:
    """Holds the cost of the loop since the last batch line."""

    cpu_s: float = 0.0
    cycles: int = 0


class Controller:
    """Steers a running job towards its SLO.

    `assigned`, `committed` and `quiet` are called by the batches' thread, in order; they return at
    once. Everything else happens in the controller's own thread, from `start` to `stop`.

    Parameters
    ----------
    states : mapping of str to OperatorState    Sources first; read only before the job runs.
    budget_s : callable    Returns the time that a slot may serve per batch at present, or None.
    parents : mapping of str to tuple of str    As `Observation.parents`.
    """

    def __init__(
        self,
        config: ControlConfig,
        job: JobConfig,
        states: Mapping[str, OperatorState],
        changes: Changes,
        write: Callable[[Event], None],
        *,
        budget_s: Callable[[], float | None],
        cores: Cores,
        parents: Mapping[str, tuple[str, ...]],
    ) -> None:
        self._config = config
        self._unread: Callable[[], float] = lambda: 0.0
        self._unread_records = 0.0
        self._began_s = time.monotonic()
        self._changes = changes
        self._cores = cores
        self._names = list(states)
        self._targets = steering.targets_of(config.slos, self._names)
        origins = Origins({name: parents.get(name, ()) for name in states}, config.windows_us)
        self._last = origins.last
        self._entrances = [name for name in states if not parents.get(name)]
        self._metrics = SparkMetrics(DELTA_S, time.time() * 1e3, origins)
        for name, target in self._targets.items():
            state = states[name]
            limited = job.slot_rate if not parents.get(name) else None
            self._metrics.add_operator(
                name,
                state.assignment,
                _waiting(state),
                UsefulTime(limited, budget_s, cores.at_once, cores.machine),
                SuccessRate(target.slo, job.key_groups, DELTA_S),
                by_results=target.slo.scope == END_TO_END and origins.judges(name),
                alone=len(states) == 1,
            )
        self._writer = DecisionWriter(write, config.policy.name)
        writer = self._writer
        actuator = SparkActuator(changes, config.policy.name, lambda: writer.reason, self._refused)
        self._granted = Granted(config.policy)
        self._loop = ControlLoop(
            self._granted,
            self._metrics,
            actuator,
            self._writer,
            steering.settings_of(
                self._targets,
                slots_min=config.slots_min,
                slots_max=config.slots_max,
                unsplittable=config.unsplittable,
            ),
            delta_s=DELTA_S,
            parents={name: parents.get(name, ()) for name in self._targets},
            end_to_end_s=steering.end_to_end_s(config.slos, list(states)),
        )
        self._loop.advise(config.advise)
        # the loop itself measures the floor of operators that read other operators
        self._first = [name for name in self._targets if not parents.get(name)]
        self._floor = BatchFloor()
        self._entries = {name: EntryRates(job.key_groups) for name in self._targets}
        self._events: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="headgate-control", daemon=True)
        self._due, self._next_s = False, 0.0
        self._failed = ""
        self._warned = False
        self._spent = _Spent()
        self._state = self._measured()

    def follow_sources(self, unread: Callable[[], float]) -> None:
        """Count unread records of the sources as backlog; `unread` returns their number."""
        self._unread = unread

    # -- the batches' side ------------------------------------------------------------------------

    def assigned(self, operator: str, request: AssignmentRequest) -> None:
        """Record that the next step runs under a new assignment.

        While the request moves, this assignment is between the old and the requested one.
        """
        at_ms = time.time() * 1e3
        self._events.put(lambda: self._on_assigned(operator, request, at_ms))

    def committed(self, reports: list[Report], started_ms: float, horizon_ms: float) -> None:
        """Record a committed step; parameters as in `SparkMetrics.committed`."""
        ended_ms, unread = time.time() * 1e3, self._unread()
        self._events.put(lambda: self._on_unread(reports, unread))
        self._events.put(lambda: self._on_committed(reports, started_ms, horizon_ms, ended_ms))

    def quiet(self, horizon_ms: float) -> None:
        """Record that no record arrived until `horizon_ms`, and that no work is left."""
        self._events.put(lambda: self._on_unread((), 0.0))
        self._events.put(lambda: self._on_quiet(horizon_ms))

    def lost(self, operator: str, slot: int) -> None:
        """Record that a slot's executor or Python worker was lost.

        References
        ----------
        StreamSwitch 5, `onExecutorFailed`.
        """
        self._events.put(lambda: self._on_lost(operator, slot))

    def bound_ms(self, operator: str) -> float:
        """Return the latency above which an operator's records count as missed, ms; 0 for none."""
        target = self._targets.get(operator)
        if target is None or target.slo.statistic == "mean":
            return 0.0
        return target.slo.bound * 1e3

    def asks_origins(self) -> bool:
        """Return whether an SLO is end-to-end, so that results need the arrival of their records."""
        return any(target.slo.scope == END_TO_END for target in self._targets.values())

    def state(self) -> SloState:
        """Return the state of the job's SLO, and the cost of the loop since the last call."""
        spent, self._spent = self._spent, _Spent()
        return replace(self._state, loop_ms=round(spent.cpu_s * 1e3, 3), cycles=spent.cycles)

    # -- the user's side --------------------------------------------------------------------------

    def start(self) -> None:
        """Compile the loop's kernels, then begin to process events."""
        _warm()
        self._thread.start()

    def stop(self) -> None:
        """Process the queued events, and end."""
        self._events.put(None)
        self._thread.join(_STOP_WAIT_S)

    def freeze(self, until_s: float, given_up: Sequence[str] = ()) -> None:
        """Decide nothing before `until_s`, seconds since 1970.

        `given_up`: operators whose requested change will not come into force.
        """
        self._events.put(lambda: self._on_frozen(until_s, given_up))

    def thaw(self) -> None:
        """Decide again after a freeze."""
        self._events.put(self._loop.thaw)

    @property
    def acts(self) -> bool:
        """Return whether the policy changes slots, and does not only advise."""
        return not self._config.advise and self._config.policy.name != "static"

    @property
    def policy(self) -> str:
        """The policy's name."""
        return self._config.policy.name

    def hold(self, until_s: Mapping[str, float]) -> None:
        """Keep the policy from changing the number of operators' slots; as `Changes.hold`."""
        self._events.put(lambda: self._on_hold(until_s))

    def limit(self, grant: Grant) -> None:
        """Decide within `grant` from now on; run a cycle soon if an operator has more slots."""
        self._events.put(lambda: self._on_grant(grant))

    def requests(self) -> dict[str, int]:
        """Return the slots that the policy requests, where these are more than granted."""
        return self._granted.requests

    def judge_by(self, slos: Sequence[Slo]) -> None:
        """Steer by other SLOs from the next cycle on.

        Raises `ConfigError`: the SLOs concern other operators than before, or no latency.
        """
        targets = steering.targets_of(slos, self._names)
        if set(targets) != set(self._targets):
            msg = (
                "an SLO may change its bound and window while a query runs, not the operators it is "
                f"about; this one is about {', '.join(self._targets)}."
            )
            raise ConfigError(msg)
        end_to_end_s = steering.end_to_end_s(slos, self._names)
        self._events.put(lambda: self._on_slos(targets, end_to_end_s))

    def record_cost(self) -> tuple[float | None, float | None]:
        """Return (time, share) of the work per record at a slot of the first operator.

        The time is an estimate in seconds, the mean of the slots; the share is the part of the time in
        which slots compute. Each is None while it is unknown. Only the policy's thread may call this.
        """
        return self._metrics.record_cost(self._first[0]) if self._first else (None, None)

    def decisions(self) -> list[Decided]:
        """Return the last decisions, oldest first."""
        return list(self._writer.kept)

    # -- the controller's own thread --------------------------------------------------------------

    def _run(self) -> None:
        while (event := self._events.get()) is not None:
            began_s = time.thread_time()
            self._run_guarded(event)
            if self._due and self._events.empty() and time.monotonic() >= self._next_s:
                self._due = False
                self._next_s = time.monotonic() + self._config.cycle_s
                self._run_guarded(self._cycle)
                self._spent.cycles += 1
            self._spent.cpu_s += time.thread_time() - began_s
        self._state = self._measured()

    def _run_guarded(self, work: Callable[[], None]) -> None:
        """Do `work`; record a failure in the journal, since the query must go on without the loop."""
        try:
            work()
        except Exception as error:
            why = f"the control loop failed: {type(error).__name__}: {error}"
            if why != self._failed:
                self._failed = why
                self._writer.not_ready("", why)

    def _on_assigned(self, operator: str, request: AssignmentRequest, at_ms: float) -> None:
        if operator not in self._targets:
            return
        self._metrics.assigned(operator, request.assignment, request.survivors, at_ms)
        if request.state is RequestState.MOVING:
            return
        if request.decided and request.state is RequestState.IN_FORCE:
            self._loop.applied(operator, self._now_s())
        elif self._loop.state(operator) is LoopState.CHANGING:
            self._loop.note_abandoned(operator)  # a user was first, or the migration failed

    def _on_frozen(self, until_s: float, given_up: Sequence[str]) -> None:
        self._loop.freeze(self._now_s() + until_s - time.time())
        for name in given_up:
            if name in self._targets and self._loop.state(name) is LoopState.CHANGING:
                self._loop.note_abandoned(name)

    def _on_hold(self, until_s: Mapping[str, float]) -> None:
        now_s = self._now_s() - time.time()
        self._loop.hold({name: now_s + at_s for name, at_s in until_s.items()})

    def _on_lost(self, operator: str, slot: int) -> None:
        if operator in self._targets:
            self._loop.slot_failed(operator, self._metrics.slot_id(operator, slot))

    def _on_unread(self, reports: Sequence[Report], records: float) -> None:
        self._unread_records = records
        self._metrics.wait_at_sources(self._entrances, reports, records)

    def _on_committed(
        self, reports: list[Report], started_ms: float, horizon_ms: float, ended_ms: float
    ) -> None:
        self._metrics.committed(reports, started_ms, horizon_ms, ended_ms)
        for name, entries in self._entries.items():
            entries.add([r for r in reports if r.operator == name], started_ms)
            self._loop.note_entry_rate(name, entries.per_s)
        self._measure_floor(reports, started_ms)
        self._due = True

    def _measure_floor(self, reports: list[Report], started_ms: float) -> None:
        first = [r for r in reports if r.operator in self._first]
        records = sum(count for r in first for _, count in r.histogram)
        latency_ms = sum(r.latency_sum_ms for r in first)
        self._floor.add(
            started_ms,
            latency_ms / records / 1e3 if records else None,
            busy_s(reports, self._cores.at_once()),
            # in every step, merged rows of shares wait one step for their owner: that is no backlog
            self._unread_records > 0.0
            or any(r.waiting_records or sum(r.taken.values()) > r.merged_rows for r in first),
            self._unread_records + sum(r.waiting_records for r in first) > records,
        )
        given_s = self._config.floor_s
        floor_s = self._floor.value_s if given_s is None else given_s
        for name in self._first:
            self._configure(name, floor_s)

    def _on_slos(
        self, targets: dict[str, steering.LatencyTarget], end_to_end_s: float | None
    ) -> None:
        self._targets = targets
        self._loop.bound_end_to_end(end_to_end_s)
        for name, target in targets.items():
            if (success := self._metrics.success(name)) is not None:
                success.judge_by(target.slo)
            self._configure(name, self._loop.settings(name).floor_s)

    def _configure(self, operator: str, floor_s: float | None) -> None:
        """Set an operator's target in the loop; `floor_s` is None if the loop measures the floor."""
        target, known_s = self._targets[operator], floor_s or 0.0
        most, why = self._limit(operator)
        settings = replace(
            self._loop.settings(operator),
            slots_max=most,
            limit=why,
            bound_s=target.mean_bound_s(known_s),
            window_s=target.slo.window_s,
            alert_s=target.alert_s(known_s),
            success=target.slo.success,
            floor_s=floor_s,
        )
        self._loop.configure(operator, settings)

    def _limit(self, operator: str) -> tuple[int, str]:
        """Return the largest useful number of an operator's slots, and why more would not help."""
        asked, cores = self._config.slots_max, self._cores.machine
        limit = None if cores is None else self._metrics.limit(operator, cores)
        if limit is None or limit[0] >= asked:
            return asked, ""
        return max(limit[0], self._config.slots_min), limit[1]

    def _on_grant(self, grant: Grant) -> None:
        self._granted.grant = grant
        held = self._changes.assignment()
        # a larger grant needs no cycle at once: the policy uses it with the next samples
        self._due |= any(held[name].slots > grant.most(name, held[name].slots) for name in held)

    def _on_quiet(self, horizon_ms: float) -> None:
        self._metrics.known_until(horizon_ms)
        self._due = True

    def _cycle(self) -> None:
        self._loop.cycle(self._now_s())
        self._state = self._measured()
        if self._state.state == LoopState.UNREACHABLE and not self._warned:
            self._warned = True
            self._warn()

    def _warn(self) -> None:
        """Warn that no number of slots can meet an SLO."""
        for name, target in self._targets.items():
            if self._loop.state(name) is LoopState.UNREACHABLE:
                floor_s, mean_s = self._loop.floor_s(name), self._loop.bound_s(name)
                least_s = 2 * floor_s * target.slo.bound / mean_s
                # a percentile, and a share of an end-to-end bound, are held to a mean of their own
                stands = (
                    "" if mean_s == target.slo.bound else f", and may have {mean_s * 1e3:.0f} ms"
                )
                warnings.warn(
                    f'SLO "{target.slo}" is below two floors of this query: {name} takes '
                    f"{floor_s * 1e3:.0f} ms in the mean even with next to nothing to do{stands}. "
                    f"Relax it to at least {least_s * 1e3:.0f} ms, or pass .advise().",
                    stacklevel=2,
                )

    def _refused(self, operator: str) -> None:
        self._loop.note_abandoned(operator)

    def _now_s(self) -> float:
        return time.monotonic() - self._began_s

    def _measured(self) -> SloState:
        """Return the state of the job's SLO."""
        judged = {name: self._metrics.success(name) for name in self._targets}
        rates = {name: rate for name, rate in judged.items() if rate and rate.windows.any()}
        # for an end-to-end SLO, only the last operators' results count for the job's success
        whole = [rate for name, rate in rates.items() if self._is_whole(name)]
        shares = np.concatenate([rate.shares() for rate in whole]) if whole else np.zeros(0)
        worst = min(((*r.worst(), name) for name, r in rates.items()), default=None)
        states = {self._loop.state(name) for name in self._targets}
        return SloState(
            state=str(next(s for s in _WORST if s in states)),
            frozen=self._changes.frozen,
            success=round(float(shares.mean()), 6) if len(shares) else None,
            success_worst=round(worst[0], 6) if worst else None,
            worst_group=worst[1] if worst and len(rates[worst[2]].windows) > 1 else None,
            worst_operator=worst[2] if worst else None,
            windows=sum(int(r.windows.sum()) for r in rates.values()),
            windows_empty=sum(r.empty for r in rates.values()),
            wanted=max(target.slo.success for target in self._targets.values()),
            bound_ms=round(min(t.slo.bound for t in self._targets.values()) * 1e3, 3),
            floor_ms=round(max(self._loop.floor_s(name) for name in self._targets) * 1e3, 3),
            loop_ms=0.0,
            cycles=0,
            by_operator={name: round(float(r.shares().mean()), 6) for name, r in rates.items()},
            windows_met=sum(int(r.met.sum()) for r in rates.values()),
            windows_of={n: (int(r.windows.sum()), int(r.met.sum())) for n, r in rates.items()},
            windows_stalled=sum(r.stalled for r in rates.values()),
            held_until_ms=round(1e3 * max(self._changes.holds().values(), default=0.0)) or None,
        )

    def _is_whole(self, operator: str) -> bool:
        """Return whether an operator's success is part of the job's."""
        return self._targets[operator].slo.scope != END_TO_END or operator in self._last


def busy_s(reports: Sequence[Report], cores: int) -> float:
    """Return the time of a batch's slots, in seconds: operators in sequence, slots on `cores` cores."""
    took_ms: dict[str, list[float]] = {}
    for report in sorted(reports, key=lambda item: item.slot):
        took_ms.setdefault(report.operator, []).append(report.useful_ms)
    return sum(makespan_ms(tasks, max(1, cores)) for tasks in took_ms.values()) / 1e3


def _waiting(state: OperatorState) -> npt.NDArray[np.float64]:
    """Return the backlog that an earlier run has left, in records per key group."""
    waiting = np.zeros(state.assignment.key_groups)
    for group, segments in state.backlog.items():
        # the key of a share of a split group is the group plus a multiple of the number of groups;
        # for merged rows, their records count, as at their completion
        waiting[group % len(waiting)] += sum(
            (segment[4:] or [segment[2]])[0] for segment in segments
        )
    return waiting


def _warm() -> None:
    """Run an examiner once, since compilation during batches would stop all threads."""
    examiner = Examiner(1, DELTA_S, DELTA_S)
    for tick in (1, 2, 3):
        count, nothing = np.full(1, float(tick)), np.zeros(1)
        examiner.add(Sample(tick, spread(1, 1), (0,), count, count, nothing + DELTA_S))
    examiner.view(bound_s=1.0, alert_s=DELTA_S)
