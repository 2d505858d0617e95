"""Tests which line a warning names, and that whoever gives up closes and tells what it knows."""

from __future__ import annotations

import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from noted_calls import Calls

from headgate.core.errors import ConfigError, EngineError
from headgate.spark.cluster import location
from headgate.spark.realtime import agents
from headgate.spark.realtime.plan import Branch, PipePlan
from headgate.spark.settings.kafka import KafkaTarget
from headgate.spark.sinks import kafka_writer
from headgate.spark.sinks.kafka_writer import KafkaWriter

TARGET = KafkaTarget("h:9", "out", {}, 60.0, 30.0)


@pytest.mark.parametrize(("forced", "is_forced"), [(None, False), ("TRUE", True), ("false", False)])
def test_a_temporary_place_is_told_at_the_user_s_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, forced: str | None, is_forced: bool
) -> None:
    conf = {location._FORCED: forced} if forced else {}
    session: Any = SimpleNamespace(conf=SimpleNamespace(get=conf.get))

    def mkdtemp(prefix: str) -> str:
        assert prefix == "headgate-temporary-"
        return str(tmp_path)

    monkeypatch.setattr(location, "tempfile", SimpleNamespace(mkdtemp=mkdtemp))
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        made = location.place(session, None, None, one_time=True)
    assert made == location.Place(tmp_path.resolve(), temporary=True, forced=is_forced)
    [one] = told
    assert one.filename == __file__
    assert str(one.message).startswith(
        f"the query's state lies in {tmp_path.resolve()} and goes when"
    )
    with pytest.raises(ConfigError, match=r"^a query needs a place for its state; add \.option"):
        location.place(session, None, None, one_time=False)


def test_a_writer_that_another_has_overtaken_gives_its_producer_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls = Calls(monkeypatch)
    monkeypatch.setattr(kafka_writer, "time", SimpleNamespace(monotonic=lambda: 100.0))
    monkeypatch.setattr(kafka_writer, "confluent", lambda: "client")
    writer: Any = KafkaWriter(TARGET, "8e")
    for last in (None, 2, 3):
        calls.put(kafka_writer, last_note=last)
        writer._refuse_if_another_wrote(3)
    assert calls.did == [("last_note", "client", TARGET, "headgate-8e", 130.0)] * 3
    calls.put(kafka_writer, last_note=4)
    writer._producer = calls.several(purge=None)
    with pytest.raises(
        EngineError, match=r"another driver writes .* \(step 4 is written\)"
    ) as failed:
        writer._refuse_if_another_wrote(3)
    assert failed.value.transient
    assert calls.did[-1] == ("purge", {"blocking": False})
    assert writer._producer is None


def branch(**watermarks: int) -> Branch:
    nobody: Any = None
    return Branch("a", nobody, nobody, watermarks, 0)


def test_several_sources_share_a_watermark_where_one_record_moves_it_for_all() -> None:
    one, two = branch(v=0), branch(w=1)
    least, greatest = (PipePlan((one, two), (5, 7), is_least) for is_least in (True, False))
    assert not least.shares_watermark([0, 1])
    assert greatest.shares_watermark([0, 1]), "the greatest of two is both sources'"
    both = PipePlan((one, branch(v=0)), (5,), True)
    assert both.shares_watermark([0, 1])
    assert not both.shares_watermark([3, 3])
    alone = PipePlan((one, branch()), (5,), False)
    assert not alone.shares_watermark([0, 1])
    newest_us = {0: 20_999, 1: 30_000}
    assert (least.watermark_us(newest_us), greatest.watermark_us(newest_us)) == (15_000, 23_000)
    assert (least.watermark_us({1: 30_000}), greatest.watermark_us({1: 30_000})) == (0, 23_000)
    assert PipePlan((), (), True).watermark_us({}) == 0
    assert least.watermark_us({0: 1000, 1: 1000}) == 0


class Cluster:
    """Agents whose hosts come and go with the clock."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 100.0
        self.calls = Calls(monkeypatch)
        self.living: list[list[str]] = []
        self.hosts: list[str] = []
        self.says = ""
        kind: Any = type("Made", (agents.Agents,), {"hosts": property(lambda made: self.hosts)})
        self.made: Any = object.__new__(kind)
        self.made._spark, self.made._name = "spark", "q"
        self.made._ending = SimpleNamespace(is_set=lambda: False)
        self.made._launch = self._launch
        clock = SimpleNamespace(monotonic=lambda: self.now_s, sleep=self._sleep)
        monkeypatch.setattr(agents, "time", clock)
        monkeypatch.setattr(agents, "living_hosts", lambda spark: self.living.pop(0))

    def _sleep(self, seconds: float) -> None:
        self.calls.did.append(("sleep", seconds))
        self.now_s += seconds

    def _launch(self, hosts: list[str], until_s: float) -> str:
        self.calls.did.append(("launch", hosts, until_s))
        self.hosts = [*self.hosts, *hosts]
        return self.says


def test_agents_are_started_on_hosts_that_have_none(monkeypatch: pytest.MonkeyPatch) -> None:
    of = Cluster(monkeypatch)
    of.living = [[], ["y", "x"], ["x", "y"]]
    of.made._gather()
    look = ("sleep", agents._LOOK_S)
    assert of.calls.did == [look, ("launch", ["x", "y"], 100.0 + agents._COMES_S)]
    of.calls.did.clear()
    of.living = [["x", "y", "z"], ["x"]]
    of.made._gather()
    assert of.calls.did == [("launch", ["z"], of.now_s + agents._COMES_AGAIN_S)]


def test_a_cluster_without_a_free_core_is_told_with_what_its_tasks_said(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    of = Cluster(monkeypatch)
    monkeypatch.setattr(agents, "living_hosts", lambda spark: [])
    end = "the pipe needs a free core on a host to begin there"
    with pytest.raises(
        EngineError, match=rf"^no host of the cluster can run slots of q \(its executors are gone or "
        rf"busy\); {end}\.$",
    ) as failed:  # fmt: skip
        of.made._gather()
    assert failed.value.transient
    assert set(of.calls.did) == {("sleep", agents._LOOK_S)}

    def fails(hosts: list[str], until_s: float) -> str:
        of.now_s += 40.0
        return "no memory" if of.now_s < 250.0 else ""

    of.now_s, of.made._launch = 100.0, fails
    monkeypatch.setattr(agents, "living_hosts", lambda spark: ["x"])
    with pytest.raises(EngineError, match=r"slots of q \(no memory\); the pipe needs a free core"):
        of.made._gather()
