"""Simulates one operator of a job: the part that both modes share."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from headgate.control.decision import Change
from headgate.core.assignment import spread
from headgate.core.errors import ProtocolError
from headgate.whatif.measures import AppliedChange, Measures
from headgate.whatif.model import OperatorModel
from headgate.whatif.queues import Queues
from headgate.whatif.streams import Inflow

F64 = npt.NDArray[np.float64]


class SimulatedOperator:
    """Holds the queues, the slots with their identities, and the true figures of one operator.

    Parameters
    ----------
    generator : numpy.random.Generator    For the speeds of new slots.
    ticks : int    How many ticks the run has.
    delta_s : float    Length of a tick.

    Attributes
    ----------
    slot_ids : tuple of int    Identity of each slot in force, as `Sample` has them.
    """

    def __init__(
        self,
        name: str,
        model: OperatorModel,
        inflow: Inflow,
        generator: np.random.Generator,
        *,
        ticks: int,
        delta_s: float,
    ) -> None:
        self.name = name
        self.model = model
        self.inflow = inflow
        self._generator = generator
        assignment = spread(model.slots, model.key_groups)
        speeds = model.pool.speeds(generator, model.slots)
        self.queues = Queues(assignment, speeds, model.service.least_s)
        has_parents = bool(model.parents)
        self.measures = Measures(
            ticks,
            delta_s,
            model.key_groups,
            has_parents=has_parents,
            counts_within=model.within_s is not None,
        )
        if model.within_s is not None:
            self.queues.within_s = model.within_s
        self.slot_ids = tuple(range(model.slots))
        self._next_id = model.slots

    def allocate(self, change: Change, *, busy: bool) -> F64:
        """Return the speeds of the slots that `change` adds.

        Raises `ProtocolError`: a change is under way (`busy`), or this one does not follow the
        epoch in force.
        """
        epoch = self.queues.assignment.epoch
        if busy or change.assignment.epoch != epoch + 1:
            msg = (
                f"operator {self.name} cannot take epoch {change.assignment.epoch} while epoch "
                f"{epoch} is in force or changing; decide again."
            )
            raise ProtocolError(msg)
        return self.model.pool.speeds(self._generator, change.survivors.count(None))

    def enforce(
        self,
        change: Change,
        speeds: F64,
        *,
        decided_s: float,
        at_s: float,
        stopped_s: float = 0.0,
        involved: int = 0,
    ) -> AppliedChange:
        """Bring `change` into force at `at_s`, and add it to the measures.

        `speeds` (float64[new slots]): as `allocate` returned them. `decided_s`, `at_s`,
        `stopped_s`, `involved`: as `AppliedChange`.
        """
        before = self.queues.assignment
        self.queues.reassign(change.assignment, change.survivors, speeds, resume_s=at_s)
        identities = []
        for old in change.survivors:
            if old is None:
                identities.append(self._next_id)
                self._next_id += 1
            else:
                identities.append(self.slot_ids[old])
        self.slot_ids = tuple(identities)
        applied = AppliedChange(decided_s, at_s, change, before, stopped_s, involved)
        self.measures.applied.append(applied)
        return applied
