"""Measures the useful time of slots: the rate that a slot can sustain, and the limit of that rate.

A task with five records takes nearly as long as a task with five hundred. The plain time per record of
such tasks would make a slot with little work look slow.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from headgate.control.batch_times import BatchTimes, TaskLog
from headgate.control.estimators.task_cost import FIXED_MS, TaskCost, makespan_ms
from headgate.spark.job.reports import Report

F64 = npt.NDArray[np.float64]

_PERIODS = 32
"""Number of batches whose time beside the slots is kept. Chosen, not tuned."""

_SERVING_SHARE_MIN = 0.2
"""Least share of a budget for serving, even if the fixed cost nearly fills it; keeps the rate above 0."""

_BESIDE_DECAY = 0.95
"""Weight of a batch over that of the next in the time beside the slots: about twenty batches."""

_EVIDENCE = 3.0
"""Standard errors by which the cost of a record beside the slots must exceed 0 to be used, since it is
extrapolated to many more records than were seen."""

_TOLD_MIN = 6.0
"""Least weight of all batches for this cost and its standard error."""

_BEFORE_MIN = 0.8
"""Share of a record's time before its slot above which more slots do not help: a quarter more slots
would save a twentieth of the time. Chosen, not tuned."""

_ROUNDING = 1e-9
"""Tolerance: two cores for slots that compute 2/5 of their time are five slots in floating point, too."""

_COMPUTING_DECAY = 0.9
"""Weight of a task over that of the next in the share of time in which slots compute."""


class BesideSlots:
    """Estimates the time of a batch beside its slots: a fixed part, and a part for each record.

    The part per record is a UDF, a parse or a filter between source and slots. More slots do not shorten
    this part.
    """

    def __init__(self) -> None:
        self._within: deque[float] = deque(maxlen=_PERIODS)
        self._between: deque[float] = deque(maxlen=_PERIODS)
        self._sums: F64 = np.zeros(6)
        """Weighted sums of 1, x, y, x*x, x*y, y*y; x: records of a batch, y: its `within_ms`."""

    def add(self, records: int, within_ms: float, between_ms: float) -> None:
        """Add a batch: its records, and the time beside the slots within the batch and before it."""
        self._within.append(within_ms)
        self._between.append(between_ms)
        x, y = float(records), within_ms
        self._sums = self._sums * _BESIDE_DECAY + np.array([1.0, x, y, x * x, x * y, y * y])

    @property
    def known(self) -> bool:
        """Return whether a batch was added."""
        return bool(self._within)

    @property
    def between_ms(self) -> float:
        """Return the usual time between two batches."""
        return _quartile(self._between)

    def line(self) -> tuple[float, float]:
        """Return (fixed ms of a batch, ms of a record)."""
        # a low quantile, since the time between batches of a quiet source is idle time
        between_ms = _quartile(self._between)
        count, x, y, xx, xy, yy = self._sums.tolist()
        across, both = xx - x * x / count, xy - x * y / count
        if count >= _TOLD_MIN and across > 0.0 and both > 0.0:
            slope = both / across
            left = max(yy - y * y / count - slope * both, 0.0) / (count - 2.0)
            fixed_ms = (y - slope * x) / count
            if slope > _EVIDENCE * math.sqrt(left / across) and fixed_ms >= 0.0:
                return between_ms + fixed_ms, slope
        return between_ms + _quartile(self._within), 0.0


class UsefulTime:
    """Computes the useful time of one operator's slot tasks, in seconds.

    Useful time is records over the slot's sustainable rate. So completions / useful time is that rate,
    and useful time / wall time is 1 when the slot can do no more. In a batch a slot serves
    ``(budget / waves - a) / b`` records; a: fixed cost beyond `FIXED_MS`, b: cost per record. The batch
    takes the budget and, beside the slots, the time for all these records. Without a budget, fixed
    costs do not count.

    Parameters
    ----------
    slot_rate : float or None
        Records per second that a slot serves in an experiment: useful time is served / rate.
    budget_s : callable    Returns the budget at present, or None.
    cores : callable
        Returns the number of slots that run at a time; more slots run in waves.
    machine : int or None    Cores of the machine, if all of Spark is on one.

    References
    ----------
    StreamSwitch 4.2 takes mu = completions / useful time, and assumes a cost per record only.
    """

    def __init__(
        self,
        slot_rate: float | None,
        budget_s: Callable[[], float | None],
        cores: Callable[[], int],
        machine: int | None = None,
    ) -> None:
        self._slot_rate = slot_rate
        self._budget_s = budget_s
        self._cores = cores
        self._machine = machine
        self._uncrowded = False
        self._cost = TaskCost()
        self._tasks = TaskLog()
        self._beside = BesideSlots()
        self._ended_ms: float | None = None
        self._computed_ms = self._took_ms = 0.0

    def add(
        self, reports: Sequence[Report], started_ms: float, ended_ms: float, slots: int
    ) -> list[float]:
        """Add the tasks of a batch, and return the useful time of each, in seconds.

        `reports`: reports of this operator's slots. `started_ms`, `ended_ms`: wall-clock times when
        the batch began and when it was committed.
        """
        if self._slot_rate is not None:
            return [report.work / self._slot_rate for report in reports]
        tasks = sorted((r.slot, r.work, r.useful_ms) for r in reports)
        for _, work, took_ms in tasks:
            self._tasks.add(work, max(took_ms - self._cost.fixed_ms, 0.0) / 1e3)
        self._cost.widen(slots)
        self._cost.add(tasks)
        self._learn_computing([report for report in reports if report.work])
        slots_ms = makespan_ms([took_ms for _, _, took_ms in tasks], self._at_once())
        if self._ended_ms is not None:
            within_ms = max(0.0, ended_ms - started_ms - slots_ms)
            between_ms = max(0.0, started_ms - self._ended_ms)
            self._beside.add(sum(r.arrived for r in reports), within_ms, between_ms)
        self._ended_ms = ended_ms
        sustained = self._sustained_per_s(slots)
        return [r.work / sustained[r.slot] if r.work else 0.0 for r in reports]

    def _learn_computing(self, reports: Sequence[Report]) -> None:
        """Estimate the share of their time in which slots compute or wait for a core.

        If the kernel does not report waits for a core, tasks that outnumber the cores seem to compute
        less. So they count only until a batch had enough cores for its tasks.
        """
        crowded = self._machine is not None and len(reports) > self._machine
        if crowded and self._uncrowded:
            return
        if not crowded and reports and not self._uncrowded:
            self._uncrowded, self._computed_ms, self._took_ms = True, 0.0, 0.0
        for report in reports:
            wanted_ms = report.cpu_ms + report.waited_ms
            self._computed_ms += wanted_ms - (1.0 - _COMPUTING_DECAY) * self._computed_ms
            self._took_ms += report.useful_ms - (1.0 - _COMPUTING_DECAY) * self._took_ms

    def renumber(self, survivors: Sequence[int | None]) -> None:
        """Record a new assignment; `survivors` as in `Change.survivors`."""
        self._cost.renumber(survivors)

    @property
    def record_s(self) -> float | None:
        """Return a slot's time per record, in seconds, the mean of the slots; None while unknown."""
        known = self._cost.record_ms
        return float(known.mean()) / 1e3 if known.any() else None

    @property
    def computing(self) -> float | None:
        """Share of their time in which slots compute; None while it is unknown."""
        if self._slot_rate is not None or not self._took_ms or not self._computed_ms:
            return None
        return min(self._computed_ms / self._took_ms, 1.0)

    def batch(self) -> BatchTimes | None:
        """Return how batches spend their time; None for slots at a fixed rate, or while it is unknown.

        It is unknown how much of a batch's time beside the slots is before them, and how much after
        them; all of it counts as before.
        """
        if self._slot_rate is not None or not self._beside.known:
            return None
        batch_ms, record_ms = self._beside.line()
        between_ms = self._beside.between_ms
        budget_s = self._budget_s()
        return BatchTimes(
            before_s=(batch_ms - between_ms) / 1e3,
            record_s=record_ms / 1e3,
            task_s=self._cost.fixed_ms / 1e3,
            after_s=between_ms / 1e3,
            budget_s=math.inf if budget_s is None else budget_s,
            cores=self._at_once(),
            tasks=self._tasks.newest(),
            tasks_seen=self._tasks.seen,
        )

    def limit(self, slots: int, cores: int) -> tuple[int, str] | None:
        """Return the largest useful number of slots, and why not more; None if no limit is known.

        `slots`: the present number. `cores`: cores of the machine; Spark may have been started with
        more.
        """
        known = self._cost.record_ms[:slots]
        if self._slot_rate is not None or not known.any() or not self._beside.known:
            return None
        in_slots_ms = float(known.mean()) * self._waves(slots) / slots
        _, before_ms = self._beside.line()
        if before_ms > _BEFORE_MIN * (before_ms + in_slots_ms):
            return slots, (
                f"what comes before the slots is the limit: a record takes {before_ms:.3g} ms there, "
                f"and {in_slots_ms:.3g} ms in {slots} slots"
            )
        most = self._at_once()
        at_once = "one slot" if most == 1 else f"{most} slots"
        why = f"the cores are the limit: Spark runs {at_once} at a time"
        computing = self.computing
        if computing is not None and cores / computing < most:
            most = max(1, math.floor(cores / computing + _ROUNDING))
            why = (
                f"the cores are the limit: slots compute for {computing:.0%} of their time, and the "
                f"machine has {cores}"
            )
        return most, why

    def _at_once(self) -> int:
        return max(1, self._cores())

    def _waves(self, slots: int) -> int:
        return -(-slots // self._at_once())

    def _sustained_per_s(self, slots: int) -> F64:
        """Return the records per second that each slot can sustain; inf while nothing is known."""
        record_ms = self._cost.record_ms[:slots]
        if not record_ms.any():
            return np.full(slots, np.inf)
        waves, budget_s = self._waves(slots), self._budget_s()
        batch_ms, beside_ms = self._beside.line() if self._beside.known else (0.0, 0.0)
        if budget_s is None or not self._beside.known:
            served = 1.0 / record_ms
            return served * 1e3 / (waves + beside_ms * float(served.sum()))
        turn_ms = budget_s * 1e3 / waves + FIXED_MS
        served = max(turn_ms - self._cost.fixed_ms, _SERVING_SHARE_MIN * turn_ms) / record_ms
        return served * 1e3 / (waves * turn_ms + batch_ms + beside_ms * float(served.sum()))


def _quartile(values: Sequence[float] | deque[float]) -> float:
    return sorted(values)[len(values) // 4]
