"""Measures the age of results: from the newest input of a result until its output.

Carrying the time of arrival through all operators would be exact, but cost a column in every row,
exchange, backlog and state. So the driver keeps the newest arrival by key group and slice: the
measured age is at most a window's length below the true age.
"""

from __future__ import annotations

import bisect
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from headgate.journal import histogram
from headgate.spark.job.reports import Report

_KEPT_STEPS = 1000
"""Number of each operator's newest steps in memory; results of an earlier step count with the age of
the oldest step in memory. Chosen, not tuned."""


@dataclass(frozen=True)
class Finished:
    """Describes results that an operator put out together."""

    at_ms: float
    """Time of the output, ms since 1970."""
    latency_ms: float
    """From the newest contributing input's arrival at the source."""
    count: int


@dataclass
class _Kept:
    """Holds the origins of one operator's open results."""

    window_us: int | None
    """Length of the operator's windows, whose results come out when a window has ended; None if
    results come out at once."""
    newest_ms: dict[int, dict[int, float]] = field(default_factory=dict)
    """Arrival of the newest record by key group and slice, ms since 1970."""
    put_out: deque[tuple[float, float, float]] = field(
        default_factory=lambda: deque(maxlen=_KEPT_STEPS)
    )
    """For each of the last steps: time of its results, their mean and least latency, ms."""


class Origins:
    """Follows results of a chain of operators back to the source.

    The age of a window's result includes the wait for the window's end: it counts from the window's
    newest record in the result's key group. A result that comes out at once is as old as the records that
    caused it. For an operator behind another operator, the age of the upstream results is added.

    The arrivals are in memory only: results of a window and key group without a record since the start
    are not counted.

    `parents`: the operators that each operator reads, upstream first; none if it reads the source.
    `windows_us`: lengths of the windows, of operators whose results come out when a window has ended.

    References
    ----------
    Henge 3, StreamSwitch 6.6. Differs: the newest record is that of the result's key group, not of its
    key alone; and all results that an operator puts out in one step count alike for the next operator.
    """

    def __init__(self, parents: Mapping[str, Sequence[str]], windows_us: Mapping[str, int]) -> None:
        self._parents = {name: tuple(above) for name, above in parents.items()}
        self._kept = {name: _Kept(windows_us.get(name)) for name in parents}

    def judges(self, operator: str) -> bool:
        """Return whether the age of an operator's results may differ from its records' latency."""
        operator_state = self._kept[operator]
        return operator_state.window_us is not None or bool(self._parents[operator])

    @property
    def last(self) -> list[str]:
        """The operators whose results no other operator reads."""
        read = {parent for above in self._parents.values() for parent in above}
        return [name for name in self._parents if name not in read]

    def step(self, reports: Sequence[Report]) -> dict[str, list[Finished]]:
        """Take note of a committed step, and return each operator's results in it."""
        now_ms = time.time() * 1e3
        results = {}
        for name, kept in self._kept.items():
            own = [r for r in reports if r.operator == name]
            parents = [self._kept[parent] for parent in self._parents[name]]
            for report in own:
                for group, slices in report.newest_ms.items():
                    known = kept.newest_ms.setdefault(group, {})
                    for begin_us, newest_ms in slices.items():
                        known[begin_us] = max(known.get(begin_us, 0.0), newest_ms)
            done = [x for r in own for x in self._finished(kept, parents, r, now_ms)]
            count = sum(result.count for result in done)
            if count:
                mean_ms = sum(result.latency_ms * result.count for result in done) / count
                least_ms = min(result.latency_ms for result in done)
                kept.put_out.append((max(result.at_ms for result in done), mean_ms, least_ms))
            _forget(kept, own)
            results[name] = done
        return results

    def _finished(
        self, kept: _Kept, parents: Sequence[_Kept], report: Report, now_ms: float
    ) -> list[Finished]:
        at_ms = now_ms if report.ran is None else report.ran.ended_ms
        if kept.window_us is None:
            total = sum(edge * count for edge, count in report.histogram)
            scale = report.latency_sum_ms / total if total else 0.0
            own = [(edge * scale, count) for edge, count in report.histogram]
            # upstream put out a record of latency `own_ms` that long before
            return [
                Finished(at_ms, own_ms + _age_ms(parents, at_ms - own_ms, newest=False), count)
                for own_ms, count in own
            ]
        finished = []
        for group, results in report.results.items():
            slices = kept.newest_ms.get(group, {})
            for end_us, count in results.items():
                first_us = end_us - kept.window_us
                newest_ms = max(
                    (
                        at
                        for begin, at in slices.items()
                        if first_us <= begin < max(end_us, first_us + 1)
                    ),
                    default=None,
                )
                if newest_ms is not None:
                    origin_ms = newest_ms - _age_ms(parents, newest_ms, newest=True)
                    finished.append(Finished(at_ms, max(0.0, at_ms - origin_ms), count))
        return finished


def sparse(finished: Sequence[Finished]) -> histogram.Sparse:
    """Return the histogram of results' latencies."""
    if not finished:
        return ()
    latencies = [result.latency_ms for result in finished]
    return histogram.sparse_of(
        histogram.counts_of(latencies, [result.count for result in finished])
    )


def _age_ms(parents: Sequence[_Kept], at_ms: float, *, newest: bool) -> float:
    """Return the age of the parents' last results before `at_ms`; 0 without results.

    It is the mean age in the last step, or in the oldest step in memory if all are later. With `newest`
    it is the least age.
    """
    ages = []
    for parent in parents:
        if parent.put_out:
            times = [out_ms for out_ms, _, _ in parent.put_out]
            place = max(0, bisect.bisect_right(times, at_ms) - 1)
            _, mean_ms, least_ms = parent.put_out[place]
            ages.append(least_ms if newest else mean_ms)
    if not ages:
        return 0.0
    return min(ages) if newest else sum(ages) / len(ages)


def _forget(kept: _Kept, own: Sequence[Report]) -> None:
    """Forget slices whose windows have all come out."""
    if kept.window_us is None or not own:
        return
    out_us = min(report.holds_us for report in own)
    for group, slices in list(kept.newest_ms.items()):
        for begin_us in [b for b in slices if b + kept.window_us < out_us]:
            del slices[begin_us]
        if not slices:
            del kept.newest_ms[group]
