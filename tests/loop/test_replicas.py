"""An interval of a pool's loop: measured once, decided once, carried out in the way that was decided."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from headgate.control.pools.replicas import Interval, ReplicaDecision
from headgate.loop.replicas import run_interval

MEASURED = Interval(5.0, 9.0, {})


class Fake:
    """A policy and an engine: notes what is asked of it, in order."""

    def __init__(self, decision: ReplicaDecision) -> None:
        self.name, self.decision = "fake", decision
        self.asked: list[object] = []

    def monitor(self) -> Interval:
        self.asked.append("monitor")
        return MEASURED

    def decide(self, interval: Interval) -> ReplicaDecision:
        self.asked.append(interval)
        return self.decision

    def resize(self, active: Mapping[str, int]) -> None:
        self.asked.append(("resize", active))

    def restart(self, active: Mapping[str, int]) -> None:
        self.asked.append(("restart", active))


@pytest.mark.parametrize("restart", [False, True])
@pytest.mark.parametrize("active", [{}, {"a": 2, "b": 1}])
def test_what_is_decided_is_carried_out(active: dict[str, int], *, restart: bool) -> None:
    fake = Fake(ReplicaDecision(active, restart))
    assert run_interval(fake, fake) is fake.decision
    done = [("restart" if restart else "resize", active)] if active else []
    assert fake.asked == ["monitor", MEASURED, *done]
