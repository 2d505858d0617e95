"""Holds an engine's counters of one operator: cumulative arrivals and completions per tick."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from headgate.control.batch_times import BatchTimes
from headgate.core.assignment import Assignment

F64 = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Sample:
    """Holds the counters of one operator at the end of tick m, the time ((m-1) delta, m delta].

    References
    ----------
    StreamSwitch 4.1 to 4.3: a^k[m], c^k[m] and rho_i[m].
    """

    tick: int
    """m: the engine's clock in units of delta."""
    assignment: Assignment
    """The assignment that was in force during the tick."""
    slot_ids: tuple[int, ...]
    """Identity of each slot, one entry per slot of `assignment`. A scale-in may give a slot another
    number. The identity of a slot never changes and is never used again."""
    arrived: F64
    """float64[G]: a^k[m]: records that arrived since the start, by their arrival times; NaN where
    missing."""
    completed: F64
    """float64[G]: c^k[m]: records completed since the start, by the slot's clock; NaN where
    missing."""
    useful_s: F64
    """float64[slots]: useful time of each slot within this tick, in seconds: deserialise, process,
    serialise, no waiting; NaN where missing."""
    worked: F64 | None = None
    """float64[slots] or None: records that each slot processed in the tick, and rows of other slots
    that it merged. None: the completions of its key groups. They differ where a key group is split:
    a slot then works on records that the group's owner completes."""
    unread: F64 | None = None
    """float64[G] or None: records that wait in the source, unread, and have not arrived. A source
    that is read up to a limit has such records. None where no source reports them."""
    batch: BatchTimes | None = None
    """Times of the parts of a batch, if known; None for a continuous engine, and where slots do not
    wait for each other."""
