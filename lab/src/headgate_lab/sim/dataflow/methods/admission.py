"""Admits the waiting steps that may start: the schedulers of DRRS and of the naive division."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from headgate.migration import plan
from headgate_lab.sim.dataflow.coordinator import Step


def greedy(
    waiting: Sequence[Step],
    running: Sequence[Step],
    held: Sequence[int],
    allowed: Iterable[int],
    per_slot: int | Sequence[int],
) -> list[int]:
    """Return the allowed steps of one subscale each that DRRS's scheduler starts, as indices.

    References
    ----------
    DRRS IV-A; `headgate.migration.plan.schedule` with each slot its own host.
    """
    indices = list(allowed)
    chosen = plan.schedule(
        [waiting[index].subscales[0] for index in indices],
        [step.subscales[0] for step in running],
        held,
        [str(slot) for slot in range(len(held))],
        per_slot,
    )
    return [indices[place] for place in chosen]


def one_direction(waiting: Sequence[Step], running: Sequence[Step]) -> list[int]:
    """Return the steps to higher slot numbers; when none of them is left, those to lower numbers.

    A slot without record scheduling waits for the first record of one channel. If state moved in a circle
    of slots, the slots could wait for each other's signals: a deadlock.
    """

    def up(step: Step) -> bool:
        return all(s.source < s.destination for s in step.subscales)

    rising = any(up(step) for step in (*waiting, *running))
    if any(up(step) != rising for step in running):
        return []
    return [index for index, step in enumerate(waiting) if up(step) == rising]
