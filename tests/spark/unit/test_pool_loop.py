"""Replicas that change between two batches, as a policy, a user or a fleet asks; without Spark."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from headgate.control.fleet.grant import Grant
from headgate.control.pools.replicas import OperatorInterval, ReplicaDecision
from headgate.core.errors import ConfigError
from headgate.journal.fleet import GrantChange, SlotRequest
from headgate.spark.job.pools import PoolConfig
from headgate.spark.pools import pool_loop
from headgate.spark.pools.pool_loop import PoolLoop


class Clock:
    """A monotonic clock that the test moves."""

    now_s = 100.0

    def monotonic(self) -> float:
        return self.now_s


class Policy:
    """A policy that decides what it is told, and keeps what it saw."""

    name = "scripted"

    def __init__(self) -> None:
        self.seen: list[Any] = []
        self.decides = ReplicaDecision()

    def decide(self, interval: Any) -> ReplicaDecision:
        self.seen.append(interval)
        return self.decides


class Made:
    """A loop over two stages; what it writes is kept."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.clock, self.policy = Clock(), Policy()
        monkeypatch.setattr(pool_loop, "time", self.clock)
        self.written: list[Any] = []
        recorder: Any = SimpleNamespace(
            write=self.written.append,
            resized=lambda *told: self.written.append(("resized", *told)),
            decided=lambda *told: self.written.append("decided"),
        )
        config = PoolConfig(1, 4, 1, interval_s=10.0, restart_s=5.0)
        self.loop = PoolLoop(["a", "b"], config, self.policy, None, recorder)

    def measured(self, monkeypatch: pytest.MonkeyPatch, *stages: str) -> None:
        """Have some stages served something since the last interval."""
        for name, state in self.loop.states.items():

            def interval(
                config: PoolConfig, parents: Any, name: str = name, state: Any = state
            ) -> Any:
                del parents
                if name not in stages:
                    return None
                return OperatorInterval(len(state.active), config.most, event_s=0.1, processed=5.0)

            monkeypatch.setattr(state, "interval", interval)


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Made:
    return Made(monkeypatch)


def test_what_a_user_asks_for_holds_from_the_next_batch_on(made: Made) -> None:
    loop = made.loop
    assert (loop.held(), loop.holds(), loop.changing()) == ({"a": 1, "b": 1}, {}, False)
    loop.ask({"a": 3})
    loop.ask({"b": 2}, "ann", "she wants to")
    assert (loop.held(), loop.changing()) == ({"a": 1, "b": 1}, True)
    loop.between_batches()
    assert (loop.held(), loop.changing()) == ({"a": 3, "b": 2}, False)
    assert made.written == [
        ("resized", 0, "a", 1, 3, "ann", "she wants to"),
        ("resized", 0, "b", 1, 2, "ann", "she wants to"),
    ]
    loop.between_batches()
    assert len(made.written) == 2


def test_replicas_above_a_grant_are_given_up_and_more_are_refused(made: Made) -> None:
    loop = made.loop
    loop.ask({"a": 4})
    loop.between_batches()
    made.written.clear()
    grant = Grant({"a": 2, "b": 4}, by="henge", reason="others need them")
    loop.limit(grant)
    loop.limit(grant)
    assert made.written == [GrantChange({"a": 2, "b": 4}, "henge", "others need them")]
    assert loop.held() == {"a": 4, "b": 1}
    loop.between_batches()
    assert loop.held() == {"a": 2, "b": 1}
    assert made.written[1:] == [("resized", 0, "a", 4, 2, "henge", "others need them")]
    with pytest.raises(
        ConfigError, match=r"replicas=3 exceeds the 2 that the fleet grants a; raise"
    ):
        loop.ask({"a": 3})
    assert not loop.changing()


def test_a_request_that_a_grant_has_overtaken_is_cut_to_it(made: Made) -> None:
    made.loop.ask({"a": 4})
    made.loop.limit(Grant({"a": 3, "b": 4}))
    made.loop.between_batches()
    assert made.loop.held()["a"] == 3


def test_a_policy_decides_when_its_interval_is_over_and_every_stage_was_measured(
    made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = made.loop
    made.policy.decides = ReplicaDecision({"a": 9, "b": 0}, reason="it is time")
    made.measured(monkeypatch, "a", "b")
    made.clock.now_s = 109.0
    loop.arrived(500)
    loop.between_batches()
    assert made.policy.seen == []
    made.clock.now_s = 112.0
    loop.between_batches()
    [seen] = made.policy.seen
    assert set(seen.operators) == {"a", "b"}
    assert list(loop.decisions) == [(12.0, "it is time")]
    assert loop.held() == {"a": 4, "b": 1}, "within the pool, and not less than the least"
    assert made.written == ["decided", ("resized", 0, "a", 1, 4, "scripted", "it is time")]
    made.clock.now_s = 121.0
    loop.between_batches()
    assert len(made.policy.seen) == 1, "the next interval began with the decision"


def test_an_interval_without_measurements_ends_without_a_decision(
    made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    made.measured(monkeypatch, "a")
    made.clock.now_s = 110.0
    made.loop.between_batches()
    assert made.policy.seen == []
    made.measured(monkeypatch, "a", "b")
    made.clock.now_s = 119.0
    made.loop.between_batches()
    assert made.policy.seen == [], "another whole interval"
    made.loop.arrived(30)
    made.clock.now_s = 120.0
    made.loop.between_batches()
    [seen] = made.policy.seen
    assert (seen.duration_s, seen.input_events) == (10.0, 30.0)


def test_a_policy_that_restarts_the_job_drops_what_waits_and_serves_nothing_for_a_while(
    made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = made.loop
    for name, rows in (("a", 7), ("b", 5)):
        monkeypatch.setattr(loop.states[name], "forget", lambda rows=rows: rows)
    loop.states["b"].dropped["too old"] = 2
    loop.restart({"a": 3})
    assert (loop.held()["a"], loop.lost) == (3, 12)
    assert loop.dropped() == {"restart": 12, "too old": 2}
    assert loop.blocked
    made.measured(monkeypatch, "a", "b")
    made.clock.now_s = 104.9
    assert loop.blocked
    made.clock.now_s = 105.0
    assert not loop.blocked


def test_requests_beyond_the_grant_are_written_when_they_change(
    made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    made.measured(monkeypatch, "a", "b")
    made.loop.limit(Grant({"a": 2, "b": 2}))
    made.written.clear()
    made.policy.decides = ReplicaDecision({"a": 4}, reason="more is needed")
    for now_s in (110.0, 120.0):
        made.clock.now_s = now_s
        made.loop.between_batches()
    assert made.loop.requests() == {"a": 4}
    requests = [event for event in made.written if isinstance(event, SlotRequest)]
    assert requests == [SlotRequest({"a": 4}, {"a": 2, "b": 2})]


def test_the_newest_decisions_are_remembered_and_no_more(made: Made) -> None:
    made.loop.decisions.extend((float(n), "") for n in range(pool_loop._KEPT + 2))
    assert (len(made.loop.decisions), made.loop.decisions[0][0]) == (pool_loop._KEPT, 2.0)
