"""Runs the inner loop of the simulated join, in which slots serve records one after another."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from headgate.core.jit import jit

F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]


@jit
def serve_join(
    until_s: float,
    limit: int,
    arrival_s: F64,
    comparisons: F64,
    seconds_each: F64,
    position: I64,
    clock_s: F64,
    useful_s: F64,
    done_s: F64,
) -> None:
    """Let every slot serve the records before number `limit` that it can complete by `until_s`.

    Parameters
    ----------
    arrival_s : float64[n]        Never decreasing.
    comparisons : float64[n]      Comparisons of each record in all slots together.
    seconds_each : float64[slots]    Time of a slot for its share of one comparison.
    position : int64[slots]       Number of records that each slot has served; updated.
    clock_s : float64[slots]      Completion of each slot's last record; updated.
    useful_s : float64[slots]     Time spent serving; increased.
    done_s : float64[n]           Completion of each record at its last slot; updated.
    """
    for slot in range(position.size):
        clock, useful = clock_s[slot], 0.0
        record = position[slot]
        while record < limit:
            takes = comparisons[record] * seconds_each[slot]
            done = max(clock, arrival_s[record]) + takes
            if done > until_s:
                break
            clock = done
            useful += takes
            done_s[record] = max(done_s[record], done)
            record += 1
        position[slot], clock_s[slot] = record, clock
        useful_s[slot] += useful
