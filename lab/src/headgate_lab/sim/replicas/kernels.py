"""The inner loop over the events of one operator, as a plain function on arrays.

`times` is float64[n, 5]: when an event arrives at the operator, when it entered the job, its service
time, and, once they are known, when it begins to be served and leaves. `places` is
int64[n, 3]: its replica, its fate, and the next event at that replica.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from headgate.core.jit import jit

F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]

ARRIVE, ENTER, DEMAND, START, LEAVE = range(5)
REPLICA, FATE, NEXT = range(3)

SERVED, TIMED_OUT, REFUSED = range(3)
"""Fates: completed at `LEAVE`, dropped then for its age, or never taken in."""

NONE = -1
CHOOSE = -1
"""Replica of an event that goes to the least expected work when it arrives."""


@jit
def schedule(
    times: F64,
    places: I64,
    known: int,
    free_s: F64,
    speed: F64,
    active: I64,
    event_s: float,
    timeout_s: float,
    queue_max: int,
) -> None:
    """Write down when each event begins and leaves, and its fate; events are in order of arrival.

    A replica serves in the order of arrival and is never interrupted, so that everything is known
    when an event arrives.

    Parameters
    ----------
    times : float64[n, 5]
    places : int64[n, 3]
    known : int
        So many events at the front have been here before: their times stand.
    free_s : float64[replicas]
        When each replica has done all that it was given; is brought up to date.
    speed : float64[replicas]
        1 is normal.
    active : int64[a]
        The replicas that `CHOOSE` chooses from.
    event_s : float
        Expected time of an event, for `CHOOSE`.
    queue_max : int
        Negative for no bound.
    """
    replicas = free_s.shape[0]
    head = np.full(replicas, NONE, dtype=np.int64)
    tail = np.full(replicas, NONE, dtype=np.int64)
    held = np.zeros(replicas, dtype=np.int64)
    waiting = 0
    choosing = False
    for i in range(known, times.shape[0]):
        if places[i, REPLICA] == CHOOSE:
            choosing = True
    counting = choosing or queue_max >= 0
    # What was here before matters only for who is counted as waiting.
    for i in range(0 if counting else known, times.shape[0]):
        now_s = times[i, ARRIVE]
        if i >= known:
            if counting:
                for j in range(replicas):
                    while head[j] != NONE and times[head[j], START] <= now_s:
                        head[j] = places[head[j], NEXT]
                        held[j] -= 1
                        waiting -= 1
                    if head[j] == NONE:
                        tail[j] = NONE
            if 0 <= queue_max <= waiting:
                places[i, FATE] = REFUSED
                continue
            if places[i, REPLICA] == CHOOSE:
                places[i, REPLICA] = least_work(active, held, free_s, event_s, now_s)
            j = places[i, REPLICA]
            start_s = max(now_s, free_s[j])
            if start_s - times[i, ENTER] > timeout_s:
                # It leaves the queue when it is too old, and takes no service.
                places[i, FATE] = TIMED_OUT
                times[i, START] = max(now_s, times[i, ENTER] + timeout_s)
                times[i, LEAVE] = times[i, START]
            else:
                places[i, FATE] = SERVED
                times[i, START] = start_s
                times[i, LEAVE] = start_s + times[i, DEMAND] / speed[j]
                free_s[j] = times[i, LEAVE]
        j = places[i, REPLICA]
        if counting:
            places[i, NEXT] = NONE
            if tail[j] == NONE:
                head[j] = i
            else:
                places[tail[j], NEXT] = i
            tail[j] = i
            held[j] += 1
            waiting += 1


@jit
def least_work(active: I64, held: I64, free_s: F64, event_s: float, now_s: float) -> int:
    """Return the active replica with the fewest expected seconds of work; the first of equals.

    What waits counts as `event_s` each; what is in service as half of one, since an engine knows
    that something is in service and not for how long.
    """
    best = int(active[0])
    least_s = np.inf
    for k in range(active.shape[0]):
        j = int(active[k])
        work_s = held[j] * event_s
        if free_s[j] > now_s:
            work_s += event_s / 2
        if work_s < least_s:
            least_s = work_s
            best = j
    return best
