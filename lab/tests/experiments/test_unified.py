"""The table of the unified policy: what counts as ahead, and each workload at its smallest."""

from __future__ import annotations

import pytest

from headgate_lab.experiments.unified import exchange, fleet, join, pools, six, table
from headgate_lab.experiments.unified.beside import Beside, Measure, summary

MEASURES = (Measure("success", more=True), Measure("slots", within=0.1))


def beside(success: float, slots: float) -> Beside:
    rival = {"policy": "theirs", "success": 0.9, "slots": 8.0}
    return Beside("day", MEASURES, {"policy": "ours", "success": success, "slots": slots}, [rival])


@pytest.mark.parametrize(
    ("success", "slots", "ahead"),
    [(0.95, 8.0, True), (0.95, 8.05, True), (0.95, 8.2, False), (0.9, 6.0, False)],
)
def test_ahead_is_better_in_the_first_measure_and_behind_in_none(
    success: float, slots: float, ahead: bool
) -> None:
    assert summary([beside(success, slots)]) == {"day": ahead}


def test_a_verdict_names_what_ours_is_behind_in() -> None:
    (verdict,) = beside(0.95, 9.0).verdicts
    assert verdict["behind_in"] == ["slots"]
    assert verdict["lead_success"] == pytest.approx(0.05)
    assert verdict["lead_slots"] == -1.0


@pytest.mark.jit
@pytest.mark.slow
def test_on_tweets_ours_waits_less_than_psps_saves_as_much_and_drops_nothing() -> None:
    name = "tweets (IV, VIII, X)"
    found = pools.compare(name, pools.LOADS[name], [1])
    assert summary([found]) == {name: True}
    assert found.ours["dropped"] == 0


@pytest.mark.jit
@pytest.mark.slow
def test_on_a_join_ours_needs_fewer_slots_than_stretchs_controllers() -> None:
    found = join.compare([1], 150.0)
    assert all(found.ours["slots"] < rival["slots"] for rival in found.rivals)


@pytest.mark.thorough
@pytest.mark.jit
@pytest.mark.slow
def test_on_a_made_day_ours_satisfies_more_than_henge_with_fewer_slots() -> None:
    found = fleet.compare(None, jobs=1, days=1)
    assert [part.workload for part in found] == [
        "made days, restarts as on Storm",
        "made days, changes in place",
    ]
    assert summary(found[:1]) == {found[0].workload: True}
    assert {row["workload"] for row in table.table(found)["rows"]} == set(summary(found))


@pytest.mark.thorough
@pytest.mark.jit
@pytest.mark.slow
def test_on_the_trading_day_ours_succeeds_more_often_with_as_many_slots() -> None:
    found = exchange.compare(96.0)
    (between,) = found.rivals
    assert between["slots"] == found.ours["slots"]
    assert found.also[0]["policy"] == "streamswitch(0.2)"
    assert found.ours["success"] > between["success"]


@pytest.mark.slow
def test_six_jobs_are_served_as_well_as_by_equal_shares_and_by_henge_at_any_budget() -> None:
    rows = six.measure(seeds=1, budgets=(10, 14, 20, 28, 80))["rows"]
    for budget in (10, 14, 20, 28, 80):
        worth = {row["policy"]: row["satisfaction"] for row in rows if row["budget"] == budget}
        assert worth["oracle"] >= worth["unified-fleet"]
        assert worth["unified-fleet"] >= max(worth["equal-shares"], worth["henge"])
