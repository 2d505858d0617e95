"""Computes the numbers that ``headgate run --json`` and ``headgate status --json`` print."""

from __future__ import annotations

import dataclasses
import itertools
import os
import statistics
from pathlib import Path
from typing import Any

from headgate.journal.histogram import percentile_ms, share_within
from headgate.journal.schema import AssignmentChange
from headgate.report.run import BatchRow, Run

NEIGHBOURS = 21
"""Batches with which the batch of a change is compared: the nearest batches without a change."""

FLOOR_SHARE = 0.05
"""Quantile of the batch period that stands for a nearly idle job."""

FLOOR_PERIODS = 1.5
"""Batch periods that a record takes in an idle job: a wait of half a period on average, and the batch."""


def summary(journal_path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return the numbers of the last run in a journal; needs no engine, and no living job.

    Keys, units last
    ----------------
    workload : str or None
    duration_s : float
        From the start event to the latest event.
    batches, records : int
        Batches committed; records that came from the source.
    verified, rows_compared, missing, extra : None
        Filled in by the caller that compares the output with Spark's batch answer.
    dropped : dict
        Records dropped, by reason: `late`; for pools of replicas also, where there are any, too old,
        refused by a full queue, or lost in a restart.
    slots_seen : list of int
        Numbers of slots in the order in which batches ran with them; empty without a batch.
    query_restarts : int
        Restarts of the query within the run; a change of slots is not a restart.
    latency_ms : dict
        mean, p50, p95, p99 over all records of the run; values None when nothing completed.
    floor_ms : float or None
        1.5 x the 5 % quantile of the batch period (design note 0137).
    rescale_added_ms : list of dict
        For each change of slots: at_s since the run's first batch, from, to, step (first batch
        under it), batch_ms (that batch), median_ms of the 21 nearest batches that are no change,
        added_ms = batch_ms - median_ms, spread_ms (inter-quartile range of those neighbours).
    phases_ms : dict
        Median of each phase over the batches.
    slots_mean : float or None
        Time-average of the number of slots, of the operator with most.
    slo : dict or None
        The SLO and how often the query met it; keys as in `slo_of`.
    decisions : dict
        Changes that a policy decided, by kind, and those it only `advised`.
    switching : dict
        events: changes that came into force; took_ms_mean: mean time from decision to force.
    memory : dict or None
        Where state lies after the last batch (memory_bytes, cold_bytes), and means of the last batches,
        per batch: groups_back, groups_away, groups_cold, moving_ms. None where memory has no bound.
    checkpoint, journal : str or None
    """
    return summary_of(Run.read(journal_path), journal_path)


def summary_of(run: Run, journal_path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return the numbers of a run that was read already; keys as in `summary`."""
    start = run.start
    checkpoint = start.parameters.get("checkpoint") if start else None
    return {
        "workload": (start.workload or start.name) if start else None,
        "duration_s": round((run.ended_ms - run.began_ms) / 1000, 3),
        "batches": len(run.rows),
        "records": run.arrived,
        "verified": None,
        "rows_compared": None,
        "missing": None,
        "extra": None,
        "dropped": {"late": run.late, **run.dropped},
        "slots_seen": slots_seen(run),
        "query_restarts": run.query_restarts,
        "latency_ms": latency_ms(run),
        "floor_ms": floor_ms(run),
        "rescale_added_ms": rescale_added_ms(run),
        "phases_ms": phases_ms(run.rows),
        "slots_mean": slots_mean(run.rows),
        "slo": slo_of(run),
        "decisions": dict(sorted(run.decisions.items())),
        "switching": {
            "events": len(run.switching_ms),
            "took_ms_mean": _rounded(statistics.mean(run.switching_ms))
            if run.switching_ms
            else None,
        },
        "memory": memory_use(run),
        "checkpoint": None if checkpoint is None else str(checkpoint),
        "journal": str(Path(journal_path)),
    }


def slots_seen(run: Run) -> list[int]:
    """Return the numbers of slots in the order in which batches ran with them."""
    seen: list[int] = []
    for row in run.rows:
        if not seen or seen[-1] != row.slots:
            seen.append(row.slots)
    return seen


def memory_use(run: Run) -> dict[str, float] | None:
    """Return the size and the recent moves of state; None where memory has no bound."""
    uses = [batch.memory for batch in run.recent if batch.memory is not None]
    if not uses:
        return None
    last = uses[-1]
    use_of: dict[str, float] = {"memory_bytes": last.memory_bytes, "cold_bytes": last.cold_bytes}
    for name in ("groups_back", "groups_away", "groups_cold", "moving_ms"):
        use_of[name] = round(statistics.mean(float(getattr(use, name)) for use in uses), 3)
    return use_of


def slots_mean(rows: list[BatchRow]) -> float | None:
    """Return the time-average of the slots; None with fewer than two batches.

    A batch stands for the time since the previous batch ended.
    """
    spans = [(b.at_ms - a.at_ms, b.slots) for a, b in itertools.pairwise(rows)]
    total_ms = sum(span_ms for span_ms, _ in spans)
    return round(sum(t * n for t, n in spans) / total_ms, 4) if total_ms else None


def slo_of(run: Run) -> dict[str, Any] | None:
    """Return the SLO of a query and its success; None without an SLO.

    Keys: texts; records_in_time (share of records, not of windows, whose latency is within bound_ms, of
    all operators, an estimate within 5 % of the bound); met (whether success is at least wanted; None
    before a first window); success, success_worst, worst_group, worst_operator, windows, windows_empty,
    windows_stalled, wanted, bound_ms, floor_ms, state, frozen and held_until_ms as `SloState` has them;
    loop_ms (processor time per cycle), cycles.
    """
    state = run.slo
    if state is None:
        return None
    fields = dataclasses.asdict(state)
    in_time = share_within(run.histogram, state.bound_ms)
    per_cycle_ms = round(run.loop_ms / run.cycles, 3) if run.cycles else None
    return fields | {
        "texts": list(run.start.parameters.get("slo", ())) if run.start else [],
        "records_in_time": None if in_time is None else round(in_time, 6),
        "met": None if state.success is None else state.success >= state.wanted,
        "loop_ms": per_cycle_ms,
        "cycles": run.cycles,
    }


def latency_ms(run: Run) -> dict[str, float | None]:
    """Return mean and percentiles over all records of the run, in ms."""
    shares = {"p50": 0.50, "p95": 0.95, "p99": 0.99}
    shown = {
        "mean": run.latencies.mean_ms,
        **{k: percentile_ms(run.histogram, s) for k, s in shares.items()},
    }
    return {name: _rounded(value) for name, value in shown.items()}


def floor_ms(run: Run) -> float | None:
    """Return the measured latency floor, in ms: 1.5 x the 5 % quantile of the batch period.

    A period is the time between the ends of two successive batches without a restart between them.
    With fewer than two periods, returns the start event's floor, which may be None.

    References
    ----------
    Design note 0137 has the control loop's floor. Differs: uses the whole run, and does not check that
    the job was nearly idle, so under constant load the floor is an upper estimate.
    """
    rows = run.rows
    periods = [
        float(b.at_ms - a.at_ms)
        for a, b in itertools.pairwise(rows)
        if a.start_index == b.start_index
    ]
    if len(periods) < 2:  # noqa: PLR2004 - a quantile needs two
        return run.start.floor_ms if run.start else None
    return _rounded(FLOOR_PERIODS * quantile(periods, FLOOR_SHARE))


def rescale_added_ms(run: Run) -> list[dict[str, Any]]:
    """Return the time that each change of slots added to its batch; keys as in `summary`."""
    changed = {change.step for change in run.changes}
    began_ms = run.rows[0].at_ms if run.rows else run.began_ms
    calm = [row for row in run.rows if row.step not in changed]
    by_step = {row.step: row for row in run.rows}
    return [
        _added(change, by_step.get(change.step), calm, began_ms=began_ms)
        for change in run.changes
        if change.slots_before != change.slots_after
    ]


def _added(
    change: AssignmentChange, row: BatchRow | None, calm: list[BatchRow], *, began_ms: int
) -> dict[str, Any]:
    """Return one entry of `rescale_added_ms`; `calm` are the batches that are no change."""
    nearest = sorted(calm, key=lambda r: (abs(r.step - change.step), r.step))[:NEIGHBOURS]
    around = [r.duration_ms for r in nearest]
    batch_ms = row.duration_ms if row else None
    median_ms = statistics.median(around) if around else None
    spread_ms = quantile(around, 0.75) - quantile(around, 0.25) if around else None
    both = batch_ms is not None and median_ms is not None
    return {
        "at_s": round((change.at_ms - began_ms) / 1000, 3),
        "from": change.slots_before,
        "to": change.slots_after,
        "step": change.step,
        "batch_ms": _rounded(batch_ms),
        "median_ms": _rounded(median_ms),
        "added_ms": _rounded(batch_ms - median_ms) if both else None,  # type: ignore[operator]
        "spread_ms": _rounded(spread_ms),
    }


def phases_ms(rows: list[BatchRow]) -> dict[str, float | None]:
    """Return the median of each phase over the batches that had it, in ms."""
    times: dict[str, list[float]] = {}
    for row in rows:
        for phase, spent_ms in row.phases_ms.items():
            times.setdefault(phase, []).append(spent_ms)
    return {phase: _rounded(statistics.median(spent)) for phase, spent in times.items()}


def quantile(values: list[float], share: float) -> float:
    """Return a quantile of at least one value, linear between neighbours, as NumPy's default."""
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


def _rounded(value: float | None) -> float | None:
    """Return a number of ms rounded to tenths, since clocks are no more exact."""
    return None if value is None else round(value, 1)
