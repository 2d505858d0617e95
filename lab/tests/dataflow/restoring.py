"""A run that goes on from a checkpoint, also from one in the middle of a migration."""

from __future__ import annotations

import copy

from headgate.core.assignment import Assignment
from headgate.core.errors import CheckpointError
from headgate_lab.sim.dataflow.dataflow import Dataflow
from headgate_lab.sim.dataflow.elements import Record
from headgate_lab.sim.dataflow.slot import LAST_RANK, Slot, Snapshot


def restored(flow: Dataflow, number: int) -> Dataflow:
    """Return a new run that begins with checkpoint `number` of another.

    Units are where the checkpoint has them, so a migration it found half done is half done; what was
    in transit is served first. The migration itself may be requested again.

    Raises
    ------
    CheckpointError
        A slot has not taken the checkpoint.

    References
    ----------
    DRRS IV-C: snapshots hold the progress of subscales and data in transit.
    """
    snapshots = {slot: _of(slot, number) for slots in flow.slots.values() for slot in slots}
    assignments = {name: _assignment(flow, name, snapshots) for name in flow.assignments}
    new = Dataflow(flow.job, flow.parts, assignments=assignments)
    for source, old in zip(new.sources(), flow.sources(), strict=True):
        source.set_up(flow.job, source.arrivals, snapshots[old].place)
    for name in assignments:
        _fill(new, name, [snapshots[slot] for slot in flow.slots[name]])
    return new


def outputs_before(flow: Dataflow, number: int) -> list[tuple[float, Record]]:
    """Return what the sinks had when they took checkpoint `number`."""
    return [item for s in flow.sinks() for item in s.collected[: _of(s, number).place]]


def _of(slot: Slot, number: int) -> Snapshot:
    if number not in slot.snapshots:
        msg = f"slot {slot.name} has not taken checkpoint {number}; run until it has."
        raise CheckpointError(msg)
    return slot.snapshots[number]


def _assignment(flow: Dataflow, name: str, snapshots: dict[Slot, Snapshot]) -> Assignment:
    parts = flow.parts.get(name, 1)
    owner = {unit // parts: s.index for s in flow.slots[name] for unit in snapshots[s].values}
    slot_of = tuple(owner[group] for group in range(flow.models[name].key_groups))
    return Assignment(slot_of, len(flow.slots[name]))


def _fill(new: Dataflow, name: str, snapshots: list[Snapshot]) -> None:
    for slot, snapshot in zip(new.slots[name], snapshots, strict=True):
        slot.store = copy.deepcopy(snapshot.values)
    slot_of = new.assignments[name].slot_of
    parts = new.parts.get(name, 1)
    for rank in range(LAST_RANK + 1):
        for snapshot in snapshots:
            for record in snapshot.in_transit[rank]:
                slot = new.slots[name][slot_of[record.unit // parts]]
                slot.special.append(copy.copy(record))
                new.clock.after(0.0, slot.wake)
