"""Runs the loop of the simulated join: slots serve records, one after the other."""

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
    """Let every slot serve records before number `limit`, as far as it is done by `until_s`.

    Parameters
    ----------
    arrival_s : float64[n]        Never decreasing.
    comparisons : float64[n]      Of each record, with all slots together.
    seconds_each : float64[slots]    Time a slot takes for its share of one comparison.
    position : int64[slots]       Records each slot has served; moved on.
    clock_s : float64[slots]      When each slot was done with the last one; moved on.
    useful_s : float64[slots]     Time spent serving; added to.
    done_s : float64[n]           When the last slot was done with a record; raised.
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
