"""Implements Daedalus: the fewest slots that sustain the forecast load and recover soon."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from headgate.control.decision import NOTHING, Change, Decision
from headgate.control.limits import check_range
from headgate.control.observation import Observation, OperatorView
from headgate.control.slots.rescaling import arrival_rate, rescaled
from headgate_lab.rivals.averages import processing_rate
from headgate_lab.rivals.capacity import CapacityModel
from headgate_lab.rivals.workload import CheckedForecast

F64 = npt.NDArray[np.float64]

_STEP_S = 1.0
"""Time between two samples, in seconds, as in the authors' code."""

_LAG_S = 1.0
"""Time of the slots' capacity, in seconds, above which a backlog prevents a scale-in."""

_DAY_S = 86_400.0
_ROUNDING = 1e-9


@dataclass(frozen=True)
class _Plan:
    """Holds a number of slots and its capacity; `recovery_s` is None if no number of slots is enough."""

    slots: int
    capacity: float
    recovery_s: float | None


class _Knowledge:
    """Holds the knowledge of one operator.

    Attributes
    ----------
    recent : deque of float
        Arrivals per second, a value per second, that would be replayed at worst.
    changed_s : float or None
        Time of the last change of slots, or of the first observation; None: the next observation.
    """

    def __init__(self, ahead: int, checkpoint_steps: int) -> None:
        self.workload = CheckedForecast(ahead)
        self.capacity = CapacityModel()
        self.recent: deque[float] = deque(maxlen=checkpoint_steps)
        self.slots = 0
        self.changed_s: float | None = None
        self._next_s: float | None = None

    def look(self, time_s: float, view: OperatorView, warmup_s: float) -> None:
        """Take a sample if one is due, also in place of missed ones."""
        self.slots = view.slots
        if self.changed_s is None:
            self.changed_s = time_s
        due_s = time_s if self._next_s is None else self._next_s
        if time_s < due_s - _ROUNDING:
            return
        steps = 1 + int((time_s - due_s + _ROUNDING) / _STEP_S)
        self._next_s = due_s + steps * _STEP_S
        for _ in range(steps):
            self.workload.observe(arrival_rate(view))
            self.recent.append(arrival_rate(view))
        if time_s - self.changed_s >= warmup_s - _ROUNDING:
            used = view.utilisation.tolist()
            self.capacity.observe(view.slot_ids, used, processing_rate(view))


class Daedalus:
    """Monitors, analyses, plans and executes, once per interval.

    *Analyse.* `CapacityModel` estimates the capacity of a number of slots, `CheckedForecast` the
    arrivals. After a change, the spare capacity over the forecast must serve the records since a
    checkpoint, those of the downtime, and the backlog; the time for that is `recovery_s`.

    *Plan.* The fewest slots whose capacity is above the workload, that recover in time, and that sustain
    the forecast until then, and over the whole horizon if they are a change; all slots if no number
    does. Nothing changes within `grace_s` of a change. Within `settle_s` slots only change if they do
    not sustain the workload of now and of the next interval. No scale-in while more than a second's work
    waits.

    Parameters
    ----------
    interval_s : float
        Time between two decisions, in seconds; > 0.
    horizon_s : float
        Horizon of the forecast, in seconds; > 0, at most a day.
    target_recovery_s : float
        Longest recovery after a change, in seconds; >= 0.
    grace_s, settle_s, warmup_s : float
        Periods after a change, and after the start, in seconds; >= 0: without changes; with necessary
        changes only; and in which utilisation does not count yet.
    checkpoint_s : float
        Interval of checkpoints, which is replayed at worst, in seconds; from 0 to a day.
    downtime_s : float
        Assumed downtime of the first scale-out, twice that of the first scale-in, in seconds; >= 0.

    References
    ----------
    Pfister, Scheinert, Geldenhuys, Kao, "Daedalus: Self-Adaptive Horizontal Autoscaling for Resource
    Efficiency of Distributed Stream Processing Systems", ICPE 2024, arXiv 2403.02093: its phases
    monitor, analyse, plan and execute. Numbers, and the order of the plan's rules, are those of the
    code that the authors published with it.

    Differs: each operator is a separate job, whose workload is its arrivals. CPU is a slot's useful time,
    throughput the service rate times that. ARIMA has no moving average, uses an hour of samples and
    begins with 60; forecasts are at least 0. The downtime is measured from changes of the same
    direction, the newest with the same weight as all previous ones; the paper infers recoveries from
    anomalies of the throughput, and adjusts the downtime by a second. At the start nothing changes for
    `grace_s`, where the authors wait for 500 s.
    """

    def __init__(
        self,
        interval_s: float = 60.0,
        horizon_s: float = 900.0,
        target_recovery_s: float = 600.0,
        grace_s: float = 180.0,
        settle_s: float = 600.0,
        warmup_s: float = 120.0,
        checkpoint_s: float = 10.0,
        downtime_s: float = 30.0,
    ) -> None:
        check_range("daedalus", "interval_s", interval_s, 0.0, above=True)
        check_range("daedalus", "horizon_s", horizon_s, 0.0, _DAY_S, above=True)
        check_range("daedalus", "checkpoint_s", checkpoint_s, 0.0, _DAY_S)
        least = {
            "target_recovery_s": target_recovery_s,
            "grace_s": grace_s,
            "settle_s": settle_s,
            "warmup_s": warmup_s,
            "downtime_s": downtime_s,
        }
        for name, value in least.items():
            check_range("daedalus", name, value, 0.0)
        self._interval_s, self._target_s = interval_s, target_recovery_s
        self._grace_s, self._settle_s, self._warmup_s = grace_s, settle_s, warmup_s
        self._ahead = max(1, round(horizon_s / _STEP_S))
        self._checkpoint_steps = round(checkpoint_s / _STEP_S)
        self._downtime_s = {"out": downtime_s, "in": downtime_s / 2.0}
        self._measured: set[str] = set()
        self._known: dict[str, _Knowledge] = {}
        self._due_s: float | None = None

    @property
    def name(self) -> str:
        """``daedalus``."""
        return "daedalus"

    def decide(self, observation: Observation) -> Decision:
        """Return the changes of an interval's end."""
        time_s = observation.time_s
        for name, view in observation.operators.items():
            if name not in self._known:
                self._known[name] = _Knowledge(self._ahead, self._checkpoint_steps)
            self._known[name].look(time_s, view, self._warmup_s)
        if self._due_s is None:
            self._due_s = time_s + self._interval_s
        if time_s < self._due_s - _ROUNDING:
            return NOTHING
        self._due_s = time_s + self._interval_s
        changes: dict[str, Change] = {}
        reasons: list[str] = []
        numbers: dict[str, float] = {}
        for name, view in observation.operators.items():
            known = self._known[name]
            if not known.workload.latest:
                continue
            known.workload.renew()
            known.capacity.renew()
            plan = self._plan(time_s, view, known)
            change = None if plan is None else rescaled(view, plan.slots)
            if plan is not None and change is not None:
                changes[name] = change
                numbers |= {f"{name}.{key}": n for key, n in _numbers(plan, known).items()}
                reasons.append(
                    f"{name} {_why(plan, known)}: {view.slots} -> {change.assignment.slots} slots"
                )
            known.workload.latest.clear()
        if not changes:
            return NOTHING
        return Decision(changes, "; ".join(reasons) + ".", "daedalus", numbers)

    def applied(self, operator: str, change: Change, took_s: float) -> None:
        """Start the period of grace, and update the downtime of this direction."""
        known = self._known.get(operator)
        if known is None:
            return
        known.changed_s = None
        way = "in" if change.assignment.slots < known.slots else "out"
        before_s = self._downtime_s[way] if way in self._measured else took_s
        self._downtime_s[way] = (before_s + took_s) / 2.0
        self._measured.add(way)

    def slot_failed(self, operator: str, slot_id: int) -> None:
        """Drop the samples of the slot."""
        if operator in self._known:
            self._known[operator].capacity.forget(slot_id)

    def _plan(self, time_s: float, view: OperatorView, known: _Knowledge) -> _Plan | None:
        """Return the planned number of slots; None for the present number."""
        since_s = time_s - (time_s if known.changed_s is None else known.changed_s)
        present, now, path = known.capacity.of(view.slots), known.workload.mean, known.workload.path
        if since_s < self._grace_s - _ROUNDING or present <= 0.0:
            return None
        sustained = present > max(now, _peak(path, self._interval_s))
        if since_s < self._settle_s - _ROUNDING and sustained:
            return None
        most = max(1, min(view.slots_max, view.assignment.key_groups))
        waiting = float(view.backlog.sum())
        replayed = sum(known.recent) * _STEP_S
        for slots in range(min(view.slots_min, most), most + 1):
            capacity = known.capacity.of(slots)
            if capacity <= now:
                continue
            downtime_s = self._downtime_s["in" if slots < view.slots else "out"]
            caught_up_s = recovery_s(capacity, path, downtime_s, waiting + replayed)
            if caught_up_s > self._target_s or capacity < _peak(path, caught_up_s):
                continue
            if slots == view.slots:
                return None
            held_back = slots < view.slots and waiting > present * _LAG_S
            if capacity > float(path.max()) and not held_back:
                return _Plan(slots, capacity, caught_up_s)
        return _Plan(most, known.capacity.of(most), None)


def recovery_s(capacity: float, path: F64, downtime_s: float, waiting: float) -> float:
    """Return the time from the beginning of a change until no records wait, in seconds.

    Parameters
    ----------
    capacity : float
        Records per second after the change.
    path : float64[n]
        Forecast of the arrivals per second, a value for each second from now on.
    waiting : float
        Records that wait already, or will be replayed.

    Returns
    -------
    float
        Infinite if records still wait at the end of the forecast.

    References
    ----------
    As `Daedalus`. A second with more arrivals than the capacity does not increase the backlog.
    """
    ends_s = np.arange(len(path) + 1) * _STEP_S
    stopped = float(np.interp(downtime_s, ends_s, np.append(0.0, np.cumsum(path) * _STEP_S)))
    spare = np.maximum(capacity - path[int(downtime_s / _STEP_S) :], 0.0) * _STEP_S
    caught_up = np.cumsum(spare) > waiting + stopped
    if not caught_up.any():
        return math.inf
    return downtime_s + (int(np.argmax(caught_up)) + 1) * _STEP_S


def _peak(path: F64, within_s: float) -> float:
    """Return the largest forecast within some seconds."""
    return float(path[: max(1, math.ceil(within_s / _STEP_S - _ROUNDING))].max())


def _why(plan: _Plan, known: _Knowledge) -> str:
    workload = known.workload
    gets = f"gets {workload.mean:.1f} records/s, {workload.by} foresees at most {workload.path.max():.1f}"
    if plan.recovery_s is None:
        return f"{gets}, and no number of slots sustains that and recovers in time"
    return (
        f"{gets}, and {plan.slots} slots sustain {plan.capacity:.1f} and have caught up "
        f"{plan.recovery_s:.1f} s after the change"
    )


def _numbers(plan: _Plan, known: _Knowledge) -> dict[str, float]:
    found = {
        "workload": known.workload.mean,
        "foreseen": float(known.workload.path.max()),
        "capacity": plan.capacity,
    }
    return found if plan.recovery_s is None else {**found, "recovery_s": plan.recovery_s}
