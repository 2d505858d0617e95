"""Plays the arrivals of an engine in micro-batches on the virtual slots of all rules.

Only for an operator that is alone in its batches. For an operator that reads another operator, or whose
slots serve at a fixed rate, `kernels.play` plays slots that serve at once. Costly records are drawn one
by one; a costly key group shows only in its load.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from headgate.control.batch_times import BatchTimes
from headgate.control.slots.hindsight.cost import RecordCost
from headgate.control.slots.hindsight.demand import F64
from headgate.control.slots.hindsight.kernels import I64, play_batches

_WORLDS = 4
"""Number of plays of each cycle, with costly records at other times: a long batch is rare and makes all
records late. A larger number is more exact and slower. Not tuned."""

_GOLDEN = 0.6180339887498949
"""Fractional part of the golden ratio: the fractional parts of its multiples lie evenly in [0, 1)."""


@dataclass(frozen=True)
class Cycle:
    """Holds the arrivals of a cycle, and the slots that rules want at its end.

    Attributes
    ----------
    elapsed_s, within_s : float
        Length of the cycle, and the latency that records may have, in seconds.
    active : int64[n]
        Key groups with arrivals.
    records, weight : float64[n]
        Of each active group: number of its records, and its weight.
    wanted, leap : float64[R]
        As in `play_batches`.
    rest_s : float
    most : int
    packing : int64[most + 1, G]
    """

    elapsed_s: float
    within_s: float
    active: I64
    records: F64
    weight: F64
    wanted: F64
    leap: F64
    rest_s: float
    most: int
    packing: I64


class VirtualBatches:
    """Plays the batches of every rule in several worlds, which differ in the times of costly records.

    Parameters
    ----------
    rules, most : int
        Number of rules, and most slots of a rule.
    """

    def __init__(self, rules: int, most: int) -> None:
        self._waiting_s: F64 = np.zeros((_WORLDS, rules, most))
        self._dear_s: F64 = np.zeros((_WORLDS, rules, most))
        self._pace: F64 = np.ones((_WORLDS, rules, most))
        self._ends_s: F64 = np.zeros((_WORLDS, rules))
        self._scratch: F64 = np.zeros((2, most))
        self._turn = 0

    def play(
        self,
        cycle: Cycle,
        batch: BatchTimes,
        cost: RecordCost,
        slower: float,
        slots: I64,
        calm_s: F64,
    ) -> tuple[F64, F64]:
        """Play the arrivals of one cycle on every rule.

        Parameters
        ----------
        slower : float
            Factor on `cost`: seconds that a virtual slot takes for a second of cost.
        slots, calm_s : int64[R], float64[R]
            Changed in place.

        Returns
        -------
        float64[R], float64[R]
            Weight of the groups whose records would be late, and 1 where the number of slots changed.
        """
        late, mean_late, changed = np.zeros(len(slots)), np.zeros(len(slots)), np.zeros(len(slots))
        read_s = batch.record_s * float(cycle.records.sum())
        before = slots.copy(), calm_s.copy()
        for world in range(_WORLDS):
            slots[:], calm_s[:] = before
            usual_s, more_s = cost.dealt(cycle.records)
            dear = np.flatnonzero(more_s)
            at_s: F64 = (self._turn + np.arange(len(dear), dtype=np.float64)) * _GOLDEN % 1.0
            at_s *= cycle.elapsed_s
            self._turn += len(dear)
            order = np.argsort(at_s)
            play_batches(
                cycle.elapsed_s,
                cycle.within_s,
                batch.before_s + batch.task_s + read_s,
                batch.after_s,
                batch.budget_s,
                batch.cores,
                cycle.active,
                cycle.records * usual_s * slower,
                cycle.weight,
                cycle.active[dear][order],
                more_s[dear][order] * slower,
                at_s[order],
                cycle.wanted,
                cycle.leap,
                cycle.rest_s,
                calm_s,
                cycle.most,
                cycle.packing,
                slots,
                self._waiting_s[world],
                self._dear_s[world],
                self._pace[world],
                self._ends_s[world],
                self._scratch[0],
                self._scratch[1],
                late,
                changed,
            )
            mean_late += late / _WORLDS
        return mean_late, changed
