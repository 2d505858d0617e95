"""Stores the page's content for one journal: a row per batch, a heat map, changes, a diagnosis."""

from __future__ import annotations

from collections import deque
from statistics import median
from typing import Any, TypeGuard

import numpy as np
import numpy.typing as npt

from headgate.journal.hosts import MigrationStep
from headgate.journal.parts import GroupRecords
from headgate.journal.schema import (
    AssignmentChange,
    Batch,
    ControlAct,
    Decided,
    Event,
    Restart,
    Retry,
    Stop,
)
from headgate.report.diagnose import DiagnosisReader, labelled
from headgate.report.limits import DriverSeen
from headgate.report.live import event_text
from headgate.report.summary import slo_of
from headgate.report.top import top

F64 = npt.NDArray[np.float64]

POINTS_MAX = 2_000
"""Most points of a curve that the page gets: about as many as a screen has columns."""

HEAT_COLUMNS = 240
"""Columns of time in the heat map. When they are full, each column becomes twice as wide."""

HEAT_CELLS = 16_000_000
"""Most cells of a heat map in memory, 128 MB: two operators with the largest number of key groups.
Further key groups are left out."""

ASIDE_MAX = 65_536
"""Counts that the heat map collects before it adds them to its cells. Chosen."""

HEAT_ROWS = 40
"""Key groups in the heat map, hottest first."""

CHANGES_KEPT = 200
"""Newest changes, decisions and failures that the page lists."""

SHOWN_SLOTS = 64
"""Busiest slots that the page lists."""

CURVES = {
    "mean_ms": "max",
    "p50_ms": "max",
    "p99_ms": "max",
    "bound_ms": "max",
    "floor_ms": "max",
    "arrived": "rate",
    "emitted": "rate",
    "late": "rate",
    "backlog": "max",
    "lag": "max",
    "slots": "max",
    "duration_ms": "max",
    "met": "min",
}
"""Curves, and the way to merge several batches into one point: the worst value, so that the curve never
hides it. A rate is a sum over time."""


class JournalHistory:
    """Reads the events of a journal, and describes them for the page."""

    def __init__(self) -> None:
        self.reading = DiagnosisReader()
        self._rows = Rows(1 + len(CURVES))
        self._heat = HeatMap()
        self._changes: deque[tuple[int, str, str]] = deque(maxlen=CHANGES_KEPT)
        self._windows = (0, 0)
        self.acts: deque[ControlAct | AssignmentChange | MigrationStep] = deque(maxlen=CHANGES_KEPT)
        """Outcomes of commands: acts, changes of slots, and failed moves of state."""
        self.acts_count = 0

    def absorb(self, event: Event) -> None:
        """Take in an event."""
        began_ms = self.reading.run.began_ms
        self.reading.absorb(event)
        if self.reading.run.began_ms != began_ms:  # another run begins in the same journal
            self._rows, self._heat = Rows(1 + len(CURVES)), HeatMap()
        if isinstance(event, AssignmentChange | ControlAct) or _is_failed_move(event):
            self.acts.append(event)
            self.acts_count += 1
        if isinstance(event, Batch):
            self._add_batch(event)
        elif isinstance(event, AssignmentChange | ControlAct | Restart | Retry | Stop):
            start, text = self.reading.run.start, event_text(event) or ""
            several = start is not None and len(start.operators) > 1
            if several and isinstance(event, AssignmentChange) and event.operator:
                text = (
                    f"{event.operator}: {text}"  # the lines of several operators do not name them
                )
            self._changes.append((event.at_ms, event.KIND, text))
        elif isinstance(event, Decided) and event.wishes:
            wishes = ", ".join(f"{w.kind} of {w.operator} to {w.slots} slots" for w in event.wishes)
            advice = "" if event.acts else " (advice only)"
            text = f"{event.policy} wants {wishes}{advice}: {event.reason}"
            self._changes.append((event.at_ms, event.KIND, text))

    def describe(
        self, checkpoint: str, now_ms: int, driver: DriverSeen, points: int = POINTS_MAX
    ) -> dict[str, Any]:
        """Return the content of the page.

        diagnosis: as of `headgate.report.diagnose`; rows: its labels and sentences; slo: as of
        `headgate.report.summary`, or None; curves: arrays of equal length, with `at_s`; heat:
        `HeatMap.describe`; slots: as of `headgate.report.top`; changes: [{at_ms, kind, text}],
        newest first; undo_epoch: the epoch before the newest change, or None.
        """
        run, diagnosis = self.reading.run, self.reading.diagnosis(checkpoint, now_ms, driver)
        slots = top(run)["slots"][:SHOWN_SLOTS] if run.recent else []
        return {
            "diagnosis": diagnosis,
            "rows": labelled(diagnosis),
            "slo": slo_of(run),
            "curves": self._curves(max(2, min(points, POINTS_MAX))),
            "heat": self._heat.describe(),
            "slots": slots,
            "changes": [
                {"at_ms": at_ms, "kind": kind, "text": text}
                for at_ms, kind, text in reversed(self._changes)
            ],
            "undo_epoch": run.changes[-1].epoch - 1
            if run.changes and run.changes[-1].epoch
            else None,
        }

    def _add_batch(self, batch: Batch) -> None:
        latency, slo = batch.latency_ms, batch.slo
        self._rows.add(
            batch.at_ms / 1e3,
            latency.mean if latency else None,
            latency.p50 if latency else None,
            latency.p99 if latency else None,
            slo.bound_ms if slo else None,
            slo.floor_ms if slo and slo.floor_ms else None,
            batch.arrived,
            batch.emitted,
            batch.late,
            batch.backlog,
            sum(batch.lag.values()) if batch.lag else None,  # no source reports its lag
            batch.slots,
            batch.duration_ms,
            self._met(batch),
        )
        for groups in batch.served_groups or batch.arrivals:
            self._heat.add(batch.at_ms, groups)

    def _met(self, batch: Batch) -> float | None:
        """Return the share of windows, of those judged since the last batch, in which the SLO held."""
        if batch.slo is None or batch.slo.windows_met is None:
            return None
        before, self._windows = self._windows, (batch.slo.windows, batch.slo.windows_met)
        judged = self._windows[0] - before[0]
        if judged <= 0:
            return None
        return min(max((self._windows[1] - before[1]) / judged, 0.0), 1.0)

    def _curves(self, points: int) -> dict[str, list[float | None]]:
        rows = self._rows.values
        if not len(rows):
            return {"at_s": [], **{name: [] for name in CURVES}}
        parts = np.unique(
            np.linspace(0, len(rows), min(points, len(rows)), endpoint=False, dtype=int)
        )
        at_s = np.maximum.reduceat(rows[:, 0], parts)
        began_s = np.concatenate([[self.reading.run.began_ms / 1e3], at_s[:-1]])
        spent_s = np.maximum(at_s - began_s, 1e-3)
        curves = {"at_s": _plain(at_s)}
        for column, (name, how) in enumerate(CURVES.items(), 1):
            if how == "rate":
                values = np.add.reduceat(rows[:, column], parts) / spent_s
            else:
                worst = np.fmax if how == "max" else np.fmin
                values = worst.reduceat(rows[:, column], parts)
            curves[name] = _plain(values)
        return curves


class Rows:
    """Appends rows of numbers to an array, whose capacity doubles when it is full."""

    def __init__(self, columns: int) -> None:
        self._array: F64 = np.empty((256, columns))
        self._count = 0

    def add(self, *row: float | None) -> None:
        """Append a row; None is NaN."""
        if self._count == len(self._array):
            self._array = np.concatenate([self._array, np.empty_like(self._array)])
        self._array[self._count] = row
        self._count += 1

    @property
    def values(self) -> F64:
        """All rows; shape [rows, columns]."""
        return self._array[: self._count]


class HeatMap:
    """Adds up records by key group and time, in `HEAT_COLUMNS` columns."""

    def __init__(self) -> None:
        self._counts: dict[str, F64] = {}  # by operator: [columns, key groups]
        self._began_ms: int | None = None
        self._column_ms = 1_000
        self._last_ms: int  # as soon as there is `_began_ms`
        self._gaps_ms: deque[int] = deque(maxlen=9)
        self._aside: dict[str, tuple[list[int], list[int]]] = {}
        """By operator, key groups and records of batches in `_aside_column`, not yet in `_counts`."""
        self._aside_column = 0

    def add(self, at_ms: int, served: GroupRecords) -> None:
        """Add the records of an operator's key groups."""
        if self._began_ms is None:
            self._began_ms = self._last_ms = at_ms
        if at_ms > self._last_ms:
            self._gaps_ms.append(at_ms - self._last_ms)
            self._last_ms = at_ms
        column = max(0, (at_ms - self._began_ms) // self._column_ms)
        if column != self._aside_column:
            # columns narrower than batches would leave stripes
            while len(self._gaps_ms) > 4 and self._column_ms < median(self._gaps_ms):  # noqa: PLR2004
                self._widen()
            while (at_ms - self._began_ms) // self._column_ms >= HEAT_COLUMNS:
                self._widen()
            column = max(0, (at_ms - self._began_ms) // self._column_ms)
        groups, records = self._aside.setdefault(served.operator, ([], []))
        if column != self._aside_column or len(groups) > ASIDE_MAX:
            self._add_up()
            self._aside_column = column
            groups, records = self._aside.setdefault(served.operator, ([], []))
        groups += served.groups
        records += served.records

    def _add_up(self) -> None:
        """Add the collected counts to their column: one call of NumPy for a column, not per batch."""
        aside, self._aside = self._aside, {}
        for operator, (listed, records) in aside.items():
            counts = self._counts.setdefault(operator, np.zeros((HEAT_COLUMNS, 0)))
            groups = np.asarray(listed, dtype=np.int64)
            cells = sum(other.size for other in self._counts.values())
            most = counts.shape[1] + (HEAT_CELLS - cells) // HEAT_COLUMNS
            has_cell = (groups >= 0) & (groups < most)
            groups = groups[has_cell]
            missing = int(groups.max(initial=-1)) + 1 - counts.shape[1]
            if missing > 0:
                counts = self._counts[operator] = np.pad(counts, ((0, 0), (0, missing)))
            np.add.at(counts[self._aside_column], groups, np.asarray(records)[has_cell])

    def _widen(self) -> None:
        """Double the width of columns: merge pairs of columns."""
        self._add_up()
        self._aside_column //= 2
        self._column_ms *= 2
        for counts in self._counts.values():
            half = HEAT_COLUMNS // 2
            counts[:half] = counts[0::2] + counts[1::2]
            counts[half:] = 0.0

    def describe(self) -> dict[str, Any]:
        """Return the hottest key groups.

        Returns began_ms, column_ms; rows: [{operator, group, records, counts}], hottest first;
        groups: number of key groups with records.
        """
        self._add_up()
        rows = [
            (operator, int(group), counts[:, group])
            for operator, counts in self._counts.items()
            for group in np.flatnonzero(counts.any(axis=0))
        ]
        hottest = sorted(rows, key=lambda row: -row[2].sum())[:HEAT_ROWS]
        used = max((int(np.flatnonzero(counts)[-1]) + 1 for *_, counts in hottest), default=0)
        return {
            "began_ms": self._began_ms,
            "column_ms": self._column_ms,
            "groups": len(rows),
            "rows": [
                {
                    "operator": operator,
                    "group": group,
                    "records": int(counts.sum()),
                    "counts": counts[:used].astype(int).tolist(),
                }
                for operator, group, counts in hottest
            ],
        }


def _is_failed_move(event: Event) -> TypeGuard[MigrationStep]:
    """Return whether a migration was refused or failed, so that its change does not come into force."""
    return isinstance(event, MigrationStep) and event.what in {"refused", "failed"}


def _plain(values: F64) -> list[float | None]:
    """Return numbers for JSON: four digits after the point, None for NaN."""
    rounded = np.round(values, 4)
    return [None if np.isnan(value) else float(value) for value in rounded]
