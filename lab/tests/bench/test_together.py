"""The comparison of a control plane with doing without it, in its arithmetic; no Spark."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from headgate.control.fleet.view import FleetJob, FleetOperator, FleetView
from headgate.core.errors import ConfigError
from headgate.core.utility import Intent, Metric, Utility
from headgate_lab.bench.together import FairShare, TogetherParameters, shares

UTILITY = Utility(1.0, (Intent(Metric.JUICE, 0.5),))


def test_shares_are_of_the_maximum_in_all_and_for_each_budget():
    rounds = [
        SimpleNamespace(time_s=time_s, utility=utility, utility_max=100.0)
        for time_s, utility in ((0.5, 0.0), (1.0, 20.0), (2.0, 40.0), (3.0, 90.0))
    ]
    assert shares(rounds, 1.0, 3.0) == {"all": 0.5, "scarce": 0.3, "enough": 0.9}


def test_a_fair_share_is_the_same_for_every_job_and_even_over_its_operators():
    one = FleetJob(UTILITY, (1.0,), {"op": FleetOperator(1, 0.5, slots_max=3)})
    two = FleetJob(UTILITY, (1.0,), {"a": FleetOperator(1, 0.5), "b": FleetOperator(1, 0.5)})
    view = FleetView(0.0, {"one": one, "two": two}, slots_max=10)
    decided = FairShare().decide(view).slots
    assert decided["one"] == {"op": 3}
    assert sorted(decided["two"].values()) == [2, 3]


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"systems": "nobody"}, "systems=nobody of together"),
        ({"hosts": 1}, "hosts=1 of together is not 0, 2 or more"),
        ({"hosts": 2, "cores": 0}, "cores=0 of together is out of range"),
        ({"loses_host": True}, "loses_host of together needs hosts=2"),
    ],
)
def test_what_cannot_be_run_is_refused(given: Any, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        TogetherParameters(**given)
