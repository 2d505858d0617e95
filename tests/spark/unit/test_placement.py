"""Slots are pinned to living hosts, stay where they were, and leave the user's settings alone."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from headgate.spark.jvm.errors import JvmError
from headgate.spark.move import placement as placements
from headgate.spark.move.placement import Placement


class Cluster:
    """Hosts that come and go, and the settings of a driver."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, conf: dict[str, str]) -> None:
        self.hosts, self.conf, self.tried, self.fails = ["a", "b"], conf, 0, False
        spark: Any = SimpleNamespace(range=lambda *bounds: None)
        monkeypatch.setattr(placements, "living_hosts", lambda spark: list(self.hosts))
        monkeypatch.setattr(placements, "pinned", self.pinned)
        settings = SimpleNamespace(contains=conf.__contains__, set=conf.__setitem__)
        monkeypatch.setattr(placements, "driver_conf", lambda spark: settings)
        self.placement = Placement(spark)

    def pinned(self, frame: object, hosts: list[str]) -> Any:
        self.tried += 1
        assert hosts == ["a"]
        if self.fails:
            raise JvmError("no such class")
        return SimpleNamespace(count=lambda: 1)


@pytest.mark.parametrize(
    ("conf", "after"),
    [({}, placements._WAIT), ({placements._LOCALITY_WAIT: "9s"}, "9s")],
)
def test_tasks_wait_for_their_host_as_long_as_the_user_says_or_as_we_do(
    monkeypatch: pytest.MonkeyPatch, conf: dict[str, str], after: str
) -> None:
    cluster = Cluster(monkeypatch, conf)
    assert cluster.placement.active
    assert cluster.placement.active
    assert cluster.conf[placements._LOCALITY_WAIT] == after
    assert cluster.tried == 1  # whether it works is tried once


def test_slots_are_spread_stay_where_they_are_and_leave_a_host_that_is_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = Cluster(monkeypatch, {})
    place = cluster.placement
    assert place.hosts(4) == ["a", "b", "a", "b"]
    cluster.hosts = ["a", "b", "c"]
    assert place.hosts(5) == ["a", "b", "a", "b", "c"]
    cluster.hosts = ["a", "c"]
    assert place.hosts(5) == ["a", "c", "a", "a", "c"]
    place.renumber([1, 4])
    assert place.hosts_of(2) == ["c", "c"]


def test_on_one_host_or_where_spark_cannot_slots_go_where_spark_likes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = Cluster(monkeypatch, {})
    cluster.hosts = ["a"]
    assert (cluster.placement.hosts(2), cluster.placement.active, cluster.tried) == ([], False, 0)
    assert cluster.placement.hosts_of(2) == ["a", "a"]
    cluster.hosts, cluster.fails = ["a", "b"], True
    assert (cluster.placement.hosts(2), cluster.placement.active) == ([], False)
    assert cluster.tried == 1
    cluster.hosts = []
    assert cluster.placement.hosts_of(2) == []
