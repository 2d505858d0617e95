"""Compares policies with the oracle and the best constant, and recommends one of them."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from headgate.core.slo import Slo
from headgate.whatif.decisions import finite
from headgate.whatif.oracle import Constants, Load, Point, oracle, slots_at, whole

_WORSE = 1.15
"""A policy with more than so many times the best constant's slots loses to the constant. Chosen."""

_BESIDE = ("oracle_slots", "to_oracle", "constant_slots", "to_constant")


def beside(load: Load, rows: Sequence[dict[str, Any]], slo: Slo) -> dict[str, Any]:
    """Compare rows with the oracle and the best constant; add the columns of the comparison to rows.

    Returns ``oracle`` and ``constants``: points of ``success``, ``worst`` and ``slots``; and slots for
    the SLO's success: ``oracle_slots``, where a slot serves any record, ``whole_slots``, where a key
    group stays on one slot, and ``constant_slots``; None where no number of slots has that success.

    `rows`: with ``success`` and ``slots_mean``; gets ``oracle_slots`` (at the row's success),
    ``to_oracle`` (mean slots over the oracle's), ``constant_slots`` (fewest with the row's success)
    and ``to_constant``.
    """
    points, constants = oracle(load, on_progress=_progress()), Constants(load)
    for row in rows:
        success = row["success"]
        if success is None:
            row.update(dict.fromkeys(_BESIDE))
            continue
        fixed = constants.best(success)
        fewest = _fewest(points, fixed, success)
        row["oracle_slots"] = round(fewest, 3)
        row["to_oracle"] = round(row["slots_mean"] / fewest, 3)
        row["constant_slots"] = int(fixed.slots)
        row["to_constant"] = round(row["slots_mean"] / fixed.slots, 3)
    best, undivided = constants.best(slo.success), whole(load, slo.success)
    return {
        "oracle": [_plain(point) for point in sorted(points, key=lambda p: p.slots)],
        "constants": [_plain(constants.points[n]) for n in sorted(constants.points)],
        "oracle_slots": round(_fewest(points, best, slo.success), 3),
        "whole_slots": round(undivided.slots, 3) if undivided.success >= slo.success else None,
        "constant_slots": int(best.slots) if best.success >= slo.success else None,
    }


def _progress() -> Callable[[int, int], None]:
    """Return a function that reports on stderr the progress of the oracle, as `run_all` does of runs."""
    start_s = time.monotonic()

    def told(done: int, of: int) -> None:
        elapsed_s = time.monotonic() - start_s
        sys.stderr.write(f"oracle: {done} of {of} searches, {elapsed_s:.0f} s\n")
        sys.stderr.flush()

    return told


def _fewest(points: Sequence[Point], fixed: Point, success: float) -> float:
    """Return the oracle's slots, at most the constant's: the oracle's search may end above these."""
    slots = slots_at(points, success)
    return min(slots, fixed.slots) if fixed.success >= success else slots


def _plain(point: Point) -> dict[str, float | None]:
    return {name: finite(round(value, 5)) for name, value in asdict(point).items()}


def sentence(
    slo: Slo,
    rows: Sequence[Mapping[str, Any]],
    *,
    constant: int | None = None,
    batches: bool = False,
    limit: Callable[[Mapping[str, Any]], str] = lambda _: "give it more slots",
) -> str:
    """Return in one sentence which policy, slots and SLO to take.

    Recommends the policy with the fewest slots that keeps the SLO. If no policy does, names the policy
    with the largest success, and the bound that this policy keeps.

    Parameters
    ----------
    constant : int or None
        Fewest fixed slots that keep the SLO; None where unknown, or where no number keeps it.
    batches : bool
        Whether rows are of micro-batch mode; the oracle and the constants have no batches.
    limit : callable    Returns the remedy for a row that misses the SLO.
    """
    known = [row for row in rows if row["success"] is not None]
    if not known:
        return "Nothing arrives, so any policy will do."
    wanted = f"{slo.success:.3g} of windows" if slo.success < 1.0 else "every window"
    keeping = [row for row in known if row["meets"]]
    if keeping:
        best = min(keeping, key=lambda row: (row["slots_mean"], row["changes_per_h"]))
        if constant is not None and not batches and best["slots_mean"] > _WORSE * constant:
            return (
                f'Take static({constant}): it keeps "{slo}" with {constant} slots; of the policies here '
                f"{best['policy']} needs the fewest, {best['slots_mean']:.3g} on the average."
            )
        worst, beside_it = "", ""
        if best["success_worst"] < slo.success:
            worst = f", {best['success_worst']:.2%} of the worst key group's,"
        if best.get("to_oracle") is not None:
            beside_it = f", {best['to_oracle']:.2g} times what an oracle needs"
            beside_it += (
                " that has no batches"
                if batches
                else f"; a fixed number that does as well is {best['constant_slots']}"
            )
        return (
            f'Take {best["policy"]} with up to {best["slots_most"]} slots: it keeps "{slo}" in '
            f"{best['success']:.2%} of windows{worst} with {best['slots_mean']:.3g} slots on the average"
            f"{beside_it}."
        )
    best = max(known, key=lambda row: (row["success"], -row["slots_mean"]))
    text = f"{best['success']:.2%}"
    if best["success"] >= slo.success:
        text += f", of the worst key group's windows in {best['success_worst']:.2%},"
    reached_s = best["bound_kept_s"]
    remedy = limit(best)
    if reached_s is not None and reached_s > slo.bound:
        looser = replace(slo, bound=reached_s)
        remedy = f'it keeps "{looser}", or {remedy}'
    return (
        f'No policy here keeps "{slo}" in {wanted}; {best["policy"]} comes nearest, in '
        f"{text} with {best['slots_mean']:.3g} slots on the average: {remedy}."
    )
