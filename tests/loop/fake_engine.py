"""An engine that only counts: queues of key groups, served by slots, one tick per `collect`."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from headgate.control.decision import Change, Decision
from headgate.control.observation import Observation
from headgate.control.sample import Sample
from headgate.core.assignment import Assignment, spread

DELTA_S = 0.1


class FakeEngine:
    """One operator; implements all three ports of the loop.

    Attributes
    ----------
    rate : float
        Arrivals per second of each key group.
    mu : float
        Records per second of each slot.
    log : list of str
        What the loop and the engine did, in order.
    missing : bool
        Whether counters are missing from now on.
    """

    def __init__(self, *, groups: int = 8, slots: int = 2, rate: float = 10.0, mu: float = 100.0):
        self.now = spread(slots, groups)
        self.rate, self.mu, self.missing = rate, mu, False
        self.ids = tuple(range(slots))
        self.log: list[str] = []
        self.decisions: list[tuple[Observation, Decision, bool]] = []
        self.applying: Change | None = None
        self._tick = 0
        self._arrived, self._completed = np.zeros(groups), np.zeros(groups)

    # metrics source

    def collect(self) -> dict[str, list[Sample]]:
        self._tick += 1
        self._arrived = self._arrived + self.rate * DELTA_S
        slot_of = np.array(self.now.slot_of)
        waiting = self._arrived - self._completed
        each = np.bincount(slot_of, weights=waiting, minlength=self.now.slots)
        served = np.minimum(each, self.mu * DELTA_S)
        share = np.divide(served, each, out=np.zeros_like(each), where=each > 0)
        self._completed = self._completed + waiting * share[slot_of]
        arrived = self._arrived.copy()
        if self.missing:
            arrived[0] = np.nan
        sample = Sample(self._tick, self.now, self.ids, arrived, self._completed, served / self.mu)
        return {"op": [sample]}

    # actuator

    def assignment(self, operator: str) -> Assignment:
        return self.now

    def apply(self, operator: str, change: Change) -> None:
        assert self.applying is None
        self.log.append("apply")
        self.applying = change

    def finish(self, tell: Callable[[str, float], None], time_s: float) -> None:
        """Bring the change under way into force, and tell the loop."""
        change, self.applying = self.applying, None
        assert change is not None
        self.now = change.assignment
        fresh = iter(range(max(self.ids) + 1, 10_000))
        self.ids = tuple(next(fresh) if s is None else self.ids[s] for s in change.survivors)
        tell("op", time_s)

    # journal

    def decided(self, observation: Observation, decision: Decision, *, acts: bool) -> None:
        self.log.append("decided" if acts else f"noted {decision.rule}")
        self.decisions.append((observation, decision, acts))

    def applied(self, operator: str, change: Change, took_s: float) -> None:
        self.log.append(f"applied after {took_s:.1f} s")

    def not_ready(self, operator: str, why: str) -> None:
        self.log.append(f"not ready: {why}")
