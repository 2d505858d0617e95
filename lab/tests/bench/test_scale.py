"""The page of scale: a driver is measured with slots that only answer."""

from __future__ import annotations

import pytest

from headgate.core.errors import ConfigError
from headgate_lab.bench import scale


@pytest.mark.slow
def test_each_number_of_slots_has_its_figures_and_the_growth_of_each() -> None:
    found = scale.run(slots="2,6", groups_per_slot=4, changed=3, count=2, store_count=64)
    small, large = found["sizes"]
    assert [(one["slots"], one["key_groups"]) for one in (small, large)] == [(2, 8), (6, 24)]
    assert large["told_bytes"] > 2 * small["told_bytes"]
    # a slot's tokens stand in what it is told, in its report, and in the manifest
    for one in (small, large):
        assert one["told_bytes"] > 32 * one["key_groups"]
        assert one["report_bytes"] > 64 * 3 * one["slots"]
        assert one["manifest_bytes"] > one["key_groups"] * 32 + 3 * 64 * one["slots"]
        assert one["driver_threads"] > one["slots"]
        # a manifest, a note of its delivery and a deletion, whatever the number of slots; seven
        # directories are listed once in 64 epochs
        assert (one["store_put"], one["store_delete"]) == (2, 1)
        assert one["store_list"] == pytest.approx(7 / 64, abs=0.001)
        assert one["store_get"] == one["store_head"] == 0
        # a key group that changes in each epoch has a chain from its full section to its newest one
        assert one["rebuild_get"] > 1
        assert one["lost_told_bytes"] > one["told_bytes"]
    assert 0.8 < found["growth"]["key_groups"] <= 1.0
    assert any(line.startswith("manifest_bytes") for line in scale.lines(found))


@pytest.mark.slow
def test_slots_of_a_lost_host_get_places_on_the_others() -> None:
    told = list[str]()
    hosts = scale._Answering(changed=0, hosts=3)
    try:
        _, door = hosts.begin(told.append)
        door.close()
        before = hosts.places("counts", 6)
        hosts.lose_one()
        after = hosts.places("counts", 6)
    finally:
        hosts.close()
    assert told == ["the agent of host host2 has ended."]
    assert sorted(before) == sorted(2 * ["host0", "host1", "host2"])
    assert sorted(after) == sorted(3 * ["host0", "host1"])
    assert all(b in ("host2", a) for b, a in zip(before, after, strict=True))  # others keep theirs


def test_sizes_are_checked() -> None:
    with pytest.raises(ConfigError, match="as many groups as numbers of slots"):
        scale.run(slots="2,4", groups="8")
    with pytest.raises(ConfigError, match="count=1"):
        scale.run(count=1)
    with pytest.raises(ConfigError, match="store_count=0"):
        scale.run(store_count=0)


@pytest.mark.parametrize(
    ("method", "key", "act"),
    [("PUT", "a/b", "put"), ("GET", "a/b", "get"), ("GET", "", "list"), ("POST", "", "delete")],
)
def test_requests_are_told_apart(method: str, key: str, act: str) -> None:
    assert scale._act(method, key) == act
