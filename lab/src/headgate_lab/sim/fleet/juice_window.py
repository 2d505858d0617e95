"""Computes the flows of a fleet's job over a sliding window."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Mapping

from headgate.control.fleet.juice import Flow, job_juice
from headgate.control.limits import check_range


class JuiceWindow:
    """Holds the flows of a sliding window, in sub-windows.

    Parameters
    ----------
    subwindows : int    Sub-windows per window.

    References
    ----------
    Henge 6: one minute in sub-windows of 10 s, so that a burst shorter than a sub-window has little
    influence, and the clocks of the cluster need only loose synchronisation.
    """

    def __init__(self, subwindows: int = 6) -> None:
        check_range("juice window", "subwindows", subwindows, 1)
        self._kept: deque[tuple[Flow, ...]] = deque(maxlen=subwindows)

    def add(self, flows: Iterable[Flow]) -> None:
        """Add the flows of the sub-window that just ended, and drop the oldest."""
        self._kept.append(tuple(flows))

    def flows(self) -> list[Flow]:
        """Return the flows of the whole window: sums of counts, and `waiting` of the last sub-window."""
        sent: dict[tuple[str, str], float] = defaultdict(float)
        executed: dict[tuple[str, str], float] = defaultdict(float)
        waiting: dict[tuple[str, str], float] = {}
        for flows in self._kept:
            for flow in flows:
                edge = (flow.parent, flow.child)
                sent[edge] += flow.sent
                executed[edge] += flow.executed
                waiting[edge] = flow.waiting
        return [Flow(*edge, sent[edge], executed[edge], waiting[edge]) for edge in sent]

    def juice(self, sink_weights: Mapping[str, float] | None = None) -> float:
        """Return the job's juice over the window; see `job_juice`."""
        return job_juice(self.flows(), sink_weights)
