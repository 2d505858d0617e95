"""Supplies the records of an operator: from a source, or from the operators upstream."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from headgate.whatif.model import OperatorModel
from headgate.workloads.arrivals import ArrivalFeed, groups_at

F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]

Records = tuple[F64, F64, F64, I64]
"""Arrival, origin and service time of each record in seconds, and its key group; ascending."""

_DRAWN_AT_ONCE = 4096
"""Least number of service times per draw. Chosen, not tuned."""


class Inflow:
    """Supplies the records that arrive at one operator, each with its own service time.

    The service time is drawn on arrival, so the same seed gives every policy the same records. It is
    multiplied by the record's cost where the source has costs.

    `source`: None for an operator with parents.
    """

    def __init__(
        self, model: OperatorModel, source: ArrivalFeed | None, generator: np.random.Generator
    ) -> None:
        self._model = model
        self._source = source
        # Separate generators, so that service times do not depend on how many records came at once.
        self._routing, self._service = generator.spawn(2)
        shares = model.shares or (1.0 / model.key_groups,) * model.key_groups
        self._edges: F64 = np.cumsum(shares)
        self._carried = 0.0
        self._demand_s: F64 = np.zeros(0)
        self._costs = None if source is None else source.costs
        self._drawn = 0

    def until(self, time_s: float, feeds: Sequence[F64]) -> Records:
        """Return the records that arrive after the last call and up to `time_s`.

        `feeds` (sequence of float64[n, 2]): (completion, origin) of what each parent completed
        since the last call.
        """
        if self._source is not None:
            arrival_s, groups = self._source.until(time_s)
            origin_s = arrival_s
        else:
            arrival_s, origin_s = self._spread(feeds)
            groups = groups_at(self._edges, self._routing.random(len(arrival_s)))
        return arrival_s, origin_s, self._draw(len(groups)), groups

    def _draw(self, count: int) -> F64:
        """Return the service times of the next `count` records."""
        if count > len(self._demand_s):
            more = self._model.service.draw(self._service, max(count, _DRAWN_AT_ONCE))
            self._demand_s = np.concatenate([self._demand_s, more])
        drawn, self._demand_s = self._demand_s[:count], self._demand_s[count:]
        if self._costs is not None:
            drawn = drawn * self._costs[self._drawn : self._drawn + count]
        self._drawn += count
        return drawn

    def _spread(self, feeds: Sequence[F64]) -> tuple[F64, F64]:
        """Return arrival and origin of the records that parents' records become."""
        records = np.concatenate(feeds)
        if len(feeds) > 1:
            records = records[np.argsort(records[:, 0], kind="stable")]
        due = self._carried + self._model.selectivity * np.arange(1, len(records) + 1)
        copies = np.diff(np.floor(due).astype(np.int64), prepend=0)
        self._carried = float(due[-1] % 1.0) if len(due) else self._carried
        repeated = np.repeat(records, copies, axis=0)
        return repeated[:, 0], repeated[:, 1]
