"""Groups the records of a key into sessions."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from headgate.core.jit import jit

I64 = npt.NDArray[np.int64]


@jit
def number_sessions(of: I64, starts: I64, ends: I64, order: I64, session: I64) -> I64:
    """Assign numbers to sessions: intervals of one key that touch are one session.

    Returns int64[k], the start of each session.

    Parameters
    ----------
    of, starts, ends : int64[n]    Key, start and end of each interval.
    order : int64[n]    Positions of the intervals, sorted by key, then by start.
    session : int64[n]    Receives the number of each interval's session.
    """
    first = np.empty(len(order), np.int64)
    count = 0
    end = 0
    for at in range(len(order)):
        i = order[at]
        if at == 0 or of[i] != of[order[at - 1]] or starts[i] > end:
            first[count] = starts[i]
            count += 1
            end = ends[i]
        else:
            end = max(end, ends[i])
        session[i] = count - 1
    return first[:count]
