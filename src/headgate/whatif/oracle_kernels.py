"""Runs the inner loops of `headgate.whatif.oracle`, as plain functions on arrays.

All slots serve one queue in the order of arrival. The state at the beginning of an epoch is the first
record that has not begun, and the time at which each slot is free.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from headgate.core.jit import jit

F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]

_ROUNDING = 1e-9


@jit
def serve_fixed(arrival_s: F64, demand_s: F64, slot: I64, free_s: F64, done_s: F64) -> None:
    """Serve every record in the order of arrival at its slot."""
    for i in range(arrival_s.shape[0]):
        begin_s = max(arrival_s[i], free_s[slot[i]])
        done_s[i] = begin_s + demand_s[i]
        free_s[slot[i]] = done_s[i]


@jit
def _epoch(
    number: int,
    before: int,
    slots: int,
    free: F64,
    record: int,
    arrival_s: F64,
    demand_s: F64,
    share: F64,
    epoch_s: float,
    bound_s: float,
    window_s: float,
    done_s: F64,
) -> tuple[int, float]:
    """Simulate an epoch; return the first record that has not begun, and the missed share.

    `before`, `slots`: slots of the epoch before, and of this epoch. A slot that ends finishes its
    record first. `free` (float64[most]): time at which each slot is free, ascending; on entry of the
    epoch before, on return of this epoch.
    """
    start_s = number * epoch_s
    end_s = start_s + epoch_s
    gone = max(0, before - slots)
    for i in range(slots):
        free[i] = max(free[i + gone], start_s) if i + gone < before else start_s
    free[:slots].sort()
    missed = 0.0
    while record < arrival_s.shape[0]:
        least = 0
        for i in range(1, slots):
            if free[i] < free[least]:
                least = i
        begin_s = max(free[least], arrival_s[record])
        if begin_s >= end_s:
            break
        free[least] = begin_s + demand_s[record]
        done_s[record] = free[least]
        latency_s = free[least] - arrival_s[record]
        if latency_s > bound_s:
            missed += share[record] * max(1.0, latency_s / window_s)
        record += 1
    free[:slots].sort()
    return record, missed


@jit
def run(
    first: int,
    last: int,
    slots: I64,
    arrival_s: F64,
    demand_s: F64,
    share: F64,
    epoch_s: float,
    bound_s: float,
    window_s: float,
    free: F64,
    following: I64,
    missed: F64,
    done_s: F64,
) -> None:
    """Simulate epochs [first, last), from the state at the beginning of epoch `first`."""
    for k in range(first, last):
        free[k + 1] = free[k]
        before = slots[k - 1] if k > 0 else 0
        following[k + 1], missed[k] = _epoch(
            k,
            before,
            slots[k],
            free[k + 1],
            following[k],
            arrival_s,
            demand_s,
            share,
            epoch_s,
            bound_s,
            window_s,
            done_s,
        )


@jit
def _same(a: F64, b: F64, slots: int, at_s: float) -> bool:
    """Return whether slots are free at the same times, from `at_s` on."""
    for i in range(slots):
        if abs(max(a[i], at_s) - max(b[i], at_s)) > _ROUNDING:
            return False
    return True


@jit
def sweep(
    slots: I64,
    most: int,
    price: float,
    ahead: int,
    arrival_s: F64,
    demand_s: F64,
    share: F64,
    epoch_s: float,
    bound_s: float,
    window_s: float,
    free: F64,
    following: I64,
    missed: F64,
    done_s: F64,
) -> int:
    """Try to improve the slots of every epoch; return the number of improvements."""
    epochs = slots.shape[0]
    records = arrival_s.shape[0]
    scratch = np.empty(most)
    bettered = 0
    here = np.array([-1, -1, 0, 1, 1])
    there = np.array([0, 1, -1, -1, 0])
    for k in range(epochs):
        for move in range(here.shape[0]):
            own = slots[k] + here[move]
            if here[move] == 0 and k + 1 >= epochs:
                continue
            after = slots[k + 1] + there[move] if k + 1 < epochs else 1
            if own < 1 or own > most or after < 1 or after > most:
                continue
            if there[move] != 0 and k + 1 >= epochs:
                continue
            scratch[:] = free[k]
            record = following[k]
            gain = float(-here[move] - there[move])
            old_missed = 0.0
            new_missed = 0.0
            before = slots[k - 1] if k > 0 else 0
            joined = False
            last = min(k + ahead, epochs)
            for j in range(k, last):
                now = own if j == k else (after if j == k + 1 else slots[j])
                record, lost = _epoch(
                    j,
                    before,
                    now,
                    scratch,
                    record,
                    arrival_s,
                    demand_s,
                    share,
                    epoch_s,
                    bound_s,
                    window_s,
                    done_s,
                )
                new_missed += lost
                old_missed += missed[j]
                before = now
                same = record == following[j + 1] and (j > k or there[move] == 0)
                if same and now == slots[j] and _same(scratch, free[j + 1], now, (j + 1) * epoch_s):
                    joined = True
                    break
            if not joined:
                # Records that wait at the end of the last epoch here are about as late as they are old.
                end_s = last * epoch_s
                low, high = min(record, following[last]), max(record, following[last])
                waits = 0.0
                for i in range(low, min(high, records)):
                    waits += share[i] * max(1.0, (end_s - arrival_s[i]) / window_s)
                if record < following[last]:
                    new_missed += waits
                else:
                    old_missed += waits
            if gain + price * (old_missed - new_missed) > _ROUNDING:
                slots[k] = own
                if k + 1 < epochs:
                    slots[k + 1] = after
                run(
                    k,
                    epochs,
                    slots,
                    arrival_s,
                    demand_s,
                    share,
                    epoch_s,
                    bound_s,
                    window_s,
                    free,
                    following,
                    missed,
                    done_s,
                )
                bettered += 1
    return bettered
