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
    """Return the steps that move up, or once none of them is left those that move down.

    A slot without record scheduling waits for the front of one channel. Were state to move in a
    circle of slots, each could wait for a signal that stands behind what another waits for.
    """

    def up(step: Step) -> bool:
        return all(s.source < s.destination for s in step.subscales)

    rising = any(up(step) for step in (*waiting, *running))
    if any(up(step) != rising for step in running):
        return []
    return [index for index, step in enumerate(waiting) if up(step) == rising]
