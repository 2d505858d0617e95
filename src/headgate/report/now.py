"""Computes the figures that the views call "now": means over the last batches."""

from __future__ import annotations

from dataclasses import dataclass

from headgate.journal.histogram import merge, percentile_ms
from headgate.journal.schema import Batch, Stop
from headgate.report.format import span_text
from headgate.report.run import Run

STALE_MS = 10_000
"""A journal without a new line for longer is called silent. Chosen, not tuned: twenty idle batches."""

_LONG_MS = 300_000
"""A journal in a batch is called silent after this time, unless a driver is known to hold it. Chosen."""


@dataclass(frozen=True)
class Now:
    """Holds the means over the last batches of a run."""

    in_per_s: float
    """Records that arrived, per second."""
    out_per_s: float
    """Rows emitted, per second."""
    mean_ms: float | None
    """Mean latency, in ms; None when nothing completed."""
    p95_ms: float | None
    """95th percentile of latency, in ms."""
    p99_ms: float | None
    """99th percentile of latency, in ms."""
    phases_ms: dict[str, float]
    """Mean time of each phase of a batch (in real time, of an epoch), in ms."""
    store_per_h: tuple[float, float] | None
    """Requests to the checkpoint's store and bytes written there, per hour; None without a store."""


def now_of(run: Run) -> Now:
    """Return the means over the last batches of `run`, which has at least one."""
    recent = list(run.recent)
    spent_s = _spent_s(run, recent)
    histogram = merge(batch.histogram for batch in recent)
    sums = [
        (b.latency_ms.mean * (n := sum(c for _, c in b.histogram) or b.served), n)
        for b in recent
        if b.latency_ms is not None
    ]
    count = sum(n for _, n in sums)
    phases = {phase for batch in recent for phase in batch.phases_ms}
    batches = sum(batch.epochs or 1 for batch in recent)
    return Now(
        in_per_s=sum(b.arrived for b in recent) / spent_s,
        out_per_s=sum(b.emitted for b in recent) / spent_s,
        mean_ms=sum(total for total, _ in sums) / count if count else None,
        p95_ms=percentile_ms(histogram, 0.95),
        p99_ms=percentile_ms(histogram, 0.99),
        phases_ms={
            phase: sum(b.phases_ms.get(phase, 0.0) for b in recent) / batches
            for phase in sorted(phases)
        },
        store_per_h=_store_per_h(recent, spent_s),
    )


def _store_per_h(recent: list[Batch], spent_s: float) -> tuple[float, float] | None:
    if all(batch.store_requests is None for batch in recent):
        return None
    requests = sum(batch.store_requests or 0 for batch in recent)
    written = sum(batch.store_bytes or 0 for batch in recent)
    return 3600 * requests / spent_s, 3600 * written / spent_s


def _spent_s(run: Run, recent: list[Batch]) -> float:
    """Return the wall time of the last batches, in s; at least a millisecond."""
    before = len(run.rows) - len(recent) - 1
    since_ms = run.rows[before].at_ms if before >= 0 else run.began_ms
    return max(1, recent[-1].at_ms - since_ms) / 1000


def health(run: Run, now_ms: int, holds: bool | None = None) -> str:
    """Return the state of a query: running, working on a batch for long, idle, dead, or ended and why.

    Stale data is never shown as running: a killed driver leaves no stop event. A query that has just
    started is not stale: its first batch may take a minute. Batches without new records leave no line,
    so a query without lines is idle if a driver holds its checkpoint, and silent if that is not known.

    `now_ms`: wall clock, ms since 1970. `holds`: whether a driver holds the checkpoint; None if that
    is not known.
    """
    if isinstance(run.stop, Stop):
        return f"failed: {run.stop.error}" if run.stop.error else f"finished ({run.stop.reason})"
    if run.start is None:
        return "no start event yet"
    age_ms = now_ms - run.ended_ms
    if holds is False and age_ms > STALE_MS:
        return f"dead: no driver holds it, and it has been silent for {span_text(age_ms / 1000)}"
    working_ms = 0 if run.begun is None else now_ms - run.begun.at_ms
    if run.begun is not None and working_ms > STALE_MS:
        if not holds and age_ms > _LONG_MS:
            return f"silent for {span_text(age_ms / 1000)}, in batch {run.begun.step}"
        return f"working on batch {run.begun.step} for {span_text(working_ms / 1000)}"
    if not run.has_batches:
        since_s = max(0.0, (now_ms - run.start.at_ms) / 1000)
        return f"no batch yet, started {span_text(since_s)} ago"
    if age_ms <= STALE_MS:
        return "running"
    return f"{'idle' if holds else 'silent'} for {span_text(age_ms / 1000)}"
