"""Prints a run as plain lines where there is no terminal: a line every few seconds, no control codes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from headgate.core.input import shown
from headgate.journal.reader import Tail
from headgate.journal.schema import AssignmentChange, Batch, Event
from headgate.report.format import bytes_text, ms_text, since_text
from headgate.report.live import event_text
from headgate.report.now import Now, health, now_of
from headgate.report.run import Run

INTERVAL_S = 5.0
"""Seconds between two lines of a running job."""


def plain_line(run: Run, *, now_ms: int) -> str:
    """Return the current state of the run as one line."""
    name = (run.start.workload or run.start.name) if run.start else "no start event"
    status = health(run, now_ms)
    elapsed = since_text(run.ended_ms, run.began_ms)
    name, status = shown(name), shown(status)
    last = run.last
    if last is None:
        return f"{elapsed} {name} {status}; waiting for the first batch"
    now = now_of(run)
    return (
        f"{elapsed} {name} {status} batch {last.step} slots {last.slots} epoch {last.epoch} "
        f"in {now.in_per_s:.0f}/s out {now.out_per_s:.0f}/s "
        f"latency mean {ms_text(now.mean_ms)} p95 {ms_text(now.p95_ms)} "
        f"p99 {ms_text(now.p99_ms)} ms backlog {last.backlog}{_lag(last)}{_split(run)}{_slo(run)}"
        f"{_store(now)}{_memory(last)}"
    )


def _store(now: Now) -> str:
    if now.store_per_h is None:
        return ""
    requests, written = now.store_per_h
    return f" store {requests:.0f} requests/h {bytes_text(written)}/h"


def _memory(last: Batch) -> str:
    use = last.memory
    if use is None:
        return ""
    return f" state {bytes_text(use.memory_bytes)} in memory {bytes_text(use.cold_bytes)} on disk"


def _lag(last: Batch) -> str:
    return f" lag {sum(last.lag.values())}" if last.lag else ""


def _split(run: Run) -> str:
    return "".join(f" group {group} split over {n}" for (_, group), n in sorted(run.split.items()))


def _slo(run: Run) -> str:
    slo = run.slo
    if slo is None:
        return ""
    success = "-" if slo.success is None else f"{slo.success:.1%}"
    flags = (" frozen" if slo.frozen else "") + (" held" if slo.held_until_ms else "")
    return f" slo {success} {shown(slo.state, 20)}{flags}"


class PlainProgress:
    """Prints a line every `INTERVAL_S`, and events at once.

    `write`: takes one line, without its newline. `now_ms`: the wall clock, ms since 1970.
    """

    def __init__(self, write: Callable[[str], None], now_ms: Callable[[], int]) -> None:
        self._write = write
        self._now_ms = now_ms
        self._run = Run()
        self._tail: Tail | None = None
        self._due_ms = 0

    def update(self, journal: Path) -> None:
        """Read the journal's new lines and print due lines; call it often."""
        if self._tail is None:
            if not journal.is_file():
                return
            self._tail = Tail(journal)
        for event in self._new_events(self._tail):
            text = event_text(event)
            if text is not None:
                elapsed = since_text(event.at_ms, self._run.began_ms)
                self._write(f"{elapsed} event: {text}")
        now_ms = self._now_ms()
        if self._run.last is not None and now_ms >= self._due_ms:
            self._due_ms = now_ms + int(INTERVAL_S * 1000)
            self._write(plain_line(self._run, now_ms=now_ms))

    def _new_events(self, tail: Tail) -> list[Event]:
        """Read new events; changes of several operators at one step are returned as one change."""
        events: list[Event] = []
        for event in tail.events():
            changes = len(self._run.changes)
            self._run.absorb(event)
            if not isinstance(event, AssignmentChange):
                events.append(event)
                continue
            merged = len(self._run.changes) == changes
            if merged and events and isinstance(events[-1], AssignmentChange):
                events.pop()
            events.append(self._run.changes[-1])
        return events
