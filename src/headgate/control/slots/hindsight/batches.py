"""Plays all rules over the arrivals of an engine in micro-batches.

Only an operator that is alone in its batches is played so. Where it reads another operator, and where
slots serve a fixed rate, rules are played on slots that serve at once. A dear record is drawn by itself;
a dear key group is known by its load only.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from headgate.control.batch_times import BatchTimes
from headgate.control.slots.hindsight.cost import RecordCost
from headgate.control.slots.hindsight.demand import F64
from headgate.control.slots.hindsight.kernels import I64, play_batches

_WORLDS = 4
"""How often each cycle is played, with dear records at other places: a long batch is rare, and makes all
records late. More are slower. Not tuned."""

_GOLDEN = 0.6180339887498949
"""Multiples of it, without their whole parts, lie evenly between 0 and 1."""


@dataclass(frozen=True)
class Cycle:
    """Holds the arrivals of a cycle, and the slots that rules want at its end.

    Attributes
    ----------
    elapsed_s, within_s : float
        How long it was, and the latency that records may have.
    active : int64[n]
        Key groups with arrivals.
    records, weight : float64[n]
        Of each: how many, and what it counts.
    wanted, leap : float64[R]
        As `play_batches` has them.
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
    """The batches of every rule, in several worlds that differ in where dear records come.

    Parameters
    ----------
    rules, most : int
        How many rules there are, and how many slots one has at the most.
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
        """Live through a cycle with every rule.

        Parameters
        ----------
        slower : float
            Seconds that a virtual slot takes for a second of `cost`.
        slots, calm_s : int64[R], float64[R]
            Changed in place.

        Returns
        -------
        float64[R], float64[R]
            The weight of what would be late, and 1 where the number of slots has changed.
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
