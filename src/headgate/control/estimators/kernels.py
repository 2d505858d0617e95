"""Runs the examiner's loops over key groups and slots, as plain functions on arrays.

The waiting records of a key group are a queue of pairs: a tick, and the number of the last record that
arrived in the tick. Only ticks with arrivals have a pair. Row g of `queue_tick` and `queue_upto` is a
ring of ``length[g]`` pairs that starts at ``head[g]``.

Arrays with W rows hold a window of W ticks; the newest tick overwrites the row of the oldest.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from headgate.core.jit import jit

F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]

# Results of `check`; a larger number is worse.
VALID, MISSING, FALLEN = range(3)

COUNTER_MAX = 2.0**53
"""Largest valid counter: above it float64 does not count single records."""
SERVICE_RATE_MAX = 1e12
"""Largest valid service rate, in records/s; a larger one means that the useful time is wrong."""
USEFUL_MAX_S = 1e9
"""Largest valid useful time of one tick, in seconds: thirty years."""
# Tolerance in records: counts of a fluid model have rounding errors.
_SLACK = 1e-6


@jit
def check(arrived: F64, completed: F64, known_arrived: F64, known_completed: F64) -> int:
    """Return the worst state of all groups, and turn unusable counters into NaN.

    An entry is missing if it is not a number from 0 to `COUNTER_MAX`, or if more was completed than
    arrived; it has fallen if it is below the last known value, as after a counter's reset.

    `arrived`, `completed` (float64[G]): counters of one tick; changed in place. `known_arrived`,
    `known_completed` (float64[G]): the newest valid values; NaN before the first.
    """
    worst = VALID
    for g in range(len(arrived)):
        a = arrived[g]
        c = completed[g]
        if not 0.0 <= a <= COUNTER_MAX:
            a = np.nan
        if not 0.0 <= c <= COUNTER_MAX:
            c = np.nan
        if c > a + _SLACK:
            a = np.nan
            c = np.nan
        if a < known_arrived[g] - _SLACK or c < known_completed[g] - _SLACK:
            worst = FALLEN
            a = np.nan
            c = np.nan
        elif worst == VALID and (np.isnan(a) or np.isnan(c)):
            worst = MISSING
        arrived[g] = a
        completed[g] = c
    return worst


@jit
def commit_groups(
    tick: int,
    row: int,
    arrived: F64,
    completed: F64,
    last_arrived: F64,
    last_completed: F64,
    queue_tick: I64,
    queue_upto: F64,
    head: I64,
    length: I64,
    column_of: I64,
    group_count: F64,
    group_ticks: F64,
    slot_count: F64,
    slot_ticks: F64,
) -> None:
    """Attribute the completions of one tick to the ticks in which the records arrived.

    The r-th record of a key group arrived in the tick m' with r in (a[m'-1], a[m']]; the record has
    waited for m - m' ticks.

    Parameters
    ----------
    tick, row : int    m, and its row in the rings of the window.
    arrived, completed : float64[G]    a[m] and c[m], without gaps.
    last_arrived, last_completed : float64[G]
        a[m-1] and c[m-1]; changed in place to a[m] and c[m].
    queue_tick, queue_upto : [G, capacity]    With room for one more pair in each row.
    head, length : int64[G]
    column_of : int64[G]    Column of the slot that owned each group in this tick.
    group_count, group_ticks : float64[W, G]
        Completions, and the sum of their waiting times in ticks.
    slot_count, slot_ticks : float64[W, columns]    The same per slot.
    """
    capacity = queue_tick.shape[1]
    slot_count[row, :] = 0.0
    slot_ticks[row, :] = 0.0
    for g in range(len(arrived)):
        if arrived[g] > last_arrived[g]:
            tail = (head[g] + length[g]) % capacity
            queue_tick[g, tail] = tick
            queue_upto[g, tail] = arrived[g]
            length[g] += 1
            last_arrived[g] = arrived[g]
        done = last_completed[g]
        target = min(completed[g], last_arrived[g])
        waited = 0.0
        while done < target and length[g] > 0:
            first = head[g]
            upto = min(queue_upto[g, first], target)
            waited += (upto - done) * (tick - queue_tick[g, first])
            done = upto
            if done >= queue_upto[g, first]:
                head[g] = (first + 1) % capacity
                length[g] -= 1
        count = done - last_completed[g]
        last_completed[g] = done
        group_count[row, g] = count
        group_ticks[row, g] = waited
        slot_count[row, column_of[g]] += count
        slot_ticks[row, column_of[g]] += waited


@jit
def commit_slots(
    row: int,
    useful_s: F64,
    worked: F64,
    columns: I64,
    slot_useful: F64,
    service_rate: F64,
    carried_s: F64,
    eta: float,
    costs: F64,
    seen: int,
) -> int:
    """Measure the service rate of each slot in one tick, and smooth it.

    Result: the new `seen`.

    Parameters
    ----------
    useful_s : float64[N]
        Useful time of each slot; missing if it is not a number from 0 to `USEFUL_MAX_S`.
    worked : float64[N]
        Records that each slot processed in the tick; a slot with 0 or NaN gets no measurement.
    columns : int64[N]    Column of each slot.
    slot_useful : float64[W, columns]    Receives the useful time; NaN where missing.
    service_rate : float64[columns]    mu, changed in place; NaN before the first measurement.
    carried_s : float64[columns]
        Useful time since the tick in which the slot last finished a record; one record may take
        several ticks.
    eta : float    Weight of the new measurement.
    costs : float64[n, 2]    A ring of measurements: records, and useful seconds per record.
    seen : int    Number of measurements so far; the next measurement goes to row ``seen % n``.
    """
    slot_useful[row, :] = np.nan
    for i in range(len(columns)):
        column = columns[i]
        useful = useful_s[i]
        if not 0.0 <= useful <= USEFUL_MAX_S:
            carried_s[column] = 0.0
            continue
        slot_useful[row, column] = useful
        carried_s[column] += useful
        count = worked[i]
        if not count > 0.0:  # also where the count is NaN
            continue
        if carried_s[column] * SERVICE_RATE_MAX > count:
            measured = count / carried_s[column]
            if np.isnan(service_rate[column]):
                service_rate[column] = measured
            else:
                service_rate[column] += eta * (measured - service_rate[column])
            costs[seen % costs.shape[0], 0] = count
            costs[seen % costs.shape[0], 1] = carried_s[column] / count
            seen += 1
        carried_s[column] = 0.0
    return seen


@jit
def mean_latency(count: F64, ticks: F64, columns: I64, delta_s: float, latency_s: F64) -> None:
    """Write the mean latency of some columns over the window; NaN where no record was completed.

    Parameters
    ----------
    count, ticks : float64[W, columns]
    columns : int64[n]
    latency_s : float64[n]    Receives the means, in seconds.
    """
    for i in range(len(columns)):
        records = 0.0
        waited = 0.0
        for row in range(count.shape[0]):
            records += count[row, columns[i]]
            waited += ticks[row, columns[i]]
        latency_s[i] = waited / records * delta_s if records > 0.0 else np.nan


@jit
def mean_utilisation(useful_s: F64, columns: I64, delta_s: float, utilisation: F64) -> None:
    """Write useful time over wall time of some slots, over the ticks with a known useful time.

    Parameters
    ----------
    useful_s : float64[W, columns]    NaN where missing.
    columns : int64[n]
    utilisation : float64[n]    Receives the shares; 0 where no tick has a known useful time.
    """
    for i in range(len(columns)):
        useful = 0.0
        known = 0
        for row in range(useful_s.shape[0]):
            if not np.isnan(useful_s[row, columns[i]]):
                useful += useful_s[row, columns[i]]
                known += 1
        utilisation[i] = useful / (known * delta_s) if known > 0 else 0.0
