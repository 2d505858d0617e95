"""Counts the changes of a run that later events proved wrong, whatever was known at the time."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from headgate.whatif.measures import AppliedChange, Measures
from headgate.whatif.oracle import EPOCH_S, Load
from headgate.whatif.result import RunResult

F64 = npt.NDArray[np.float64]

_TOLERATED = 0.01
"""Increase of the share of late ticks that is no reason for regret."""

_FULL = 0.9
"""Utilisation of the slots up to which an operator has enough of them."""


@dataclass(frozen=True)
class Regrets:
    """Counts the changes of each kind, and the regretted ones among them."""

    scale_ins: int
    scale_ins_regretted: int
    """`scale_ins`: changes that removed slots; `scale_ins_regretted`: those with more late ticks after
    the change than before it, within the settling time.
    """

    scale_outs: int
    scale_outs_too_late: int
    """`scale_outs`: changes that added slots; `scale_outs_too_late`: those after which the old slots
    would have been idle for a tenth of the time, since the burst was over.
    """

    moves: int
    moves_worse: int
    """`moves`: changes of key groups with the same number of slots; `moves_worse`: those whose groups
    were late more often than before.
    """


def regrets(result: RunResult, operator: str, load: Load) -> Regrets:
    """Return the regretted changes of a run on `load`, after its warm-up.

    The settling time of a change is a window, the time that the change took, and `EPOCH_S`; it is
    compared with as much time before the request.
    """
    measures = result.operators[operator]
    late, judged = _late_ticks(measures, load)
    work_s = _work_s(measures, load)
    counts = dict.fromkeys(("in", "in_bad", "out", "out_bad", "move", "move_bad"), 0)
    for applied in measures.applied:
        if applied.applied_s < load.from_s:
            continue
        settle_s = load.window_s + applied.took_s + EPOCH_S
        span = round(settle_s / load.delta_s)
        at, asked = (round(s / load.delta_s) for s in (applied.applied_s, applied.decided_s))
        before, after = slice(max(asked - span, 0), asked), slice(at, at + span)
        held, now = applied.before.slots, applied.change.assignment.slots
        if now > held:
            counts["out"] += 1
            needed_s = float(work_s[after].sum()) + _waiting_s(measures, load, at)
            counts["out_bad"] += needed_s < _FULL * held * settle_s
            continue
        kind = "in" if now < held else "move"
        groups = _moved(applied) if kind == "move" else slice(None)
        counts[kind] += 1
        then, since = (
            _share(late[part][:, groups], judged[part][:, groups]) for part in (before, after)
        )
        counts[f"{kind}_bad"] += since > then + _TOLERATED
    return Regrets(*counts.values())


def _moved(applied: AppliedChange) -> list[int]:
    return list(applied.moved)


def _late_ticks(measures: Measures, load: Load) -> tuple[F64, F64]:
    """Return for each tick and key group whether it was late, and whether records completed or waited."""
    completed = measures.completed
    some = completed > 0.0
    stalled = ~some & (measures.waiting(0, load.key_groups) > 0.0)
    late = some & (measures.latency_sum_s > load.bound_s * completed)
    # A tick with waiting records and no completion is late if the next tick with a completion is.
    ticks = len(completed)
    number = np.where(some, np.arange(ticks)[:, None], ticks)
    following = np.minimum.accumulate(number[::-1], axis=0)[::-1]
    padded = np.concatenate([late, np.ones((1, load.key_groups), dtype=np.bool_)])
    late |= stalled & np.take_along_axis(padded, following, axis=0)
    return late.astype(np.float64), (some | stalled).astype(np.float64)


def _work_s(measures: Measures, load: Load) -> F64:
    """Return the service time of each tick's arrivals, float64[ticks]."""
    ticks = measures.ticks
    at = np.minimum((load.arrival_s / load.delta_s).astype(np.int64), ticks - 1)
    return np.bincount(at, weights=load.demand_s, minlength=ticks).astype(np.float64)


def _waiting_s(measures: Measures, load: Load, tick: int) -> float:
    """Return the approximate service time of the backlog after a tick."""
    row = min(max(tick, 1), measures.ticks)
    held = measures.arrived[:row].sum() - measures.completed[:row].sum()
    return float(held) * float(load.demand_s.mean())


def _share(late: F64, judged: F64) -> float:
    total = float(judged.sum())
    return float(late.sum()) / total if total else 0.0
