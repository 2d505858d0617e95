"""Holds an engine's counters of one operator: cumulative arrivals and completions per time slot."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from headgate.control.batch_times import BatchTimes
from headgate.core.assignment import Assignment

F64 = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Sample:
    """Holds the counters of one operator at the end of time slot m, which is ((m-1) delta, m delta].

    References
    ----------
    StreamSwitch 4.1 to 4.3: a^k[m], c^k[m] and rho_i[m].
    """

    tick: int
    """m; the engine's clock in units of delta."""
    assignment: Assignment
    """The mapping that held during the time slot."""
    slot_ids: tuple[int, ...]
    """Identity of each slot, one entry per slot of `assignment`. A position may be renumbered by a
    scale-in; an identity belongs to one slot as long as it lives and is never used again."""
    arrived: F64
    """float64[G]: a^k[m]: records that arrived since the start, by the time they arrived; NaN where
    missing."""
    completed: F64
    """float64[G]: c^k[m]: records completed since the start, by the slot's clock; NaN where
    missing."""
    useful_s: F64
    """float64[slots]: useful time of each slot within this time slot, in seconds: deserialise,
    process, serialise, no waiting; NaN where missing."""
    worked: F64 | None = None
    """float64[slots] or None: what each slot did in that time: records, and rows that another slot
    had merged. None: what was completed of its key groups; of a split one, a slot works on records
    that another completes."""
    unread: F64 | None = None
    """float64[G] or None: records that a source has beside those that arrived, since nobody has
    read them yet: where it is read up to a limit. None where no source tells of any."""
    batch: BatchTimes | None = None
    """How batches spend their time, if known by then; None of a continuous engine, and where slots
    do not wait for each other."""
