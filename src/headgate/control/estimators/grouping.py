"""Assigns each event of a batch to an active replica: load-aware grouping and its rivals."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]


def utilisation(processed: F64, event_s: float, duration_s: float) -> F64:
    """Return U of each replica at the end of an interval: mu et / td, at most 1.

    `processed` (float64[replicas]): mu: events each active replica processed in the interval; 0 for
    a new replica. `event_s`, `duration_s`: et and td, in seconds.

    References
    ----------
    PSPS IV-A, equation 5: the load at the start of the next interval; older intervals do not count.
    """
    used: F64 = np.minimum(1.0, processed * (event_s / duration_s))
    return used


@dataclass(frozen=True)
class Grouping:
    """Holds the replica of each event of a batch."""

    replica: I64
    """int64[events]: index of the active replica that takes each event."""
    load: F64
    """float64[replicas]: load of each replica after the batch."""
    cursor: int
    """The next replica of round robin."""


def load_aware(events: int, load: F64, step: float, cursor: int = 0) -> Grouping:
    """Send each event to the replica of lowest load; round robin once all are saturated.

    Equals the per-event algorithm to the last bit: every replica offers its next events at the
    loads U, U + step, U + 2 step, ... and the events take the offers in ascending order, lower
    replica first. Cost is O(n log n) for n events.

    Parameters
    ----------
    events : int    Events of the batch; >= 0.
    load : float64[replicas]    U of each active replica; >= 0, at least one replica.
    step : float    et / td: load that one event adds; > 0.
    cursor : int    The next replica of round robin.

    References
    ----------
    PSPS IV-A, Algorithm 1. Differs: round robin starts at U >= 1, since steps of et / td pass over
    the printed U = 1; the search starts at the first replica (the printed loop starts at one below
    it).
    """
    replicas = len(load)
    levels, owners = _offers(events, load, step)
    order = np.lexsort((owners, levels))[:events]
    greedy = owners[order]
    per_replica = np.bincount(greedy, minlength=replicas)
    after = np.array([_sums(u, step, n)[-1] for u, n in zip(load, per_replica, strict=True)])
    spread = round_robin(events - len(greedy), replicas, cursor)
    return Grouping(np.concatenate([greedy, spread.replica]), after, spread.cursor)


def round_robin(events: int, replicas: int, cursor: int = 0) -> Grouping:
    """Send events to one replica after another; loads stay 0."""
    chosen: I64 = (cursor + np.arange(events, dtype=np.int64)) % replicas
    return Grouping(chosen, np.zeros(replicas), (cursor + events) % replicas)


def least_work(events: int, work_s: F64, event_s: F64) -> Grouping:
    """Send each event to the replica with the least expected work; of equal ones to the first.

    Every replica offers its next events at its waiting work, at that plus one event, and so on, as in
    `load_aware`. Differs: each replica has its own time per event, and no replica is ever full.

    Parameters
    ----------
    events : int    Events of the batch; >= 0.
    work_s : float64[replicas]
        Waiting work of each active replica, in seconds; >= 0, at least one replica.
    event_s : float64[replicas]    Time that each replica needs for one event, in seconds; > 0.

    References
    ----------
    Ours: PSPS IV-A has one time for all replicas of an operator, and counts processed events.
    """
    ascending = np.argsort(work_s)
    per_s = np.cumsum(1.0 / event_s[ascending])
    # The common level if the k least loaded replicas share all events; the lowest level is right.
    surface = float(np.min((events + np.cumsum((work_s / event_s)[ascending])) / per_s))
    counts = np.clip(np.floor((surface - work_s) / event_s) + 2.0, 0, events).astype(np.int64)
    owners = np.repeat(np.arange(len(work_s), dtype=np.int64), counts)
    nth = np.arange(len(owners)) - np.repeat(np.cumsum(counts) - counts, counts)
    levels = work_s[owners] + nth * event_s[owners]
    chosen = owners[np.lexsort((owners, levels))[:events]]
    per_replica = np.bincount(chosen, minlength=len(work_s))
    return Grouping(chosen, work_s + per_replica * event_s, 0)


def _sums(start: float, step: float, count: int) -> F64:
    """Return the sums of `start` and 0 to `count` times `step`, with the rounding of a loop."""
    terms = np.full(count + 1, step)
    terms[0] = start
    return np.add.accumulate(terms)


def _offers(events: int, load: F64, step: float) -> tuple[F64, I64]:
    """Return loads below 1 at which replicas would take an event, and the replica of each.

    The result contains the `events` lowest loads. All replicas are filled to one level, like connected
    vessels, and each replica offers loads up to that level; one more offer absorbs rounding errors.
    """
    ascending = np.sort(load)
    vessels = np.arange(1, len(load) + 1)
    # The common level if the k lowest replicas take all events; the lowest of these levels is right.
    surface = float(np.min((events * step + np.cumsum(ascending)) / vessels))
    reach = np.floor((min(surface, 1.0) - load) / step) + 1.0
    counts = np.clip(reach, 0, events).astype(np.int64)
    levels = [_sums(u, step, n) for u, n in zip(load, counts, strict=True)]
    owners = np.repeat(np.arange(len(load), dtype=np.int64), [len(offer) for offer in levels])
    flat = np.concatenate(levels)
    open_ = flat < 1.0
    return flat[open_], owners[open_]
