"""Fleet policies by name, with their times in rounds."""

from __future__ import annotations

import pytest

from headgate.control.fleet import registry as fleet_registry
from headgate.control.fleet.henge import HengeParameters
from headgate.control.fleet.registry import fleet_policy
from headgate.control.fleet.unified_fleet import UnifiedFleetParameters
from headgate.control.fleet.view import FleetJob, FleetOperator, FleetView
from headgate.core.errors import ConfigError
from headgate.core.utility import Intent, Metric, Utility


@pytest.mark.parametrize("name", fleet_registry.names())
def test_a_job_that_is_late_gets_slots_from_whoever_gives_any(name: str) -> None:
    """Ten records/s and slot, and 15 arrive; of one job equal shares are all that there is."""
    policy = fleet_policy(name, 1.0, observe_s=0.0)
    late = FleetJob(
        Utility(35.0, (Intent(Metric.LATENCY, 0.5),)),
        (5.0,),
        {"counts": FleetOperator(1, 1.0, backlog_s=5.0)},
        15.0,
    )
    decisions = [policy.decide(FleetView(t, {"late": late}, 8)) for t in (0.0, 1.0, 2.0)]
    assert any(decisions)


def test_rounds_of_ten_seconds_give_the_papers_own_times() -> None:
    ours, papers = fleet_registry.in_rounds(10.0), HengeParameters()
    times = [name for name in vars(papers) if name.endswith("_s")]
    assert [getattr(ours, name) for name in times] == [getattr(papers, name) for name in times]
    assert fleet_registry.unified(10.0, epsilon=0.4, kept=2)._p == UnifiedFleetParameters()


def test_shorter_rounds_shorten_all_times_but_bounds() -> None:
    ours, papers = fleet_registry.unified(1.0)._p, UnifiedFleetParameters()
    for name in ("ahead_s", "look_back_s", "observe_s", "settle_s", "catch_up_s"):
        assert getattr(ours, name) == getattr(papers, name) / 10.0
    assert ours.bound_s == papers.bound_s


def test_a_name_that_nobody_has_is_refused_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r'unknown fleet policy "unifed"; did you mean "unified"'):
        fleet_policy("unifed", 1.0)


def test_where_changes_are_free_a_job_gives_back_all_that_it_does_not_need() -> None:
    """Both need 3 slots for 25 records/s at 10 per slot; the first was given 6 to catch up."""
    policy = fleet_policy("unified", 1.0, observe_s=1.0)

    def job(slots: int, waiting_s: float) -> FleetJob:
        busy = min(1.0, 2.5 / slots)
        operators = {"counts": FleetOperator(slots, busy, backlog_s=waiting_s, slots_max=16)}
        return FleetJob(
            Utility(35.0, (Intent(Metric.LATENCY, 5.0),)), (0.5,), operators, input_rate=25.0
        )

    def seen(time_s: float, waiting_s: float) -> FleetView:
        return FleetView(time_s, {"first": job(6, 0.0), "second": job(1, waiting_s)}, 7)

    assert not policy.decide(seen(0.0, 3.5))
    decision = policy.decide(seen(1.0, 5.0))
    slots = {name: changed["counts"] for name, changed in decision.slots.items()}
    assert slots == {"first": 3, "second": 4}
