"""Compares policies on one workload and says whether the unified policy is ahead of each rival."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Row = dict[str, Any]


@dataclass(frozen=True)
class Measure:
    """Describes a measure that policies are compared by.

    Attributes
    ----------
    key : str
        Its key in a row.
    more : bool
        Whether more is better.
    within : float
        Difference up to which policies count as equal, in the measure's own unit.
    """

    key: str
    more: bool = False
    within: float = 0.0

    def lead(self, ours: Row, rival: Row) -> float:
        """Return by how much ours is better; negative where it is worse."""
        difference = float(ours[self.key]) - float(rival[self.key])
        return difference if self.more else -difference


@dataclass(frozen=True)
class Beside:
    """Holds the comparison on one workload.

    Attributes
    ----------
    measures : sequence of Measure
        The first is the aim of the paper's policy.
    ours, rivals, also : Row, sequence of Row
        Each with ``policy`` and the measures. Rivals are the paper's own policies with its parameters;
        the rows of `also` are shown, but do not affect whether ours is ahead.
    """

    workload: str
    measures: Sequence[Measure]
    ours: Row
    rivals: Sequence[Row]
    also: Sequence[Row] = ()

    @property
    def rows(self) -> list[Row]:
        """All rows, ours first."""
        rows = (self.ours, *self.rivals, *self.also)
        return [{"workload": self.workload, **row} for row in rows]

    @property
    def verdicts(self) -> list[Row]:
        """Per rival: the lead in each measure; whether ours is ahead in the first, behind in none."""
        return [self._verdict(rival) for rival in self.rivals]

    def _verdict(self, rival: Row) -> Row:
        leads = {m.key: round(m.lead(self.ours, rival), 5) for m in self.measures}
        first = self.measures[0].key
        behind = [m.key for m in self.measures if leads[m.key] < -m.within]
        return {
            "workload": self.workload,
            "against": rival["policy"],
            "ahead": leads[first] > 0.0 and not behind,
            "behind_in": behind,
            **{f"lead_{key}": value for key, value in leads.items()},
        }


def summary(parts: Sequence[Beside]) -> Mapping[str, bool]:
    """Return per workload whether ours is ahead of all its rivals."""
    found: dict[str, bool] = {}
    for part in parts:
        found[part.workload] = all(verdict["ahead"] for verdict in part.verdicts)
    return found
