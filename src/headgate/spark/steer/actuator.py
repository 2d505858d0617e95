"""Carries the control loop's decisions out at the next batch boundary; a user's request goes first."""

from __future__ import annotations

from collections.abc import Callable

from headgate.control.decision import Change
from headgate.core.assignment import Assignment
from headgate.spark.job.assignment_request import AssignmentRequest
from headgate.spark.job.changes import Changes


class SparkActuator:
    """Requests the changes that a policy decided.

    `by`: the policy's name. `reason`: returns the reason of the decision, for the journal. `refused`:
    called with the operator whose change was not taken, since a user has requested another change.
    """

    def __init__(
        self, changes: Changes, by: str, reason: Callable[[], str], refused: Callable[[str], None]
    ) -> None:
        self._changes = changes
        self._by = by
        self._reason = reason
        self._refused = refused

    def assignment(self, operator: str) -> Assignment:
        """Return the assignment in force."""
        return self._changes.assignment()[operator]

    def apply(self, operator: str, change: Change) -> None:
        """Request `change` from the next boundary on."""
        request = AssignmentRequest(
            change.assignment, self._by, self._reason(), change.survivors, decided=True
        )
        if not self._changes.propose(operator, request):
            self._refused(operator)
