"""Predicts the growth of a time window's contents from past arrivals."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque


class WindowFill:
    """Counts the records in a time window, and predicts their number.

    The cost of a join's record is proportional to the records in the opposite window. So after a step of
    the arrival rate the cost changes until the window has been filled at the new rate.

    ::

        records      last window_s, all at the old rate       at the new rate, as now
                   |-------------------------------------|====>|
        window at now + ahead     |---------------------- ====>|

    Parameters
    ----------
    window_s : float
        WS in seconds; 0 for an operator whose cost per record does not depend on a window.

    References
    ----------
    STRETCH 8.5 (the predicted workload of J+, after its reference 22). Before the first observation, the
    arrival rate is assumed to be that of the first one, and 0 before time 0: a window that was restored
    at the start of a job is unknown.
    """

    def __init__(self, window_s: float) -> None:
        self._window_s = window_s
        self._times: deque[float] = deque()
        self._counts: deque[float] = deque()

    def observe(self, time_s: float, rate: float) -> None:
        """Record the arrivals per second since the last call.

        A call with an earlier or equal time changes nothing.
        """
        if not self._times:
            self._times.append(max(0.0, time_s - self._window_s))
            self._counts.append(0.0)
        elapsed_s = time_s - self._times[-1]
        if elapsed_s <= 0.0:
            return
        self._times.append(time_s)
        self._counts.append(self._counts[-1] + rate * elapsed_s)
        # Keep the last observation before the window: the window begins between it and the next.
        while len(self._times) > 1 and self._times[1] <= time_s - self._window_s:
            self._times.popleft()
            self._counts.popleft()

    def growth(self, ahead_s: float, rate: float) -> float:
        """Return the records in the window in `ahead_s` seconds, relative to now, at arrival rate `rate`.

        1 without a window, and while it is empty.
        """
        if not self._times:
            return 1.0
        ahead_s = min(ahead_s, self._window_s)
        now_s, now = self._times[-1], self._counts[-1]
        held = now - self._count_at(now_s - self._window_s)
        if held <= 0.0:
            return 1.0
        return (now - self._count_at(now_s + ahead_s - self._window_s) + rate * ahead_s) / held

    def _count_at(self, time_s: float) -> float:
        after = bisect_right(self._times, time_s)
        if after == 0:
            return self._counts[0]
        if after == len(self._times):
            return self._counts[-1]
        start_s, stop_s = self._times[after - 1], self._times[after]
        start, stop = self._counts[after - 1], self._counts[after]
        return start + (stop - start) * (time_s - start_s) / (stop_s - start_s)
