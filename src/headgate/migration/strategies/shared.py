"""Changes only owners: slots of one host share state and backlog, so no data moves (STRETCH)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from headgate.migration.plan import Plan
from headgate.migration.progress import Phase
from headgate.migration.strategies.base import Base
from headgate.migration.strategy import ALL_PHASES


@dataclass(frozen=True)
class Shared(Base):
    """Routes all groups at the next boundary; there is no other phase.

    References
    ----------
    STRETCH 5, algorithm 4 and theorem 4: all slots switch at one point, without state transfer.
    Differs: the point is a boundary, not the first watermark above gamma. If a host dies meanwhile,
    groups that then must move between hosts take the phases of all-at-once.
    """

    name: ClassVar[str] = "shared"

    def refusal(self, plan: Plan) -> str | None:
        """Refuse moves between hosts."""
        if not plan.across:
            return None
        group = plan.across[0]
        source, destination = plan.old.slot_of[group], plan.new.slot_of[group]
        return (
            f"key group {group} moves from host {plan.hosts[source]} to {plan.hosts[destination]}, "
            "which share no memory; use subscale."
        )

    def path(self, *, across: bool) -> Sequence[Phase]:
        """Return only the route for a move within a host."""
        return ALL_PHASES if across else (Phase.ROUTE,)
