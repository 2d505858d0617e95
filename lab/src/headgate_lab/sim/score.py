"""Compares a run of a policy with the oracle and with the best constant number of slots."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from headgate.control.success import Success
from headgate.whatif.oracle import Constants, Load, Point, slots_at
from headgate.whatif.result import RunResult

_HOUR_S = 3600.0


@dataclass(frozen=True)
class Score:
    """Holds the score of one run, after the warm-up."""

    policy: str
    success: float
    worst: float
    """`success`, `worst`: mean and least, over the key groups, of the share of windows within the
    bound."""
    slots: float
    """Mean number of slots over time."""
    oracle_slots: float
    """Mean slots that the oracle needs for the same success."""
    constant: Point
    """The smallest constant number of slots with at least the same success."""
    changes_per_hour: float
    lost_slot_s: float
    """Total time for which slots stood still for changes, in slot seconds."""

    @property
    def to_oracle(self) -> float:
        """Slots, relative to the oracle's at the same success."""
        return self.slots / self.oracle_slots

    @property
    def to_constant(self) -> float:
        """Slots, relative to the best constant."""
        return self.slots / self.constant.slots


def score(
    result: RunResult, operator: str, load: Load, points: Sequence[Point], constants: Constants
) -> Score:
    """Return the score of a run.

    Parameters
    ----------
    result : RunResult    Result of a policy on `load`.
    points : sequence of Point    Result of `oracle`.
    """
    measures = result.operators[operator]
    judgement = judged(result, operator, load)
    first = int(np.ceil(load.from_s / result.delta_s - 1e-9))
    applied = [a for a in measures.applied if a.applied_s >= load.from_s]
    hours = (load.duration_s - load.from_s) / _HOUR_S
    return Score(
        policy=result.policy,
        success=judgement.mean,
        worst=judgement.worst,
        slots=float(measures.slots[first:].mean()),
        oracle_slots=slots_at(points, judgement.mean),
        constant=constants.best(judgement.mean),
        changes_per_hour=len(applied) / hours,
        lost_slot_s=sum(a.stopped_s for a in applied),
    )


def judged(result: RunResult, operator: str, load: Load) -> Success:
    """Return the success of a run, by the SLO of the load."""
    if load.quantile is not None:
        return result.percentile_success(
            operator, load.quantile, window_s=load.window_s, from_s=load.from_s
        )
    return result.success(
        operator, bound_s=load.bound_s, window_s=load.window_s, from_s=load.from_s
    )
