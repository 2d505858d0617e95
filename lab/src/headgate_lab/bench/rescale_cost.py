"""Computes the cost of a change of slots from the journal's batches, and from markers at the sink.

A marker is the newest record of a key, for one key in `MARKED`. A marker takes the way of any other
record and carries its due time at the source; its latency is measured when the sink gets its row (DRRS
V-A). Journals cover more records, but only until a slot has served them.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import numpy as np
from pyspark.sql import DataFrame

from headgate_lab.scaling_period import Latencies, level_s, stable_from_s

MARKED = 16
"""One key in `MARKED` has markers. Chosen: at 10,000 records/s there are 600 markers a second."""

DUE_US = "due_us"
"""Column of the sink's rows: due time of the newest record of the key, µs since 1970."""


@dataclass
class Markers:
    """Records the latencies of the markers that reach the sink.

    Attributes
    ----------
    found : list of Latencies
        By batch; times in s since 1970.
    """

    found: list[Latencies] = field(default_factory=list)

    def keep(self, frame: DataFrame, batch: int) -> None:
        """Collect a batch's rows, then compare their due times with the clock."""
        rows = frame.where(f"pmod(k, {MARKED}) = 0").select(DUE_US).toArrow()
        now_s = time.time()
        due_s = rows.column(DUE_US).to_numpy() / 1e6
        self.found.append(Latencies(due_s, now_s - due_s))

    def since(self, at_s: float) -> Latencies:
        """Return the markers that were due from `at_s` on, by due time."""
        nothing = Latencies(np.zeros(0), np.zeros(0))
        due_s = np.concatenate([one.created_s for one in (*self.found, nothing)])
        latency_s = np.concatenate([one.latency_s for one in (*self.found, nothing)])
        order = np.argsort(due_s, kind="stable")
        order = order[due_s[order] >= at_s]
        return Latencies(due_s[order], latency_s[order])


def part(markers: Latencies, start_s: float, end_s: float) -> Latencies:
    """Return the markers that were due in [start_s, end_s)."""
    chosen = (markers.created_s >= start_s) & (markers.created_s < end_s)
    return Latencies(markers.created_s[chosen], markers.latency_s[chosen])


def by_second(markers: Latencies) -> Latencies:
    """Return the mean latency of each second's markers; the time of a mean is the second's end."""
    seconds = np.floor(markers.created_s)
    found, first, count = np.unique(seconds, return_index=True, return_counts=True)
    sums = np.add.reduceat(markers.latency_s, first) if len(first) else np.zeros(0)
    return Latencies(found + 1.0, sums / count)


@dataclass(frozen=True)
class RescaleRun:
    """Holds the measurements of one run of one strategy.

    Attributes
    ----------
    events : list of dict
        Events of the journal.
    from_ms, asked_ms : float
        Start of the measurement, and time of the request; ms since 1970.
    stable_s : float
        Time for which latency must keep within 110 % (`--seconds`; DRRS V-B has 100).
    """

    events: list[dict[str, Any]]
    from_ms: float
    asked_ms: float
    markers: Latencies
    stable_s: float

    @property
    def done_ms(self) -> float:
        """Return the time from which the whole new assignment was in force."""
        found = [e for e in self.events if e["event"] == "assignment"]
        (change,) = [e for e in found if e["at_ms"] >= self.asked_ms]
        return float(change["at_ms"])

    def scaling_s(self) -> float | None:
        """Return the scaling period; None if latency did not keep within 110 % by the end.

        The period lasts from the request until the means of the seconds keep within 1.1 times the largest
        mean before the request.

        References
        ----------
        DRRS V-B. Differs: means per second, since all markers of a batch arrive together; the paper's
        code looks at each marker.
        """
        series, asked_s = by_second(self.markers), self.asked_ms / 1e3
        # the second of the request belongs to neither
        level = level_s(series, self.from_ms / 1e3 + 1.0, asked_s)
        done_s = self.done_ms / 1e3
        found = stable_from_s(series, level, from_s=done_s, stable_s=self.stable_s)
        return None if found is None else found - asked_s

    def ran_s(self) -> float:
        """Return the time from the request to the last marker's due time."""
        return float(self.markers.created_s.max(initial=self.asked_ms / 1e3)) - self.asked_ms / 1e3


@dataclass(frozen=True)
class Change:
    """Holds the cost of a change of slots.

    Attributes
    ----------
    added_ms : float
        Largest additional time of a batch of the change, relative to the median batch before the request.
    added_total_ms : float
        Sum of the additional times of all these batches.
    peak_ms, mean_ms : float or None
        Largest mean of a second, and mean, of the latencies of markers that were due from the request
        on, for the longest scaling period of the methods; the sink is included.
    before_ms : float or None
        Mean latency of the markers before the request.
    slot_peak_ms : float or None
        Largest latency of any record in the same period, without the sink.
    operation_s : float
        Time from the request to the end of the migration.
    stable_s : float or None
        The scaling period; None if latency was not stable by the end.
    suspended_s : float
        Time for which slots had waiting records and could serve none of them.
    batch_ms : float
        The median batch before the request.
    """

    added_ms: float
    added_total_ms: float
    peak_ms: float | None
    mean_ms: float | None
    before_ms: float | None
    slot_peak_ms: float | None
    operation_s: float
    stable_s: float | None
    suspended_s: float
    bytes_moved: int
    groups_moved: int
    batch_ms: float


def change_of(run: RescaleRun, interval_s: float) -> Change:
    """Return the cost of a change.

    Parameters
    ----------
    interval_s : float
        Period from the request in which latency counts: the longest scaling period of all (DRRS V-B).
    """
    asked_ms, done_ms = run.asked_ms, run.done_ms
    batches = [e for e in run.events if e["event"] == "batch" and e["at_ms"] >= run.from_ms]
    before = [b for b in batches if b["at_ms"] < asked_ms]
    after = [b for b in batches if b["at_ms"] >= asked_ms]
    (change,) = [e for e in run.events if e["event"] == "assignment" and e["at_ms"] >= asked_ms]
    usual_ms = median(b["duration_ms"] for b in before)
    # the batch under way at the request, and the first batch after the end, belong to the change
    meant = [b for b in after if b["at_ms"] - b["duration_ms"] <= done_ms]
    later = [b for b in after if b not in meant][:1]
    added = [b["duration_ms"] - usual_ms for b in meant + later]
    felt = [b for b in after if b["at_ms"] <= asked_ms + interval_s * 1e3 and b["latency_ms"]]
    asked_s = asked_ms / 1e3
    meanwhile = part(run.markers, asked_s, asked_s + interval_s)
    moves = [e for e in run.events if e["event"] == "migration" and e["at_ms"] >= asked_ms]
    scaling_s = run.scaling_s()
    return Change(
        added_ms=round(max([0.0, *added]), 1),
        added_total_ms=round(sum(ms for ms in added if ms > 0), 1),
        peak_ms=_ms(by_second(meanwhile).latency_s, np.max),
        mean_ms=_ms(meanwhile.latency_s, np.mean),
        before_ms=_ms(run.markers.between(run.from_ms / 1e3, asked_s), np.mean),
        slot_peak_ms=max((b["latency_ms"]["max"] for b in felt), default=None),
        operation_s=round((done_ms - asked_ms) / 1e3, 2),
        stable_s=None if scaling_s is None else round(scaling_s, 2),
        suspended_s=round(sum(e.get("suspended_s", 0.0) for e in moves), 2),
        bytes_moved=change["bytes_moved"],
        groups_moved=change["groups_moved"],
        batch_ms=round(usual_ms, 1),
    )


def longest_s(runs: Mapping[str, Sequence[RescaleRun]], names: Sequence[str]) -> float:
    """Return the longest scaling period of the methods in `names`; of all methods if none of these ran.

    A method that was not stable by the end counts with its whole run.
    """
    chosen = [runs[name] for name in names if name in runs] or list(runs.values())
    found = [(run, run.scaling_s()) for measured in chosen for run in measured]
    return max(run.ran_s() if scaling_s is None else scaling_s for run, scaling_s in found)


def _ms(values_s: Any, of: Any) -> float | None:
    return round(float(of(values_s)) * 1e3, 1) if len(values_s) else None
