"""The page of scale: a driver is measured with slots that only answer."""

from __future__ import annotations

import pytest

from headgate.core.errors import ConfigError
from headgate_lab.bench import scale


@pytest.mark.slow
def test_each_number_of_slots_has_its_figures_and_the_growth_of_each() -> None:
    found = scale.run(slots="2,6", groups_per_slot=4, changed=3, count=2)
    small, large = found["sizes"]
    assert [(one["slots"], one["key_groups"]) for one in (small, large)] == [(2, 8), (6, 24)]
    assert large["told_bytes"] > 2 * small["told_bytes"]
    # a slot's tokens stand in what it is told, in its report, and in the manifest
    for one in (small, large):
        assert one["told_bytes"] > 32 * one["key_groups"]
        assert one["report_bytes"] > 64 * 3 * one["slots"]
        assert one["manifest_bytes"] > one["key_groups"] * 32 + 3 * 64 * one["slots"]
        assert one["driver_threads"] > one["slots"]
    assert 0.8 < found["growth"]["key_groups"] <= 1.0
    assert any(line.startswith("manifest_bytes") for line in scale.lines(found))


def test_sizes_are_checked() -> None:
    with pytest.raises(ConfigError, match="as many groups as numbers of slots"):
        scale.run(slots="2,4", groups="8")
    with pytest.raises(ConfigError, match="count=1"):
        scale.run(count=1)
