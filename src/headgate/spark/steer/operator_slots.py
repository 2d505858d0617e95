"""Reports the slots of a query of stateful operators to its fleet, and limits them to the grant."""

from __future__ import annotations

from collections.abc import Callable

from headgate.control.fleet.grant import UNLIMITED, Grant
from headgate.journal.fleet import GrantChange, SlotRequest
from headgate.journal.schema import Event
from headgate.spark.job.changes import Changes
from headgate.spark.steer.controller import Controller


class OperatorSlots:
    """Keeps the slots of a query's operators within a grant; a `SlotHolder`.

    Parameters
    ----------
    changes : Changes    Enforces the grant at the boundary.
    controller : Controller or None    Decides within the grant; None for a query without an SLO.
    write : callable    Appends an event to the query's journal.
    """

    def __init__(
        self, changes: Changes, controller: Controller | None, write: Callable[[Event], None]
    ) -> None:
        self._changes = changes
        self._controller = controller
        self._write = write
        self._grant = UNLIMITED
        self._noted: dict[str, int] = {}

    def held(self) -> dict[str, int]:
        """Return the slots in force, by operator."""
        return {name: assignment.slots for name, assignment in self._changes.assignment().items()}

    def changing(self) -> bool:
        """Return whether the slots requested last are not in force yet."""
        return any(self._changes.newest(op).slots != n for op, n in self.held().items())

    def holds(self) -> dict[str, float]:
        """Return the end of the hold on each operator's slots, seconds since 1970."""
        return self._changes.holds()

    def limit(self, grant: Grant) -> None:
        """Limit slots to `grant`; tell the policy first, which may choose the slots to give up."""
        if dict(grant.slots) != dict(self._grant.slots):
            self._write(GrantChange(dict(grant.slots), grant.by, grant.reason))
        self._grant = grant
        if self._controller is not None:
            self._controller.limit(grant)
        self._changes.limit(grant)

    def requests(self) -> dict[str, int]:
        """Return the slots that the policy requests, where these are more than granted."""
        requests = {} if self._controller is None else dict(self._controller.requests())
        if requests != self._noted:
            self._noted = requests
            self._write(SlotRequest(requests, dict(self._grant.slots)))
        return requests
