"""Hosts that come and go: when agents are looked for, and for how long; here without Spark."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from headgate.core.errors import EngineError
from headgate.spark.realtime import agents as agents_of
from headgate.spark.realtime.agents import Agents


class Cluster:
    """A cluster whose hosts the test names; an agent comes up on those in `works`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.living: list[str] = []
        self.works: set[str] = set()
        self.launched: list[list[str]] = []
        self.beside: list[Any] = []
        self.now_s = 100.0
        clock = SimpleNamespace(monotonic=lambda: self.now_s, sleep=self.pass_)
        monkeypatch.setattr(agents_of, "time", clock)
        monkeypatch.setattr(agents_of, "living_hosts", lambda spark: self.living)
        monkeypatch.setattr(agents_of, "_in_background", self.beside.append)
        monkeypatch.setattr(Agents, "_launch", self.launch)
        self.agents: Any = object.__new__(Agents)
        vars(self.agents).update(
            _spark=None, _name="clicks", _agents={}, _changed=threading.Condition(),
            _gathers=threading.Lock(), _ending=threading.Event(), _looks_s=105.0,
        )  # fmt: skip

    def pass_(self, seconds: float) -> None:
        self.now_s += seconds

    def launch(self, hosts: Sequence[str], until_s: float) -> str:
        del until_s
        self.launched.append(list(hosts))
        self.now_s += 5.0
        self.agents._agents.update(dict.fromkeys(self.works & set(hosts)))
        refused = sorted(set(hosts) - self.works)
        return f"{refused[0]} has no room" if refused else ""


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    return Cluster(monkeypatch)


def test_agents_are_started_on_all_hosts_that_have_none(cluster: Cluster) -> None:
    cluster.living, cluster.works = ["b", "a", "c"], {"a", "b"}
    cluster.agents._agents["c"] = None
    cluster.agents.gather()
    assert cluster.launched == [["a", "b"]]
    assert cluster.agents.hosts == ["a", "b", "c"]
    cluster.agents.gather()
    assert len(cluster.launched) == 1, "all are there"


def test_without_any_host_it_is_said_why_after_a_minute(cluster: Cluster) -> None:
    cluster.living = ["a"]
    with pytest.raises(EngineError, match=r"no host .* slots of clicks \(a has no room\)") as gone:
        cluster.agents.gather()
    assert gone.value.transient
    assert cluster.launched == [["a"]] * 12
    cluster.living = []
    with pytest.raises(EngineError, match="its executors are gone or busy"):
        cluster.agents.gather()
    assert len(cluster.launched) == 12


def test_one_host_that_works_will_do_and_the_others_are_waited_for_less_long(
    cluster: Cluster,
) -> None:
    cluster.living, cluster.works = ["a", "b"], {"a"}
    cluster.agents._agents["a"] = None
    cluster.agents.gather()
    assert cluster.launched == [["b"]] * 2


def test_executors_that_come_late_are_waited_for(cluster: Cluster) -> None:
    cluster.works = {"a"}
    real = cluster.pass_

    def come(seconds: float) -> None:
        real(seconds)
        cluster.living = ["a"] if cluster.now_s > 130.0 else []

    agents_of.time.sleep = come
    cluster.agents.gather()
    assert (cluster.launched, cluster.agents.hosts) == ([["a"]], ["a"])


def test_a_query_that_ends_waits_for_nobody(cluster: Cluster) -> None:
    cluster.living = ["a"]
    cluster.agents._ending.set()
    with pytest.raises(EngineError):
        cluster.agents.gather()
    assert cluster.launched == []


def test_hosts_that_have_come_are_looked_for_now_and_then_beside_the_epochs(
    cluster: Cluster,
) -> None:
    cluster.living, cluster.works = ["a"], {"a"}
    cluster.agents.look()
    assert cluster.beside == [], "it is too early"
    cluster.now_s = 105.0
    with cluster.agents._gathers:
        cluster.agents.look()
    assert cluster.beside == [], "somebody gathers already"
    cluster.agents.look()
    [gather] = cluster.beside
    cluster.agents.look()
    cluster.now_s = 114.9
    cluster.agents.look()
    assert len(cluster.beside) == 1
    gather()
    assert cluster.agents.hosts == ["a"]
    cluster.now_s = 125.0
    cluster.agents.look()
    assert len(cluster.beside) == 1, "nobody is missing"
    cluster.living = ["a", "b"]
    cluster.now_s = 135.0
    cluster.agents.look()
    assert len(cluster.beside) == 2
    cluster.beside[1]()  # it fails, and is tried again later
