"""Writes a journal line once a second, with the sums of that second's epochs."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from headgate.checkpoint.traffic import Traffic
from headgate.journal.parts import SloState
from headgate.journal.schema import Event
from headgate.spark.job.job import OperatorState
from headgate.spark.job.reports import Report
from headgate.spark.read.plan import PlannedQuery
from headgate.spark.step.begun import Begun
from headgate.spark.step.outcome import Outcome
from headgate.spark.step.record import Recorder

EVERY_S = 1.0
"""Time that a line covers. One line per epoch made 100 MB an hour."""


class EpochRecorder(Recorder):
    """Writes the journal of a query in real time; safe for several threads.

    `after_line` (callable): called after each line.
    """

    def __init__(self, path: Path, query: PlannedQuery, *, texts: bool = False) -> None:
        super().__init__(path, query, texts=texts)
        self._lock = threading.RLock()
        self._outcomes: list[Outcome[Report]] = []
        self._since_s = time.monotonic()
        self._slo: SloState | None = None
        self.after_line: Callable[[], None] = lambda: None

    def follow(self, states: Mapping[str, OperatorState], took_ms: Callable[[], float]) -> None:
        """Set the sources of a line's figures.

        `took_ms`: returns the time of deliveries since the last call.
        """
        self._states, self._took_ms = states, took_ms

    def begun(self, begun: Begun) -> None:
        """Write nothing: the line of the epoch comes within about a second."""

    def batch(
        self,
        outcome: Outcome[Report],
        states: Mapping[str, OperatorState],
        slo: SloState | None,
        epochs: int = 1,
    ) -> None:
        """Keep an epoch for the next line."""
        del states, epochs
        with self._lock:
            reports = [_without_bytes(report) for report in outcome.reports]
            self._outcomes.append(replace(outcome, reports=reports))
            before = self._slo
            if slo is not None and before is not None:
                cycles, loop_ms = slo.cycles + before.cycles, slo.loop_ms + before.loop_ms
                slo = replace(slo, cycles=cycles, loop_ms=round(loop_ms, 3))
            self._slo = slo

    def look(self) -> None:
        """Write a line if the last one is `EVERY_S` old."""
        if time.monotonic() - self._since_s >= EVERY_S:
            self.flush()

    def flush(self) -> None:
        """Write a line of the epochs since the last line."""
        with self._lock:
            self._flush()

    def write(self, event: Event) -> None:
        """Append an event to the journal, after a line of the epochs before it."""
        with self._lock:
            self._flush()
            super().write(event)

    def stop(self, reason: str, error: Exception | None = None) -> None:
        """Write that the query ended, and close the journal."""
        with self._lock:
            super().stop(reason, error)

    def _flush(self) -> None:
        outcomes, self._outcomes = self._outcomes, []
        self._since_s = time.monotonic()
        if not outcomes:
            return
        phases = {"sink": self._took_ms()}
        for outcome in outcomes:
            for name, ms in outcome.phases_ms.items():
                phases[name] = phases.get(name, 0.0) + ms
        traffic = [outcome.store for outcome in outcomes if outcome.store is not None]
        together = Outcome(
            outcomes[-1].manifest,
            [report for outcome in outcomes for report in outcome.reports],
            phases,
            max(outcome.attempts for outcome in outcomes),
            sum(outcome.emitted for outcome in outcomes),
            sum(traffic, Traffic()) if traffic else None,
        )
        slo, self._slo = self._slo, None
        super().batch(together, self._states, slo, len(outcomes))
        self.after_line()


def _without_bytes(report: Report) -> Report:
    output, changelog = (
        one and replace(one, data=None) for one in (report.output, report.changelog)
    )
    return replace(report, output=output, changelog=changelog)
