"""Computes latencies, arrival rates and service rates from an engine's counters."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from headgate.control.batch_times import BatchTimes
from headgate.control.estimators.kernels import (
    FALLEN,
    VALID,
    check,
    commit_groups,
    commit_slots,
    mean_latency,
    mean_utilisation,
)
from headgate.control.limits import window_ticks
from headgate.control.observation import OperatorView
from headgate.control.sample import Sample
from headgate.core.assignment import Assignment
from headgate.core.errors import ConfigError, NotReady

F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]

ETA = 1 / 8
"""Weight of a new measurement of the service rate; larger follows faster. StreamSwitch 4.2."""
_COSTS = 256
"""Number of measured costs that are stored; must exceed those of one cycle. Chosen, not tuned."""
_WAITING_WINDOWS = 10
_WAITING_TICKS = 100
# After a gap longer than ten windows and longer than a hundred ticks, the examiner starts again
# instead of interpolating. Chosen, not tuned.


@dataclass
class _Tick:
    """Holds the counters of one tick that is not used yet; NaN where a counter is missing."""

    tick: int
    assignment: Assignment
    slot_ids: tuple[int, ...]
    arrived: F64
    completed: F64
    useful_s: F64
    worked: F64 | None


class Examiner:
    """Estimates one operator's latencies and rates over a sliding window.

    Call `add` with every sample, oldest first, and `view` at the end of a cycle. Samples may be late,
    missing or absurd: then `view` raises `NotReady` with the reason. The next valid sample fills gaps
    in the counters by linear interpolation. Raises `ConfigError`: a parameter is out of range.

    Parameters
    ----------
    key_groups : int    G.
    delta_s : float    Length of a tick, in seconds.
    window_s : float    T, in seconds; rounded up to whole ticks.
    eta : float    Weight of a new measurement of a slot's service rate, in (0, 1].
    initial_service_rate : float or None
        mu of slots that have completed no record yet, in records per second; None: no view before
        some slot has completed a record.

    Notes
    -----
    A new slot has the mean service rate of the slots that its key groups come from, until it has
    completed a record itself. A new slot without key groups has the mean of all slots.

    A service rate is the number of records that a slot has processed, over its useful time. Completions
    over useful time would be wrong for a split key group: a slot processes its share of the group's
    records in one step, and the owner completes them in another step, whose useful time was spent on
    other records.

    References
    ----------
    StreamSwitch 4.1 to 4.3. The latencies l_i and l^k are means over the records that were completed in
    the window. A record counts for the slot that owned its key group in the tick of its completion; the
    completions of a split group are divided equally among the slots that have a share. The arrival rate
    lambda is the number of arrivals in the window over the window's length, as in the paper's formula;
    one sentence of the paper also smooths the rate. Differs: if a record takes longer than a tick, its
    useful time is added up over its ticks. Completions / useful time of single ticks would be 0 until
    the last tick, and there too large.
    """

    def __init__(
        self,
        key_groups: int,
        delta_s: float,
        window_s: float,
        *,
        eta: float = ETA,
        initial_service_rate: float | None = None,
    ) -> None:
        _check_parameters(key_groups, delta_s, eta, initial_service_rate)
        self._delta_s = delta_s
        self._eta = eta
        self._initial = math.nan if initial_service_rate is None else initial_service_rate
        # Values at the newest tick that was used.
        self._assignment: Assignment | None = None
        self._slot_ids: tuple[int, ...] = ()
        self._used_tick = 0
        self._arrived = np.zeros(key_groups)
        self._completed = np.zeros(key_groups)
        self._unread = np.zeros(key_groups)
        # Newest valid counters, also of ticks that are not used yet.
        self._known_arrived = np.full(key_groups, np.nan)
        self._known_completed = np.full(key_groups, np.nan)
        self._waiting: list[_Tick] = []
        self._fallen = False
        self._why = "no sample has come yet"
        # Each slot has one column of the arrays below, as long as its identity lives.
        self._columns: I64 = np.zeros(0, dtype=np.int64)
        self._column_of: I64 = np.zeros(key_groups, dtype=np.int64)
        self._service_rate = np.zeros(0)
        self._carried_s = np.zeros(0)
        self._batch: BatchTimes | None = None
        self._costs, self._costs_seen = np.zeros((_COSTS, 2)), 0
        self._all_groups: I64 = np.arange(key_groups)
        self._split: dict[int, I64] = {}
        self._queue_tick = np.zeros((key_groups, 16), dtype=np.int64)
        self._queue_upto = np.zeros((key_groups, 16))
        self._head = np.zeros(key_groups, dtype=np.int64)
        self._length = np.zeros(key_groups, dtype=np.int64)
        self._set_window(window_s)

    @property
    def window_s(self) -> float:
        """T, the length of the window in whole ticks, in seconds."""
        return self._window * self._delta_s

    @window_s.setter
    def window_s(self, window_s: float) -> None:
        self._set_window(window_s)

    def add(self, sample: Sample) -> None:
        """Add the counters of one tick.

        Ignores a sample of the wrong shape; the counters of its tick are then missing. Ignores a late
        sample, which comes after a sample of a newer tick, and the counters of a second one of a tick.
        A sample that is late by more than a window means that ticks were reset: the examiner starts
        again with it. Never raises.
        """
        groups = len(self._arrived)
        arrived = np.array(sample.arrived, dtype=np.float64)
        completed = np.array(sample.completed, dtype=np.float64)
        useful_s = np.asarray(sample.useful_s, dtype=np.float64)
        worked = None if sample.worked is None else np.asarray(sample.worked, dtype=np.float64)
        slots = sample.assignment.slots
        if (
            arrived.shape != (groups,)
            or completed.shape != (groups,)
            or sample.assignment.key_groups != groups
            or useful_s.shape != (slots,)
            or (worked is not None and worked.shape != (slots,))
            or not len(sample.slot_ids) == len(set(sample.slot_ids)) == slots
        ):
            self._why = (
                f"the sample of tick {sample.tick} does not have exactly one counter for each of "
                f"{groups} key groups and one useful time and identity for each of {slots} slots"
            )
            return
        late = self._assignment is not None and -self._window <= self._ahead(sample.tick) < 0
        if sample.unread is not None and not late:
            # unread records are no counter: the newest number counts, even if its tick is not used
            self._unread = np.nan_to_num(np.maximum(sample.unread, 0.0), posinf=0.0)
        if not late:
            self._batch = sample.batch
        worst = check(arrived, completed, self._known_arrived, self._known_completed)
        known = (arrived, completed, useful_s, worked)
        self._take(_Tick(sample.tick, sample.assignment, sample.slot_ids, *known), worst, sample)

    def view(
        self,
        *,
        bound_s: float,
        alert_s: float,
        floor_s: float = 0.0,
        slots_min: int = 1,
        slots_max: int = 1,
    ) -> OperatorView:
        """Return the view of the operator at the end of the newest tick.

        `bound_s`, `alert_s`, `floor_s`, `slots_min`, `slots_max`: as `OperatorView`. Raises
        `NotReady`: a counter is missing or absurd, the window is not full yet, or no service rate
        is known.
        """
        if self._why:
            raise NotReady(self._why)
        assert self._assignment is not None  # there is always a reason before the first sample
        service_rate = self._service_rate[self._columns]
        unknown = np.isnan(service_rate)
        if unknown.any():
            if unknown.all():
                msg = "no slot has completed a record yet, so that no service rate is known"
                raise NotReady(msg)
            service_rate[unknown] = service_rate[~unknown].mean()
        groups, slots = len(self._arrived), len(self._columns)
        group_latency, latency, utilisation = np.empty(groups), np.empty(slots), np.empty(slots)
        delta_s = self._delta_s
        mean_latency(self._group_count, self._group_ticks, self._all_groups, delta_s, group_latency)
        mean_latency(self._slot_count, self._slot_ticks, self._columns, delta_s, latency)
        if self._unread.any():
            latency += self._at_source_s()
        mean_utilisation(self._slot_useful, self._columns, delta_s, utilisation)
        before = self._history[(self._used_tick - self._window) % (self._window + 1)]
        return OperatorView(
            assignment=self._assignment,
            slot_ids=self._slot_ids,
            latency_s=latency,
            group_latency_s=group_latency,
            group_rate=(self._arrived - before) / self.window_s,
            service_rate=service_rate,
            utilisation=utilisation,
            backlog=np.maximum(self._arrived - self._completed, 0.0) + self._unread,
            bound_s=bound_s,
            window_s=self.window_s,
            alert_s=alert_s,
            floor_s=floor_s,
            slots_min=slots_min,
            slots_max=slots_max,
            arrived=self._arrived.copy(),
            costs=self._recent_costs(),
            costs_seen=self._costs_seen,
            batch=self._batch,
        )

    def _at_source_s(self) -> F64:
        """Return the time that each slot's records wait in the source, in seconds, shape [N].

        References
        ----------
        Little's law, with the slot's completions per second over the window.
        """
        assert self._assignment is not None
        unread = np.bincount(self._assignment.slot_of, self._unread, len(self._columns))
        per_s = self._slot_count[:, self._columns].sum(axis=0) / self.window_s
        delay_s: F64 = np.divide(unread, per_s, out=np.zeros(len(unread)), where=per_s > 0.0)
        return delay_s

    def _recent_costs(self) -> F64:
        """Return the ring of costs, oldest first."""
        seen, most = self._costs_seen, len(self._costs)
        if seen <= most:
            return self._costs[:seen].copy()
        return np.roll(self._costs, -(seen % most), axis=0)

    # Samples, in the sequence in which they come.

    def _take(self, new: _Tick, worst: int, sample: Sample) -> None:
        """Use a new tick if no tick before it is missing; otherwise queue and interpolate."""
        if self._assignment is None:
            self._start(new, worst)
            return
        ahead = self._ahead(new.tick)
        if -self._window <= ahead <= 0:
            return
        longest = max(_WAITING_WINDOWS * self._window, _WAITING_TICKS)
        # One sample with a fallen counter may be wrong; after two in a row the counters were reset.
        restarted = ahead <= 0 or (worst == FALLEN and self._fallen)
        if restarted or len(self._waiting) + ahead > longest:
            self._start_again(sample)
            return
        self._fallen = worst == FALLEN
        np.fmax(self._known_arrived, new.arrived, out=self._known_arrived)
        np.fmax(self._known_completed, new.completed, out=self._known_completed)
        if worst == VALID and ahead == 1 and not self._waiting:
            self._use(new)
            return
        for tick in range(new.tick - ahead + 1, new.tick):
            self._waiting.append(self._absent(tick))
        self._waiting.append(new)
        self._bridge()

    def _ahead(self, tick: int) -> int:
        """Return the number of ticks from the newest tick that is known to another one."""
        return tick - (self._waiting[-1].tick if self._waiting else self._used_tick)

    def _start(self, first: _Tick, worst: int) -> None:
        """Begin with a first sample; counters count from 0 at the start of tick 1."""
        if worst != VALID:
            self._why = f"the first sample, of tick {first.tick}, {_missing(first)}"
            return
        self._used_tick = first.tick - 1
        self._since = self._used_tick
        if first.tick == 1:
            self._arrived[:] = 0.0
            self._completed[:] = 0.0
        else:
            # The arrival times of waiting records are unknown: assume that they have just arrived.
            self._arrived[:] = first.arrived
            self._completed[:] = first.completed
        self._length[:] = 0
        waiting = np.flatnonzero(self._arrived > self._completed)
        self._queue_tick[waiting, self._head[waiting]] = self._used_tick
        self._queue_upto[waiting, self._head[waiting]] = self._arrived[waiting]
        self._length[waiting] = 1
        self._history[self._used_tick % (self._window + 1)] = self._arrived
        self._known_arrived[:] = first.arrived
        self._known_completed[:] = first.completed
        self._use(first)

    def _start_again(self, sample: Sample) -> None:
        """Forget counters and latencies, and begin with `sample`; service rates stay."""
        self._assignment = None
        self._waiting.clear()
        self._fallen = False
        self._known_arrived[:] = np.nan
        self._known_completed[:] = np.nan
        self.add(sample)

    def _absent(self, tick: int) -> _Tick:
        """Return a tick without counters, for a sample that is missing."""
        last = self._waiting[-1] if self._waiting else None
        assignment = self._assignment if last is None else last.assignment
        assert assignment is not None  # only called after a first sample
        nothing = np.full(len(self._arrived), np.nan)
        return _Tick(
            tick,
            assignment,
            self._slot_ids if last is None else last.slot_ids,
            nothing,
            nothing.copy(),
            np.full(assignment.slots, np.nan),
            None,
        )

    def _bridge(self) -> None:
        """Interpolate between valid counters, and use the ticks that are complete."""
        at = np.array([self._used_tick, *(tick.tick for tick in self._waiting)], dtype=np.float64)
        for last, name in ((self._arrived, "arrived"), (self._completed, "completed")):
            values = np.vstack([last, *(getattr(tick, name) for tick in self._waiting)])
            for group in np.flatnonzero(np.isnan(values).any(axis=0)):
                known = np.flatnonzero(~np.isnan(values[:, group]))
                line = np.interp(at, at[known], values[known, group])
                inside = slice(1, int(known[-1]) + 1)
                values[inside, group] = line[inside]
            for tick, row in zip(self._waiting, values[1:], strict=True):
                setattr(tick, name, row)
        while (
            self._waiting
            and not np.isnan(self._waiting[0].arrived + self._waiting[0].completed).any()
        ):
            self._use(self._waiting.pop(0))
        if self._waiting:
            oldest = self._waiting[0]
            self._why = f"tick {oldest.tick} {_missing(oldest)}"

    # Ticks, ascending and without gaps.

    def _use(self, new: _Tick) -> None:
        """Add a complete tick to the window."""
        if new.slot_ids != self._slot_ids or new.assignment != self._assignment:
            self._map(new.assignment, new.slot_ids)
        if self._length.max() == self._queue_tick.shape[1]:
            self._grow_queues()
        row = new.tick % self._window
        commit_groups(
            new.tick,
            row,
            new.arrived,
            new.completed,
            self._arrived,
            self._completed,
            self._queue_tick,
            self._queue_upto,
            self._head,
            self._length,
            self._column_of,
            self._group_count,
            self._group_ticks,
            self._slot_count,
            self._slot_ticks,
        )
        self._share_out(row)
        self._costs_seen = commit_slots(
            row,
            new.useful_s,
            self._slot_count[row, self._columns] if new.worked is None else new.worked,
            self._columns,
            self._slot_useful,
            self._service_rate,
            self._carried_s,
            self._eta,
            self._costs,
            self._costs_seen,
        )
        self._history[new.tick % (self._window + 1)] = self._arrived
        self._used_tick = new.tick
        full = new.tick - self._since
        self._why = "" if full >= self._window else f"{full} of {self._window} ticks have passed"

    def _share_out(self, row: int) -> None:
        """Count an equal part of a split group's completions for every slot with a share of the group.

        `commit_groups` has counted all of them for the owner, which merges the other slots' results.
        """
        for group, columns in self._split.items():
            for slots, groups in (
                (self._slot_count, self._group_count),
                (self._slot_ticks, self._group_ticks),
            ):
                slots[row, self._column_of[group]] -= groups[row, group]
                slots[row, columns] += groups[row, group] / len(columns)

    def _map(self, assignment: Assignment, slot_ids: tuple[int, ...]) -> None:
        """Give every slot a column; a new slot starts with the service rate of its sources."""
        old_ids, old_columns, old_column_of = self._slot_ids, self._columns, self._column_of
        known = dict(zip(old_ids, old_columns.tolist(), strict=True))
        self._widen(len(known) + len(slot_ids))
        free = iter(sorted(set(range(len(self._service_rate))) - set(known.values())))
        slot_of = np.asarray(assignment.slot_of)
        chosen = np.empty(len(slot_ids), dtype=np.int64)
        for slot, identity in enumerate(slot_ids):
            column = known.get(identity)
            if column is None:
                column = next(free)
                groups = [*assignment.groups_of(slot), *assignment.shares_at(slot)]
                sources = np.unique(old_column_of[groups]) if known else old_columns
                self._clear(column, sources if len(sources) else old_columns)
            chosen[slot] = column
        self._assignment, self._slot_ids = assignment, slot_ids
        self._columns, self._column_of = chosen, chosen[slot_of]
        self._split = {g: chosen[list(shares)] for g, shares in assignment.split.items()}

    def _clear(self, column: int, sources: I64) -> None:
        """Make a column ready for a new slot whose groups come from the columns `sources`."""
        for ring in (self._slot_count, self._slot_ticks):
            ring[:, column] = 0.0
        self._slot_useful[:, column] = np.nan
        self._carried_s[column] = 0.0
        rates = self._service_rate[sources]
        rates = rates[~np.isnan(rates)]
        self._service_rate[column] = rates.mean() if len(rates) else self._initial

    # The sizes of the arrays.

    def _set_window(self, window_s: float) -> None:
        """Begin an empty window of another length; queues and service rates stay."""
        groups, columns = len(self._arrived), len(self._service_rate)
        self._window = window_ticks(window_s, self._delta_s, groups)
        self._history = np.zeros((self._window + 1, groups))
        self._history[self._used_tick % (self._window + 1)] = self._arrived
        self._group_count = np.zeros((self._window, groups))
        self._group_ticks = np.zeros((self._window, groups))
        self._slot_count = np.zeros((self._window, columns))
        self._slot_ticks = np.zeros((self._window, columns))
        self._slot_useful = np.full((self._window, columns), np.nan)
        self._since = self._used_tick
        self._why = self._why or f"0 of {self._window} ticks have passed"

    def _widen(self, columns: int) -> None:
        """Make room for at least `columns` slots."""
        more = columns - len(self._service_rate)
        if more <= 0:
            return
        self._service_rate = np.append(self._service_rate, np.full(more, np.nan))
        self._carried_s = np.append(self._carried_s, np.zeros(more))
        wide = np.zeros((self._window, more))
        self._slot_count = np.hstack([self._slot_count, wide])
        self._slot_ticks = np.hstack([self._slot_ticks, wide])
        self._slot_useful = np.hstack([self._slot_useful, np.full_like(wide, np.nan)])

    def _grow_queues(self) -> None:
        """Double the capacity of the queues; each ring begins at 0 afterwards."""
        capacity = self._queue_tick.shape[1]
        order = (self._head[:, None] + np.arange(capacity)) % capacity
        tick = np.take_along_axis(self._queue_tick, order, axis=1)
        upto = np.take_along_axis(self._queue_upto, order, axis=1)
        self._queue_tick = np.hstack([tick, np.zeros_like(tick)])
        self._queue_upto = np.hstack([upto, np.zeros_like(upto)])
        self._head[:] = 0


def _missing(tick: _Tick) -> str:
    """Return which counters a tick lacks, for a sentence that begins with the tick."""
    groups = np.flatnonzero(np.isnan(tick.arrived + tick.completed))
    more = f" and {len(groups) - 1} more" if len(groups) > 1 else ""
    return f"has no valid counters of key group {groups[0]}{more}"


def _check_parameters(
    key_groups: int, delta_s: float, eta: float, initial_service_rate: float | None
) -> None:
    """Raise ConfigError where a parameter of `Examiner` is out of range."""
    if key_groups < 1:
        msg = f"key_groups={key_groups} is out of range; use 1 or more."
    elif not 0.0 < delta_s < math.inf:
        msg = f"delta_s={delta_s:g} is out of range; use a finite length above 0."
    elif not 0.0 < eta <= 1.0:
        msg = f"eta={eta:g} is out of range; use a weight above 0, at most 1."
    elif initial_service_rate is not None and not 0.0 < initial_service_rate < math.inf:
        msg = (
            f"initial_service_rate={initial_service_rate:g} is out of range; "
            "use records per second, above 0, or None."
        )
    else:
        return
    raise ConfigError(msg)
