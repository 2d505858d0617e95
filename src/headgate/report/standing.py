"""Finds since when a query meets or misses its SLO, from stretches of late batches."""

from __future__ import annotations

import copy
from collections import deque

from headgate.core.errors import HeadgateError
from headgate.core.slo import Slo, parse_slo
from headgate.journal.histogram import percentile_ms
from headgate.journal.parts import SloState
from headgate.journal.schema import Batch

QUIET_S = 10.0
"""Least time between two stretches of late batches, in s; without a batch in time, a stretch goes on.
Chosen, not tuned: ten windows of a second."""


class Standing:
    """Judges batches against an SLO, one after the other.

    A batch is late if too few of the windows judged within `apart_ms` met the SLO, or if the worst key
    group's share of met windows fell, and is below the share that the SLO wants. Where no window was
    judged, or a journal of an earlier release counts none, a batch is late if its slowest slot (for an
    SLO on the mean) or its percentile was above the bound, or if the share of met windows fell.

    `texts`: the SLOs of the start event. `stretches`: begin and end of each stretch of late batches, ms
    since 1970, oldest first. `apart_ms`: time without a late batch after which the SLO is met again: ten
    windows, at least 10 s.
    """

    def __init__(self, texts: list[str]) -> None:
        self._slos = [slo for slo in map(parsed_slo, texts) if slo is not None and slo.is_latency]
        self.apart_ms = max([QUIET_S, *(10.0 * slo.window_s for slo in self._slos)]) * 1e3
        self._success: tuple[float, float] | None = None
        self._windows: deque[tuple[int, int, int]] = deque()
        self._was_in_time = False
        self.stretches: list[tuple[int, int]] = []

    def add(self, batch: Batch) -> None:
        """Judge a batch."""
        late = self._judge(batch.slo, batch.at_ms)
        if late is None:
            found = [is_late for slo in self._slos if (is_late := _is_late(slo, batch)) is not None]
            late = any(found) if found else None
        if not late:
            self._was_in_time |= late is False
            return
        began_ms = round(batch.at_ms - batch.duration_ms)
        was_in_time, self._was_in_time = self._was_in_time, False
        if self.stretches and (
            not was_in_time or began_ms - self.stretches[-1][1] <= self.apart_ms
        ):
            self.stretches[-1] = (self.stretches[-1][0], batch.at_ms)
        else:
            self.stretches.append((began_ms, batch.at_ms))

    def latest(self) -> Standing:
        """Return a copy with the latest stretch only, which later batches do not extend."""
        copied = copy.copy(self)
        copied.stretches = self.stretches[-1:]
        return copied

    def is_late_at(self, at_ms: int) -> bool:
        """Return whether a stretch of late batches lasts at some time, or has just ended.

        Where windows are counted, `QUIET_S` is enough: a batch in time has judged all of `apart_ms`.
        """
        if not self.stretches:
            return False
        quiet_ms = QUIET_S * 1e3 if self._windows and self._was_in_time else self.apart_ms
        return at_ms - self.stretches[-1][1] <= quiet_ms

    def _judge(self, state: SloState | None, at_ms: int) -> bool | None:
        """Return whether a batch is late by the windows judged lately; None where they do not tell."""
        if state is None or state.success is None or state.success_worst is None:
            return None
        before, self._success = self._success, (state.success, state.success_worst)
        if state.windows_met is None:  # a journal of an earlier release
            if before is None:
                return state.success < 1.0 or None
            return state.success < before[0] or state.success_worst < before[1] or None
        worst_fell = before is not None and state.success_worst < min(before[1], state.wanted)
        if self._windows and state.windows < self._windows[-1][1]:
            self._windows.clear()  # a new driver counts from 0 again
        # a window without completions counts as missed, and may turn out met a batch later
        while len(self._windows) > 1 and self._windows[1][0] <= at_ms - self.apart_ms:
            self._windows.popleft()
        _, judged_before, met_before = self._windows[0] if self._windows else (0, 0, 0)
        self._windows.append((at_ms, state.windows, state.windows_met))
        judged = state.windows - judged_before
        if judged == 0:
            return None
        return state.windows_met - met_before < state.wanted * judged or worst_fell


def parsed_slo(text: str) -> Slo | None:
    """Return the SLO of a start event's text; None where a later release wrote the text."""
    try:
        return parse_slo(text)
    except HeadgateError:
        return None


def _is_late(slo: Slo, batch: Batch) -> bool | None:
    """Return whether a batch is late by its latencies; None without latencies."""
    bound_ms = slo.bound * 1e3
    if slo.statistic != "mean":
        latency_ms = percentile_ms(batch.histogram, slo.quantile)
        return None if latency_ms is None else latency_ms > bound_ms
    slots = [s.latency_mean_ms for s in batch.slot_stats if s.latency_mean_ms is not None]
    return any(mean_ms > bound_ms for mean_ms in slots) if slots else None
