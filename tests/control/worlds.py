"""A little world for policies that learn: slots that serve work, seen cycle by cycle.

Work is a fluid per key group, and a change is in force at once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from control_views import seen, view

from headgate.control.decision import Decision
from headgate.control.observation import F64
from headgate.control.policy import Policy
from headgate.core.assignment import Assignment, spread

CYCLE_S = 0.1


@dataclass
class World:
    """One operator under a policy.

    Attributes
    ----------
    policy : Policy
    rate : callable
        Records per second of each key group at a time, float64[G].
    record_s : float
        Seconds of a slot per record.
    """

    policy: Policy
    rate: Callable[[float], F64]
    record_s: float = 0.01
    slots: int = 4
    took_s: float = 0.2
    options: dict[str, object] = field(default_factory=dict)
    history: list[int] = field(default_factory=list)
    decisions: list[tuple[float, Decision]] = field(default_factory=list)
    late: list[bool] = field(default_factory=list)

    def run(self, until_s: float) -> World:
        """Run, from 0."""
        random = np.random.default_rng(1)
        groups = len(self.rate(0.0))
        arrived, done = np.zeros(groups), np.zeros(groups)
        held: Assignment = spread(self.slots, groups)
        window = [arrived.copy() for _ in range(10)]
        measured: list[tuple[float, float]] = []
        for cycle in range(round(until_s / CYCLE_S)):
            time_s = (cycle + 1) * CYCLE_S
            arrived = arrived + random.poisson(self.rate(time_s) * CYCLE_S)
            before = done.copy()
            for slot in range(held.slots):
                mine = list(held.groups_of(slot))
                waits = arrived[mine] - done[mine]
                able = CYCLE_S / self.record_s
                share = min(1.0, able / waits.sum()) if waits.sum() > 0.0 else 0.0
                done[mine] += waits * share
                if waits.sum() * share > 0.0:
                    measured.append((float(waits.sum() * share), self.record_s))
            rates = np.maximum(arrived - window[0], 0.0)
            window = [*window[1:], arrived.copy()]
            waiting = arrived - done
            served = np.maximum(done - before, 1e-9) / CYCLE_S
            latency_s = np.where(done > before, waiting / served, np.nan)
            self.late.append(bool(np.nanmax(latency_s, initial=0.0) > 1.0))
            operator = view(
                rates.tolist(),
                1.0 / self.record_s,
                assignment=held,
                backlog=0.0,
                latency_s=0.01,
                arrived=arrived,
                costs=np.array(measured[-256:]).reshape(-1, 2),
                costs_seen=len(measured),
                group_latency_s=latency_s,
                **self.options,
            )
            object.__setattr__(operator, "backlog", waiting)
            decision = self.policy.decide(seen(time_s, it=operator))
            if decision:
                self.decisions.append((time_s, decision))
                change = decision.changes["it"]
                held = change.assignment
                self.policy.applied("it", change, self.took_s)
            self.history.append(held.slots)
        return self

    def mean_slots(self, from_s: float) -> float:
        """Return the time-average of slots from a time on."""
        return float(np.mean(self.history[round(from_s / CYCLE_S) :]))

    def late_share(self, from_s: float) -> float:
        """Return the share of cycles in which some group waits more than a second."""
        return float(np.mean(self.late[round(from_s / CYCLE_S) :]))

    def changes(self, from_s: float) -> int:
        """Return how many changes there were."""
        return sum(time_s >= from_s for time_s, _ in self.decisions)
