"""Runs the inner loop over the events of one operator, as plain functions on arrays.

`times` is float64[n, 5]: arrival of an event at the operator, its entry into the job, its service time,
and, once known, begin and end of its service. `places` is int64[n, 3]: replica of the event, its fate,
and the next event at that replica.
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
"""Fates: served by `LEAVE`, dropped then for its age, or refused on arrival."""

NONE = -1
CHOOSE = -1
"""Marks an event that goes to the replica with the least expected work on its arrival."""


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
    """Set begin, end and fate of each event; events are in order of arrival.

    A replica serves in the order of arrival without interruption, so that begin and end of an event are
    known on its arrival.

    Parameters
    ----------
    times : float64[n, 5]
    places : int64[n, 3]
    known : int
        The first `known` events were scheduled by an earlier call, and do not change.
    free_s : float64[replicas]
        Time at which each replica has served all its events; updated.
    speed : float64[replicas]
        Relative speed of each replica; 1 is normal.
    active : int64[a]
        Replicas for events with `CHOOSE`.
    event_s : float
        Expected time of an event, for `CHOOSE`.
    queue_max : int
        Most waiting events at the operator; negative: no limit.
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
    # Known events only matter for the count of waiting events.
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
                # The event leaves the queue when it is too old, without service.
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
    """Return the active replica with the least expected work in seconds; of a tie the first.

    A waiting event counts as `event_s`, an event in service as half of that, since an engine does not
    know for how long an event has been in service.
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
