"""A law's name says its parameters, as journals and figures print it."""

from __future__ import annotations

import pytest

from headgate.control.decorators import ActionLimit, Cooldown, Hysteresis
from headgate.control.estimators import forecast
from headgate.control.fleet.henge import Henge, HengeParameters
from headgate.control.fleet.registry import fleet_policy, in_rounds, unified
from headgate.control.fleet.unified_fleet import UnifiedFleet, UnifiedFleetParameters
from headgate.control.fleet.view import FleetJob
from headgate.control.pools.psps import Psps
from headgate.control.pools.unified_pools import UnifiedPools
from headgate.control.registry import policy, replica_policy
from headgate.control.slots.hindsight.rules import Rule
from headgate.control.slots.projection import pressure, projected_latency_s
from headgate.control.slots.static import Static
from headgate.control.slots.streamswitch import StreamSwitch
from headgate.control.slots.threshold import Threshold
from headgate.control.slots.unified import Unified
from headgate.core.utility import Intent, Metric, Utility

NAMES = [
    (Static(3), "static(3)"),
    (Static(), "static"),
    (StreamSwitch(), "streamswitch(0.2)"),
    (StreamSwitch(0.1, steps=2), "streamswitch(0.1, steps=2)"),
    (StreamSwitch(0.1, split=0, alert_s=0.5), "streamswitch(0.1, split=0, alert_s=0.5)"),
    (Threshold(), "threshold(0.9, 0.7, 0.45)"),
    (Unified(), "unified(0.1)"),
    (Unified(0.2, goal=0.9), "unified(0.2, goal=0.9)"),
    (Unified(0.2, 3.0, even=1), "unified(0.2, 3, even)"),
    (UnifiedPools(0.5), "unified-pools(0.5)"),
    (UnifiedFleet(), "unified-fleet(0.4, 120)"),
    (UnifiedFleet(UnifiedFleetParameters(0.1, 5.0)), "unified-fleet(0.1, 5)"),
    (Henge(HengeParameters()), "henge"),
    (fleet_policy("henge", 10.0, goal="max-min"), "henge"),
    (Psps(), "psps(naive)"),
    (Psps(forecast.Smoothed(0.3)), "psps(smoothed(0.3))"),
    (replica_policy("psps(blend=1)"), "psps(blend(naive, smoothed(0.6), smoothed(0.35)))"),
    (
        replica_policy("psps(season=5)"),
        "psps(blend(naive, smoothed(0.6), smoothed(0.35), holt-winters(5)))",
    ),
    (replica_policy("unified-pools"), "unified-pools(1)"),
    (policy("threshold"), "threshold(0.9, 0.7, 0.45)"),
    (policy("static(2)"), "static(2)"),
]


@pytest.mark.parametrize(("law", "name"), NAMES, ids=[name for _, name in NAMES])
def test_a_law_says_its_name(law: object, name: str) -> None:
    found = law.name  # type: ignore[attr-defined]
    assert found == name or (name == "henge" and found.startswith("henge"))


def test_limits_around_a_law_are_named_behind_it() -> None:
    inner = Static(2)
    for limited, parameter in (
        (Hysteresis(inner, 3), "hysteresis=3"),
        (Cooldown(inner, 7.5), "cooldown_s=7.5"),
        (ActionLimit(inner, 4), "per_minute=4"),
    ):
        assert limited.parameter == parameter
        assert parameter in limited.name
        assert limited.name.startswith("static(2")


def test_a_policys_text_gives_its_parameters_and_its_limits() -> None:
    found = policy("streamswitch(0.3, steps=2, cooldown_s=5, hysteresis=2, per_minute=6)")
    for part in ("streamswitch(0.3, steps=2", "hysteresis=2", "cooldown_s=5", "per_minute=6"):
        assert part in found.name
    assert policy(found.name).name == found.name


def test_a_rule_follows_the_first_signal_and_spares_nothing_unless_it_says_so() -> None:
    plain = Rule()
    assert (plain.constant, plain.signal, plain.spare, plain.base) == (0, 0, 0.0, 0)
    assert (plain.rung, plain.lean) == (1.0, False)
    assert str(plain) == "what half the bound needs and 0% more"
    assert str(Rule(constant=3, lean=True)) == (
        "3 slots, more only if that is less than what comes, added late"
    )


def test_a_job_with_several_latencies_is_held_to_the_tightest() -> None:
    intents = tuple(Intent(Metric.LATENCY, at_s) for at_s in (2.0, 0.5, 1.0))
    job = FleetJob(Utility(1.0, (*intents, Intent(Metric.JUICE, 0.9))), None, {})
    fleet = UnifiedFleet()
    assert fleet._bound(job, (0.1, 0.2, 0.3, 1.0)) == (0.5, 0.2)
    bare = FleetJob(Utility(1.0, (Intent(Metric.JUICE, 0.9),)), None, {})
    assert fleet._bound(bare, (1.0,)) == (1.0, 0.0)


def test_a_fleets_henge_counts_in_rounds_and_blames_nobody_for_falling() -> None:
    """Henge's times are those of rounds of 10 s; with rounds of 2 s all of them are a fifth."""
    ten, two = in_rounds(10.0), in_rounds(2.0)
    times = ("round_s", "observe_s", "fresh_s", "settle_s", "settle_max_s", "blacklist_s")
    assert [getattr(ten, name) for name in times] == [
        pytest.approx(5 * getattr(two, name)) for name in times
    ]
    paper = HengeParameters()
    assert [getattr(ten, name) for name in times] == [getattr(paper, name) for name in times]
    assert (ten.blame_falling, paper.blame_falling) == (False, True)
    assert in_rounds(10.0, observe_s=7.0).observe_s == 7.0
    assert in_rounds(10.0, gain=0.5).gain == 0.5
    law, usual = unified(10.0)._p, UnifiedFleetParameters()
    same = ("ahead_s", "look_back_s", "observe_s", "settle_s", "catch_up_s", "bound_s")
    assert [getattr(law, name) for name in same] == [getattr(usual, name) for name in same]
    assert (law.epsilon, law.kept) == (0.1, 1)


def test_without_a_margin_all_of_a_service_rate_may_be_used() -> None:
    assert float(pressure(60.0, 100.0)) == -40.0
    assert float(pressure(60.0, 100.0, 0.25)) == -15.0
    assert float(pressure(150.0, 100.0)) == 1.5
    assert float(projected_latency_s(60.0, 100.0)) == 1.0 / 40.0
